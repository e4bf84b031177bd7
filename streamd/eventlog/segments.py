"""The segments of a log as mapped columns, accessed by event id and by time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from streamd.eventlog.columns import EdgeColumns
from streamd.eventlog.journal.journal import LogState, SegmentState
from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.supposed_events import SupposedEvents, SupposedSegment
from streamd.events import Float32, Int64
from streamd.schema import Schema


class MappedSegments:
    """Maps each segment once, and again if compaction replaced it. Owner: the owner of the state.

    Event ids and node ids are int64, times int64 microseconds.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._sealed: tuple[SegmentState, ...] = ()
        self._last: SegmentState | None = None
        self._files: list[SegmentFiles] = []
        self._first_S = np.zeros(0, np.int64)
        self._newest_S: Int64 | None = None
        self._labels_S: tuple[Int64, Int64] | None = None
        self._schema = Schema()
        self._columns: EdgeColumns | None = None

    def take(self, state: LogState) -> None:
        """Move to the rows committed as of a state. Raises: TGUFError if a segment is gone."""
        if state.sealed is not self._sealed or _name(state.last) != _name(self._last):
            # A segment was added or removed, which is rare: number all of them again.
            known = {_name(s): f for (s, f) in self.each()}
            segments = state.segments
            self._files = [
                known.get(_name(s)) or SegmentFiles(self._data_dir / s.path, s, state.schema)
                for s in segments
            ]
            self._first_S = np.array([s.first_edge for s in segments], np.int64)
            self._newest_S = self._labels_S = self._columns = None
        self._sealed = state.sealed
        self._last = state.last
        if state.schema != self._schema:
            self._schema = state.schema
            self._columns = None

    @contextmanager
    def supposing(
        self, events: SupposedEvents
    ) -> Iterator[tuple[tuple[SegmentState, ...], SegmentState]]:
        """Have one more segment of these events, one or more, within a block. Yields: the sealed
        segments and the last one meanwhile."""
        # The last segment counts as sealed meanwhile; without events it is left out.
        sealed, newest = self._sealed, self._newest_times()
        if self._last is not None and self._last.num_edges:
            sealed = (*sealed, self._last)
            newest = np.append(newest, self._files[-1].newest_us(self._last))
        first = self.num_edges
        last = SegmentState(first, len(events.src_E), 0, len(events.src_E))
        columns = self.columns.extended(first, events)

        before = vars(self).copy()
        try:
            self._sealed, self._last = sealed, last
            self._files = [*self._files[: len(sealed)], SupposedSegment(events)]
            self._first_S = np.append(self._first_S[: len(sealed)], first)
            self._newest_S, self._labels_S = newest, None
            self._columns = columns
            yield sealed, last
        finally:
            vars(self).update(before)

    def each(self) -> Iterator[tuple[SegmentState, SegmentFiles]]:
        """Yield every segment with its file, oldest first."""
        segments = self._sealed if self._last is None else (*self._sealed, self._last)
        return zip(segments, self._files, strict=True)

    def with_labels(
        self, after_us: int, until_us: int
    ) -> Iterator[tuple[SegmentState, SegmentFiles]]:
        """Yield the segments that may have labels with times in (after_us, until_us]."""
        # Times of the first and last label of each sealed segment; the last segment still grows.
        if self._labels_S is None:
            times = [
                f.label_columns(s.num_labels)[1][[0, -1]] if s.num_labels else (2**63 - 1, -1)
                for s, f in self.each()
                if s is not self._last
            ]
            bounds = np.array(times, np.int64).reshape(len(times), 2)
            self._labels_S = bounds[:, 0].copy(), bounds[:, 1].copy()
        first_S, last_S = self._labels_S
        for i in np.flatnonzero((first_S <= until_us) & (last_S > after_us)).tolist():
            yield self._sealed[i], self._files[i]
        if self._last is not None and self._last.num_labels:
            yield self._last, self._files[-1]

    @property
    def first_edge(self) -> int:
        """Event id of the oldest edge."""
        return int(self._first_S[0]) if len(self._first_S) else 0

    @property
    def num_edges(self) -> int:
        """One past the newest event id."""
        return 0 if self._last is None else self._last.end

    def _segment(self, number: int) -> SegmentState:
        last = self._last if number == len(self._sealed) else self._sealed[number]
        assert last is not None
        return last

    def edges(self, first: int, end: int) -> tuple[Int64, Int64, Int64]:
        """Read src, dst and time of the edges [first, end), int64[end - first] each.

        They are views of the mapped file if all are in one segment. Raises: IndexError if the log
        does not have all of them.
        """
        if not self.first_edge <= first <= end <= self.num_edges:
            raise IndexError(
                f"edges [{first}, {end}) are not in the log [{self.first_edge}, {self.num_edges})"
            )
        parts = [file.edges(a, b) for file, a, b in self._pieces(first, end)]
        if len(parts) == 1:
            return parts[0]
        empty = (np.zeros(0, np.int64),) * 3
        src, dst, time = (np.concatenate(pieces) for pieces in zip(empty, *parts, strict=True))
        return src, dst, time

    def edge_sets(self, first: int, end: int) -> Int64:
        """Number of the edge set of each of the edges [first, end): int64[end - first]."""
        if self._schema.num_edge_sets == 1:
            return np.zeros(end - first, np.int64)
        parts = [file.edge_sets(a, b) for file, a, b in self._pieces(first, end)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _pieces(self, first: int, end: int) -> Iterator[tuple[SegmentFiles, int, int]]:
        """Yield the pieces (file, from row, to row) that cover the event ids [first, end)."""
        number = int(np.searchsorted(self._first_S, first, side="right")) - 1
        while first < end:
            segment = self._segment(number)
            stop = min(end, segment.end)
            if first < stop:
                yield self._files[number], first - segment.first_edge, stop - segment.first_edge
            first = stop
            number = number + 1

    @property
    def columns(self) -> EdgeColumns:
        """The mapped time and feature columns for kernels; valid until a `take` of a newer
        state."""
        # A growing segment keeps its addresses; only a further segment or a new file changes them.
        filled = len(self._sealed) + bool(self._last is not None and self._last.num_edges)
        if self._columns is None or self._columns.num_segments != filled:
            parts = [(s.first_edge, f) for s, f in self.each() if s.num_edges]
            self._columns = EdgeColumns.of_segments(parts, self.num_edges, self._schema)
        if self._columns.end != self.num_edges:
            self._columns = replace(self._columns, end=self.num_edges)
        return self._columns

    def gather(self, name: str, event_ids: Int64) -> Int64:
        """Gather the column src, dst or time by event id, int64 of the same shape; undefined for
        ids before the log's first edge."""
        out = np.zeros(event_ids.shape, np.int64)
        for file, inside, rows in self._split_by_segment(event_ids):
            out[inside] = file.gather(name, rows)
        return out

    def features_of(self, event_ids: Int64) -> Float32:
        """Gather edge features by event id, float32[..., edge_feature_dim]; undefined for ids
        before the log's first edge."""
        dim = self._schema.edge_feature_dim
        out = np.zeros((*event_ids.shape, dim), np.float32)
        if dim:
            for file, inside, rows in self._split_by_segment(event_ids):
                out[inside] = file.features(rows, self._schema)
        return out

    def _split_by_segment(
        self, event_ids: Int64
    ) -> list[tuple[SegmentFiles, np.ndarray[tuple[int, ...], np.dtype[np.bool_]], Int64]]:
        """Split event ids by segment into (file, mask of those inside it, their rows)."""
        if not event_ids.size:
            return []
        # One segment needs no search.
        if len(self._files) == 1:
            rows = np.maximum(event_ids - self._first_S[0], 0).ravel()
            return [(self._files[0], np.ones(event_ids.shape, np.bool_), rows)]
        # Ids before the first segment get -1 and belong to no file.
        number = np.searchsorted(self._first_S, event_ids, side="right") - 1
        out = []
        for i in np.unique(number[number >= 0]).tolist():
            inside = number == i
            out.append((self._files[i], inside, event_ids[inside] - self._first_S[i]))
        return out

    def edge_sets_of(self, event_ids: Int64) -> Int64:
        """Number of the edge set of each event id, int64 of the same shape; undefined for ids
        before the log's first edge."""
        out = np.zeros(event_ids.shape, np.int64)
        if self._schema.num_edge_sets > 1:
            for file, inside, rows in self._split_by_segment(event_ids):
                out[inside] = file.places(rows)[0]
        return out

    def in_sets(self, node_X: Int64, set_X: Int64 | int) -> Int64:
        """Numbers that differ if node or edge set differ, int64[X]; the nodes themselves in a log
        of one set."""
        return node_X * self._schema.num_edge_sets + set_X

    def ends(self, event_ids: Int64) -> tuple[Int64, Int64]:
        """Read src and dst of ascending event ids of the log, int64 each."""
        src = np.zeros(len(event_ids), np.int64)
        dst = np.zeros(len(event_ids), np.int64)
        cut_S = np.append(np.searchsorted(event_ids, self._first_S), len(event_ids))
        for i in np.flatnonzero(np.diff(cut_S)).tolist():
            part = slice(cut_S[i], cut_S[i + 1])
            rows = event_ids[part] - self._first_S[i]
            src[part] = self._files[i].gather("src", rows)
            dst[part] = self._files[i].gather("dst", rows)
        return src, dst

    def lower_bound(self, time_us: int) -> int:
        """First event id with a time at or after `time_us`; one past the newest if there is
        none."""
        return int(self.bounds(np.array([time_us]))[0])

    def bounds(self, time_T: Int64, after: bool = False) -> Int64:
        """First event id at or after each time (with `after`, only after it), one past the newest
        if there is none: int64[T]."""
        # Event ids are in order of time, so the event is in the first segment that ends late
        # enough.
        side: Literal["left", "right"] = "right" if after else "left"
        number_T = np.searchsorted(self._newest_times(), time_T, side=side)
        out = np.full(len(time_T), self.num_edges, np.int64)
        for i in np.unique(number_T).tolist() if self._files else ():
            segment = self._segment(i)
            own = number_T == i
            before = self._files[i].rows_before(time_T[own], segment, side)
            out[own] = segment.first_edge + before
        return out

    def _newest_times(self) -> Int64:
        """Time of the newest event of each sealed segment: int64[S]."""
        if self._newest_S is None:
            self._newest_S = np.array(
                [f.newest_us(s) for s, f in self.each() if s is not self._last],
                np.int64,
            )
        return self._newest_S


def _name(segment: SegmentState | None) -> tuple[int, int] | None:
    """First event id and revision: they identify the files of a segment."""
    return None if segment is None else (segment.first_edge, segment.revision)
