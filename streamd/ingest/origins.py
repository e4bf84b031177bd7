"""Keys and timestamps of records whose events are not in the log yet, for the dead letters that
some may become."""

import operator
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

Origin = tuple[int, bytes | None, int]
"""Offset, key, and timestamp in milliseconds (-1 for none) of a record: a plain tuple, since each
record costs one."""
_origin = operator.attrgetter("offset", "key", "timestamp")


class Origins:
    """The origins of one partition, in order of offset. Owner: the poll thread."""

    def __init__(self) -> None:
        self._polls: deque[list[Origin]] = deque()

    def add(self, records: Sequence[Any]) -> None:
        """Remember the records of one poll, which lie behind those before."""
        self._polls.append(list(map(_origin, records)))

    def of(self, offset: int) -> tuple[bytes | None, int]:
        """Key and timestamp of a record that was added and not forgotten."""
        for poll in reversed(self._polls):
            if poll[0][0] <= offset:
                _, key, timestamp_ms = poll[bisect_left(poll, offset, key=operator.itemgetter(0))]
                return key, timestamp_ms
        raise AssertionError(f"record {offset} was forgotten")

    def forget(self, offset: int) -> None:
        """Drop the polls that end before an offset."""
        while self._polls and self._polls[0][-1][0] < offset:
            self._polls.popleft()
