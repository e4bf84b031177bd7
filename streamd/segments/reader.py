"""Reads the committed part of the log as mapped columns, which grow with each `refresh`."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from streamd.errors import DataDirectoryError, TGUFError
from streamd.events import DELETION, Bools, Float32, Int64, Key
from streamd.segments.columns import EdgeColumns
from streamd.segments.deletions import Deletions
from streamd.segments.journal import NOTHING, LogState, SegmentState
from streamd.segments.layout import DELETIONS, FEATURES, KEYS, LATE, LATE_ROW, feature_row
from streamd.segments.lookup import find_edges
from streamd.segments.nodekeys import decode_keys
from streamd.segments.tail import JournalTail
from streamd.segments.tguf import TGUFFile, open_tguf


class LogReader:
    """Reads the log up to `published` and never beyond. Owner: one thread; it holds no lock and
    writes nothing.

    keys: external keys by node id, None for a deleted node. ids: node ids by external key.
    feature_*: node feature updates in log order, where `feature_edge` is the number of edges in the
    log before the update. deletions: answers which rows are deleted.
    """

    def __init__(self, tail: JournalTail) -> None:
        """tail: the journal's, owned by the reader from here on. Use `open` to build both."""
        self.data_dir = tail.data_dir
        self._tail = tail
        self.keys: list[Key | None] = []
        self.ids: dict[Key, int] = {}
        self.feature_node = np.zeros(0, np.int64)
        self.feature_edge = np.zeros(0, np.int64)
        self.feature_values = np.zeros((0, self.state.schema.node_feature_dim), np.float32)
        self._segments: list[SegmentState] = []
        self._files: list[TGUFFile] = []
        self._starts = np.zeros(0, np.int64)
        self._columns: EdgeColumns | None = None
        self._read_bytes = dict.fromkeys((KEYS, FEATURES, LATE, DELETIONS), 0)
        self._late = np.zeros(0, LATE_ROW)
        self.deletions = Deletions()
        self._take_in()

    @classmethod
    def open(cls, data_dir: Path) -> "LogReader | None":
        """Open a reader of all that is committed; None where ingest has not made the log yet.

        Raises: JournalError, TGUFError, DataDirectoryError.
        """
        tail = JournalTail.open(data_dir)
        return None if tail is None else cls(tail)

    @property
    def state(self) -> LogState:
        """The log's state after the newest commit taken in."""
        return self._tail.state

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
        return len(self.keys)

    @property
    def committed_at(self) -> float:
        """Wall time of the newest commit in seconds, even where `refresh` has not taken it in."""
        return self._tail.published_at()

    def refresh(self) -> bool:
        """Take in what was committed since the last call. Returns: whether anything was."""
        if not self._tail.refresh():
            return False
        self._take_in()
        return True

    def _take_in(self) -> None:
        """Read what the tail's state has more than was read before."""
        # Deletes come last: they name nodes and edges that must be known.
        while True:
            try:
                self._take_segments()
                break
            except TGUFError:
                # A segment may have been dropped between the journal's line and our opening its
                # file.
                if not self._tail.refresh():
                    raise
        self._take_keys()
        self._take_features()
        self._take_deletions()

    def sealed_until(self, edge: int) -> int:
        """End of the newest sealed segment that ends at or before an event id; the log's first
        event id where there is none."""
        ends = [s.first_edge + s.num_edges for s in self.state.segments[:-1]]
        return max([e for e in ends if e <= edge], default=self.first_edge)

    def _take_segments(self) -> None:
        # A segment is mapped once; a compacted one has another revision and is mapped again.
        known = {
            (s.first_edge, s.revision): f for s, f in zip(self._segments, self._files, strict=True)
        }
        files = [
            known.get((s.first_edge, s.revision))
            or open_tguf(self.data_dir / s.path, check_rows=False)
            for s in self.state.segments
        ]
        if files != self._files:
            self._columns = None
        self._segments = list(self.state.segments)
        self._files = files
        self._starts = np.array([s.first_edge for s in self._segments], np.int64)

    def _new_bytes(self, name: str) -> bytes:
        """Read what was committed to an append-only file since the last call."""
        at = self._read_bytes[name]
        end = self.state.files.get(name, NOTHING).num_bytes
        if end == at:
            return b""
        with (self.data_dir / name).open("rb") as file:
            data = os.pread(file.fileno(), end - at, at)
        if len(data) != end - at:
            raise DataDirectoryError(
                f"{name} is shorter than the journal says.", "restore it from a backup."
            )
        self._read_bytes[name] = end
        return data

    def _take_keys(self) -> None:
        removed = []
        for key in decode_keys(self._new_bytes(KEYS)):
            if key is None:
                removed.append(len(self.keys))
            else:
                self.ids[key] = len(self.keys)
            self.keys.append(key)
        # A row without a key is a deleted node, or the reserved one that compacted rows point to:
        # both hide their rows.
        self.deletions.retire(np.array(removed, np.int64))

    def _take_features(self) -> None:
        rows = np.frombuffer(
            self._new_bytes(FEATURES), feature_row(self.state.schema.node_feature_dim)
        )
        if len(rows):
            self.feature_node = np.concatenate([self.feature_node, rows["node"]])
            self.feature_edge = np.concatenate([self.feature_edge, rows["edge"]])
            self.feature_values = np.concatenate([self.feature_values, rows["values"]])

    def _take_deletions(self) -> None:
        self._late = np.concatenate([self._late, np.frombuffer(self._new_bytes(LATE), LATE_ROW)])
        rows = np.frombuffer(self._new_bytes(DELETIONS), DELETION)
        self.deletions.take(rows, self._find)

        # A deleted node's key may come back as a new node, which must keep its own id.
        for node in rows["src"][rows["dst"] < 0].tolist():
            key, self.keys[node] = self.keys[node], None
            if key is not None and self.ids.get(key) == node:
                del self.ids[key]

    def _find(self, src: int, dst: int, time_us: int, before_event: int) -> Int64:
        """Find edges below `before_event` by their ends and the time they came with."""
        segments = list(zip(self._segments, self._files, strict=True))
        return find_edges(segments, self._late, src, dst, time_us, before_event)

    def hidden(self, first: int, end: int) -> Bools:
        """Whether each of the events [first, end) is deleted: bool[end - first]."""
        src, dst, _ = self.edges(first, end)
        return self.deletions.hides(first, src, dst)

    def _parts(self, first: int, end: int) -> list[tuple[TGUFFile, int, int]]:
        """List the pieces (file, from row, to row) that cover the event ids [first, end).

        Raises: IndexError where the log does not hold all of them.
        """
        if not self.first_edge <= first <= end <= self.num_edges:
            raise IndexError(
                f"edges [{first}, {end}) are not in the log [{self.first_edge}, {self.num_edges})"
            )
        out = []
        for segment, file in zip(self._segments, self._files, strict=True):
            a, b = (
                max(first - segment.first_edge, 0),
                min(end - segment.first_edge, segment.num_edges),
            )
            if a < b:
                out.append((file, a, b))
        return out

    def edges(self, first: int, end: int) -> tuple[Int64, Int64, Int64]:
        """Read src, dst and time of the edges [first, end), int64[end - first] each.

        They are views of the mapped file where they lie in one segment. Raises: IndexError.
        """
        parts = self._parts(first, end)
        columns = []
        for name in ("src", "dst", "time"):
            pieces = [file.column(name, b)[a:] for file, a, b in parts]
            columns.append(
                pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int64), *pieces])
            )
        return columns[0], columns[1], columns[2]

    @property
    def columns(self) -> EdgeColumns:
        """The mapped time and feature columns for kernels; good until the next refresh that returns
        True."""
        # A growing segment keeps its addresses; only a further segment or a new file changes them.
        filled = sum(s.num_edges > 0 for s in self._segments)
        if self._columns is not None and len(self._columns.first_S) == filled:
            if self._columns.end != self.num_edges:
                self._columns = replace(self._columns, end=self.num_edges)
        else:
            parts = [
                (s.first_edge, f.column("time"), f.column("msg"))
                for s, f in zip(self._segments, self._files, strict=True)
                if s.num_edges
            ]
            self._columns = EdgeColumns.of(
                parts, self.num_edges, self.state.schema.edge_feature_dim
            )
        return self._columns

    def labels(self) -> tuple[Int64, Int64, Float32]:
        """Read all labels in log order: nodes and times int64[L], targets float32[L, label_dim]."""
        dim = self.state.schema.label_dim
        parts = [
            [f.column(n, s.num_labels) for n in ("label_n_id", "label_time", "label_target")]
            for s, f in zip(self._segments, self._files, strict=True)
            if s.num_labels
        ]
        empty = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, dim), np.float32)]
        node, time, target = (
            np.concatenate(columns) for columns in zip(empty, *parts, strict=True)
        )
        return node, time, target

    def labels_between(self, after_us: int, until_us: int) -> tuple[Int64, Int64, Float32]:
        """Read the labels whose time is in (after_us, until_us], as `labels` returns them."""
        # With an empty piece in front, a range without labels has the right shapes too.
        out = [
            (
                np.zeros(0, np.int64),
                np.zeros(0, np.int64),
                np.zeros((0, self.state.schema.label_dim), np.float32),
            )
        ]

        # Label times ascend within a segment.
        for segment, file in zip(self._segments, self._files, strict=True):
            time = (
                file.column("label_time", segment.num_labels)
                if segment.num_labels
                else np.zeros(0, np.int64)
            )
            a, b = (int(np.searchsorted(time, t, side="right")) for t in (after_us, until_us))
            if a < b:
                node, target = (
                    file.column(n, segment.num_labels)[a:b] for n in ("label_n_id", "label_target")
                )
                out.append((node, time[a:b], target))

        node, time, target = (np.concatenate(columns) for columns in zip(*out, strict=True))
        return node, time, target

    def time_of(self, event_ids: Int64) -> Int64:
        """Gather event times in microseconds, int64 of the same shape; ids before the log's first
        edge get any value."""
        return self.gather("time", event_ids)

    def gather(self, name: str, event_ids: Int64) -> Int64:
        """Gather the column src, dst or time by event id, int64 of the same shape; ids before the
        log's first edge get any value."""
        out = np.zeros(event_ids.shape, np.int64)
        for file, inside, rows in self._located(event_ids):
            out[inside] = file.column(name)[rows]
        return out

    def features_of(self, event_ids: Int64) -> Float32:
        """Gather edge features by event id, float32[..., edge_feature_dim]; ids before the log's
        first edge get any value."""
        out = np.zeros((*event_ids.shape, self.state.schema.edge_feature_dim), np.float32)
        if out.shape[-1]:
            for file, inside, rows in self._located(event_ids):
                out[inside] = file.column("msg")[rows]
        return out

    def _located(
        self, event_ids: Int64
    ) -> list[tuple[TGUFFile, np.ndarray[tuple[int, ...], np.dtype[np.bool_]], Int64]]:
        """Split event ids by segment into (file, mask of those inside it, their rows)."""
        if not event_ids.size:
            return []
        # With one segment there is nothing to search.
        if len(self._files) == 1:
            rows = np.maximum(event_ids - self._starts[0], 0).ravel()
            return [(self._files[0], np.ones(event_ids.shape, np.bool_), rows)]
        # Ids before the first segment get -1 and belong to no file.
        number = np.searchsorted(self._starts, event_ids, side="right") - 1
        out = []
        for i in np.unique(number[number >= 0]).tolist():
            inside = number == i
            out.append((self._files[i], inside, event_ids[inside] - self._starts[i]))
        return out

    def lower_bound(self, time_us: int) -> int:
        """First event id whose time is not before `time_us`; one past the newest where none is."""
        for segment, file in zip(self._segments, self._files, strict=True):
            times = file.column("time", segment.num_edges)
            if len(times) and times[-1] >= time_us:
                return int(segment.first_edge + np.searchsorted(times, time_us))
        return self.num_edges
