"""The open files of a log. One process at a time has them: it locks and recovers them, and refuses
every change after a failed one. Steps 2 to 4 of every commit are here."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from crc32c import crc32c

from streamd.errors import DiskError
from streamd.eventlog.checksums import check_after
from streamd.eventlog.commit_rows import append_rows
from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition, PositionFile
from streamd.eventlog.journal.journal import NOTHING, JournalWriter, LogState, SegmentState
from streamd.eventlog.layout import APPENDED, EDGES, segment_path
from streamd.eventlog.recovery import (
    last_state,
    lock_directory,
    open_appended,
    published_seq,
    replacement,
    settle,
)
from streamd.eventlog.sets_writer import (
    SegmentWriter,
    SetsWriter,
    new_segment,
    reopen_segment,
)
from streamd.events import EventBatch, Schema
from streamd.storage import DISK, Disk, FileWithHoles

logger = structlog.get_logger()
MAX_COMMIT_ROWS = 65_536
"""Maximum number of edges, and of labels, in one commit. A crash may leave so many rows after a
segment's committed ones, which recovery zeroes: 64 Ki edges without features are 1.5 MiB."""
MAX_IN_FLIGHT = 16
"""Maximum number of commits that wait for the changelog, or that a follower makes durable at
once."""


LOCK_SECONDS = 2.0
"""Longest wait for another process that has the log open: without ingest, the trainer and commands
open it for some milliseconds to commit their own lines."""


def nothing() -> None:
    """Do nothing before a log is opened."""


class LogFiles:
    """The files that a log's one writer appends to. Owner: `LogWriter` on the machine that makes
    commits, `LogApplier` on one that copies them.

    state: the log's after the newest line of the journal. schema: of the rows written next.
    segment: the one in progress. appended: descriptors of the append-only files, by path. After a
    failed write or sync nothing more is accepted: the process ends, and a new writer recovers.
    """

    def __init__(
        self,
        data_dir: Path,
        schema: Schema,
        disk: Disk = DISK,
        changelog: ChangelogId | None = None,
        prepare: Callable[[], None] = nothing,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Lock, recover and open the log.

        schema: of a log that has no line yet. changelog: the log's, if it has one: then commits are
        published only once it has acknowledged them. prepare: called under the lock, before
        anything is read. lock_seconds: longest wait for the lock. Raises: LockedError,
        JournalError, CorruptionError, DataDirectoryError, DiskError.
        """
        self.data_dir = data_dir
        self.disk = disk
        self._failed = ""
        self._unsynced: dict[int, None] = {}
        """Descriptors of files with bytes that are written but not durable, in order of writing."""
        self._has_unsynced_rows = False
        self.is_untidy = False
        """Whether files that no line names may remain: an unlink failed or is not finished."""
        self.closed = False
        """Whether it takes no more commits because `close` was called."""

        # Take the lock before anything is read; release it if the log cannot be opened.
        self.lock = lock_directory(data_dir / "lock", wait_seconds=lock_seconds)
        """Descriptor of the lock on the directory, held until `close`."""
        with self.unlock_on_failure():
            for path in ("journal/x", f"{EDGES}/x", *APPENDED):
                (data_dir / path).parent.mkdir(parents=True, exist_ok=True)
            prepare()
            self.state: LogState = last_state(data_dir, schema)
            self.schema = self.state.schema
            # Commits that readers have not seen get published below: check them first.
            if self.state.seq > (shown := published_seq(data_dir)):
                check_after(data_dir, shown, self.state)

            # A new journal file makes the recovered state durable before any other file is changed.
            self.journal = JournalWriter(data_dir / "journal", self.state, disk)
            settle(data_dir, self.state, disk)

            # Open the append-only files and truncate them to their committed ends. With a
            # changelog, a crash may leave the rows of several commits.
            self._rows_behind = MAX_COMMIT_ROWS * (1 if changelog is None else MAX_IN_FLIGHT + 1)
            self.appended = open_appended(data_dir, self.state, disk)
            self.segment: SegmentWriter | None = None
            self._segment_first = self._segment_revision = 0
            self.open_segment()

            # Publish the newest commit: a crash may have come between its line and its publication.
            self._published = disk.open(data_dir / "published", os.O_RDWR | os.O_CREAT)
            self._position: PositionFile | None = None
            self._position_synced_in = Path()
            """The journal file that was the newest at the last sync of the position."""
            if changelog is not None:
                self._position = PositionFile(data_dir, changelog, disk)
            self.publish(self.state.seq)

    @contextmanager
    def unlock_on_failure(self) -> Iterator[None]:
        """Open a part of the log; if that fails, release the lock, since nothing else would.

        Raises: DiskError instead of OSError.
        """
        with ExitStack() as stack:
            stack.callback(os.close, self.lock)
            try:
                yield
            except OSError as error:
                raise disk_error(self.data_dir, error) from error
            stack.pop_all()

    def close(self) -> None:
        """Close all files and release the lock; a second call does nothing. Raises: DiskError."""
        if self.closed:
            return
        self.closed = True
        # The stack closes all files even if one fails, and releases the lock last.
        try:
            with ExitStack() as stack:
                stack.callback(os.close, self.lock)
                for fd in (self._published, *self.appended.values()):
                    stack.callback(self.disk.close, fd)
                if self._position is not None:
                    stack.callback(self._position.close)
                stack.callback(self.journal.close)
                if self.segment is not None:
                    stack.callback(self.segment.close)
        except OSError as error:
            raise disk_error(self.data_dir, error) from error

    @property
    def in_doubt(self) -> bool:
        """Whether a failed change left the disk in a state that only recovery can determine: then
        the process must end. Any other error leaves the log as it was before or after the
        change."""
        return bool(self._failed)

    # In doubt: any failure from the first byte written to committed files until readers see the
    # commit (`change`). A line whose write or sync failed may or may not be on the disk, a file may
    # not be renamed yet to the name in its line, and rows after the counts must be zeroed.
    #
    # Not in doubt: files that no line names. These are unfinished copies, which `aside` removes
    # after a failure, and files that a durable line released, which `tidy` unlinks, or else
    # recovery. Reading a damaged segment changes nothing either.

    @contextmanager
    def change(self) -> Iterator[None]:
        """Run one change of the log; after any failure in it, refuse every later change.

        Memory and disk may then differ, and only recovery knows what the disk holds.
        """
        if self._failed:
            raise DiskError(
                f"The log in {self.data_dir} accepts no changes after an error: {self._failed}.",
                "restart ingest.",
            )
        try:
            self.journal.check_alone()
            yield
        except OSError as error:
            self._failed = str(error) or repr(error)
            raise disk_error(self.data_dir, error) from error
        except BaseException as error:
            self._failed = str(error) or repr(error)
            raise

    @contextmanager
    def aside(self, path: Path) -> Iterator[None]:
        """Write a file or folder that no line names yet; if that fails, remove it, which leaves the
        log unchanged. Raises: DiskError instead of OSError."""
        # First check that this process may still write the log.
        with self.change():
            pass
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                self.remove(path)
            if isinstance(error, OSError):
                raise disk_error(self.data_dir, error) from error
            raise

    @contextmanager
    def tidy(self) -> Iterator[None]:
        """Unlink files that no line names any more. Raises: DiskError instead of OSError."""
        self.is_untidy = True
        try:
            yield
            self.is_untidy = False
        except OSError as error:
            raise disk_error(self.data_dir, error) from error

    def remove(self, path: Path) -> None:
        """Remove a file or folder, if it exists."""
        self.disk.remove_folder(path) if path.is_dir() else self.disk.unlink(path)

    # Steps of a commit

    def append_rows(self, batch: EventBatch) -> dict[str, Any]:
        """Step 1 for a batch's edges and labels: append them to the segment in progress. Returns:
        the journal's entry for the rows."""
        assert self.segment is not None
        self._has_unsynced_rows = True
        return append_rows(self.segment, self.segment_state().path, batch)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Step 1 for all other bytes: write them to an open file."""
        self.disk.write(fd, data, offset)
        self._unsynced[fd] = None

    def append(self, path: str, data: bytes) -> dict[str, Any]:
        """Step 1 for an append-only file: write bytes after its committed ones. Returns: the
        journal's entry for them."""
        old = self.state.files.get(path, NOTHING)
        self.write(self.appended[path], data, old.num_bytes)
        return {
            "path": path,
            "bytes": [old.num_bytes, old.num_bytes + len(data)],
            "crc": crc32c(data),
            "total": crc32c(data, old.crc),
        }

    def forget_unsynced(self, fd: int) -> None:
        """Exclude a file from step 2: it is closed, because another file replaces it."""
        self._unsynced.pop(fd, None)

    def append_lines(self, lines: Sequence[tuple[LogState, bytes]], after: LogState) -> None:
        """Steps 2 and 3 of commits with written rows:

        2. Make the rows durable.
        3. Append the lines to the journal and make them durable.

        lines: of the journal, each with the state before it. after: the state after all of them.
        """
        # Step 2: make the rows durable. A line that a crash leaves without its rows would count
        # rows that are not there.
        if self._has_unsynced_rows and self.segment is not None:
            self.segment.sync()
        self._has_unsynced_rows = False
        for fd in self._unsynced:
            self.disk.sync(fd)
        self._unsynced.clear()

        # Step 3: append the lines; once they are durable, so are the commits. First begin a new
        # journal file if this one is full: at the same commit on all machines.
        at = 0
        while at < len(lines):
            if self.journal.is_full:
                self.journal.roll(lines[at][0])
            end = min(len(lines), at + self.journal.num_free)
            self.journal.append(b"".join(line for _, line in lines[at:end]), end - at)
            at = end
        self.state = after

    def publish(
        self,
        seq: int,
        position: ChangelogPosition | None = None,
        segment: SegmentState | None = None,
    ) -> None:
        """Step 4: publish the commits up to `seq` to readers.

        Before step 3 this would be too early: a crash could undo a commit that readers have used.

        position: the log's position in the changelog after these commits. segment: the one in
        progress after them, if they have rows.
        """
        self.disk.write(self._published, seq.to_bytes(8, "little"), 0)
        if position is not None:
            self.move(position)

        # Readers without the journal count rows by the file's header. A crash before this line
        # leaves the old counts, which recovery raises.
        if segment is not None and self.segment is not None:
            rows = segment.rows_per_set or (segment.num_edges,)
            self.segment.raise_counts(rows, segment.num_labels)

    def sync_publication(self) -> None:
        """Make the published position durable. A power cut may else restore an older one, until
        recovery publishes all commits."""
        self.disk.sync(self._published)

    def move(self, position: ChangelogPosition) -> None:
        """Write the log's position in the changelog; all commits before it must be durable."""
        if self._position is None:
            return
        self._position.write(position)
        # Without a sync a power cut may restore any older position. One sync for each journal file
        # bounds it; one for each commit would take a quarter of the commit's time.
        if self._position_synced_in != self.journal.path:
            self._position.sync()
            self._position_synced_in = self.journal.path

    # Replacement of files

    def finish_replacement(self, path: str, new: FileWithHoles) -> dict[str, Any]:
        """Make the new version of a file durable. Returns: its entry for the next line.

        Once that line is durable, the new file is renamed onto the old one, by recovery if a crash
        comes first.
        """
        revision = self.state.seq + 1
        scratch, named = (replacement(self.data_dir / path, r) for r in (0, revision))
        with self.aside(named):
            new.finish()
            self.disk.replace(scratch, named)
            self.disk.sync_folder(scratch.parent)
        crc, size = new.crc, [0, new.num_bytes]
        return {"path": path, "bytes": size, "crc": crc, "total": crc, "revision": revision}

    def adopt(self, path: str, fd: int) -> None:
        """Append further commits to a new file, which a line names."""
        self.disk.close(self.appended[path])
        self.appended[path] = fd

    # The segment in progress

    def segment_state(self) -> SegmentState:
        """The state of the segment in progress, with the rows written so far."""
        segment = self.segment
        assert segment is not None
        return SegmentState(
            self._segment_first,
            segment.num_edges,
            segment.num_labels,
            segment.edge_capacity,
            self._segment_revision,
            segment.rows_per_set if isinstance(segment, SetsWriter) else (),
        )

    def begin_segment(self, capacity: int) -> None:
        """Begin a segment after the newest event; the one in progress is sealed."""
        self.seal_for(self.allocate_segment(capacity))

    def allocate_segment(self, capacity: int) -> SegmentWriter:
        """Create the files of a segment after the newest event, which no line names yet."""
        path = self.data_dir / segment_path(self.state.num_edges, self.schema.num_edge_sets)
        with self.aside(path):
            # An existing file of this name is from a commit whose line was never written.
            self.remove(path)
            return new_segment(path, self.schema, capacity, self.disk)

    def seal_for(self, new: SegmentWriter) -> None:
        """Seal the segment in progress, if there is one, and continue in the new one."""
        first = self.state.num_edges
        # Begin a new journal file whenever a segment is sealed, so that retention can drop the two
        # together.
        if self.segment is not None:
            self.segment.close()
            self.journal.roll(self.state)
            edges = first - self._segment_first
            logger.info("segment_sealed", first_edge=self._segment_first, edges=edges)
        self.segment = new
        self._segment_first = first
        self._segment_revision = 0

    def close_segment(self) -> None:
        """Close the segment in progress, because another file replaces it."""
        if self.segment is not None:
            self.segment.close()
            self.segment = None

    def open_segment(self) -> None:
        """Open the newest segment that the journal names, if there is one."""
        last = self.state.last
        if last is not None:
            self.segment = reopen_segment(self.data_dir, last, self.schema, self.disk)
            self._segment_first = last.first_edge
            self._segment_revision = last.revision
            # A crash may have left rows of a commit without a line.
            self.segment.clear_behind(self._rows_behind)
            self.segment.raise_counts()


def disk_error(data_dir: Path, error: OSError) -> DiskError:
    return DiskError(
        f"The log in {data_dir} could not be written: {error.strerror or error}.",
        "free space or repair the disk; ingest resumes from the last commit by itself.",
    )
