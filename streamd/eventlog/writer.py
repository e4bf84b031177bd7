"""The log's one writer turns each batch into a durable commit, in the numbered steps of
docs/how-it-works.md, and recovers what a crash left."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from crc32c import crc32c

from streamd.errors import ChangelogError
from streamd.eventlog.commit_rows import append_rows, appended_bytes, read_keys
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.journal.journal import SegmentState, changed_progress, encode_line
from streamd.eventlog.layout import FEATURES
from streamd.eventlog.log_files import MAX_COMMIT_ROWS, MAX_IN_FLIGHT, LogFiles
from streamd.eventlog.lookup import EdgeLookup
from streamd.eventlog.node_features import widened
from streamd.eventlog.publisher import Publisher
from streamd.eventlog.recovery import drop_journals, finish_replacements, replacement, sweep
from streamd.eventlog.segment_files import SegmentFiles, newest_time
from streamd.eventlog.sets_writer import SetsWriter, new_segment
from streamd.eventlog.tguf.writer import TGUFWriter
from streamd.events import Bools, EventBatch, Gap, Int64, Progress, Schema
from streamd.schema_change import check_extends
from streamd.storage import DISK, Disk, FileWithHoles

logger = structlog.get_logger()
CLOSE_SECONDS = 5.0
"""How long a close waits for the changelog. What is not acknowledged then is published again at the
next start."""


class LogWriter(LogFiles):
    """Appends commits to the log, drops segments and replaces files, each as one line of the
    journal.

    Owner: the ingest process, by a lock on the directory. `keys` maps external keys to node ids;
    `BatchBuilder` adds and removes entries before it commits. With a publisher a commit is durable
    first and shown to readers later: up to MAX_IN_FLIGHT of them wait for `show_acknowledged`.
    """

    def __init__(
        self,
        data_dir: Path,
        schema: Schema,
        segment_edges: int = 1_000_000,
        disk: Disk = DISK,
        publisher: Publisher | None = None,
    ) -> None:
        """Lock, recover and open the log.

        publisher: has acknowledged all that the journal holds; the log's from here on.
        Raises: LockedError, JournalError, DataDirectoryError, DiskError; ChangelogError where a log
        that has a changelog is opened without it.
        """
        if publisher is None and (data_dir / CHANGELOG).exists():
            raise ChangelogError(
                f"The commits of {data_dir} go to a changelog, and this process would not tell it.",
                "let ingest write it, with log.name set; to go on without other machines, remove "
                f"{data_dir / CHANGELOG}.",
            )
        self.segment_edges = segment_edges
        self._publisher = publisher
        self._waiting: deque[tuple[int, SegmentState | None]] = deque()
        """Commits that are durable but not acknowledged, each with the segment it appended to."""
        self._placed: ChangelogPosition | None = None
        """Where the directory says that it stands in the changelog."""
        changelog = None if publisher is None else publisher.changelog
        super().__init__(data_dir, schema, disk, changelog)
        self.shown_seq = self.state.seq
        """Newest commit that readers may use."""
        with self._giving_back():
            self._begin(schema)

    def _begin(self, declared: Schema) -> None:
        """Read what commits need of the log, and extend its schema to the one declared."""
        check_extends(self.schema, declared)
        if self._publisher is not None:
            position = self._publisher.acknowledged()
            assert position.seq == self.state.seq, "all that the journal holds is acknowledged"
            self._publish(position.seq, position)
            self._placed = position
        self.keys = read_keys(self.data_dir, self.state)
        if self._publisher is not None:
            # Many keys take a while.
            self._publisher.heartbeat()
        self.newest_us = newest_time(self.data_dir, self.state)
        """Event time of the newest edge, microseconds; None before there is one."""
        self._lookup = EdgeLookup(self.data_dir)
        if declared != self.schema:
            self._widen(declared)

    def has_edges(self, src_X: Int64, dst_X: Int64, time_X: Int64, set_X: Int64 | int = 0) -> Bools:
        """Whether the log holds an edge of a set between two node ids that came at an event time,
        deleted or not: bool[X]."""
        return self._lookup.holds(self.state, src_X, dst_X, time_X, set_X)

    @property
    def watermark(self) -> int:
        return self.state.watermark

    @property
    def num_edges(self) -> int:
        return self.state.num_edges

    @property
    def num_nodes(self) -> int:
        """Number of node ids given out, deleted nodes included; it is the next new node's id."""
        return self.state.num_nodes

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def remaining_rows(self) -> int:
        """Most rows that the next commit may have, so that it does not span two segments."""
        segment = self._segment
        if segment is None or segment.num_edges >= segment.edge_capacity:
            return min(self.segment_edges, MAX_COMMIT_ROWS)
        remaining = segment.edge_capacity - segment.num_edges
        if self.schema.label_dim:
            remaining = min(remaining, max(segment.label_capacity - segment.num_labels, 0))
        # Where labels filled the segment, a commit with labels begins a new one, or enlarges one
        # that has no edge yet.
        return min(remaining, MAX_COMMIT_ROWS) or min(self.segment_edges, MAX_COMMIT_ROWS)

    def commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap] = ()
    ) -> None:
        """Append one batch durably, with the positions in Kafka from which to read on.

        Args: watermark: event time up to which the log is complete, microseconds; gaps: offsets
        that Kafka lost and that are passed over.
        Raises: DiskError where a write or sync failed. Whether the commit is durable is then
        unknown until recovery has read the journal; the caller ends the process. LockedError where
        another process writes here too.
        """
        # After a crash, recovery zeroes MAX_COMMIT_ROWS rows behind the counts: `_open_segment`.
        rows = max(batch.num_edges, len(batch.label_node_L))
        assert rows <= MAX_COMMIT_ROWS, f"{rows} rows of a kind; see `remaining_rows`"
        with self._steps():
            self._commit(batch, progress, watermark, gaps)

    def _commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap]
    ) -> None:
        self._let_through(MAX_IN_FLIGHT - 1)
        changes: list[dict[str, Any]] = []
        segments: list[SegmentState] = []
        touched: list[int] = []
        if batch.num_edges or len(batch.label_node_L):
            segment = self._segment_for(batch)

            # Step 1: write the rows, of the segment first and then of the append-only files.
            changes.append(append_rows(segment, self._state_of(segment).path, batch))
            segments.append(self._state_of(segment))
        for path, data in appended_bytes(self.schema, self.state, batch):
            old = self._committed(path)
            self.disk.write(self._files[path], data, old.num_bytes)
            changes.append(
                {
                    "path": path,
                    "bytes": [old.num_bytes, old.num_bytes + len(data)],
                    "crc": crc32c(data),
                    "total": crc32c(data, old.crc),
                }
            )
            touched.append(self._files[path])

        # Step 2: make them durable.
        if segments and self._segment is not None:
            self._segment.sync()
        for fd in touched:
            self.disk.sync(fd)

        # Steps 3 and 4: write the journal's line, then show the commit to readers.
        fields = {
            "rows": batch.num_rows,
            "nodes": self.state.num_nodes + len(batch.new_keys),
            "watermark": watermark,
            "files": changes,
            "progress": changed_progress(self.state.progress, progress),
        }
        if gaps:
            fields["gaps"] = [list(g) for g in gaps]
        self._line(segments, fields)
        if batch.num_edges:
            self.newest_us = int(batch.time_E[-1])

    @property
    def _term(self) -> int:
        """The term of the next commit: the leader's, and never less than that of the last commit,
        where a new changelog counts from the begin."""
        led_in = 0 if self._publisher is None else self._publisher.term
        return max(self.state.term, led_in)

    def _line(
        self, segments: Sequence[SegmentState], fields: dict[str, Any], replaces: bool = False
    ) -> None:
        line = {
            "seq": self.state.seq + 1,
            "term": self._term,
            "rows": 0,
            "nodes": self.state.num_nodes,
            "watermark": self.state.watermark,
            "files": [],
            "progress": changed_progress(self.state.progress, self.state.progress),
            "segments": [s.entry() for s in segments],
            **fields,
        }

        # Step 3: append the line; once it is durable, so is the commit.
        if self._journal.is_full:
            self._let_through(0)
            self._journal.roll(self.state)
        encoded = encode_line(line)
        self._journal.append(encoded)
        before, self.state = self.state, self.state.after(line)
        segment = segments[-1] if segments and not replaces else None
        if self._publisher is not None:
            self._publisher.publish(before, line, encoded)
            self._waiting.append((self.state.seq, segment))

        # A replaced file gets its name before readers are told of it, and only when nothing can
        # take the commit back any more.
        if replaces:
            self._await_all()
            finish_replacements(self.data_dir, self.state, self.disk)

        # Step 4: show it to readers. Step 5, Kafka's offsets, is the caller's.
        if self._publisher is None:
            self.shown_seq = self.state.seq
            self._publish(self.shown_seq, None, segment)
        else:
            self._show()

        # With a line of a newer format begin a new file: older releases refuse a log by the format
        # number at the start of its newest file.
        if self.state.has_runs and not before.has_runs:
            self._let_through(0)
            self._journal.roll(self.state)

    def show_acknowledged(self) -> int:
        """Show readers the commits that the changelog has acknowledged since. Returns: the newest
        commit shown. Called by the loop whether commits wait or not, so that other machines hear
        that it runs. Raises: DiskError, KafkaError, ChangelogError."""
        if self._publisher is not None:
            with self._steps():
                self._show()
                self._publisher.heartbeat()
        return self.shown_seq

    @property
    def seq(self) -> int:
        """The newest commit that is durable."""
        return self.state.seq

    @property
    def is_waiting(self) -> bool:
        """Whether commits wait for the changelog."""
        return bool(self._waiting)

    def _show(self) -> None:
        """Step 4 for all commits that are acknowledged."""
        assert self._publisher is not None
        position = self._publisher.acknowledged()
        before = self.shown_seq
        segment = None
        while self._waiting and self._waiting[0][0] <= position.seq:
            self.shown_seq, changed = self._waiting.popleft()
            segment = changed or segment
        # Readers take the time of the last write for that of the newest commit.
        if self.shown_seq > before:
            assert self.shown_seq == position.seq
            self._publish(self.shown_seq, position, segment)
        elif position != self._placed:
            self._move(position)
        self._placed = position

    def _let_through(self, most: int) -> None:
        """Show commits until at most so many wait."""
        while len(self._waiting) > most:
            self._show()
            if len(self._waiting) > most:
                assert self._publisher is not None
                self._publisher.wait()

    def _await_all(self) -> None:
        """Wait until all commits are acknowledged, without showing them."""
        while self._waiting and self._publisher is not None:
            if self._publisher.acknowledged().seq >= self.state.seq:
                return
            self._publisher.wait()

    def close(self) -> None:
        """Wait a little for the changelog, close all files and release the lock; a second call does
        nothing. Raises: DiskError."""
        until = time.monotonic() + CLOSE_SECONDS
        try:
            while self._waiting and not (self.closed or self._failed) and time.monotonic() < until:
                if self.show_acknowledged() < self.state.seq and self._publisher is not None:
                    self._publisher.wait()
        finally:
            try:
                super().close()
            finally:
                if self._publisher is not None:
                    self._publisher.close()

    def drop_before(self, first_edge: int) -> None:
        """Drop the sealed segments that end at or before an event id."""
        for _ in self.drop_in_steps(first_edge):
            pass

    def drop_in_steps(self, first_edge: int) -> Iterator[int]:
        """`drop_before` in steps: the first drops the segments, each further one a file of the
        journal. Yields: number of segments dropped."""
        doomed = [s for s in self.state.sealed if s.end <= first_edge]
        if not doomed:
            return
        with self._steps():
            self._line([], {"dropped": [s.first_edge for s in doomed]})
            self._let_through(0)
        for _ in self.tidying():
            yield len(doomed)

    def tidying(self) -> Iterator[None]:
        """Unlink what no line names any more: the first step all but files of the journal, each
        further one a file of it. Nothing may be under way to be replaced. Raises: DiskError."""
        with self._tidy():
            sweep(self.data_dir, self.state, self.disk)
            yield
            for _ in drop_journals(self.data_dir, self.state, self.disk):
                yield

    def seal(self) -> None:
        """Close the segment in progress and begin another, unless it has no edge yet.

        A segment is named by its first event id, so a second one without edges would have the name
        of the first.
        """
        if self._segment is not None and self._segment.num_edges:
            with self._steps():
                self._let_through(0)
            segment = self._allocated_segment(self.segment_edges)
            with self._steps():
                self._seal_for(segment)
                self._line([self._state_of(segment)], {})

    def replace_segment(
        self,
        old: SegmentState,
        write: Callable[[Path], int],
        changes: Sequence[dict[str, Any]] = (),
        schema: Schema | None = None,
    ) -> None:
        """Replace a segment by a rewritten copy; nothing may be appended to it meanwhile.

        write: makes the copy at a path and returns the CRC32C of its rows. changes, schema: files
        that change and the schema that begins with it.
        """
        fields = {} if schema is None else {"schema": schema.fields()}
        new = replace(old, revision=self.state.seq + 1)
        # A file is renamed to the old one's name later; a folder keeps its new name.
        path = self.data_dir / new.path
        copy = path if new.rows_per_set else replacement(path, new.revision)
        with self._aside(copy):
            self._remove(copy)
            crc = write(copy)
        with self._steps():
            change = {
                "path": new.path,
                "rows": [0, new.num_edges],
                "labels": [0, new.num_labels],
                "crc": crc,
                "revision": new.revision,
            }
            self._line([new], {"files": [change, *changes], **fields}, replaces=True)
        if new.rows_per_set:
            with self._tidy():
                sweep(self.data_dir, self.state, self.disk)

    def replacing(self, path: str, pieces: Iterable[bytes]) -> Iterator[None]:
        """Replace the committed bytes of an append-only file by others of the same length, a
        piece per step. Blocks of zeros take no room on the disk.

        Between steps commits may append to the file, and the pieces must include the new bytes;
        no segment may be dropped.
        """
        # Write the new file whole, under a name that recovery removes.
        scratch = replacement(self.data_dir / path, 0)
        with self._aside(scratch):
            new = FileWithHoles(scratch, self.disk)
            try:
                for piece in pieces:
                    new.append(piece)
                    yield
                assert new.num_bytes == self._committed(path).num_bytes
                entry = self._finished(path, new)
            except Exception:
                self.disk.close(new.fd)
                raise
        with self._steps():
            self._adopt(path, new)
            self._line([], {"files": [entry]}, replaces=True)

    def _segment_for(self, batch: EventBatch) -> TGUFWriter | SetsWriter:
        segment = self._segment
        if (
            segment is None
            or segment.num_edges + batch.num_edges > segment.edge_capacity
            or segment.num_labels + len(batch.label_node_L) > segment.label_capacity
        ):
            # Full of labels and without an edge: the next segment would take the same name.
            if segment is not None and not segment.num_edges and segment.num_labels:
                return self._larger_segment(segment, len(batch.label_node_L))
            segment = self._begin_segment()
        return segment

    def _widen(self, schema: Schema) -> None:
        """Go on with a schema that extends the log's, in a new segment: one line of the journal."""
        old, self.schema = self.schema, schema
        with self._steps():
            # Updates of node features have rows of one width: they are written again.
            changes: list[dict[str, Any]] = []
            if old.node_feature_dim != schema.node_feature_dim:
                new = FileWithHoles(replacement(self.data_dir / FEATURES, 0), self.disk)
                for piece in widened(self.data_dir, self.state, schema):
                    new.append(piece)
                changes.append(self._finished(FEATURES, new))
                self._adopt(FEATURES, new)

            # A segment without an edge cannot be sealed: its labels move to one of the new schema.
            if self._segment is not None and not self._segment.num_edges:
                self._move_labels(self._segment, self._segment.edge_capacity, changes, schema)
            else:
                segment = [] if self._segment is None else [self._begin_segment()]
                states = [self._state_of(s) for s in segment]
                fields = {"schema": schema.fields(), "files": changes}
                self._line(states, fields, replaces=True)

            # The newest journal file begins with the schema, so that a start reads one file.
            self._journal.roll(self.state)
        edge_sets, node_sets = schema.edge_set_names, schema.node_set_names
        logger.info("schema_extended", edge_sets=edge_sets, node_sets=node_sets)

    def _larger_segment(
        self, full: TGUFWriter | SetsWriter, num_labels: int
    ) -> TGUFWriter | SetsWriter:
        """Move a segment whose labels are full, and that has no edge yet, to a file of at least
        twice the capacity."""
        return self._move_labels(full, 2 * max(full.edge_capacity, num_labels))

    def _move_labels(
        self,
        segment: TGUFWriter | SetsWriter,
        capacity: int,
        changes: Sequence[dict[str, Any]] = (),
        schema: Schema | None = None,
    ) -> TGUFWriter | SetsWriter:
        """Move the labels of a segment without edges to a new file, which takes its place.

        It cannot be sealed, because the next segment would be named by the same event id.
        changes, schema: as of `replace_segment`. Returns: the new one, to go on with.
        """
        old = self.state.last
        assert old is not None
        segment.close()
        files = SegmentFiles(self.data_dir, old, self.schema)
        sets = self.schema.num_edge_sets
        moved = replace(old, capacity=capacity, rows_per_set=(0,) * sets if sets > 1 else ())

        def write(path: Path) -> int:
            with new_segment(path, self.schema, capacity, self.disk) as new:
                if old.num_labels:
                    new.append_labels(*files.label_columns(old.num_labels))
                new.commit()
            copy = replace(moved, revision=self.state.seq + 1)
            return SegmentFiles.at(path, copy, self.schema).rows_crc((0, 0), (0, old.num_labels))

        self.replace_segment(moved, write, changes, schema)

        # Go on appending to the copy.
        self._open_segment()
        assert self._segment is not None
        return self._segment

    def _begin_segment(self) -> TGUFWriter | SetsWriter:
        """Seal the segment in progress, of which every commit is shown first, and begin another."""
        self._let_through(0)
        return self._new_segment(self.segment_edges)
