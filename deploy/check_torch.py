"""Stop the build of the cpu image where pip would take a torch for CUDA: gigabytes that nobody there uses."""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1]).read_text())
cuda = [p for p in (i["metadata"]["name"] for i in report["install"]) if p.startswith(("nvidia-", "cuda-"))]
if cuda:
    sys.exit(f"The package index has torch for CUDA alone here (with {', '.join(cuda)}). Operator action: build with "
             "TORCH_INDEX, an index of torch for the CPU; PyTorch's page on how to install it names one.")
