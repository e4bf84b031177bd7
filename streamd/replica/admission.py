"""Decides which records of the changelog count: those of the highest term so far, with the next
commit in order."""

from enum import Enum, auto

from streamd.replica.changelog import OutOfRange
from streamd.replica.records import Record
from streamd.segments.log_files import MAX_IN_FLIGHT


class Verdict(Enum):
    """What becomes of a record."""

    KNOWN = auto()
    """It is of a commit that is whole already. The first record of a number counts: another line
    behind it is of a leader that lost, or of a killed process that published it twice."""
    FIRST = auto()
    """It begins the next commit; one that was begun and not finished is dropped."""
    NEXT = auto()
    """It goes on with the commit that was begun."""
    AHEAD = auto()
    """A commit before it is missing. It counts for nothing where the missing one follows: the
    broker refused that one of several that were on their way, and took those behind it."""
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
        self._begun: Record | None = None

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
            if not 0 < record.seq - self.seq <= MAX_IN_FLIGHT or self.seq == 0:
                raise missing_before(record, self.seq)
            return Verdict.AHEAD
        begun = self._begun if self._next_part else None
        if record.part == 0:
            # One that came twice must not undo the parts behind it.
            if begun is not None and begun.headers() == record.headers():
                return Verdict.PASSED_OVER
            self._begun = record._replace(value=b"")
            self._next_part = 1
            return Verdict.FIRST
        # Parts of two leaders may lie between each other.
        is_same = begun is not None and (begun.line, begun.parts) == (record.line, record.parts)
        if record.part != self._next_part or not is_same:
            return Verdict.PASSED_OVER
        self._next_part += 1
        return Verdict.NEXT

    def taken(self, seq: int) -> None:
        """Say that a commit is whole."""
        self.seq = seq
        self._next_part = 0


def missing_before(record: Record, seq: int) -> OutOfRange:
    """What to raise where the commits between `seq` and a record's do not come."""
    return OutOfRange(
        f"the log here ends with commit {seq}, the changelog goes on with {record.seq}"
    )
