"""Finds edges by edge set, endpoints and event time, as deletes name them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import DataDirectoryError
from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import LATE, LATE_ROW
from streamd.eventlog.segments import MappedSegments
from streamd.eventlog.tguf.growing import GrowingArray, SortedRuns, places_in, spread
from streamd.events import Bools, Int64

SLICE = 1 << 20
"""Maximum number of edges, and of names of edges, that are compared at a time: some 100 MiB of
arrays. Three numbers below it fit one int64."""


class CommittedBytes:
    """Reads the bytes that commits append to a file, each once. Owner: a reader or writer of the
    log."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """name: path of the file in the data directory."""
        self._data_dir = data_dir
        self._name = name
        self._read = 0

    def new(self, state: LogState) -> bytes:
        """Read the bytes that are committed as of a state and were not read before. Raises:
        DataDirectoryError."""
        end = state.files.get(self._name, NOTHING).num_bytes
        if end == self._read:
            return b""
        with (self._data_dir / self._name).open("rb") as file:
            data = os.pread(file.fileno(), end - self._read, self._read)
        if len(data) != end - self._read:
            raise DataDirectoryError(
                f"{self._name} is shorter than the journal says.", "restore it from a backup."
            )
        self._read = end
        return data


class LateEdges:
    """The late edges, which the log stores at the watermark instead of their original time. Those
    that retention removed are dropped once they are the larger part. Owner: a reader or writer of
    the log."""

    def __init__(self, data_dir: Path) -> None:
        self._bytes = CommittedBytes(data_dir, LATE)
        self._edge = GrowingArray(np.int64)
        self._time = GrowingArray(np.int64)
        self._by_time = SortedRuns()

    def take(self, state: LogState) -> None:
        """Add the late edges committed as of a state. Raises: DataDirectoryError."""
        rows = np.frombuffer(self._bytes.new(state), LATE_ROW)
        self._add(rows["edge"], rows["time"])
        edge, time = self.rows
        num_gone = int(np.searchsorted(edge, state.first_edge))
        if 2 * num_gone > len(edge):
            self._edge, self._time = GrowingArray(np.int64), GrowingArray(np.int64)
            self._by_time = SortedRuns()
            self._add(edge[num_gone:], time[num_gone:])

    def _add(self, event_ids: Int64, times: Int64) -> None:
        self._edge.append(event_ids)
        self._time.append(times)
        self._by_time.add(times, event_ids)

    @property
    def rows(self) -> tuple[Int64, Int64]:
        """Event ids of the late edges, ascending, and their original times: int64[N] each."""
        return self._edge.values, self._time.values

    def holds(self, event_ids: Int64) -> Bools:
        """Whether each event id is that of a late edge: bool of the same shape."""
        return places_in(self._edge.values, event_ids) >= 0

    def count(self, first: int, end: int, before_us: int) -> int:
        """Number of late edges in [first, end) with an original time before `before_us`."""
        a, b = np.searchsorted(self._edge.values, [first, end])
        return int((self._time.values[a:b] < before_us).sum())

    def came_at(self, time_T: Int64) -> tuple[Int64, Int64]:
        """Event ids of the late edges with one of these distinct original times, ascending, and for
        each the index of its time."""
        event_ids, index = self._by_time.under(time_T)
        order = np.argsort(event_ids)
        return event_ids[order], index[order]


@dataclass(frozen=True)
class _Names:
    """K distinct names of edges. key_K, int64 ascending, combines the indices of time, src and dst
    among the distinct values of each. The same dst in another edge set counts as a different
    one."""

    time_T: Int64
    src_S: Int64
    dst_D: Int64
    key_K: Int64

    def keys(self, time_place: Int64, src: Int64, dst: Int64) -> Int64:
        """The key of each edge, -1 if one of its values is in no name."""
        s = places_in(self.src_S, src)
        d = places_in(self.dst_D, dst)
        key = (time_place * len(self.src_S) + s) * len(self.dst_D) + d
        known: Int64 = np.where((s >= 0) & (d >= 0), key, -1)
        return known


def find_edges(
    segments: MappedSegments,
    late: LateEdges,
    src_X: Int64,
    dst_X: Int64,
    time_X: Int64,
    before_X: Int64,
    set_X: Int64 | int = 0,
) -> Int64:
    """Find all edges of an edge set that have the endpoints and the original time of a name, and
    come before the name's `before_X`.

    Returns: their event ids, int64, ascending.
    """
    found = [np.zeros(0, np.int64)]
    dst_X = segments.in_sets(dst_X, set_X)
    for a in range(0, len(src_X), SLICE):
        part = slice(a, a + SLICE)
        names, name_X = _distinct(src_X[part], dst_X[part], time_X[part])

        # Of several deletes of one name, the last hides all edges that the others hide.
        before_K = np.zeros(len(names.key_K), np.int64)
        np.maximum.at(before_K, name_X, before_X[part])
        for event_ids, name in _matches(segments, late, names):
            found.append(event_ids[event_ids < before_K[name]])
    return np.unique(np.concatenate(found))


def _distinct(src_X: Int64, dst_X: Int64, time_X: Int64) -> tuple[_Names, Int64]:
    """The distinct names among X, and for each of X the index of its name."""
    time_T, t = np.unique(time_X, return_inverse=True)
    src_S, s = np.unique(src_X, return_inverse=True)
    dst_D, d = np.unique(dst_X, return_inverse=True)
    key_K, index = np.unique((t * len(src_S) + s) * len(dst_D) + d, return_inverse=True)
    return _Names(time_T, src_S, dst_D, key_K), index


def _matches(
    segments: MappedSegments, late: LateEdges, names: _Names
) -> Iterator[tuple[Int64, Int64]]:
    """Yield event ids of edges with one of the names, and for each the index of its name."""
    # Find late edges by their original time, all others by the time in the segments.
    event_ids, place = late.came_at(names.time_T)
    kept = (event_ids >= segments.first_edge) & (event_ids < segments.num_edges)
    yield _match_names(segments, names, event_ids[kept], place[kept])
    first_T = segments.bounds(names.time_T)
    end_T = segments.bounds(names.time_T, after=True)
    ends = np.cumsum(end_T - first_T)

    # At most SLICE rows at a time, even if more have the same time.
    for a in range(0, int(ends[-1]) if len(ends) else 0, SLICE):
        b = min(a + SLICE, int(ends[-1]))
        some = slice(np.searchsorted(ends, a, side="right"), np.searchsorted(ends, b) + 1)
        behind = ends[some] - end_T[some]
        event_ids, place = spread(
            np.maximum(first_T[some], a - behind), np.minimum(end_T[some], b - behind)
        )
        kept = ~late.holds(event_ids)
        yield _match_names(segments, names, event_ids[kept], place[kept] + some.start)


def _match_names(
    segments: MappedSegments, names: _Names, event_ids: Int64, time_place: Int64
) -> tuple[Int64, Int64]:
    """Select the ascending event ids that have one of the names. Returns also the index of each
    name."""
    src, dst = segments.ends(event_ids)
    dst = segments.in_sets(dst, segments.edge_sets_of(event_ids))
    name = places_in(names.key_K, names.keys(time_place, src, dst))
    kept = name >= 0
    return event_ids[kept], name[kept]


class EdgeLookup:
    """Finds edges in the committed part of a log. Owner: the log's writer, which has no reader."""

    def __init__(self, data_dir: Path) -> None:
        self._segments = MappedSegments(data_dir)
        self._late = LateEdges(data_dir)

    def count(
        self, state: LogState, src_X: Int64, dst_X: Int64, time_X: Int64, set_X: Int64 | int = 0
    ) -> Int64:
        """Number of edges of an edge set that the log has with the endpoints and the original time
        of each name, deleted or not: int64[X].

        state: the log's, up to which commits are searched.
        """
        self._segments.take(state)
        self._late.take(state)
        count = np.zeros(len(src_X), np.int64)
        dst_X = self._segments.in_sets(dst_X, set_X)
        for a in range(0, len(src_X), SLICE):
            part = slice(a, a + SLICE)
            names, name_X = _distinct(src_X[part], dst_X[part], time_X[part])
            count_K = np.zeros(len(names.key_K), np.int64)
            for _, name in _matches(self._segments, self._late, names):
                count_K += np.bincount(name, minlength=len(count_K))
            count[part] = count_K[name_X]
        return count
