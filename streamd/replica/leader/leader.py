"""Makes a member the leader of a log on many machines: it claims the next term, brings directory
and changelog to the same commit, and publishes later commits."""

import uuid
from collections.abc import Callable
from pathlib import Path

import structlog

from streamd.errors import ChangelogError, FencedError
from streamd.eventlog.checksums import check_after
from streamd.eventlog.journal.changelog_position import ChangelogPosition
from streamd.eventlog.journal.journal import decode_line
from streamd.eventlog.journal.truncate import lines_after
from streamd.eventlog.recovery import last_state, state_at
from streamd.events import Schema
from streamd.replica.changelog.admission import UNCLAIMED, Admission, Verdict
from streamd.replica.changelog.interface import ChangelogProducer, ChangelogReader, OutOfRange
from streamd.replica.changelog.records import Claim
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.publisher import HEARTBEAT_SECONDS, WAIT_SECONDS, ChangelogPublisher
from streamd.replica.start import line_before, reconcile
from streamd.storage import DISK, Disk

logger = structlog.get_logger()
READ_SECONDS = 0.2


def lead(
    data_dir: Path,
    producer: ChangelogProducer,
    reader: ChangelogReader,
    disk: Disk = DISK,
    waiting: Callable[[], None] = lambda: None,
    *,
    member: str,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    after_term: int | None = None,
) -> ChangelogPublisher:
    """Claim the next term, and bring a directory and the changelog to the same commit, so that
    every durable line is acknowledged.

    The changelog is read to its end first, so that a member that must not lead or is far behind
    does not claim. Records that an older leader has in flight follow the claim, and are ignored.

    Args: reader: the publisher owns it from here on; waiting: called during waits; member: name of
    this machine; heartbeat_seconds: longest silence of the publisher; after_term: the term to
    succeed, so that the leader of a newer term is not deposed; None for any. Returns: the publisher
    of later commits. Raises: FencedError if another member claimed first: follow it, or try again;
    ChangelogError, KafkaError, and those of `LogApplier`.
    """
    start = _Start(data_dir, producer, reader, disk, waiting, member, heartbeat_seconds, after_term)
    try:
        return start.lead()
    except OutOfRange as error:
        raise ChangelogError(
            f"{data_dir} is older than the changelog: {error}.",
            "move its contents away and run `streamd restore` with log.store, then start it again.",
        ) from None


class _Start:
    """The start of a leader. Owner: `lead`."""

    def __init__(
        self,
        data_dir: Path,
        producer: ChangelogProducer,
        reader: ChangelogReader,
        disk: Disk,
        waiting: Callable[[], None],
        member: str,
        heartbeat_seconds: float,
        after_term: int | None,
    ) -> None:
        self._after_term = after_term
        self._data_dir = data_dir
        self._producer = producer
        self._reader = reader
        self._disk = disk
        self._waiting = waiting
        self._member = member
        self._heartbeat_seconds = heartbeat_seconds
        self._claimed: Claim | None = None
        self._publisher: ChangelogPublisher | None = None

    def lead(self) -> ChangelogPublisher:
        """Run the start. Raises: as `lead` of the module, and OutOfRange."""
        follower = Follower(self._data_dir, self._reader, self._disk, self._publish_again)
        try:
            # A directory without lines beyond the changelog's end may lack commits: apply them
            # first.
            if self._claimed is None:
                self._follow(follower, self._reader.bounds()[1])
                self._claimed = self._claim(follower.position)
            if self._publisher is None:
                self._follow(follower, self._claimed.offset + 1)
            position = follower.position
        finally:
            follower.close()

        # The read that returned the claim may also have returned a later claim.
        if self._publisher is None and position.term > self._claimed.term:
            raise _fenced_error(None)
        return self._publisher or self._publish_from(position)

    def _follow(self, follower: Follower, until: int) -> None:
        """Apply the changelog's records before an offset, and those that the same read returns."""
        while self._reader.position < until:
            follower.step(READ_SECONDS)
            self._waiting()

    def _publish_again(self, agreed: ChangelogPosition) -> ChangelogPosition:
        """Publish the lines beyond the changelog's end, if there are any, before readers see them.

        agreed: position up to which directory and changelog are equal. Returns: that position
        afterwards.
        """
        if next(lines_after(self._data_dir, agreed.seq), None) is None:
            return agreed
        check_after(self._data_dir, agreed.seq, last_state(self._data_dir, Schema()))
        self._claimed = self._claim(agreed)

        # Before the claim, the previous leader may have appended other commits of the same numbers.
        until = self._claimed.offset + 1
        agreed = reconcile(self._data_dir, self._reader, self._disk, until)
        if agreed.offset < until:
            return agreed
        self._publisher = self._publish_from(agreed)
        state = None
        newest = agreed.seq
        for seq, line in lines_after(self._data_dir, agreed.seq):
            fields = decode_line(line)
            assert fields is not None, "lines are whole"
            state = state or state_at(self._data_dir, seq - 1)
            assert state is not None, f"no journal file begins before commit {seq}"
            self._publisher.publish(state, fields, line)
            state = state.after(fields)
            newest = seq
        while self._publisher.acknowledged().seq < newest:
            self._publisher.wait()
        return self._publisher.acknowledged()

    def _publish_from(self, position: ChangelogPosition) -> ChangelogPublisher:
        assert self._claimed is not None
        assert position.term == self._claimed.term
        return ChangelogPublisher(
            self._data_dir,
            self._producer,
            self._reader,
            position,
            self._waiting,
            member=self._member,
            last_line=line_before(self._data_dir, position.seq),
            heartbeat_seconds=self._heartbeat_seconds,
        )

    def _claim(self, position: ChangelogPosition) -> Claim:
        """Append a claim of the next term, and check that it is the first one.

        position: from which to read the changelog. Returns: the claim, with its offset; the
        reader's position is unchanged. Raises: FencedError, KafkaError, ChangelogError.
        """
        if self._after_term is not None and position.term > self._after_term:
            raise _fenced_error(None)
        claim = Claim(
            offset=0,
            term=max(position.term, UNCLAIMED) + 1,
            member=self._member,
            id=uuid.uuid4().hex,
            seq=position.seq,
        )
        receipt = self._producer.send(claim)
        while (offset := receipt.offset()) is None:
            self._waiting()
            receipt.wait(WAIT_SECONDS)

        # Read up to the claim. The broker does not report the offset of a duplicate.
        begin = self._reader.position
        end = offset + 1 if offset >= 0 else self._reader.bounds()[1]
        admission = Admission(position.term, position.seq)
        winner: Claim | None = None
        self._reader.seek(position.offset)
        while self._reader.position < end:
            for entry in self._reader.read(READ_SECONDS):
                leads = admission.judge(entry) is Verdict.LEADS
                if isinstance(entry, Claim) and leads:
                    winner = winner or entry
                if isinstance(entry, Claim) and entry.id == claim.id:
                    self._reader.seek(begin)
                    if winner is not entry:
                        raise _fenced_error(winner)
                    logger.info("term_claimed", term=claim.term, offset=entry.offset)
                    return entry
            self._waiting()
        raise ChangelogError(
            "The changelog lost a record: a claim was acknowledged and is missing.",
            "make sure that brokers elect no leader out of sync and the topic is not removed.",
        )


def _fenced_error(winner: Claim | None) -> FencedError:
    if winner is None:
        what = "it claimed a higher term"
    else:
        what = f"{winner.member}, in term {winner.term}, whose claim came before this one's"
    return FencedError(
        f"Another process leads: {what}.",
        "none, if that machine should lead. Else set log.member to replica on all machines but "
        "one.",
    )
