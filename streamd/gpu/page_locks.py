"""Page locks on the rows of an arena that a GPU reads; they are released before the memory of the
arena."""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

LOCK_BYTES = 64 * 2**20
"""Size of the pieces in which memory is page-locked, when it is first used."""


class Pages(Protocol):
    """Page-locks host memory for the GPU."""

    def lock(self, address: int, size: int) -> None:
        """Raises: DeviceMemoryError if the system locks no more memory, DeviceError if the GPU
        cannot read locked memory."""

    def unlock(self, addresses: Sequence[int]) -> None:
        """Unlock pieces by their addresses, after all kernels that read them."""


class LockedArray:
    """The page locks on the first rows of an arena's array, made piece by piece. Owner: its
    `Mirror`.

    They are released when this object is collected, while the arena is still mapped. If memory were
    unmapped first, it would stay locked, and a later arena at the same address could not be locked.
    """

    def __init__(self, array: NDArray[Any], pages: Pages) -> None:
        self._base = int(array.ctypes.data)
        self._pages = pages
        # Addresses of the locked pieces, without gaps.
        self._pieces: list[int] = []
        # The finalizer refers to the array, which keeps the mapping. At the end of the process the
        # driver itself releases the locks.
        end: Any = weakref.finalize(self, _unlock, pages, self._pieces, array)
        end.atexit = False

    def lock(self, num_bytes: int) -> None:
        """Lock the first `num_bytes`, up to the end of the last piece. Raises: as `Pages.lock`;
        pieces that were locked stay locked."""
        while len(self._pieces) * LOCK_BYTES < num_bytes:
            address = self._base + len(self._pieces) * LOCK_BYTES
            self._pages.lock(address, LOCK_BYTES)
            self._pieces.append(address)

    def unlock(self) -> None:
        """Unlock all of it."""
        _unlock(self._pages, self._pieces, None)


def _unlock(pages: Pages, pieces: list[int], _: NDArray[Any] | None) -> None:
    if pieces:
        pages.unlock(pieces)
        pieces.clear()
