"""Decides which records of the changelog count: those of the term in force, with the next commit in
order."""

from enum import Enum, auto

from streamd.errors import DivergedError
from streamd.eventlog.log_files import MAX_IN_FLIGHT
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import (
    Claim,
    Heartbeat,
    Read,
    Record,
    Stray,
    count_stray,
)

UNCLAIMED = 1
"""The term of leaders that made no claim, as those of the release before: a changelog begins in
it."""


class Verdict(Enum):
    """What becomes of a record."""

    LEADS = auto()
    """It is the first claim of the next term: from here on that term is in force."""
    ALIVE = auto()
    """It is a heartbeat of the leader."""
    KNOWN = auto()
    """It is of a commit that is whole already."""
    FIRST = auto()
    """It begins the next commit; one that was begun and not finished is dropped."""
    NEXT = auto()
    """It goes on with the commit that was begun."""
    VOID = auto()
    """It is ignored: a record of a deposed leader, a claim that lost, a commit after one that the
    broker refused (so that its leader ended), or a stray."""


class Admission:
    """Judges records in order of offsets. Owner: who applies them.

    term: the one in force, whose claim was read. seq: the newest commit that is whole.
    """

    def __init__(self, term: int, seq: int) -> None:
        """term, seq: what holds where the reading begins."""
        self.term = max(term, UNCLAIMED)
        self.seq = seq
        self._next_part = 0
        self._begun: Record | None = None
        self._has_damaged = False
        """Whether a stray that may be a commit follows the newest whole one: the broker did not
        refuse it. Any other stray says nothing, and may precede commits that are void."""

    @property
    def has_begun(self) -> bool:
        """Whether a commit was begun and is not whole."""
        return self._next_part > 0

    def judge(self, entry: Read) -> Verdict:
        """Judge the next record. Raises: OutOfRange if commits before it are missing, DivergedError
        if a claim is. The checksum of a value is checked later, when the record is decoded."""
        if isinstance(entry, Stray):
            self._has_damaged |= entry.may_be_commit
            return Verdict.VOID
        if isinstance(entry, Claim):
            return self._judge_claim(entry)
        if entry.term > self.term:
            if not entry.is_whole:
                return self._pass_stray(entry)
            raise _unclaimed(entry)
        if entry.term < self.term:
            return Verdict.VOID
        return Verdict.ALIVE if isinstance(entry, Heartbeat) else self._judge_commit(entry)

    def _judge_claim(self, claim: Claim) -> Verdict:
        if claim.term <= self.term:
            return Verdict.VOID
        if claim.term > self.term + 1:
            raise _unclaimed(claim)
        if claim.seq > self.seq:
            raise missing(self.seq, claim.seq + 1)
        # Whatever a deposed leader has not finished, nobody else will.
        self.term = claim.term
        self._next_part = 0
        self._has_damaged = False
        return Verdict.LEADS

    def _judge_commit(self, record: Record) -> Verdict:
        if record.seq <= self.seq:
            return Verdict.KNOWN
        if record.seq != self.seq + 1:
            # The broker refused one of several that were on their way, and took those behind it.
            if not record.is_whole:
                return self._pass_stray(record)
            # Without a claim, a log that is older than its changelog begins with any number.
            begins_later = self.seq == 0 and self.term == UNCLAIMED
            if record.seq - self.seq > MAX_IN_FLIGHT or begins_later or self._has_damaged:
                raise missing(self.seq, record.seq)
            return Verdict.VOID
        self._has_damaged = False
        begun = self._begun if self._next_part else None
        if record.part == 0:
            # One that came twice must not undo the parts behind it.
            if begun is not None and begun.headers() == record.headers():
                return Verdict.VOID
            self._begun = record._replace(value=b"")
            self._next_part = 1
        else:
            # Without claims, parts of two leaders may lie between each other.
            is_same = begun is not None and (begun.line, begun.parts) == (record.line, record.parts)
            if record.part != self._next_part or not is_same:
                return Verdict.VOID
            self._next_part += 1
        if record.is_last:
            self.go_on_behind(record.seq)
        return Verdict.FIRST if record.part == 0 else Verdict.NEXT

    def _pass_stray(self, entry: Read) -> Verdict:
        """Skip a record with a wrong checksum that does not have the next number."""
        count_stray(entry.offset, "its value differs from its checksum")
        return Verdict.VOID

    def go_on_behind(self, seq: int) -> None:
        """Say that commit `seq` is whole, as far as the changelog need have it."""
        self.seq = seq
        self._next_part = 0


def missing(seq: int, following: int) -> OutOfRange:
    """What to raise where the commits between `seq` and `following` are not in the changelog."""
    return OutOfRange(
        f"the log here ends with commit {seq}, the changelog goes on with {following}"
    )


def _unclaimed(entry: Read) -> DivergedError:
    return DivergedError(
        f"The record at offset {entry.offset} of the changelog is of term {entry.term}, whose "
        "claim was not there when what lies before was read here: the changelog lost records.",
        "keep the directory aside, and start here with an empty one.",
    )
