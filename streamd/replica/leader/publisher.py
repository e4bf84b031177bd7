"""Publishes the leader's commits to the changelog in its term, and detects other leaders."""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from streamd.errors import ChangelogError, FencedError
from streamd.eventlog.journal.changelog_position import ChangelogPosition
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.line_ranges import (
    FileRange,
    appended_ranges,
    replaced_files,
    written_ranges,
)
from streamd.replica.changelog.interface import (
    ChangelogProducer,
    ChangelogReader,
    OutOfRange,
    Receipt,
)
from streamd.replica.changelog.records import Claim, Commit, Heartbeat, Read, Record, encode
from streamd.telemetry import replica_metrics

logger = structlog.get_logger()
WAIT_SECONDS = 0.05
"""Longest wait for an acknowledgement before the heartbeat is touched."""
HEARTBEAT_SECONDS = 1.0
"""Longest silence of a leader without commits."""
UNHEARD_HEARTBEATS = 3
"""After so many heartbeats without an acknowledgement, a leader may be cut off from the brokers,
and another member may lead."""


class _Part(NamedTuple):
    """A record that was sent and is not acknowledged. entry: the record without offset and
    value."""

    entry: Record | Heartbeat
    receipt: Receipt


class _Sent(NamedTuple):
    """A commit or heartbeat that was sent. seq: the commit's number, None for a heartbeat. parts:
    its records that are not acknowledged yet."""

    seq: int | None
    parts: deque[_Part]


class ChangelogPublisher:
    """Publishes commits and heartbeats in a term that this member won. Owner: the log's writer.

    The records of a single leader have consecutive offsets. A gap shows that another process has
    appended: the publisher reads the gap before any record after it counts as acknowledged.
    """

    def __init__(
        self,
        data_dir: Path,
        producer: ChangelogProducer,
        reader: ChangelogReader,
        position: ChangelogPosition,
        waiting: Callable[[], None] = lambda: None,
        *,
        member: str,
        last_line: str,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """position: directly after the claim, where the changelog has all commits of the log.
        reader: reads records of other processes; closed with the publisher. waiting: called during
        waits. member: name of this machine. last_line: CRC32C in hex of the newest commit's line,
        "" if the line is gone. heartbeat_seconds: longest silence. now: monotonic seconds."""
        self._data_dir = data_dir
        self._producer = producer
        self._reader = reader
        self.changelog = reader.changelog
        self._position = position
        self._next_offset = position.offset
        self.waiting = waiting
        self._member = member
        self._last_line = last_line
        self._heartbeat_seconds = heartbeat_seconds
        self._now = now
        self._sent: deque[_Sent] = deque()
        self._sent_at = self._heard_at = now()

    @property
    def term(self) -> int:
        """The term of this leader."""
        return self._position.term

    def publish(self, before: LogState, fields: dict[str, Any], line: bytes) -> None:
        """Send a commit. Raises: KafkaError."""
        after = before.after(fields)
        files = replaced_files(self._data_dir, after, fields)
        ranges = list(appended_ranges(self._data_dir, before, after, fields))
        for path, file in files.items():
            ranges += written_ranges(path, file)
        commit = Commit(
            term=self.term,
            seq=after.seq,
            line=line,
            made=[(path, file.stat().st_size) for path, file in files.items()],
            schema=before.schema.fields() if before.seq == 0 else None,
            ranges=ranges,
            before=self._last_line,
        )

        # Each file is opened once for the commit; its new bytes are in the page cache.
        parts: deque[_Part] = deque()
        with _Files(self._data_dir, files) as opened:
            for record in encode(commit, opened.read, self._producer.part_bytes):
                receipt = self._producer.send(record)
                parts.append(_Part(record._replace(value=b""), receipt))
                replica_metrics.changelog_bytes.inc(len(record.value))
        self._append(_Sent(after.seq, parts))
        self._last_line = line[:8].decode()

    def heartbeat(self) -> None:
        """Send a heartbeat if nothing was sent for `heartbeat_seconds`. A record in flight replaces
        it. Raises: KafkaError."""
        if self._sent or self._now() - self._sent_at < self._heartbeat_seconds:
            return
        entry = Heartbeat(0, self.term, self._member)
        self._append(_Sent(None, deque([_Part(entry, self._producer.send(entry))])))

    def _append(self, sent: _Sent) -> None:
        self._sent.append(sent)
        self._sent_at = self._now()
        self._count_waiting()

    def _count_waiting(self) -> None:
        replica_metrics.changelog_waiting.set(sum(sent.seq is not None for sent in self._sent))

    def acknowledged(self) -> ChangelogPosition:
        """The newest commit up to which all are acknowledged, and the offset after the last
        acknowledged record. Raises: KafkaError; FencedError if another member leads, ChangelogError
        if the changelog lost acknowledged records."""
        unheard = self._now() - self._heard_at > UNHEARD_HEARTBEATS * self._heartbeat_seconds
        replica_metrics.leads.set(not (self._sent and unheard))
        while self._sent:
            seq, parts = self._sent[0]
            while parts:
                offset = parts[0].receipt.offset()
                if offset is None:
                    return self._position
                if offset != self._next_offset:
                    offset = self._look_at_gap(parts[0].entry, offset)
                parts.popleft()
                self._heard_at = self._now()
                self._next_offset = offset + 1

            # Only whole commits count: a reader that resumed within one would miss its first parts.
            self._sent.popleft()
            newest = self._position.seq if seq is None else seq
            self._position = ChangelogPosition(self.term, newest, self._next_offset)
            self._count_waiting()
            replica_metrics.changelog_seq.set(newest)
        return self._position

    def _look_at_gap(self, ours: Record | Heartbeat, offset: int) -> int:
        """Check the records before one of this leader's: they may be of deposed leaders, of members
        that claimed this term too late, or strays; all of these are ignored.

        Returns: the offset of this leader's record, which the broker does not report for a
        duplicate. Raises: FencedError if another member leads, ChangelogError if the record is
        missing.
        """
        first = self._next_offset
        if 0 <= offset < first:
            raise _lost(f"offset {offset} came after offset {first - 1}")
        found = offset
        end = offset if offset >= 0 else self._reader.bounds()[1]
        self._reader.seek(first)
        try:
            while found < 0 or self._reader.position < end:
                if found < 0 and self._reader.position >= end:
                    raise _lost("a record was acknowledged and is missing")
                for entry in self._reader.read(WAIT_SECONDS):
                    if entry.offset >= end:
                        break
                    if found < 0 and _without_offset(entry) == ours:
                        found = end = entry.offset
                        break
                    self._check_void(entry)
                self.waiting()
        except OutOfRange:
            # Only records that a manifest covers are deleted: others led while this process was
            # paused.
            raise FencedError(
                f"Another process leads: the changelog has no offset {first} any more.",
                "none, if another machine should lead. Else set log.member to replica on all "
                "machines but one.",
            ) from None
        logger.warning(
            "changelog_gap", first=first, end=end, meaning="records of deposed leaders, or strays"
        )
        return found

    def _check_void(self, entry: Read) -> None:
        """Check that a record of another process is ignored. Raises: FencedError."""
        if entry.term < self.term or (entry.term == self.term and isinstance(entry, Claim)):
            return
        # As for followers, a record with a wrong checksum counts only if it has the next number.
        due = isinstance(entry, Record) and (entry.term, entry.seq) == (
            self.term,
            self._position.seq + 1,
        )
        if not entry.is_whole and not due:
            return
        if isinstance(entry, Claim):
            what = f"{entry.member} claimed term {entry.term}"
        else:
            what = f"another process published in term {entry.term}"
        raise FencedError(
            f"Another process leads: {what} at offset {entry.offset} of the changelog.",
            "none, if that machine should lead. Else set log.member to replica on all machines but "
            "one.",
        )

    def wait(self) -> None:
        """Wait for a further acknowledgement, at most WAIT_SECONDS."""
        self.waiting()
        if self._sent and self._sent[0].parts:
            self._sent[0].parts[0].receipt.wait(WAIT_SECONDS)

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


def _without_offset(entry: Read) -> Read:
    """A record as it was before it was sent, without its value, which its checksum identifies."""
    if isinstance(entry, Record):
        return entry._replace(offset=0, value=b"")
    return entry._replace(offset=0)


def _lost(what: str) -> ChangelogError:
    return ChangelogError(
        f"The changelog lost records: {what}.",
        "make sure that brokers elect no leader out of sync and the topic is not removed; "
        "ingest restarts from the changelog's records.",
    )


class _Files:
    """The files of one commit, each opened once. Owner: `publish`."""

    def __init__(self, data_dir: Path, replaced: dict[str, Path]) -> None:
        self._data_dir = data_dir
        self._replaced = replaced
        self._fds: dict[str, int] = {}

    def read(self, piece: FileRange) -> bytes:
        """Read a range of a file."""
        fd = self._fds.get(piece.path)
        if fd is None:
            path = self._replaced.get(piece.path, self._data_dir / piece.path)
            fd = self._fds[piece.path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(fd, piece.num_bytes, piece.offset)
        assert len(data) == piece.num_bytes, f"{piece.path} ends before {piece}"
        return data

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds.values():
            os.close(fd)
