"""Decides which records of the changelog count: those of the current term, with the next commit in
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
"""The term of leaders that appended no claim, as those of the release before. A changelog starts in
this term."""


class Verdict(Enum):
    """How a record is handled."""

    LEADS = auto()
    """The first claim of the next term, which becomes the current term."""
    ALIVE = auto()
    """A heartbeat of the leader."""
    KNOWN = auto()
    """Part of a commit that is complete already."""
    FIRST = auto()
    """The first part of the next commit. An incomplete commit before it is dropped."""
    NEXT = auto()
    """The next part of the incomplete commit."""
    VOID = auto()
    """Ignored: a record of a deposed leader, a claim that lost, a commit after one that the broker
    refused (so that its leader ended), a part out of order, or a stray."""


class Admission:
    """Judges records in order of offsets. Owner: the reader that applies them.

    term: the current term, as claimed before the next record. seq: the newest complete commit.
    """

    def __init__(self, term: int, seq: int) -> None:
        """term, seq: at the offset at which reading starts."""
        self.term = max(term, UNCLAIMED)
        self.seq = seq
        self._next_part = 0
        self._begun: Record | None = None
        self._has_damaged = False
        """Whether a stray that may be a commit follows the newest complete commit: then the next
        commit is perhaps damaged, and was not refused by the broker. Any other stray proves
        nothing, and may precede commits that are ignored."""

    @property
    def has_begun(self) -> bool:
        """Whether a commit was begun and is incomplete."""
        return self._next_part > 0

    def judge(self, entry: Read) -> Verdict:
        """Judge the next record. The checksum of a value is checked later, when the record is
        decoded. Raises: OutOfRange if commits before it are missing, DivergedError if a claim
        is."""
        if isinstance(entry, Stray):
            self._has_damaged |= entry.may_be_commit
            return Verdict.VOID
        if isinstance(entry, Claim):
            return self._judge_claim(entry)
        if entry.term > self.term:
            if not entry.is_whole:
                return self._pass_stray(entry)
            raise _unclaimed_error(entry)
        if entry.term < self.term:
            return Verdict.VOID
        return Verdict.ALIVE if isinstance(entry, Heartbeat) else self._judge_commit(entry)

    def _judge_claim(self, claim: Claim) -> Verdict:
        if claim.term <= self.term:
            return Verdict.VOID
        if claim.term > self.term + 1:
            raise _unclaimed_error(claim)
        if claim.seq > self.seq:
            raise missing(self.seq, claim.seq + 1)
        # No other leader completes a commit that a deposed leader has begun.
        self.term = claim.term
        self._next_part = 0
        self._has_damaged = False
        return Verdict.LEADS

    def _judge_commit(self, record: Record) -> Verdict:
        if record.seq <= self.seq:
            return Verdict.KNOWN
        if record.seq != self.seq + 1:
            # Perhaps the broker refused one of several commits in flight, and stored the later
            # ones.
            if not record.is_whole:
                return self._pass_stray(record)
            # Without a claim, the changelog of an older log may start with any commit.
            begins_later = self.seq == 0 and self.term == UNCLAIMED
            if record.seq - self.seq > MAX_IN_FLIGHT or begins_later or self._has_damaged:
                raise missing(self.seq, record.seq)
            return Verdict.VOID
        self._has_damaged = False
        begun = self._begun if self._next_part else None
        if record.part == 0:
            # A repeated first part must not discard the parts after it.
            if begun is not None and begun.headers() == record.headers():
                return Verdict.VOID
            self._begun = record._replace(value=b"")
            self._next_part = 1
        else:
            # Without claims, the parts of two leaders' commits may be interleaved.
            is_same = begun is not None and (begun.line, begun.parts) == (record.line, record.parts)
            if record.part != self._next_part or not is_same:
                return Verdict.VOID
            self._next_part += 1
        if record.is_last:
            self.skip_to(record.seq)
        return Verdict.FIRST if record.part == 0 else Verdict.NEXT

    def _pass_stray(self, entry: Read) -> Verdict:
        """Count and skip a record with a wrong checksum that is not of the next commit."""
        count_stray(entry.offset, "its value differs from its checksum")
        return Verdict.VOID

    def skip_to(self, seq: int) -> None:
        """Continue after commit `seq`, although the changelog lacks it."""
        self.seq = seq
        self._next_part = 0


def missing(seq: int, following: int) -> OutOfRange:
    """The error for commits between `seq` and `following` that the changelog lacks."""
    return OutOfRange(
        f"the log here ends with commit {seq}, the changelog continues with {following}"
    )


def _unclaimed_error(entry: Read) -> DivergedError:
    return DivergedError(
        f"The record at offset {entry.offset} of the changelog has term {entry.term}, "
        "but a claim before it is missing: the changelog lost records.",
        "keep the directory aside, and start here with an empty one.",
    )
