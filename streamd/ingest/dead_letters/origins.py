"""Keys and timestamps of records with events that are not in the log yet.

An event that is refused late, in the merge or the commit, needs those of its record for its dead
letter.
"""

import operator
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

Origin = tuple[int, bytes | None, int]
"""Offset, key, and timestamp in milliseconds (-1 for none) of a record. A plain tuple is cheap:
there is one for each record."""
_origin = operator.attrgetter("offset", "key", "timestamp")


class Origins:
    """Keeps the origins of one partition in order of offset. Owner: the poll thread."""

    def __init__(self) -> None:
        self._polls: deque[list[Origin]] = deque()

    def add(self, records: Sequence[Any]) -> None:
        """Remember the records of one poll, whose offsets are greater than all before."""
        self._polls.append(list(map(_origin, records)))

    def of(self, offset: int) -> tuple[bytes | None, int]:
        """The key and timestamp of a record that was added and not forgotten."""
        # Newest poll first: most letters are of the records that were just decoded.
        for poll in reversed(self._polls):
            if poll[0][0] <= offset:
                _, key, timestamp_ms = poll[bisect_left(poll, offset, key=operator.itemgetter(0))]
                return key, timestamp_ms
        raise AssertionError(f"record {offset} was forgotten")

    def forget(self, offset: int) -> None:
        """Drop the polls whose records are all before an offset."""
        while self._polls and self._polls[0][-1][0] < offset:
            self._polls.popleft()
