"""The log's only writer: it makes each batch a durable commit, in the numbered steps of
docs/how-it-works.md, and recovers the log after a crash."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from streamd.errors import ChangelogError
from streamd.eventlog.commit_rows import appended_bytes, read_keys
from streamd.eventlog.commits import Commits
from streamd.eventlog.journal.changelog_position import CHANGELOG
from streamd.eventlog.journal.journal import (
    NOTHING,
    LogState,
    SegmentState,
    changed_progress,
)
from streamd.eventlog.layout import FEATURES
from streamd.eventlog.line_outbox import OutboxCommits
from streamd.eventlog.log_files import LOCK_SECONDS, MAX_COMMIT_ROWS, MAX_IN_FLIGHT, LogFiles
from streamd.eventlog.lookup import EdgeLookup
from streamd.eventlog.node_features import widened
from streamd.eventlog.publisher import Publisher
from streamd.eventlog.recovery import drop_journals, replacement, sweep
from streamd.eventlog.segment_files import SegmentFiles, newest_time
from streamd.eventlog.sets_writer import new_segment
from streamd.events import EventBatch, Gap, Int64, Progress, Schema
from streamd.storage import DISK, Disk, FileWithHoles

logger = structlog.get_logger()
CLOSE_SECONDS = 5.0
"""Longest wait of `close` for the changelog. The next start sends the remaining commits again, if
no other machine leads."""


class LogWriter:
    """Appends commits to the log, drops segments and replaces files, each by one line of the
    journal.

    Owner: the ingest process, by a lock on the directory. files: the log's. keys: external key ->
    node id; `BatchBuilder` adds and removes entries before it commits. newest_us: event time of the
    newest edge, microseconds; None if there is none. commits: with a publisher a commit is durable
    first and readers see it later: up to MAX_IN_FLIGHT of them wait.
    """

    def __init__(
        self,
        data_dir: Path,
        schema: Schema,
        segment_edges: int = 1_000_000,
        disk: Disk = DISK,
        publisher: Publisher | None = None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Lock, recover and open the log.

        publisher: must have acknowledged all commits in the journal; the writer closes it.
        lock_seconds: as of `LogFiles`. Raises: LockedError, JournalError, DataDirectoryError,
        DiskError; ChangelogError if a log with a changelog is opened without a publisher.
        """
        if publisher is None and (data_dir / CHANGELOG).exists():
            raise ChangelogError(
                f"The log in {data_dir} has a changelog, to which this process would send nothing.",
                "let ingest write it, with log.name set; to run without other machines, remove "
                f"{data_dir / CHANGELOG}.",
            )
        self.data_dir = data_dir
        self.segment_edges = segment_edges
        changelog = None if publisher is None else publisher.changelog
        self.files = LogFiles(data_dir, schema, disk, changelog, lock_seconds=lock_seconds)
        with self.files.unlock_on_failure():
            # Read the state that commits need, and extend the schema to the declared one.
            self.state.check_takes(schema)
            self.commits = Commits(self.files, publisher)
            self.keys = read_keys(data_dir, self.state)
            # Reading many keys takes a while.
            self.commits.heartbeat()
            self.newest_us = newest_time(data_dir, self.state)
            self._lookup = EdgeLookup(data_dir)
            self._outbox = OutboxCommits(self.files, self.commits)
            if schema != self.schema:
                self._widen(schema)

    @property
    def state(self) -> LogState:
        """The log's state after the newest commit that is durable."""
        return self.files.state

    @property
    def schema(self) -> Schema:
        """The schema of the rows that commits append."""
        return self.files.schema

    def count_edges(
        self, src_X: Int64, dst_X: Int64, time_X: Int64, set_X: Int64 | int = 0
    ) -> Int64:
        """Number of edges of a set that the log has between two node ids with this original event
        time, deleted or not: int64[X]."""
        return self._lookup.count(self.state, src_X, dst_X, time_X, set_X)

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
        """Maximum number of rows of the next commit, so that it does not span two segments."""
        segment = self.files.segment
        if segment is None or segment.num_edges >= segment.edge_capacity:
            return min(self.segment_edges, MAX_COMMIT_ROWS)
        remaining = segment.edge_capacity - segment.num_edges
        if self.schema.label_dim:
            remaining = min(remaining, max(segment.label_capacity - segment.num_labels, 0))
        # If labels filled the segment, a commit with labels begins a new one, or enlarges one that
        # has no edge yet.
        return min(remaining, MAX_COMMIT_ROWS) or min(self.segment_edges, MAX_COMMIT_ROWS)

    def commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap] = ()
    ) -> None:
        """Append one batch durably, with the positions in Kafka at which to resume:

        1. Write the rows.
        2. Make them durable.
        3. Append the journal's line and make it durable: without step 2, a crash could leave a line
           that counts missing rows.
        4. Publish the commit to readers; with a changelog, once it has acknowledged the commit.
           Earlier, readers could use a commit that is undone.

        The caller then commits the offsets to Kafka (step 5).

        Args: watermark: event time up to which the log is complete, microseconds; gaps: offsets
        that Kafka lost and that are skipped.
        Raises: DiskError if a write or sync failed. Whether the commit is durable is then unknown
        until recovery has read the journal; the caller ends the process. LockedError if another
        process writes here too.
        """
        # After a crash, recovery zeroes MAX_COMMIT_ROWS rows after the counts: `open_segment`.
        rows = max(batch.num_edges, len(batch.label_node_L))
        assert rows <= MAX_COMMIT_ROWS, f"{rows} rows of a kind; see `remaining_rows`"
        with self.files.change():
            self._commit(batch, progress, watermark, gaps)

    def _commit(
        self, batch: EventBatch, progress: Progress, watermark: int, gaps: Sequence[Gap]
    ) -> None:
        self.commits.await_acks(MAX_IN_FLIGHT - 1)
        changes: list[dict[str, Any]] = []
        segments: list[SegmentState] = []

        # Step 1: write the rows, of the segment first and then of the append-only files.
        if batch.num_edges or len(batch.label_node_L):
            self._make_room(batch)
            changes.append(self.files.append_rows(batch))
            segments.append(self.files.segment_state())
        for path, data in appended_bytes(self.schema, self.state, batch):
            changes.append(self.files.append(path, data))
        learned = self._outbox.take()
        changes += learned.pop("files", ())

        # Steps 2 to 4: make them durable, append the journal's line, publish the commit.
        fields = {
            "rows": batch.num_rows,
            "nodes": self.state.num_nodes + len(batch.new_keys),
            "watermark": watermark,
            "files": changes,
            "progress": changed_progress(self.state.progress, progress),
            **learned,
        }
        if gaps:
            fields["gaps"] = [list(g) for g in gaps]
        self.commits.append(segments, fields)
        self._outbox.clear()
        if batch.num_edges:
            self.newest_us = int(batch.time_E[-1])

    def show_acknowledged(self) -> int:
        """Commit the outbox, and publish the commits that the changelog has acknowledged meanwhile.
        Returns: the newest published commit.

        The loop calls this even if no commit waits, because it also shows other machines that the
        writer runs. Raises: DiskError, KafkaError, ChangelogError.
        """
        self._outbox.commit()
        if self.commits.has_changelog:
            with self.files.change():
                self.commits.publish_acknowledged()
                self.commits.heartbeat()
        return self.commits.published_seq

    @property
    def seq(self) -> int:
        """The newest commit that is durable."""
        return self.state.seq

    @property
    def is_waiting(self) -> bool:
        """Whether commits wait for the changelog."""
        return self.commits.num_pending > 0

    @property
    def expects_lines(self) -> bool:
        """Whether the outbox is likely to be used soon."""
        return self._outbox.expects_more

    def close(self) -> None:
        """Wait a little for the changelog, close all files and release the lock; a second call does
        nothing. Raises: DiskError."""
        files, until = self.files, time.monotonic() + CLOSE_SECONDS
        try:
            while self.is_waiting and not (files.closed or files.in_doubt):
                # A stop must not wait for a changelog that is away.
                if time.monotonic() >= until:
                    break
                if self.show_acknowledged() < self.seq:
                    self.commits.wait()
        finally:
            try:
                files.close()
            finally:
                self.commits.close()

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
        with self.files.change():
            self.commits.append([], {"dropped": [s.first_edge for s in doomed]})
            self.commits.await_acks()
        for _ in self.tidying():
            yield len(doomed)

    def tidying(self) -> Iterator[None]:
        """Unlink files that no line names any more: the first step all but journal files, each
        further step one journal file. No replacement may be in progress. Raises: DiskError."""
        with self.files.tidy():
            sweep(self.data_dir, self.state, self.files.disk)
            yield
            for _ in drop_journals(self.data_dir, self.state, self.files.disk):
                yield

    def seal(self) -> None:
        """Close the segment in progress and begin another, unless it has no edge yet.

        A segment is named by its first event id, so a second one without edges would have the name
        of the first.
        """
        if self.files.segment is not None and self.files.segment.num_edges:
            with self.files.change():
                self.commits.await_acks()
            segment = self.files.allocate_segment(self.segment_edges)
            with self.files.change():
                self.files.seal_for(segment)
                self.commits.append([self.files.segment_state()], {})

    def replace_segment(
        self,
        old: SegmentState,
        write: Callable[[Path], int],
        changes: Sequence[dict[str, Any]] = (),
        schema: Schema | None = None,
    ) -> None:
        """Replace a segment by a rewritten copy; nothing may be appended to it meanwhile.

        write: makes the copy at a path and returns the CRC32C of its rows. changes: entries for
        other files that the same line changes. schema: the log's from this line on.
        """
        fields = {} if schema is None else {"schema": schema.fields()}
        new = replace(old, revision=self.state.seq + 1)
        # A file is renamed to the old one's name later; a folder keeps its new name.
        path = self.data_dir / new.path
        copy = path if new.rows_per_set else replacement(path, new.revision)
        with self.files.aside(copy):
            self.files.remove(copy)
            crc = write(copy)
        with self.files.change():
            change = {
                "path": new.path,
                "rows": [0, new.num_edges],
                "labels": [0, new.num_labels],
                "crc": crc,
                "revision": new.revision,
            }
            self.commits.append([new], {"files": [change, *changes], **fields}, replaces=True)
        if new.rows_per_set:
            with self.files.tidy():
                sweep(self.data_dir, self.state, self.files.disk)

    def replacing(self, path: str, pieces: Iterable[bytes]) -> Iterator[None]:
        """Replace the committed bytes of an append-only file by others of the same length, a piece
        per step. Blocks of zeros use no disk space.

        Between steps commits may append to the file, and the pieces must include the new bytes; no
        segment may be dropped.
        """
        # Write the new file whole, under a name that recovery removes.
        scratch = replacement(self.data_dir / path, 0)
        with self.files.aside(scratch):
            new = FileWithHoles(scratch, self.files.disk)
            try:
                for piece in pieces:
                    new.append(piece)
                    yield
                assert new.num_bytes == self.state.files.get(path, NOTHING).num_bytes
                entry = self.files.finish_replacement(path, new)
            except Exception:
                self.files.disk.close(new.fd)
                raise
        with self.files.change():
            self.files.adopt(path, new.fd)
            self.commits.append([], {"files": [entry]}, replaces=True)

    def _make_room(self, batch: EventBatch) -> None:
        """Begin another segment if the one in progress has no room for a batch."""
        segment = self.files.segment
        num_labels = len(batch.label_node_L)
        if (
            segment is not None
            and segment.num_edges + batch.num_edges <= segment.edge_capacity
            and segment.num_labels + num_labels <= segment.label_capacity
        ):
            return
        if segment is not None and not segment.num_edges and segment.num_labels:
            # Full of labels and without an edge: the next segment would take the same name.
            self._move_labels(2 * max(segment.edge_capacity, num_labels))
        else:
            self._begin_segment()

    def _begin_segment(self) -> None:
        """Publish all commits, seal the segment in progress and begin another."""
        self.commits.await_acks()
        self.files.begin_segment(self.segment_edges)

    def _widen(self, schema: Schema) -> None:
        """Extend the log's schema by one line of the journal, which begins a new segment. A log
        without rows accepts any schema."""
        files = self.files
        old, files.schema = files.schema, schema
        with files.change():
            # All updates of node features have rows of one width, so rewrite them.
            changes: list[dict[str, Any]] = []
            if old.node_feature_dim != schema.node_feature_dim:
                new = FileWithHoles(replacement(self.data_dir / FEATURES, 0), files.disk)
                if not self.state.is_blank:
                    for piece in widened(self.data_dir, self.state, schema):
                        new.append(piece)
                changes.append(files.finish_replacement(FEATURES, new))
                files.adopt(FEATURES, new.fd)

            # A segment without an edge cannot be sealed: its labels move to one of the new schema.
            if files.segment is not None and not files.segment.num_edges:
                self._move_labels(files.segment.edge_capacity, changes, schema)
            else:
                states: list[SegmentState] = []
                if files.segment is not None:
                    self._begin_segment()
                    states.append(files.segment_state())
                fields = {"schema": schema.fields(), "files": changes}
                self.commits.append(states, fields, replaces=True)

            # The newest journal file begins with the schema, so that a start reads one file.
            files.journal.roll(self.state)
        edge_sets, node_sets = schema.edge_set_names, schema.node_set_names
        logger.info("schema_extended", edge_sets=edge_sets, node_sets=node_sets)

    def _move_labels(
        self,
        capacity: int,
        changes: Sequence[dict[str, Any]] = (),
        schema: Schema | None = None,
    ) -> None:
        """Move the labels of the segment in progress, which has no edge, to a new file of its name,
        and continue there.

        It cannot be sealed, because the next segment would be named by the same event id. changes,
        schema: as in `replace_segment`.
        """
        old = self.state.last
        assert old is not None and self.files.segment is not None
        self.files.segment.close()
        files = SegmentFiles(self.data_dir / old.path, old, self.schema)
        sets = self.schema.num_edge_sets
        moved = replace(old, capacity=capacity, rows_per_set=(0,) * sets if sets > 1 else ())

        def write(path: Path) -> int:
            with new_segment(path, self.schema, capacity, self.files.disk) as new:
                if old.num_labels:
                    new.append_labels(*files.label_columns(old.num_labels))
                new.commit()
            copy = replace(moved, revision=self.state.seq + 1)
            return SegmentFiles(path, copy, self.schema).rows_crc((0, 0), (0, old.num_labels))

        self.replace_segment(moved, write, changes, schema)
        self.files.open_segment()
