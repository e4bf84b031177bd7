"""The outbox: learned lines on their way into the log's next commit.

One file `outbox` in the data directory holds at most one batch of lines. Trainer, server and
commands write it; the process that has the log open commits the lines and then removes the file.

1. `put` writes the batch durably, under a new id.
2. `OutboxCommits` appends the lines to their files. They become part of the log with the commit
   that names the id, or not at all.
3. It removes the file once readers see that commit. Before that, a crash could lose the lines.

A restart between 2 and 3 finds the id in the log's state and takes no line twice. The writer of a
batch holds `models/.lock` and first waits until the batch before is gone.

A batch names the lines that it follows, by the sizes of their files. If the log has others by then,
another machine has led meanwhile: the batch is set aside, since its move or window may contradict
theirs.
"""

import math
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from crc32c import crc32c

from streamd.eventlog.commits import Commits
from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import LEARNED
from streamd.eventlog.log_files import MAX_IN_FLIGHT, LogFiles
from streamd.eventlog.recovery import published_seq
from streamd.storage import DISK, TAIL_BYTES, Disk, write_durably

logger = structlog.get_logger()
FILE = "outbox"
"""Name in the data directory."""
EXPECTED_SECONDS = 10.0
"""Time after a batch in which another is likely: the trainer's next window, mostly."""
DAMAGED = "outbox.damaged"
"""Name that a damaged outbox gets, so that it stops neither ingest nor the next batch."""
OUTDATED = "outbox.outdated"
"""Name of an outbox with a batch that does not follow the log's lines."""


COMMIT = b'{"seq":'
"""Start of a line in the log: the number of its commit follows, and a comma."""


class OutboxBatch(msgspec.Struct, frozen=True):
    """Lines that one commit takes together. lines: path of the file in the data directory, and the
    line as a JSON object with at least one field. after: size of each of the files when the batch
    was written; empty if it follows any lines."""

    id: str
    lines: list[tuple[str, msgspec.Raw]]
    after: dict[str, int] = {}

    def bytes_for(self, seq: int) -> list[tuple[str, bytes]]:
        """The bytes that commit `seq` appends, by path. Each line gets the commit as its field
        `seq`, so that readers know whether it is published."""
        out: dict[str, bytes] = {}
        for path, line in self.lines:
            text = b"%s%d,%s\n" % (COMMIT, seq, bytes(line)[1:])
            out[path] = out.get(path, b"") + text
        return list(out.items())

    def follows(self, state: LogState) -> bool:
        """Whether the log has exactly the lines that it had when the batch was written."""
        return all(
            state.files.get(path, NOTHING).num_bytes == size for path, size in self.after.items()
        )


def put(data_dir: Path, lines: Sequence[tuple[str, bytes]], disk: Disk = DISK) -> str:
    """Write a batch durably; the outbox must be empty. lines: as of `OutboxBatch`. Returns: the
    batch's id. Raises: OSError."""
    assert is_empty(data_dir), "the lines of another batch would be lost"
    published = published_seq(data_dir)
    after = {path: _published_size(data_dir / path, published) for path in LEARNED}
    # A new id, since two batches may have equal lines.
    batch = OutboxBatch(
        uuid.uuid4().hex, [(path, msgspec.Raw(line.strip())) for path, line in lines], after
    )
    text = msgspec.json.encode(batch)
    write_durably(data_dir / FILE, b"%08x %s\n" % (crc32c(text), text), disk)
    return batch.id


def commit_of(line: bytes) -> int:
    """The commit of a line, 0 for a line that is not in the log."""
    number = line[len(COMMIT) : line.find(b",")]
    return int(number) if line.startswith(COMMIT) and number.isdigit() else 0


def _published_size(path: Path, published: int) -> int:
    """Size of a file up to its last published line: a crash or a stranger may leave further
    bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    while lines and not (lines[-1].endswith(b"\n") and 0 < commit_of(lines[-1]) <= published):
        size -= len(lines.pop())
    return size


def is_empty(data_dir: Path) -> bool:
    """Whether no batch is on its way."""
    return not (data_dir / FILE).exists()


def read(data_dir: Path, disk: Disk = DISK) -> OutboxBatch | None:
    """Read the batch that is on its way, None if there is none. A damaged file is logged and
    renamed."""
    path = data_dir / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    # Check it completely: a commit with half a batch could not be taken back.
    try:
        checksum, text = content.split(b" ", 1)
        if checksum != b"%08x" % crc32c(text[:-1]):
            raise ValueError("it differs from its checksum")
        batch = msgspec.json.decode(text, type=OutboxBatch)
        if unknown := {path for path, _ in batch.lines} - set(LEARNED):
            raise ValueError(f"this release has no file {min(unknown)}")
    except (ValueError, msgspec.DecodeError) as error:
        logger.error(
            "outbox_damaged",
            file=str(path),
            error=str(error),
            meaning="a move of the champion or the records of a window are not in the log",
        )
        disk.replace(path, data_dir / DAMAGED)
        return None
    return batch


class OutboxCommits:
    """Takes the outbox into commits. Owner: the process that has the log open for writing."""

    def __init__(self, files: LogFiles, commits: Commits) -> None:
        self._files = files
        self._commits = commits
        self._taken_by = 0
        """The newest commit that took a batch, 0 if none did since the start: that one is
        published."""
        self._taken_at = -math.inf

    @property
    def expects_more(self) -> bool:
        """Whether a batch was taken a moment ago, so that another may soon come."""
        return time.monotonic() - self._taken_at < EXPECTED_SECONDS

    def take(self) -> dict[str, Any]:
        """Append the lines of the outbox to their files, as part of the next commit. Returns: the
        fields `files` and `outbox` of its line; none if nothing is on its way."""
        batch = read(self._files.data_dir, self._files.disk)
        state = self._files.state
        if batch is None or batch.id == state.outbox:
            return {}
        if not batch.follows(state):
            self._set_aside(batch)
            return {}
        self._taken_by = state.seq + 1
        self._taken_at = time.monotonic()
        changes = [self._files.append(*one) for one in batch.bytes_for(self._taken_by)]
        return {"files": changes, "outbox": batch.id}

    def _set_aside(self, batch: OutboxBatch) -> None:
        data_dir = self._files.data_dir
        logger.warning(
            "outbox_outdated",
            file=str(data_dir / OUTDATED),
            lines=len(batch.lines),
            meaning="another machine has led since: its moves and windows count",
        )
        self._files.disk.replace(data_dir / FILE, data_dir / OUTDATED)

    def clear(self) -> None:
        """Remove the outbox once readers see the commit that took it, even after a power cut: else
        the writer of the next batch could miss lines that the log has."""
        if self._taken_by > self._commits.published_seq:
            return
        batch = read(self._files.data_dir, self._files.disk)
        if batch is not None and batch.id == self._files.state.outbox:
            self._files.sync_publication()
            self._files.disk.unlink(self._files.data_dir / FILE)

    def commit(self) -> None:
        """Commit the lines of the outbox without events, if there are any, and clear it. Raises:
        DiskError, KafkaError, ChangelogError."""
        if is_empty(self._files.data_dir):
            return
        with self._files.change():
            # As many commits may wait for the changelog as with events.
            self._commits.await_acks(MAX_IN_FLIGHT - 1)
            if fields := self.take():
                self._commits.append([], fields)
            self.clear()
