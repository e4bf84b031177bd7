"""Writes the commits of another machine to a log here, in the same numbered steps, so that the two
logs are equal byte for byte."""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from streamd.errors import ChangelogError, JournalError, TGUFError
from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition
from streamd.eventlog.journal.journal import (
    NOTHING,
    FileState,
    LogState,
    SegmentState,
    decode_line,
)
from streamd.eventlog.layout import APPENDED, LABELS, ORDER
from streamd.eventlog.line_ranges import FileRange, appended_ranges
from streamd.eventlog.log_files import MAX_COMMIT_ROWS, MAX_IN_FLIGHT, LogFiles, nothing
from streamd.eventlog.recovery import drop_journals, finish_replacements, replacement, sweep
from streamd.eventlog.segment_files import SegmentFiles
from streamd.events import Schema
from streamd.storage import DISK, Disk

MAX_CAPACITY = 1 << 32
"""Maximum capacity of a segment in a line of another machine: 100 GB plus features."""
MAX_FILE_BYTES = 1 << 50
"""Maximum size of a file; a line with more is damaged."""
CHECKED_BYTES = 1 << 24
"""Bytes of a new file that are checked at a time."""


class LogApplier:
    """Appends the lines of another machine's journal, each with the bytes of its commit.

    Owner: the follower, by a lock on the directory. files: the log's. newest: the log's state after
    all finished commits, durable or not.

    A commit has the writer's steps:

    1. `begin` checks the line, any number of `write` write the rows, and `finish` compares them
       with the line's checksums.
    2. `flush` makes the rows of all finished commits durable.
    3. It appends their lines to the journal and makes these durable.
    4. It publishes the commits to readers.

    Input is not trusted: before the line is written, paths and sizes must be those that the line
    and this log's own state require, and bytes must have the line's checksums.
    """

    def __init__(
        self,
        data_dir: Path,
        schema: Schema,
        changelog: ChangelogId,
        disk: Disk = DISK,
        prepare: Callable[[], None] = nothing,
    ) -> None:
        """schema: of a log that has no line yet. Raises: as `LogFiles`."""
        self._opened: dict[str, int] = {}
        """Descriptors of the segment's files, and of those that replace others, by path."""
        self._mapped: tuple[SegmentState, SegmentFiles] | None = None
        self._lines: list[tuple[LogState, bytes]] = []
        """Lines of finished commits that are not durable, each with the state before it."""
        self._commit: _Commit | None = None
        self.files = LogFiles(data_dir, schema, disk, changelog, prepare)
        self.newest = self.files.state

    @property
    def state(self) -> LogState:
        """The log's state after the newest commit that is durable."""
        return self.files.state

    @property
    def num_finished(self) -> int:
        """Commits that `flush` will make durable."""
        return len(self._lines)

    @property
    def has_begun(self) -> bool:
        """Whether a commit was begun and not finished."""
        return self._commit is not None

    def begin(self, line: bytes, made: dict[str, int]) -> None:
        """Start the commit of a line, once the last commit is finished.

        made: size of each new file with which the commit replaces another, by path. Raises:
        ChangelogError if the line does not follow the log's state or contradicts it, DiskError.
        """
        assert self._commit is None
        with self.files.change():
            commit = _check_line(self.newest, line, made)
            # A commit that begins or replaces files cannot wait for others: flush those before it.
            if commit.is_alone:
                self._flush(None)
            self.files.schema = commit.after.schema
            if commit.begun is not None:
                self._close_files()
                self.files.begin_segment(commit.begun.capacity)
            for path, size in made.items():
                self._make(commit, path, size)
            ranges = appended_ranges(self.files.data_dir, self.newest, commit.after, commit.fields)
            commit.expected.extend(ranges)
            self._commit = commit

    def _make(self, commit: "_Commit", path: str, size: int) -> None:
        """Create a new file that will replace another, with its final size and no data."""
        disk, place = self.files.disk, self.files.data_dir / path
        if path in commit.folder_files:
            if not place.parent.exists():
                disk.make_folder(place.parent)
                disk.sync_folder(place.parent.parent)
        else:
            place = replacement(place, commit.after.seq)
        fd = disk.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        commit.made[path] = fd
        disk.truncate(fd, size)
        # Later commits append to the last segment: reserve its blocks, as for a new one.
        if commit.after.last is not None and path == commit.after.last.path:
            disk.allocate(fd, size)

    def write(self, path: str, offset: int, data: memoryview) -> None:
        """Step 1: write bytes of the commit.

        They must come in the order of `appended_ranges`; bytes of new files may come in any order.
        Raises: ChangelogError for bytes that the line does not require, DiskError.
        """
        commit = self._commit
        assert commit is not None
        with self.files.change():
            if path in commit.made:
                if not 0 <= offset <= offset + len(data) <= commit.sizes[path]:
                    raise _distrust(
                        commit.after.seq, f"{path} ends before byte {offset + len(data)}"
                    )
                fd = commit.made[path]
            else:
                commit.take(path, offset, data)
                appended = self.files.appended
                fd = appended[path] if path in appended else self._open_file(path)
            # Step 1: write the rows.
            self.files.write(fd, data, offset)

    def finish(self, position: ChangelogPosition) -> None:
        """Finish the commit after all its bytes. A later `flush` makes it durable, or this call if
        the commit must be alone or MAX_IN_FLIGHT are finished.

        position: the log's in the changelog after the commit. Raises: ChangelogError if bytes are
        missing or differ from the line's checksums, DiskError.
        """
        commit = self._commit
        assert commit is not None
        with self.files.change():
            if commit.expected:
                raise _distrust(commit.after.seq, f"bytes of {commit.expected[0].path} are missing")
            self._check_bytes(commit)
            self._lines.append((self.newest, commit.line))
            self.newest = commit.after
            self._commit = None
            if commit.is_alone:
                self._finish_alone(commit, position)
            elif len(self._lines) >= MAX_IN_FLIGHT:
                self._flush(position)

    def flush(self, position: ChangelogPosition) -> None:
        """Make the finished commits durable, and publish them. Raises: DiskError."""
        with self.files.change():
            self._flush(position)

    def move(self, position: ChangelogPosition) -> None:
        """Store a later position in the changelog, after records that are not commits. Raises:
        DiskError."""
        with self.files.change():
            self.files.move(position)

    def _flush(self, position: ChangelogPosition | None) -> None:
        """Steps 2 to 4 for all finished commits. position: None if it is unknown."""
        if not self._lines:
            if position is not None:
                self.files.publish(self.state.seq, position)
            return
        before = self._append_lines()

        # Step 4: publish them.
        grown = self.state.last if self.state.last != before.last else None
        self.files.publish(self.state.seq, position, grown)

    def _append_lines(self) -> LogState:
        """Steps 2 and 3 for all finished commits. Returns: the state before them."""
        before = self.state
        self.files.append_lines(self._lines, self.newest)
        self._lines.clear()
        # After the first line of a newer format begin a journal file, as the leader does: older
        # releases refuse a log by the format number at the start of its newest file.
        if self.state.outgrows(before):
            self.files.journal.roll(self.state)
        return before

    def _finish_alone(self, commit: "_Commit", position: ChangelogPosition) -> None:
        """Steps 2 to 4 of a commit that begins, replaces or drops files:

        2. Make its rows and new files durable.
        3. Append its line, then rename the new files onto the old ones: a rename before the line
           would replace a file that the journal still names.
        4. Publish it, then unlink files that no line names any more. Only this cannot be undone,
           but the commit is in the changelog.
        """
        files, disk = self.files, self.files.disk

        # Steps 2 and 3, with the new files.
        for path, fd in commit.made.items():
            disk.sync(fd)
            disk.sync_folder((files.data_dir / path).parent)
        if commit.made:
            self._close_segment_of(commit)
        self._append_lines()

        # New files replace the old ones before readers see the commit.
        finish_replacements(files.data_dir, self.state, disk)
        for path, fd in commit.made.items():
            if path in files.appended:
                files.adopt(path, fd)
            else:
                disk.close(fd)
        if files.segment is None:
            files.open_segment()

        # Step 4: publish it. Then remove files that no line names any more.
        files.publish(self.state.seq, position, self.state.last if commit.begun else None)
        if commit.made or "dropped" in commit.fields:
            sweep(files.data_dir, self.state, disk)
        if "dropped" in commit.fields:
            for _ in drop_journals(files.data_dir, self.state, disk):
                pass
        if "schema" in commit.fields:
            files.journal.roll(self.state)

    def _close_segment_of(self, commit: "_Commit") -> None:
        """Close the files of the segment in progress if the commit replaces it."""
        last = commit.after.last
        before = self.state.last
        replaced = last is not None and before is not None and last.first_edge == before.first_edge
        if replaced and last is not None and last.revision == commit.after.seq:
            self._close_files()
            self.files.close_segment()

    def _check_bytes(self, commit: "_Commit") -> None:
        """Compare the written bytes with the line's checksums. Raises: ChangelogError."""
        for change in commit.fields["files"]:
            path = change["path"]
            if "bytes" in change:
                crcs = commit.crcs.get(path, (0, self.newest.files.get(path, NOTHING).crc))
                if path in commit.made:
                    crc = _crc_of(commit.made[path], commit.sizes[path])
                    crcs = crc, crc
                if crcs != (change["crc"], change["total"]):
                    raise _distrust(
                        commit.after.seq, f"the bytes of {path} differ from their checksum"
                    )
            else:
                crc = self._rows_crc(commit, change)
                if crc != change["crc"]:
                    raise _distrust(
                        commit.after.seq, f"the rows of {path} differ from their checksum"
                    )

    def _rows_crc(self, commit: "_Commit", change: dict[str, Any]) -> int:
        """CRC32C of the rows that were written to a segment. Raises: ChangelogError."""
        path = change["path"]
        segment = next(s for s in commit.after.segments if s.path == path)
        try:
            if change.get("revision") == commit.after.seq:
                place = self.files.data_dir / path
                if not segment.rows_per_set:
                    place = replacement(place, commit.after.seq)
                files = SegmentFiles(place, segment, commit.after.schema)
            else:
                files = self._mapped_last(segment, commit.after.schema)
            return files.rows_crc(tuple(change["rows"]), tuple(change["labels"]))
        except TGUFError as error:
            raise _distrust(commit.after.seq, str(error)) from None

    def _mapped_last(self, segment: SegmentState, schema: Schema) -> SegmentFiles:
        """The files of the segment in progress, mapped once."""
        if self._mapped is None or self._mapped[0].path != segment.path:
            self._mapped = (
                segment,
                SegmentFiles(self.files.data_dir / segment.path, segment, schema),
            )
        return self._mapped[1]

    def _open_file(self, path: str) -> int:
        if path not in self._opened:
            self._opened[path] = self.files.disk.open(self.files.data_dir / path, os.O_RDWR)
        return self._opened[path]

    def _close_files(self) -> None:
        """Close the files of the last segment in progress."""
        for fd in self._opened.values():
            self.files.forget_unsynced(fd)
            self.files.disk.close(fd)
        self._opened.clear()
        self._mapped = None

    def close(self) -> None:
        """Close all files and release the lock; commits that are not durable are dropped."""
        if not self.files.closed:
            self._mapped = None
            made = self._commit.made if self._commit else {}
            for fd in (*self._opened.values(), *made.values()):
                self.files.disk.close(fd)
            self._opened.clear()
            self._commit = None
        self.files.close()


class _Commit:
    """A commit in progress. Owner: the applier.

    after: the log's state after it. begun: the segment that it begins, if any. sizes: of its new
    files that replace others, by path. made: their descriptors. expected: the ranges that are still
    missing. crcs: by append-only file, the CRC32C of the bytes so far, and of the whole file.
    """

    def __init__(self, line: bytes, fields: dict[str, Any], before: LogState) -> None:
        self.line = line
        self.fields = fields
        self.after = before.after(fields)
        self.begun: SegmentState | None = None
        self.sizes: dict[str, int] = {}
        self.folder_files: set[str] = set()
        self.made: dict[str, int] = {}
        self.expected: deque[FileRange] = deque()
        self.crcs: dict[str, tuple[int, int]] = {}
        self._before = before

    @property
    def is_alone(self) -> bool:
        """Whether it does more than append to files."""
        return bool(
            self.begun is not None
            or self.sizes
            or "dropped" in self.fields
            or "schema" in self.fields
        )

    def take(self, path: str, offset: int, data: memoryview) -> None:
        """Check that bytes are the next ones that the line requires. Raises: ChangelogError."""
        due = self.expected[0] if self.expected else FileRange("", 0, 0)
        if due.path != path or due.offset != offset or not 0 < len(data) <= due.num_bytes:
            raise _distrust(
                self.after.seq, f"{len(data)} bytes at {offset} of {path} are not the next ones"
            )
        if len(data) == due.num_bytes:
            self.expected.popleft()
        else:
            left = due.num_bytes - len(data)
            self.expected[0] = FileRange(path, offset + len(data), left)
        if path in APPENDED:
            old = self._before.files.get(path, NOTHING).crc
            crc, total = self.crcs.get(path, (0, old))
            self.crcs[path] = crc32c(data, crc), crc32c(data, total)


def _check_line(before: LogState, line: bytes, made: dict[str, int]) -> _Commit:
    """Decode the line of the commit after a state, and check all its fields. Raises:
    ChangelogError."""
    fields = decode_line(line)
    seq = before.seq + 1
    if fields is None:
        raise _distrust(seq, "its line differs from its checksum")
    try:
        commit = _Commit(line, fields, before)
        _check_segments(commit, before)
        for change in fields["files"]:
            _check_change(commit, before, change)
        _check_new_files(commit, made)
        commit.sizes = dict(made)
        return commit
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _distrust(seq, f"its line is invalid: {error!r}") from None
    except JournalError as error:
        raise _distrust(seq, str(error)) from None


def _check_segments(commit: _Commit, before: LogState) -> None:
    """Check the segments that a line changes. Raises: ValueError, TypeError."""
    old, new = before.last, commit.after.last
    known = {s.first_edge for s in before.segments}
    for entry in commit.fields["segments"]:
        state = SegmentState.restored(entry)
        numbers = (state.first_edge, state.num_edges, state.num_labels, state.capacity)
        if not all(isinstance(n, int) and 0 <= n <= MAX_CAPACITY * MAX_CAPACITY for n in numbers):
            raise ValueError(f"segment {entry}")
        if not 0 < state.capacity <= MAX_CAPACITY or state.num_edges > state.capacity:
            raise ValueError(f"segment {entry}")
        if state.first_edge not in known:
            if commit.begun is not None or state.first_edge != before.num_edges or state.revision:
                raise ValueError(f"segment {entry}")
            commit.begun = state
        elif state.revision not in (_revision(before, state.first_edge), commit.after.seq):
            raise ValueError(f"segment {entry}")
    for first in commit.fields.get("dropped", ()):
        if first not in {s.first_edge for s in before.sealed}:
            raise ValueError(f"dropped {first}")
    if old is not None and new is not None and commit.begun is None:
        grows = new.num_edges >= old.num_edges and new.num_labels >= old.num_labels
        if old.first_edge == new.first_edge and not grows:
            raise ValueError(f"segment {new.entry()}")


def _revision(state: LogState, first_edge: int) -> int:
    return next(s.revision for s in state.segments if s.first_edge == first_edge)


def _check_change(commit: _Commit, before: LogState, change: dict[str, Any]) -> None:
    """Check a line's entry for one file. Raises: ValueError, KeyError, TypeError."""
    path = change["path"]
    replaced = "revision" in change
    if replaced and change["revision"] != commit.after.seq:
        raise ValueError(f"{path} has revision {change['revision']}")
    if "bytes" in change:
        first, end = change["bytes"]
        old = before.files.get(path, FileState()).num_bytes
        begins = 0 if replaced else old
        if path not in APPENDED or first != begins or not first <= end <= MAX_FILE_BYTES:
            raise ValueError(f"{path} has bytes {change['bytes']}")
        return

    # Rows of the segment in progress, or all rows of a replaced segment.
    (a, b), (c, d) = change["rows"], change["labels"]
    last = commit.after.last
    if replaced:
        segment = next(s for s in commit.after.segments if s.path == path)
        begins_at = (0, 0)
    else:
        segment = last if last is not None else SegmentState(0, 0, 0, 0)
        same = before.last is not None and before.last.first_edge == segment.first_edge
        old_last = before.last if same else None
        begins_at = (0, 0) if old_last is None else (old_last.num_edges, old_last.num_labels)
    if (a, c) != begins_at or (b, d) != (segment.num_edges, segment.num_labels):
        raise ValueError(f"{path} has rows {change['rows']} and labels {change['labels']}")
    if segment.path != path or (not replaced and max(b - a, d - c) > MAX_COMMIT_ROWS):
        raise ValueError(f"{path} has rows {change['rows']}")


def _check_new_files(commit: _Commit, made: dict[str, int]) -> None:
    """Check the new files with which a line replaces others. Raises: ValueError."""
    wanted: set[str] = set()
    folders: dict[str, set[str]] = {}
    for change in commit.fields["files"]:
        path = change["path"]
        if "revision" not in change:
            continue
        segment = next((s for s in commit.after.segments if s.path == path), None)
        if "bytes" in change and made.get(path) != change["bytes"][1]:
            raise ValueError(f"{path} of {made.get(path)} bytes")
        if segment is not None and segment.rows_per_set:
            names = commit.after.schema.edge_set_names[: len(segment.rows_per_set)]
            own = {f"{path}/{name}.tguf" for name in names} | {f"{path}/{ORDER}"}
            folders[path] = {*own, f"{path}/{LABELS}"}
            wanted |= own
        else:
            wanted.add(path)
    allowed = wanted | {path for folder in folders.values() for path in folder}
    commit.folder_files = {path for folder in folders.values() for path in folder}
    if not wanted <= set(made) <= allowed:
        raise ValueError(f"files {sorted(set(made) ^ wanted)}")
    if any(not isinstance(n, int) or not 0 <= n <= MAX_FILE_BYTES for n in made.values()):
        raise ValueError(f"sizes {made}")


def _crc_of(fd: int, size: int) -> int:
    crc = 0
    for at in range(0, size, CHECKED_BYTES):
        crc = crc32c(os.pread(fd, min(CHECKED_BYTES, size - at), at), crc)
    return crc


def _distrust(seq: int, why: str) -> ChangelogError:
    return ChangelogError(
        f"Commit {seq} of the changelog cannot be applied: {why}.",
        "start with an empty directory, from the newest manifest; run `streamd changelog verify` "
        "on the leader.",
    )
