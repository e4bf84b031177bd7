"""The rows of one edge set in one segment: those in a range of time, cut into runs between deleted
rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.eventlog.deletions import Deletions
from streamd.eventlog.journal.journal import SegmentState
from streamd.eventlog.layout import ROW_BITS, SET_SHIFT
from streamd.eventlog.segment_files import SegmentFiles
from streamd.eventlog.tguf.reader import TGUFFile
from streamd.events import Bools, Int64

BATCH_ROWS = 131_072
"""Most rows of a batch: a column of them takes 1 MiB, which fits a core's cache."""
SHORT_RUN = 1024
"""Runs of fewer rows are copied into one batch. A batch costs 20 us, as copying so many rows
does."""
Rows = slice | Int64
"""Rows of a file: a slice, which is read without a copy, or int64 indices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRows:
    """The committed rows of an edge set in a segment, in order of time.

    first_edge: event id of the segment's first event. number: of the edge set. count: number of
    rows. order: int64, set and row of each event of the segment, as in `SegmentFiles.order`; empty
    if the segment is one file.
    """

    first_edge: int
    number: int
    file: TGUFFile
    count: int
    order: Int64

    @classmethod
    def of(cls, state: SegmentState, files: SegmentFiles, edge_set: int) -> "SetRows | None":
        """The rows of an edge set in a segment; None if the segment was begun before the set."""
        if edge_set >= len(files.per_set):
            return None
        # A segment that is one file has no counts per set.
        counts = state.rows_per_set or (state.num_edges,)
        return cls(
            first_edge=state.first_edge,
            number=edge_set,
            file=files.per_set[edge_set],
            count=counts[edge_set],
            order=files.order[: state.num_edges],
        )

    def column(self, name: str) -> NDArray[Any]:
        """A mapped column of all rows: src, dst and time int64, msg float32[rows, dim]."""
        return self.file.column(name, self.count)

    def between(self, since_us: int, until_us: int) -> tuple[int, int]:
        """The rows [a, b) with times in [since_us, until_us)."""
        a, b = np.searchsorted(self.column("time"), [since_us, until_us])
        return int(a), int(b)

    def with_ids(self, first_event: int, end_event: int) -> tuple[int, int]:
        """The rows [a, b) with event ids in [first_event, end_event)."""
        if not len(self.order):
            a, b = np.clip(
                [first_event - self.first_edge, end_event - self.first_edge], 0, self.count
            )
        else:
            a, b = np.searchsorted(self.event_ids(), [first_event, end_event])
        return int(a), int(b)

    def event_ids(self) -> Int64:
        """Event id of each row: int64[count]."""
        if not len(self.order):
            return np.arange(self.first_edge, self.first_edge + self.count)
        return self.first_edge + np.flatnonzero(self.order >> SET_SHIFT == self.number)

    def rows_of(self, event_ids: Int64) -> Int64:
        """Rows of those event ids that are in this file, ascending: int64. event_ids: ascending."""
        end = self.first_edge + (len(self.order) or self.count)
        a, b = np.searchsorted(event_ids, [self.first_edge, end])
        rows = event_ids[a:b] - self.first_edge
        if not len(self.order):
            return rows
        code: Int64 = self.order[rows]
        own: Int64 = code[code >> SET_SHIFT == self.number] & ROW_BITS
        return own

    def pieces(self, a: int, b: int, deletions: Deletions, deleted_ids: Int64) -> Iterator[Rows]:
        """Yield the rows [a, b) that are not deleted, at most BATCH_ROWS at a time and in order.

        A run between deleted rows is a slice; short runs are joined to indices. deleted_ids: event
        ids of `deletions.edges`, ascending.
        """
        has_gone = deletions.has_gone_nodes
        deleted = self.rows_of(deleted_ids)
        for first in range(a, b, BATCH_ROWS):
            end = min(first + BATCH_ROWS, b)
            own = deleted[slice(*np.searchsorted(deleted, [first, end]))]
            # Without deletes, neither src nor dst is read.
            if not has_gone and not len(own):
                yield slice(first, end)
                continue
            # Hide deleted edges, and the edges of deleted nodes.
            hidden = np.zeros(end - first, np.bool_)
            hidden[own - first] = True
            if has_gone:
                for name in ("src", "dst"):
                    hidden |= deletions.is_gone(self.column(name)[first:end])
            for rows in visible(hidden):
                if isinstance(rows, slice):
                    yield slice(first + rows.start, first + rows.stop)
                else:
                    yield first + rows


def visible(hidden_E: Bools) -> Iterator[Rows]:
    """Yield the rows that are not hidden, in order: runs of at least SHORT_RUN rows as slices, the
    rows of consecutive shorter runs as indices."""
    # Each visible run begins after a hidden row and ends at the next one.
    bounds = np.flatnonzero(np.diff(np.concatenate([[True], hidden_E, [True]]).astype(np.int8)))
    short: list[Int64] = []
    for start, stop in bounds.reshape(-1, 2).tolist():
        if stop - start < SHORT_RUN:
            short.append(np.arange(start, stop))
            continue
        if short:
            yield np.concatenate(short)
            short = []
        yield slice(start, stop)
    if short:
        yield np.concatenate(short)
