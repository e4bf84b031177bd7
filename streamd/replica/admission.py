"""Decides which records of the changelog count: those of the highest term so far, with the next
commit in order."""

from enum import Enum, auto

from streamd.replica.changelog import OutOfRange
from streamd.replica.records import Record


class Verdict(Enum):
    """What becomes of a record."""

    KNOWN = auto()
    """It is of a commit that is here already: the checksums of the lines must agree."""
    FIRST = auto()
    """It begins the next commit; one that was begun and not finished is dropped."""
    NEXT = auto()
    """It goes on with the commit that was begun."""
    PASSED_OVER = auto()
    """It counts for nothing: of a leader that was deposed, or of a killed process's commit that was
    published again."""


class Admission:
    """Judges records in order of offsets. Owner: who applies them.

    term: the highest so far. seq: the newest commit that is whole.
    """

    def __init__(self, term: int, seq: int) -> None:
        self.term = term
        self.seq = seq
        self._next_part = 0

    def judge(self, record: Record) -> Verdict:
        """Judge the next record. Raises: OutOfRange where commits before it are missing."""
        if record.term < self.term:
            return Verdict.PASSED_OVER
        if record.term > self.term:
            # Whatever a deposed leader has not finished, nobody else will.
            self.term = record.term
            self._next_part = 0
        if record.seq <= self.seq:
            return Verdict.KNOWN
        if record.seq != self.seq + 1:
            raise OutOfRange(
                f"the log here ends with commit {self.seq}, the changelog goes on with {record.seq}"
            )
        if record.part == 0:
            self._next_part = 1
            return Verdict.FIRST
        if record.part != self._next_part:
            return Verdict.PASSED_OVER
        self._next_part += 1
        return Verdict.NEXT

    def taken(self, seq: int) -> None:
        """Say that a commit is whole."""
        self.seq = seq
        self._next_part = 0
