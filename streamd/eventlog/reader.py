"""Reads the committed part of the log as mapped columns, which grow with each `refresh`."""

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from streamd.errors import TGUFError
from streamd.eventlog.columns import EdgeColumns
from streamd.eventlog.deletions import Deletions
from streamd.eventlog.journal.journal import NOTHING, LogState, SegmentState
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.layout import DELETIONS, FEATURES, KEYS, feature_row
from streamd.eventlog.log_changes import Changes, LogSubscriber
from streamd.eventlog.lookup import CommittedBytes, LateEdges, find_edges
from streamd.eventlog.node_features import FeatureFile, FeatureHistory, FeatureUpdates
from streamd.eventlog.node_keys import decode_sets
from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.segments import MappedSegments
from streamd.eventlog.supposed_events import SupposedEvents
from streamd.eventlog.tguf.growing import GrowingArray
from streamd.events import DELETION, Bools, Float32, Int64, Key, SetKey


class LogReader:
    """Reads the log up to the newest published commit, and never beyond. Owner: one thread; it
    takes no lock and writes nothing.

    keys: external keys by node id, None for a deleted node. ids: node ids by external key. Both are
    empty if keys are not kept. deletions: answers which rows are deleted.
    """

    def __init__(self, tail: JournalTail, keep_keys: bool = True) -> None:
        """tail: the journal's, owned by the reader from here on. Use `open` to build both."""
        self.data_dir = tail.data_dir
        self._keep_keys = keep_keys
        self._tail = tail
        self.keys: list[Key | None] = []
        self.ids: dict[Key, int] = {}
        self.deletions = Deletions()
        self._segments = MappedSegments(self.data_dir)
        self._num_keys = 0
        self._node_sets = GrowingArray(np.uint8)
        self._new_keys = CommittedBytes(self.data_dir, KEYS)
        self._new_deletions = CommittedBytes(self.data_dir, DELETIONS)
        self._late = LateEdges(self.data_dir)
        self._features = FeatureFile(self.data_dir)
        self._followers: list[weakref.ref[LogSubscriber]] = []
        self._take_in()
        self._applied = self._newest()
        """The newest changes that the followers have applied, as `_newest` counts them."""

    @classmethod
    def open(
        cls, data_dir: Path, keep_keys: bool = True, until: int | None = None
    ) -> "LogReader | None":
        """Open a reader at the newest published commit.

        Args:
            data_dir (Path): the data directory of a log.
            keep_keys (bool, default True): whether to keep the external keys of nodes; those of a
                million nodes take 0.2 GB.
            until (int, optional): the last commit that the reader ever reads.

        Returns: the reader; None if ingest has not made the log yet.

        Raises:
            JournalError: the journal is damaged, or lacks published commits.
            TGUFError: a segment is gone or damaged.
            DataDirectoryError: a file is shorter than its committed part.
        """
        while (tail := JournalTail.open(data_dir, until)) is not None:
            try:
                return cls(tail, keep_keys)
            except TGUFError:
                # The schema may have changed since the tail was opened.
                if not tail.superseded:
                    raise
        return None

    @property
    def state(self) -> LogState:
        """The log's state after the newest commit read."""
        return self._tail.state

    @property
    def superseded(self) -> bool:
        """Whether the log continues with further sets or features, which this reader does not read.
        It keeps its last state: open another reader."""
        return self._tail.superseded

    @property
    def num_edges(self) -> int:
        return self.state.num_edges

    @property
    def first_edge(self) -> int:
        return self.state.first_edge

    @property
    def watermark(self) -> int:
        return self.state.watermark

    @property
    def num_nodes(self) -> int:
        return self.state.num_nodes

    @property
    def committed_at(self) -> float:
        """Wall time of the newest commit in seconds, even if `refresh` has not read it yet."""
        return self._tail.published_at()

    def follow(self, follower: LogSubscriber) -> None:
        """Let a follower apply all deletes so far, and from now on the changes of each refresh.

        The reader refers to it weakly: it no longer calls a follower that its owner has dropped.
        """
        # A new follower has applied no delete yet, the others have applied all.
        self.apply_changes()
        follower.apply(self._changes_since((0, 0, 0)))
        self._followers.append(weakref.ref(follower))

    def refresh(self, until: int | None = None) -> Changes:
        """Read new commits as `read` does, and let the followers apply them. Returns: the changes,
        with those that were read before but not applied."""
        self.read(until)
        return self.apply_changes()

    def apply_changes(self) -> Changes:
        """Let the followers apply, in the order of their registration, the changes that were read
        since they last did. Returns: those changes."""
        changes = self._changes_since(self._applied)
        if changes:
            self._followers = [one for one in self._followers if one() is not None]
            for one in self._followers:
                if (follower := one()) is not None:
                    follower.apply(changes)
            self._applied = self._newest()
        return changes

    def _newest(self) -> tuple[int, int, int]:
        """The newest commit, and the number of deleted nodes and of deleted events."""
        return self.state.seq, len(self.deletions.nodes), len(self.deletions.edges)

    def _changes_since(self, before: tuple[int, int, int]) -> Changes:
        seq, num_nodes, num_events = before
        return Changes(
            num_commits=self.state.seq - seq,
            deletions=self.deletions,
            nodes=self.deletions.nodes[num_nodes:],
            events=self.deletions.edges[num_events:],
        )

    def read(self, until: int | None = None) -> bool:
        """Read the commits since the last call; with `until`, up to that commit, or further if
        files of it are gone. Followers apply them later, in `apply_changes`. Returns: whether there
        were any."""
        before = self.state
        if not self._tail.refresh(until):
            return False
        try:
            self._take_in()
        except TGUFError:
            if not self.superseded:
                raise
            # Commits before a change of the schema may name files that are gone.
            self._tail.state = before
            return False
        return True

    def _take_in(self) -> None:
        """Read what the tail's new state adds to the last one: segments, then node features, then
        keys, and last deletes, which name nodes and edges that must be known."""
        # A file may have been dropped or replaced after the journal's line was read.
        while True:
            try:
                self._segments.take(self.state)
                if not self._features.take(self.state) or not self._tail.refresh():
                    break
            except TGUFError:
                if not self._tail.refresh():
                    raise
        if self.superseded:
            self._features.leave_out()

        # Deletes come last.
        self._take_keys()
        self.take_deletions(self.state)

    @contextmanager
    def supposing(self, keys: Sequence[Key], events: SupposedEvents) -> Iterator[None]:
        """Have further keys and events within a block, as if they were committed, and nothing of
        them afterwards. keys: of new nodes, numbered after those of the log. The reader is not
        refreshed meanwhile."""
        state, first = self.state, self._num_keys
        try:
            # The keys, then the events and the state after them.
            self.keys += keys
            self.ids |= zip(keys, range(first, first + len(keys)), strict=True)
            self._num_keys += len(keys)
            if state.schema.num_node_sets > 1:
                sets = [key.node_set if isinstance(key, SetKey) else 0 for key in keys]
                self._node_sets.append(np.array(sets, np.uint8))
            if not len(events.src_E):
                yield
                return
            with self._segments.supposing(events) as (sealed, last):
                self._tail.state = replace(
                    state,
                    sealed=sealed,
                    last=last,
                    num_nodes=self._num_keys,
                    watermark=int(events.time_E[-1]),
                )
                yield
        finally:
            self._tail.state = state
            del self.keys[first:]
            for key in keys:
                del self.ids[key]
            self._num_keys = first
            if state.schema.num_node_sets > 1:
                self._node_sets.truncate(first)

    def sealed_until(self, edge: int) -> int:
        """End of the newest sealed segment that ends at or before an event id; the log's first
        event id if there is none."""
        sealed = self.state.sealed
        number = bisect_right(sealed, edge, key=attrgetter("end"))
        return sealed[number - 1].end if number else self.first_edge

    @property
    def num_feature_updates(self) -> int:
        """Number of updates of node features in the log, pruned ones included."""
        row = feature_row(self.state.schema.node_feature_dim)
        return self.state.files.get(FEATURES, NOTHING).num_bytes // row.itemsize

    def feature_updates(self) -> FeatureUpdates:
        """Read the updates of node features from the log's first one on."""
        return FeatureUpdates(self._features, self.state.schema.node_feature_dim)

    def feature_history(self, cut: int, num_updates: int) -> FeatureHistory:
        """The history of the log's first `num_updates` updates of node features, up to the edge
        `cut`. The reader must not be refreshed meanwhile."""
        return FeatureHistory(self._features, cut, num_updates, self.first_edge)

    def _take_keys(self) -> None:
        removed = []
        numbers = []
        for node_set, plain in decode_sets(self._new_keys.new(self.state)):
            key = SetKey(node_set, plain) if node_set and plain is not None else plain
            if key is None:
                removed.append(self._num_keys)
            elif self._keep_keys:
                self.ids[key] = self._num_keys
            if self._keep_keys:
                self.keys.append(key)
            numbers.append(node_set)
            self._num_keys += 1
        if self.state.schema.num_node_sets > 1:
            self._node_sets.append(np.array(numbers, np.uint8))
        # A row without a key is a deleted node, or the reserved node of compacted rows: the rows of
        # both are hidden.
        self.deletions.retire(np.array(removed, np.int64))

    def take_deletions(self, state: LogState) -> None:
        """Hide the rows that are deleted as of a state, which may be later than the reader's."""
        self._late.take(self.state)
        rows = np.frombuffer(self._new_deletions.new(state), DELETION)
        self.deletions.take(rows, lambda *names: find_edges(self._segments, self._late, *names))

        # A deleted node's key may come back as a new node, which must keep its own id.
        gone = rows["src"][rows["dst"] < 0] if self._keep_keys else rows["src"][:0]
        for node in gone.tolist():
            key, self.keys[node] = self.keys[node], None
            if key is not None and self.ids.get(key) == node:
                del self.ids[key]

    def num_late(self, first: int, end: int, before_us: int) -> int:
        """Number of late edges in [first, end) with an original time before `before_us`. The log
        stores late edges with the watermark of their commit."""
        return self._late.count(first, end, before_us)

    def hidden(self, first: int, end: int) -> Bools:
        """Whether each of the events [first, end) is deleted: bool[end - first]."""
        src, dst, _ = self.edges(first, end)
        return self.deletions.hides(first, src, dst)

    def segments(self) -> Iterator[tuple[SegmentState, SegmentFiles]]:
        """Yield every segment with its mapped files, oldest first. The files stay mapped while they
        are referred to, even if they are dropped or replaced meanwhile."""
        return self._segments.each()

    def original_times(self) -> tuple[Int64, Int64]:
        """Event ids of the late edges, ascending, and their original times, which the log replaced
        by the watermark: int64[N] microseconds."""
        return self._late.rows

    def edges(self, first: int, end: int) -> tuple[Int64, Int64, Int64]:
        """Read src, dst and time of the edges [first, end), as `MappedSegments.edges` does."""
        return self._segments.edges(first, end)

    @property
    def columns(self) -> EdgeColumns:
        """The mapped time and feature columns for kernels; valid until the next refresh that
        returns changes."""
        return self._segments.columns

    def labels(self) -> tuple[Int64, Int64, Float32]:
        """Read all labels in log order: nodes and times int64[L], targets float32[L, label_dim]."""
        dim = self.state.schema.label_dim
        parts = [f.label_columns(s.num_labels) for s, f in self._segments.each() if s.num_labels]
        empty = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, dim), np.float32)]
        node, time, target = (
            np.concatenate(columns) for columns in zip(empty, *parts, strict=True)
        )
        return node, time, target

    def labels_between(self, after_us: int, until_us: int) -> tuple[Int64, Int64, Float32]:
        """Read the labels with times in (after_us, until_us], as `labels` returns them."""
        # Begin with an empty piece, so that a range without labels has the right shapes too.
        out = [
            (
                np.zeros(0, np.int64),
                np.zeros(0, np.int64),
                np.zeros((0, self.state.schema.label_dim), np.float32),
            )
        ]

        # Label times ascend within a segment.
        for segment, file in self._segments.with_labels(after_us, until_us):
            node, time, target = file.label_columns(segment.num_labels)
            a, b = (int(np.searchsorted(time, t, side="right")) for t in (after_us, until_us))
            if a < b:
                out.append((node[a:b], time[a:b], target[a:b]))

        node, time, target = (np.concatenate(columns) for columns in zip(*out, strict=True))
        return node, time, target

    def time_of(self, event_ids: Int64) -> Int64:
        """Gather event times in microseconds, int64 of the same shape; undefined for ids before the
        log's first edge."""
        return self.gather("time", event_ids)

    def gather(self, name: str, event_ids: Int64) -> Int64:
        """Gather the column src, dst or time by event id, int64 of the same shape; undefined for
        ids before the log's first edge."""
        return self._segments.gather(name, event_ids)

    def features_of(self, event_ids: Int64) -> Float32:
        """Gather edge features by event id, float32[..., edge_feature_dim]; undefined for ids
        before the log's first edge."""
        return self._segments.features_of(event_ids)

    def node_sets_of(self, nodes: Int64) -> Int64:
        """Number of the node set of each node id of the log, int64 of the same shape."""
        if self.state.schema.num_node_sets == 1:
            return np.zeros(nodes.shape, np.int64)
        return self._node_sets.values[nodes].astype(np.int64)

    def edge_sets(self, first: int, end: int) -> Int64:
        """Number of the edge set of each of the edges [first, end), int64[end - first]."""
        return self._segments.edge_sets(first, end)

    def edge_sets_of(self, event_ids: Int64) -> Int64:
        """Number of the edge set of each event id, int64 of the same shape; undefined for ids
        before the log's first edge."""
        return self._segments.edge_sets_of(event_ids)

    def lower_bound(self, time_us: int) -> int:
        """First event id with a time at or after `time_us`; one past the newest if there is
        none."""
        return self._segments.lower_bound(time_us)

    def lower_bounds(self, time_T: Int64) -> Int64:
        """`lower_bound` of many times, int64[T]."""
        return self._segments.bounds(time_T)


class DeletesReader(LogReader):
    """Reads deletes and events of the log, but no keys, which are slow to read if there are many.
    Owner: housekeeping. It does not know the kinds of nodes."""

    def _take_keys(self) -> None:
        """Read no keys: every deleted node has a row in the deletes."""
