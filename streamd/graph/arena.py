"""Arrays whose address space is reserved once: pages are taken when first written, so growing copies nothing."""

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's flag; Python names it only since 3.13."""


def reserve(dtype: DTypeLike, *shape: int) -> NDArray[Any]:
    """A zeroed array of `shape` backed by a sparse anonymous mapping; only rows that are written cost memory."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    mapping = mmap.mmap(-1, max(count * kind.itemsize, 1),
                        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return np.frombuffer(mapping, kind, count).reshape(shape)
