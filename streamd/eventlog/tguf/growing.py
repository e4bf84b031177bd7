"""Arrays that grow by a few values at a time, at a cost that depends on those few."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamd.events import Bools, Int64


class GrowingArray:
    """Values behind one another, in room that doubles: n of them cost n in all."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._room: NDArray[Any] = np.zeros(0, dtype)
        self._size = 0

    @property
    def values(self) -> NDArray[Any]:
        """All values so far; what is appended later does not show in it."""
        return self._room[: self._size]

    def append(self, values: NDArray[Any]) -> None:
        end = self._size + len(values)
        if end > len(self._room):
            grown = np.zeros(max(end, 2 * len(self._room)), self._room.dtype)
            grown[: self._size] = self.values
            self._room = grown
        self._room[self._size : end] = values
        self._size = end


class SortedRuns:
    """Numbers by which others are found: n of them cost n log n in all, however few come at once.

    They lie in sorted runs, each at least twice as long as the next, so that there are few runs
    and a number moves to a longer one only every time its run has doubled.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Int64, Int64]] = []

    def add(self, keys: Int64, values: Int64) -> None:
        """Add values, int64 of any order, each under the key at its place."""
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
        """The values under the keys [first, end), run by run."""
        out = [np.zeros(0, np.int64)]
        for run, values in self._runs:
            a, b = np.searchsorted(run, [first, end])
            out.append(values[a:b])
        return np.concatenate(out)

    def under(self, keys: Int64) -> tuple[Int64, Int64]:
        """Find all values under any of the keys, which are distinct.

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
    """Index of each value in an ascending array, -1 where it is not there: int64, same shape."""
    if not len(ascending):
        return np.full(values.shape, -1, np.int64)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    places: Int64 = np.where(ascending[at] == values, at, -1)
    return places


def spread(first_R: Int64, end_R: Int64) -> tuple[Int64, Int64]:
    """The numbers of R ranges [first, end) behind one another, and the index of each one's
    range."""
    count_R = end_R - first_R
    of = np.repeat(np.arange(len(first_R)), count_R)
    before = np.cumsum(count_R) - count_R
    return np.arange(len(of)) + (first_R - before)[of], of
