"""Remove from an environment what no role reads: python trim_packages.py /opt/streamd.

Kept on purpose: compiled Python (`__pycache__`), which a read-only root could not make again; type stubs and licences, which are small;
headers of cupy and of NVIDIA's packages, from which a GPU's kernels are compiled at the first start.
"""

import shutil
import sys
from pathlib import Path

UNREAD = (
    "torch/include",  # to compile extensions of torch
    "torch/share",  # to find torch by CMake
    "torch/test",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "pyarrow/include",  # to compile extensions of pyarrow
    "pyarrow/src",
    "pyarrow/_pyarrow_cpp_tests*",
    "**/tests",  # of all packages
    "**/*.a",  # to link statically
)


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in [path, *path.rglob("*")] if p.is_file() and not p.is_symlink())


def main(environment: Path) -> None:
    packages, = environment.glob("lib/python3*/site-packages")
    freed = 0
    for pattern in UNREAD:
        for path in list(packages.glob(pattern)):
            # It may have been inside another one, as tests of tests.
            if not path.exists():
                continue
            freed += size_of(path)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    print(f"{freed / 1e6:.0f} MB removed, {size_of(environment) / 1e6:.0f} MB kept")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
