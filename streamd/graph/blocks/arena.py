"""Arrays with reserved address space: the system allocates a page at its first write, so an array
grows without a copy."""

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux's flag; Python's `mmap` has it since 3.13."""
SMALL_BYTES = 2**22
"""Bytes of an arena's first part, which has small pages, so that an arena with few rows takes
little memory. The rest has huge pages of 2 MB."""


class Arena:
    """An array of zeros in a sparse anonymous mapping: only rows that were written take memory.

    array: of the given shape and dtype.
    """

    def __init__(self, dtype: DTypeLike, *shape: int, huge_pages: bool = True) -> None:
        """huge_pages: use pages of 2 MB; small pages suit rows that are written far apart."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape))

        # mmap refuses an empty mapping, so an empty array maps one byte.
        self._map = mmap.mmap(
            -1,
            max(count * kind.itemsize, 1),
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE,
        )
        if huge_pages and len(self._map) > SMALL_BYTES:
            with contextlib.suppress(OSError):  # a kernel without huge pages is slower, not wrong
                self._map.madvise(mmap.MADV_HUGEPAGE, SMALL_BYTES, len(self._map) - SMALL_BYTES)
        self.array: NDArray[Any] = np.frombuffer(self._map, kind, count).reshape(shape)
        self.row_bytes = self.array[:1].nbytes

    def release(self, first: int, end: int) -> int:
        """Free the pages that are completely within rows [first, end); they read as zeros
        afterwards. Returns: freed bytes."""

        # Only whole pages can be freed: round inwards, so that no row outside the range is lost.
        start = -(-first * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = end * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop <= start:
            return 0
        self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)
        return stop - start
