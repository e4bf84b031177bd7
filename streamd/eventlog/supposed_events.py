"""Events that a reader supposes at the end of its log for a moment: in memory only, and read as
those of a segment."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamd.eventlog.journal.journal import SegmentState
from streamd.eventlog.segment_files import NO_ORDER, SegmentFiles
from streamd.events import Float32, Int64
from streamd.schema import Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class SupposedEvents:
    """E events in log order. src_E, dst_E, time_E, set_E: int64[E], node ids, microseconds and
    numbers of their edge sets. rows_ED: float32[E, edge_feature_dim]."""

    src_E: Int64
    dst_E: Int64
    time_E: Int64
    set_E: Int64
    rows_ED: Float32


class SupposedSegment(SegmentFiles):
    """Supposed events as a segment without files or labels. Owner: the reader."""

    def __init__(self, events: SupposedEvents) -> None:
        self.events = events
        self.order = NO_ORDER
        self.per_set = []
        self.labels = None

    def places(self, rows: Int64) -> tuple[Int64, Int64]:
        """Edge set of each row, and the row itself: int64 of the same shape."""
        return self.events.set_E[rows], rows

    def gather(self, name: str, rows: Int64) -> Int64:
        """The column src, dst or time of rows: int64 of the same shape."""
        column: Int64 = getattr(self.events, f"{name}_E")[rows]
        return column

    def edges(self, a: int, b: int) -> tuple[Int64, Int64, Int64]:
        """src, dst and time of the rows [a, b), int64[b - a] each."""
        events = self.events
        return events.src_E[a:b], events.dst_E[a:b], events.time_E[a:b]

    def edge_sets(self, a: int, b: int) -> Int64:
        """Edge set of each of the rows [a, b): int64[b - a]."""
        return self.events.set_E[a:b]

    def features(self, rows: Int64, schema: Schema) -> Float32:
        """Edge features of rows: float32[..., edge_feature_dim]."""
        return self.events.rows_ED[rows]

    def rows_before(
        self, time_T: Int64, state: SegmentState, side: Literal["left", "right"]
    ) -> Int64:
        """Number of rows before each time, or (side right) at or before it: int64[T]."""
        return np.searchsorted(self.events.time_E, time_T, side=side)
