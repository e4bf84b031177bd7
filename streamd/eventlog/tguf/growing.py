"""Arrays that grow by a few values at a time, at a cost that depends only on the new values."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.events import Bools, Int64


class GrowingArray:
    """An array with capacity that doubles: n appended values cost O(n) in all."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._room: NDArray[Any] = np.zeros(0, dtype)
        self._size = 0

    @property
    def values(self) -> NDArray[Any]:
        """All values so far; later appends do not change this view."""
        return self._room[: self._size]

    def append(self, values: NDArray[Any]) -> None:
        end = self._size + len(values)
        if end > len(self._room):
            grown = np.zeros(max(end, 2 * len(self._room)), self._room.dtype)
            grown[: self._size] = self.values
            self._room = grown
        self._room[self._size : end] = values
        self._size = end

    def truncate(self, size: int) -> None:
        """Drop the values after the first `size`; later appends use their room."""
        self._size = size


class SortedRuns:
    """Values by integer keys: n of them cost O(n log n) in all, even if few come at a time.

    They are kept in sorted runs, each at least twice as long as the next. So there are few runs,
    and a value moves to a longer run only each time its run has doubled.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64, Int64]] = []

    def add(self, keys: Int64, values: Int64) -> None:
        """Add values, int64 in any order, each with the key of the same index."""
        if not len(keys):
            return
        while self._runs and len(self._runs[-1][0]) < 2 * len(keys):
            more = self._runs.pop()
            keys = np.concatenate([more[0], keys])
            values = np.concatenate([more[1], values])
        # A stable sort of sorted runs merges them.
        order = np.argsort(keys, kind="stable")
        self._runs.append((keys[order], values[order]))

    def holds(self, keys: Int64) -> Bools:
        """Whether each number is a key: bool of the same shape."""
        held = np.zeros(keys.shape, np.bool_)
        for run, _ in self._runs:
            held |= places_in(run, keys) >= 0
        return held

    def between(self, first: int, end: int) -> Int64:
        """The values with keys in [first, end), run by run."""
        out = [np.zeros(0, np.int64)]
        for run, values in self._runs:
            a, b = np.searchsorted(run, [first, end])
            out.append(values[a:b])
        return np.concatenate(out)

    def under(self, keys: Int64) -> tuple[Int64, Int64]:
        """Find all values of some distinct keys.

        Returns: the values, and for each the index of its key.
        """
        found = [np.zeros(0, np.int64)]
        index = [np.zeros(0, np.int64)]
        for run, values in self._runs:
            at, of = spread(np.searchsorted(run, keys), np.searchsorted(run, keys, side="right"))
            found.append(values[at])
            index.append(of)
        return np.concatenate(found), np.concatenate(index)


def places_in(ascending: Int64, values: Int64) -> Int64:
    """Index of each value in an ascending array, -1 if it is absent: int64, same shape."""
    if not len(ascending):
        return np.full(values.shape, -1, np.int64)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    places: Int64 = np.where(ascending[at] == values, at, -1)
    return places


def spread(first_R: Int64, end_R: Int64) -> tuple[Int64, Int64]:
    """Concatenate the numbers of R ranges [first, end). Returns also the index of each number's
    range."""
    count_R = end_R - first_R
    of = np.repeat(np.arange(len(first_R)), count_R)
    before = np.cumsum(count_R) - count_R
    return np.arange(len(of)) + (first_R - before)[of], of
