"""Page locks on the rows of an arena that a GPU reads: they end before the arena's memory does."""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

LOCK_BYTES = 64 * 2**20
"""Memory is page-locked in pieces of this many bytes, as it comes to be used."""


class Pages(Protocol):
    """Who page-locks host memory for the GPU."""

    def lock(self, address: int, size: int) -> None:
        """Raises: DeviceMemoryError where the system locks no more, DeviceError where the GPU
        cannot read what is locked."""

    def unlock(self, addresses: Sequence[int]) -> None:
        """Unlock pieces by their addresses, once no kernel reads them any more."""


class LockedArray:
    """The first rows of an arena's array, page-locked piece by piece. Owner: its `Mirror`.

    They are unlocked when this object goes, while the arena is still mapped: memory that is
    unmapped first stays locked, and an arena that gets the same address later cannot be locked.
    """

    def __init__(self, array: NDArray[Any], pages: Pages) -> None:
        self._base = int(array.ctypes.data)
        self._pages = pages
        # Addresses of the pieces that are locked, without gaps.
        self._pieces: list[int] = []
        # It refers to the array, which keeps the mapping. At the process's end the driver unlocks.
        end: Any = weakref.finalize(self, _unlock, pages, self._pieces, array)
        end.atexit = False

    def lock(self, num_bytes: int) -> None:
        """Lock the first `num_bytes`, and the rest of the piece they end in. Raises: as
        `Pages.lock`; what was locked stays."""
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
