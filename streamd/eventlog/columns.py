"""Memory addresses of the log's mapped edge columns, by which kernels read rows by event id across
segments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.supposed_events import SupposedEvents
from streamd.events import Float32, Int64
from streamd.schema import Schema


class ColumnArrays(NamedTuple):
    """Addresses of S segments and their F files, for kernels.

    first: int64[S], event id of each segment's first edge. order: uint64[S], address of the
    segment's order of events (int64, as in `SegmentFiles.order`), 0 if the segment is one file.
    file: int64[S], index of its first file. time, msg: uint64[F], addresses of a file's columns,
    int64 microseconds and float32 a row. width: int64[F], number of features in a row of the file;
    `place`: int64[F], index of the first of them in a row of features; edge_set: int64[F], index
    that is 1 for the file's edge set, -1 for none.
    """

    first: Int64
    order: NDArray[np.uint64]
    file: Int64
    time: NDArray[np.uint64]
    msg: NDArray[np.uint64]
    width: Int64
    place: Int64
    edge_set: Int64


@dataclass(frozen=True)
class EdgeColumns:
    """The time and feature columns of segments, in order of event ids.

    is_plain: whether each segment is one file, with all features. end: one past the newest event
    id. dim: width of a row of features. held: the arrays, which keep the memory mapped while this
    object lives.
    """

    arrays: ColumnArrays
    is_plain: bool
    end: int
    dim: int
    held: tuple[object, ...]

    @property
    def num_segments(self) -> int:
        return len(self.arrays.first)

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Int64, Float32]], end: int, dim: int) -> "EdgeColumns":
        """Take the addresses of columns of one edge set, for samplers over arrays in memory.

        Args:
            parts (Sequence of (int, Int64, Float32)): of each segment the first event id, times
                int64[E] microseconds and features float32[E, dim]; the arrays must be contiguous.
            end (int): one past the newest event id.
            dim (int): number of features of an edge.
        """
        files = [(time, msg, 0, -1) for _, time, msg in parts]
        return cls._of([(first, None, 1) for first, *_ in parts], files, end, dim)

    @classmethod
    def of_segments(
        cls, segments: Sequence[tuple[int, SegmentFiles]], end: int, schema: Schema
    ) -> "EdgeColumns":
        """Take the addresses of mapped segments, given with the event id of their first edge."""
        several = schema.num_edge_sets > 1
        files = [
            (f.column("time"), f.column("msg"), schema.edge_columns(n).start, n if several else -1)
            for _, segment in segments
            for n, f in enumerate(segment.per_set)
        ]
        parts = [
            (first, s.order if len(s.order) else None, len(s.per_set)) for first, s in segments
        ]
        return cls._of(parts, files, end, schema.edge_feature_dim)

    def extended(self, first: int, events: SupposedEvents) -> "EdgeColumns":
        """The columns with one more segment. first: id of the first of its events."""
        end = first + len(events.time_E)
        more = EdgeColumns.of([(first, events.time_E, events.rows_ED)], end, self.dim)
        own = more.arrays._replace(file=more.arrays.file + len(self.arrays.time))
        columns: Any = map(np.concatenate, zip(self.arrays, own, strict=True))
        arrays = ColumnArrays(*columns)
        return EdgeColumns(arrays, self.is_plain, end, self.dim, (*self.held, *more.held))

    @classmethod
    def _of(
        cls,
        segments: Sequence[tuple[int, Int64 | None, int]],
        files: Sequence[tuple[Int64, Float32, int, int]],
        end: int,
        dim: int,
    ) -> "EdgeColumns":
        """segments: first event id, order and number of files of each; files: times, features,
        index of the first feature in a row, and index of the set."""
        first, order, count = zip(*segments, strict=True) if segments else ((), (), ())
        count_S = np.array(count, np.int64)
        arrays = ColumnArrays(
            first=np.array(first, np.int64),
            order=np.array([0 if o is None else o.ctypes.data for o in order], np.uint64),
            file=np.cumsum(count_S) - count_S,
            time=np.array([f[0].ctypes.data for f in files], np.uint64),
            msg=np.array([f[1].ctypes.data for f in files], np.uint64),
            width=np.array([f[1].shape[1] for f in files], np.int64),
            place=np.array([f[2] for f in files], np.int64),
            edge_set=np.array([f[3] for f in files], np.int64),
        )
        plain = not arrays.order.any() and bool((arrays.width == dim).all())
        # The addresses keep no memory mapped, so hold the columns too.
        return cls(arrays, plain, end, dim, (*order, *(f[:2] for f in files)))
