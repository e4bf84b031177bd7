"""The open files of a log, as one process at a time has them: recovered, locked, and closed to all
further changes once one has failed."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from streamd.errors import DiskError
from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition, PositionFile
from streamd.eventlog.journal.journal import (
    NOTHING,
    FileState,
    JournalWriter,
    LogState,
    SegmentState,
)
from streamd.eventlog.layout import EDGES, segment_path
from streamd.eventlog.recovery import (
    last_state,
    lock_directory,
    open_appended,
    replacement,
    settle,
)
from streamd.eventlog.sets_writer import SetsWriter, new_segment, reopened_segment
from streamd.eventlog.tguf.writer import TGUFWriter
from streamd.events import Schema
from streamd.storage import DISK, Disk, FileWithHoles

logger = structlog.get_logger()
MAX_COMMIT_ROWS = 65_536
"""Most rows of edges, and of labels, in one commit. A crash may leave so many behind a segment's
counts, and recovery zeroes no more: 64 Ki edges without features are 1.5 MiB."""
MAX_IN_FLIGHT = 16
"""Most commits that wait for the changelog at a time, or that a follower makes durable at once."""


def nothing() -> None:
    """Do nothing before a log is opened."""


class LogFiles:
    """The files that a log's one writer appends to. Owner: `LogWriter` where commits are made, and
    `LogApplier` where those of another machine are written.

    state: the log's after the newest line of the journal. After a failed write or sync nothing more
    is accepted: the process ends, and a new writer recovers.
    """

    def __init__(
        self,
        data_dir: Path,
        schema: Schema,
        disk: Disk = DISK,
        changelog: ChangelogId | None = None,
        prepare: Callable[[], None] = nothing,
    ) -> None:
        """Lock, recover and open the log.

        schema: of a log that has no line yet. changelog: where it has one, so that commits are
        shown only when the changelog has them. prepare: called under the lock, before anything is
        read.
        Raises: LockedError, JournalError, DataDirectoryError, DiskError.
        """
        self.data_dir = data_dir
        self.schema = schema
        self.disk = disk
        self._failed = ""
        self.is_untidy = False
        """Whether files that no line names any more may be left: an unlink failed, or is not
        through."""
        self.closed = False
        """Whether it takes no more commits because `close` was called."""

        # Take the lock before anything is read; give it back where the log cannot be opened.
        for folder in ("journal", EDGES, "node_features"):
            (data_dir / folder).mkdir(parents=True, exist_ok=True)
        self.lock = lock_directory(data_dir / "lock")
        """Descriptor of the lock on the directory, held until `close`."""
        with self._giving_back():
            prepare()
            self._open(changelog)

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Open a part of the log; where that fails, give the lock back, which nobody else can.

        Raises: DiskError in the place of OSError.
        """
        try:
            yield
        except OSError as error:
            os.close(self.lock)
            raise disk_error(self.data_dir, error) from error
        except BaseException:
            os.close(self.lock)
            raise

    def _open(self, changelog: ChangelogId | None) -> None:
        state = last_state(self.data_dir, self.schema)
        self.schema = state.schema

        # A new journal file makes the recovered state durable before any other file is changed.
        self.state: LogState = state
        self._journal = JournalWriter(self.data_dir / "journal", state, self.disk)
        settle(self.data_dir, state, self.disk)

        # Open what is appended to, and cut off what a crash left behind the committed ends. With a
        # changelog that may be the rows of several commits.
        self._segment: TGUFWriter | SetsWriter | None = None
        self._segment_first = self._segment_revision = 0
        self._rows_behind = MAX_COMMIT_ROWS * (1 if changelog is None else MAX_IN_FLIGHT + 1)
        self._files = open_appended(self.data_dir, state, self.disk)
        self._open_segment()

        # Show readers the newest commit: a crash may have come between its line and this.
        self._published = self.disk.open(self.data_dir / "published", os.O_RDWR | os.O_CREAT)
        self._position: PositionFile | None = None
        if changelog is not None:
            self._position = PositionFile(self.data_dir, changelog, self.disk)
        self._publish(self.state.seq)

    def close(self) -> None:
        """Close all files and release the lock; a second call does nothing. Raises: DiskError."""
        if self.closed:
            return
        self.closed = True
        try:
            with ExitStack() as stack:
                stack.callback(os.close, self.lock)
                for fd in (self._published, *self._files.values()):
                    stack.callback(self.disk.close, fd)
                if self._position is not None:
                    stack.callback(self._position.close)
                stack.callback(self._journal.close)
                if self._segment is not None:
                    stack.callback(self._segment.close)
        except OSError as error:
            raise disk_error(self.data_dir, error) from error

    def _committed(self, path: str) -> FileState:
        return self.state.files.get(path, NOTHING)

    @property
    def in_doubt(self) -> bool:
        """Whether a failed change left the disk in a state that only recovery can determine: then
        the process must end. Any other error leaves the log as it was before or after the
        change."""
        return bool(self._failed)

    # In doubt: any failure from the first byte written to committed files until readers see the
    # commit (`_steps`). A line whose write or sync failed may or may not be on the disk, a file may
    # not be renamed yet to the name in its line, and rows after the counts must be zeroed.
    #
    # Not in doubt: files that no line names. These are unfinished copies, which `_aside` removes
    # after a failure, and files that a durable line released, which `_tidy` unlinks, or else
    # recovery. Reading a damaged segment changes nothing either.

    @contextmanager
    def _steps(self) -> Iterator[None]:
        """Run one change of the log; after any failure in it, refuse every later change.

        Memory and disk may then differ, and only recovery knows what the disk holds.
        """
        if self._failed:
            raise DiskError(
                f"The log at {self.data_dir} takes nothing more after: {self._failed}.",
                "restart ingest.",
            )
        try:
            self._journal.check_alone()
            yield
        except OSError as error:
            self._failed = str(error)
            raise disk_error(self.data_dir, error) from error
        except BaseException as error:
            self._failed = str(error)
            raise

    @contextmanager
    def _aside(self, path: Path) -> Iterator[None]:
        """Write a file or folder that no line names yet; if that fails, remove it, which leaves the
        log unchanged. Raises: DiskError instead of OSError."""
        # First check that this process may still write the log.
        with self._steps():
            pass
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                self._remove(path)
            if isinstance(error, OSError):
                raise disk_error(self.data_dir, error) from error
            raise

    @contextmanager
    def _tidy(self) -> Iterator[None]:
        """Unlink files that no line names any more. Raises: DiskError instead of OSError."""
        self.is_untidy = True
        try:
            yield
            self.is_untidy = False
        except OSError as error:
            raise disk_error(self.data_dir, error) from error

    def _remove(self, path: Path) -> None:
        """Remove a file or folder, if it exists."""
        self.disk.remove_folder(path) if path.is_dir() else self.disk.unlink(path)

    def _finished(self, path: str, new: FileWithHoles) -> dict[str, Any]:
        """Make the replacement of a file durable. Returns: its entry for the next line.

        Once that line is durable, the new file is renamed into place, if need be by recovery.
        """
        revision = self.state.seq + 1
        scratch, named = (replacement(self.data_dir / path, r) for r in (0, revision))
        with self._aside(named):
            new.finish()
            self.disk.replace(scratch, named)
            self.disk.sync_folder(scratch.parent)
        crc, size = new.crc, [0, new.num_bytes]
        return {"path": path, "bytes": size, "crc": crc, "total": crc, "revision": revision}

    def _adopt(self, path: str, new: FileWithHoles) -> None:
        """Let further commits append to a new file, which the next line names."""
        self.disk.close(self._files[path])
        self._files[path] = new.fd

    def _state_of(self, segment: TGUFWriter | SetsWriter) -> SegmentState:
        """The state of the segment in progress, with the rows written so far."""
        return SegmentState(
            self._segment_first,
            segment.num_edges,
            segment.num_labels,
            segment.edge_capacity,
            self._segment_revision,
            segment.rows_per_set if isinstance(segment, SetsWriter) else (),
        )

    def _new_segment(self, capacity: int) -> TGUFWriter | SetsWriter:
        """Begin a segment behind the newest event; the one in progress is sealed."""
        new = self._allocated_segment(capacity)
        self._seal_for(new)
        return new

    def _allocated_segment(self, capacity: int) -> TGUFWriter | SetsWriter:
        """Create the files of a segment after the newest event, which no line names yet."""
        path = self.data_dir / segment_path(self.state.num_edges, self.schema.num_edge_sets)
        with self._aside(path):
            # An existing file of this name is from a commit whose line was never written.
            self._remove(path)
            return new_segment(path, self.schema, capacity, self.disk)

    def _seal_for(self, new: TGUFWriter | SetsWriter) -> None:
        """Seal the segment in progress, if there is one, and continue in the new one."""
        first = self.state.num_edges
        # Begin a new journal file whenever a segment is sealed, so that retention can drop the two
        # together.
        if self._segment is not None:
            self._segment.close()
            self._journal.roll(self.state)
            edges = first - self._segment_first
            logger.info("segment_sealed", first_edge=self._segment_first, edges=edges)
        self._segment = new
        self._segment_first = first
        self._segment_revision = 0

    def _open_segment(self) -> None:
        last = self.state.last
        if last is not None:
            self._segment = reopened_segment(self.data_dir, last, self.schema, self.disk)
            self._segment_first = last.first_edge
            self._segment_revision = last.revision
            # A crash may have left rows of a commit whose line was never written.
            self._segment.clear_behind(self._rows_behind)
            self._segment.raise_counts()

    def _publish(
        self,
        seq: int,
        position: ChangelogPosition | None = None,
        segment: SegmentState | None = None,
    ) -> None:
        """Step 4: show the commits up to `seq` to readers.

        position: where the log then stands in the changelog. segment: the one in progress after
        them, where they have rows.
        """
        self.disk.write(self._published, seq.to_bytes(8, "little"), 0)
        if position is not None:
            self._move(position)

        # Readers without the journal count rows by the file's header. A crash before this line
        # leaves the old counts, which recovery raises.
        if segment is not None and self._segment is not None:
            rows = segment.rows_per_set or (segment.num_edges,)
            self._segment.raise_counts(rows, segment.num_labels)

    def _move(self, position: ChangelogPosition) -> None:
        """Write where the log stands in the changelog; what it says must be durable."""
        if self._position is not None:
            self._position.write(position)


def disk_error(data_dir: Path, error: OSError) -> DiskError:
    return DiskError(
        f"The log in {data_dir} could not be written: {error.strerror or error}.",
        "free space or mend the disk; ingest resumes from the last commit by itself.",
    )
