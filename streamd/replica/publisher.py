"""Publishes the leader's commits to the changelog, and sees that nobody else leads."""

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from streamd.errors import ChangelogError, FencedError
from streamd.replica.changelog import ChangelogProducer, ChangelogReader, Receipt
from streamd.replica.records import Commit, encode
from streamd.segments.changelog_position import ChangelogPosition
from streamd.segments.journal import LogState
from streamd.segments.line_ranges import (
    FileRange,
    appended_ranges,
    replaced_files,
    written_ranges,
)
from streamd.telemetry import metrics

logger = structlog.get_logger()
TERM = 1
"""The term of the leader that the settings name; others come with elections."""
WAIT_SECONDS = 0.05
"""Longest wait for an acknowledgement before the heartbeat is touched."""
REMEMBERED = 64
"""Newest commits whose lines are known by their checksums: more than are ever in flight."""


class _Sent(NamedTuple):
    """A commit that was sent: its number, and of how many records; receipts: of those that are not
    acknowledged yet."""

    seq: int
    parts: int
    receipts: list[Receipt]


class ChangelogPublisher:
    """Publishes commits under a term. Owner: the log's writer.

    Offsets of the leader's records run on by one. Where they do not, somebody else has appended:
    what lies between is read before anything behind it counts as acknowledged.
    """

    def __init__(
        self,
        data_dir: Path,
        producer: ChangelogProducer,
        reader: ChangelogReader,
        position: ChangelogPosition,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """position: the changelog's end, which has all commits of the log up to it. reader: for
        what others appended; closed with the publisher. waiting: called while it waits."""
        self._data_dir = data_dir
        self._producer = producer
        self._reader = reader
        self.changelog = reader.changelog
        self._position = position
        self.waiting = waiting
        self._sent: deque[_Sent] = deque()
        self._lines: OrderedDict[int, str] = OrderedDict()

    def publish(self, before: LogState, fields: dict[str, Any], line: bytes) -> None:
        """Send a commit. Raises: KafkaError."""
        after = before.after(fields)
        files = replaced_files(self._data_dir, after, fields)
        ranges = list(appended_ranges(self._data_dir, before, after, fields))
        for path, file in files.items():
            ranges += written_ranges(path, file)
        commit = Commit(
            term=TERM,
            seq=after.seq,
            line=line,
            made=[(path, file.stat().st_size) for path, file in files.items()],
            schema=before.schema.fields() if before.seq == 0 else None,
            ranges=ranges,
        )

        # Files are opened once a commit, and read where their bytes are in the page cache.
        with _Files(self._data_dir, files) as opened:
            receipts = []
            for record in encode(commit, opened.read, self._producer.part_bytes):
                receipts.append(self._producer.send(record))
                metrics.changelog_bytes.inc(len(record.value))
        self._sent.append(_Sent(after.seq, len(receipts), receipts))
        self._lines[after.seq] = line[:8].decode()
        if len(self._lines) > REMEMBERED:
            self._lines.popitem(last=False)
        metrics.changelog_waiting.set(len(self._sent))

    def acknowledged(self) -> ChangelogPosition:
        """The newest commit up to which all are acknowledged. Raises: KafkaError, FencedError,
        ChangelogError where the changelog lost what it had acknowledged."""
        while self._sent:
            sent = self._sent[0]
            while sent.receipts:
                offset = sent.receipts[0].offset()
                if offset is None:
                    return self._position
                if offset != self._position.offset:
                    offset = self._look_at_gap(sent, offset)
                sent.receipts.pop(0)
                self._position = ChangelogPosition(TERM, self._position.seq, offset + 1)
            self._position = ChangelogPosition(TERM, sent.seq, self._position.offset)
            self._sent.popleft()
            metrics.changelog_waiting.set(len(self._sent))
            metrics.changelog_seq.set(sent.seq)
        return self._position

    def _look_at_gap(self, sent: _Sent, offset: int) -> int:
        """Look at the records that lie before one of ours.

        Records of this leader may lie there too, which a killed process had sent. Returns: the
        offset of ours, which the broker does not tell where it got it twice. Raises: FencedError.
        """
        first = self._position.offset
        part = sent.parts - len(sent.receipts)
        if 0 <= offset < first:
            raise _lost(f"offset {offset} came behind offset {first - 1}")
        found = offset
        end = offset if offset >= 0 else self._reader.bounds()[1]
        self._reader.seek(first)
        while self._reader.position < end:
            for record in self._reader.read(WAIT_SECONDS):
                if record.offset >= end:
                    break
                known = self._lines.get(record.seq)
                if record.term != TERM or (known is not None and known != record.line):
                    raise FencedError(
                        f"Another process leads: it published commit {record.seq} in term "
                        f"{record.term} at offset {record.offset} of the changelog.",
                        "run one leader; set log.member to replica on the other machine, and start "
                        "it with an empty data_dir.",
                    )
                if found < 0 and (record.seq, record.part) == (sent.seq, part):
                    found = record.offset
                    end = found + 1
            self.waiting()
        if found < 0:
            raise _lost(f"part {part} of commit {sent.seq} was acknowledged and is not there")
        logger.warning("changelog_gap", first=first, end=end, meaning="a killed leader's records")
        return found

    def wait(self) -> None:
        """Wait a little for a further acknowledgement."""
        self.waiting()
        if self._sent and self._sent[0].receipts:
            self._sent[0].receipts[0].wait(WAIT_SECONDS)

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


def _lost(what: str) -> ChangelogError:
    return ChangelogError(
        f"The changelog lost records: {what}.",
        "see that brokers elect no leader out of sync and that nobody removes the topic; ingest "
        "starts again from what the changelog has.",
    )


class _Files:
    """Files that one commit is read from, each opened once. Owner: who opened them."""

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
