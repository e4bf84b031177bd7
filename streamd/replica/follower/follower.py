"""A follower applies the changelog to the log in its own directory."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import structlog

from streamd.errors import ChangelogError
from streamd.eventlog.journal.changelog_position import ChangelogPosition
from streamd.eventlog.journal.journal import decode_line
from streamd.eventlog.journal.truncate import take_back
from streamd.eventlog.recovery import last_state
from streamd.eventlog.remote_writer import LogApplier
from streamd.events import Schema
from streamd.replica.changelog.admission import Admission, Verdict
from streamd.replica.changelog.interface import ChangelogReader, OutOfRange
from streamd.replica.changelog.records import LINE, Head, Read, Record, decode_value
from streamd.replica.start import (
    check_changelog,
    check_follows,
    has_log,
    line_before,
    reconcile,
)
from streamd.storage import DISK, Disk
from streamd.telemetry import replica_metrics

logger = structlog.get_logger()
Republish = Callable[[ChangelogPosition], ChangelogPosition]
"""Publishes the lines beyond the changelog's end at a leader's start. It takes the position up to
which directory and changelog are equal, and returns that position afterwards."""


class Follower:
    """Applies the changelog to a directory. Owner: the follow role, and ingest at its start.

    It holds the directory's lock as soon as the directory has a log. After any error, a new
    follower recovers the directory.
    """

    def __init__(
        self,
        data_dir: Path,
        reader: ChangelogReader,
        disk: Disk = DISK,
        republish: Republish | None = None,
        before_drop: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Compare the directory with the changelog, and open its log if it has one.

        before_drop: called before segments are dropped, with the id of the first event after them.
        republish: of the leader; without it, lines beyond the changelog's end are truncated.
        Raises: OutOfRange if a newer manifest is needed; ChangelogError, DivergedError, KafkaError,
        and those of `LogApplier`.
        """
        self.data_dir = data_dir
        self._reader = reader
        self._disk = disk
        self._republish = republish
        self._before_drop = before_drop
        self._applier: LogApplier | None = None
        self._line = bytearray()
        self._made: dict[str, int] = {}
        self._line_bytes = 0
        self._position = ChangelogPosition(0, 0, 0)
        check_changelog(data_dir, reader.changelog)
        if has_log(data_dir):
            self._open(Schema())
        elif begin := reader.bounds()[0]:
            raise OutOfRange(f"there is no log here, and the changelog begins at offset {begin}")
        self._last_line = line_before(data_dir, self._position.seq)
        self._admission = Admission(self._position.term, self._position.seq)
        reader.seek(self._position.offset)
        self._applied = self._position
        self._stored = self._position

    def _open(self, schema: Schema) -> None:
        """Open the log; from then on all of its lines are in the changelog."""

        def prepare() -> None:
            self._position = reconcile(self.data_dir, self._reader, self._disk)
            if self._republish is not None:
                self._position = self._republish(self._position)
            elif last_state(self.data_dir, schema).seq > self._position.seq:
                take_back(self.data_dir, self._position.seq + 1, self._disk)

        self._applier = LogApplier(
            self.data_dir, schema, self._reader.changelog, self._disk, prepare
        )
        with ExitStack() as stack:
            # If the flush fails, only this call releases the lock.
            stack.callback(self._applier.close)
            self._applier.flush(self._position)
            stack.pop_all()

    @property
    def seq(self) -> int:
        """The newest commit that is durable and published here."""
        return self._applier.state.seq if self._applier is not None else 0

    @property
    def position(self) -> ChangelogPosition:
        """Position in the changelog up to which it is applied here."""
        return self._applied

    @property
    def term(self) -> int:
        """The current term, as of the records read so far."""
        return self._admission.term

    @property
    def lag(self) -> int:
        """Number of the changelog's records that are not read yet. Records that were read and not
        applied do not count: of a dead leader's last commit, only some parts may exist. Raises:
        KafkaError."""
        return max(0, self._reader.bounds()[1] - self._reader.position)

    def step(self, seconds: float) -> int:
        """Apply the records that arrive within some seconds.

        Returns: number of records of the current term, heartbeats included; ignored records are no
        sign of a leader. Raises: OutOfRange if a newer manifest is needed, DivergedError,
        DiskError, ChangelogError, KafkaError.
        """
        num_heard = 0
        for entry in self._reader.read(seconds):
            num_heard += self._take(entry)
        if self._applier is not None:
            # Heartbeats move the position too: records before it may be deleted.
            if self._applier.num_finished:
                self._applier.flush(self._applied)
            elif self._applied != self._stored:
                self._applier.move(self._applied)
            self._stored = self._applied
        if num_heard:
            replica_metrics.follow_seq.set(self.seq)
        return num_heard

    def _take(self, entry: Read) -> bool:
        """Apply a record. Returns: whether it is of the current term."""
        verdict = self._admission.judge(entry)
        if isinstance(entry, Record) and verdict in (Verdict.FIRST, Verdict.NEXT):
            head, data = decode_value(entry)
            if verdict is Verdict.FIRST:
                check_follows(self.data_dir, entry, self._last_line)
                self._begin(entry, head)
            self._write(entry, head, data)
            replica_metrics.follow_bytes.inc(len(entry.value))
            if entry.is_last:
                self._finish(entry)
        elif not self._admission.has_begun:
            self._applied = ChangelogPosition(
                self._admission.term, self._admission.seq, entry.offset + 1
            )
        return verdict is not Verdict.VOID

    def _begin(self, record: Record, head: Head) -> None:
        """Start a commit, and drop one that is incomplete."""
        if self._applier is None:
            if record.seq != 1 or head.schema is None:
                raise OutOfRange(f"there is no log here, and the changelog has commit {record.seq}")
            schema = _schema_of(record, head)
            self._applier = LogApplier(self.data_dir, schema, self._reader.changelog, self._disk)
        elif self._applier.has_begun:
            # The incomplete commit's bytes are cut off and zeroed, as after a crash.
            self._applier.flush(self._applied)
            self._applier.close()
            self._applier = LogApplier(self.data_dir, Schema(), self._reader.changelog, self._disk)
        self._line.clear()
        self._line_bytes = head.line_bytes
        self._made = dict(head.made)

    def _write(self, record: Record, head: Head, data: memoryview) -> None:
        assert self._applier is not None
        at = 0
        for path, offset, size in head.pieces:
            part = data[at : at + size]
            at += size
            if path == LINE:
                if offset != len(self._line) or offset + size > self._line_bytes:
                    raise _misplaced_error(record, "bytes of its line")
                self._line += part
            elif not self._applier.has_begun:
                raise _misplaced_error(record, f"bytes of {path} before its line")
            else:
                self._applier.write(path, offset, part)
            whole = len(self._line) == self._line_bytes
            if path == LINE and whole:
                if self._line[:8].decode(errors="replace") != record.line:
                    raise _misplaced_error(record, "a line that differs from its headers")
                self._applier.begin(bytes(self._line), self._made)

    def _finish(self, record: Record) -> None:
        assert self._applier is not None
        if not self._applier.has_begun:
            raise _misplaced_error(record, "no whole line")
        fields = decode_line(bytes(self._line))
        if fields is not None and (dropped := fields.get("dropped")):
            ends = [s.end for s in self._applier.newest.segments if s.first_edge in dropped]
            self._before_drop(max(ends, default=0))
        position = ChangelogPosition(record.term, record.seq, record.offset + 1)
        self._applier.finish(position)
        self._applied = position
        self._last_line = record.line
        replica_metrics.follow_commits.inc()

    def close(self) -> None:
        """Close the log and release its lock; the reader stays open."""
        if self._applier is not None:
            self._applier.close()


def _schema_of(record: Record, head: Head) -> Schema:
    try:
        assert head.schema is not None
        return Schema.restored(head.schema)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _misplaced_error(record, f"the schema {error!r}") from None


def _misplaced_error(record: Record, what: str) -> ChangelogError:
    return ChangelogError(
        f"The record at offset {record.offset} of the changelog has {what}.",
        "make sure that only this log's streamd writes the topic; then start from the newest "
        "manifest.",
    )
