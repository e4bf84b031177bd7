"""docs/library.md: its lines run as they stand, and learn."""

import re
from pathlib import Path

import numpy as np
import torch

from tests.builders import stream

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()


def test_the_lines_of_the_page_train_a_model_on_a_graph_that_grows():
    code, = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    src, dst, time = stream(2000)
    names = {"src": src, "dst": dst, "time": time, "features": np.eye(4, dtype=np.float32)[dst % 4]}
    torch.set_num_threads(1)
    exec(compile(code, "docs/library.md", "exec"), names)
    assert names["graph"].next_event == 2000 and len(names["losses"]) == 20
    assert np.mean(names["losses"][-5:]) < 0.8 * np.mean(names["losses"][:5])
    assert len(names["cache"].ids), "edges that were sampled are kept"
