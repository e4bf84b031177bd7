"""The tables of events: of one edge set over its mapped columns, and of all sets in event order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.growing import places_in
from streamd.events import Float32, Int64
from streamd.table.arrow_columns import (
    FEATURES,
    TIME,
    NamedFeature,
    array_over,
    fixed_lists,
    named_features,
)
from streamd.table.keys import NodeKeys
from streamd.table.set_rows import BATCH_ROWS, Rows, SetRows

MAPPED = ("src", "dst", "time")
"""Columns that are read without a copy, as are the features of one set."""
BASE = pa.schema(
    [
        ("event", pa.int64()),
        ("edge_set", pa.string()),
        ("src", pa.int64()),
        ("dst", pa.int64()),
        ("time", TIME),
        ("original_time", TIME),
        ("src_key", pa.string()),
        ("src_key_int", pa.int64()),
        ("dst_key", pa.string()),
        ("dst_key_int", pa.int64()),
    ]
)
"""The columns that events of every set have."""


@dataclass(frozen=True)
class Events:
    """Some events as numbers, from which their columns are made. Each array is made on demand, as
    not every column needs each.

    ids: event ids, int64[E]. column: src, dst or time, int64[E].
    """

    ids: Callable[[], Int64]
    column: Callable[[str], Int64]


class EventColumns:
    """Makes the columns of `BASE` from numbers. Owner: a snapshot of a log."""

    def __init__(self, log: LogReader, keys: NodeKeys) -> None:
        self.log = log
        self.keys = keys
        self.late_ids, self._late_us = log.original_times()

    def make(self, name: str, events: Events) -> Any:
        """A column as an Arrow array; not `edge_set`."""
        if name == "event":
            return array_over(events.ids(), pa.int64())
        if name in MAPPED:
            return array_over(events.column(name), BASE.field(name).type)
        if name == "original_time":
            return array_over(self._original(events), TIME)
        # The key of an endpoint, such as `src_key_int`.
        end, _, rest = name.partition("_")
        nodes = events.column(end)
        return self.keys.texts(nodes) if rest == "key" else self.keys.integers(nodes)

    def _original(self, events: Events) -> Int64:
        """Times with the original ones of late events: int64[E] microseconds."""
        time = events.column("time").copy()
        place = places_in(self.late_ids, events.ids())
        is_late = place >= 0
        time[is_late] = self._late_us[place[is_late]]
        return time


class SetEvents:
    """The events of one edge set, in order of time.

    Immutable; several threads may read it.
    """

    def __init__(self, columns: EventColumns, edge_set: int) -> None:
        """edge_set: number of the set."""
        self._columns = columns
        self._log = columns.log
        self._number = edge_set
        schema = self._log.state.schema
        self.name = schema.edge_set_names[edge_set]
        self._dim = len(range(schema.edge_feature_dim)[schema.edge_columns(edge_set)])
        declared = schema.edge_sets[edge_set].features if schema.edge_sets else schema.edge_features
        self._named: dict[str, NamedFeature] = {
            one.column: one for one in named_features(declared, (*BASE.names, FEATURES))
        }

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""
        lists = [(FEATURES, pa.list_(pa.float32(), self._dim))] if self._dim else []
        named = [(name, one.type) for name, one in self._named.items()]
        return pa.schema([*BASE, *(pa.field(*one) for one in (*lists, *named))])

    @property
    def default_columns(self) -> tuple[str, ...]:
        """The columns that are read without a copy."""
        return (*MAPPED, FEATURES) if self._dim else MAPPED

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name) of the events with times in [since_us,
        until_us) that are not deleted, batch by batch."""
        return self._batches(columns, lambda part: part.between(since_us, until_us))

    def batches_with_ids(
        self, columns: Sequence[str], first_event: int, end_event: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """As `batches`, of the events with ids in [first_event, end_event)."""

        def rows(part: SetRows) -> tuple[int, int]:
            # The ids of a segment take longer than its place.
            end = part.first_edge + (len(part.order) or part.count)
            if end <= first_event or part.first_edge >= end_event:
                return 0, 0
            return part.with_ids(first_event, end_event)

        return self._batches(columns, rows)

    def _batches(
        self, columns: Sequence[str], rows_of: Callable[[SetRows], tuple[int, int]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield batches of the rows [a, b) of each segment that `rows_of` returns."""
        deletions = self._log.deletions
        deleted_ids = np.sort(deletions.edges)
        needs_ids = bool({"event", "original_time"} & set(columns))
        for state, files in self._log.segments():
            part = SetRows.of(state, files, self._number)
            if part is None or not part.count:
                continue
            # Their ids only if a column needs them.
            a, b = rows_of(part)
            ids = part.event_ids() if needs_ids and a < b else None
            for rows in part.pieces(a, b, deletions, deleted_ids):
                count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
                yield count, {name: self._make(name, part, rows, ids, count) for name in columns}

    def _make(self, name: str, part: SetRows, rows: Rows, ids: Int64 | None, count: int) -> Any:
        """A column of some rows."""
        # Columns that this set alone has.
        if name == "edge_set":
            return pa.repeat(self.name, count)
        if name == FEATURES:
            return fixed_lists(self._features(part, rows))
        if name in self._named:
            return self._named[name].decode(self._features(part, rows))

        # Columns of every set.
        def own_ids() -> Int64:
            assert ids is not None
            return ids[rows]

        return self._columns.make(name, Events(own_ids, lambda of: part.column(of)[rows]))

    def _features(self, part: SetRows, rows: Rows) -> Float32:
        """Features of rows, float32[R, dim]; a view if the segment has all of today's features."""
        values: Float32 = part.column("msg")[rows]
        if values.shape[1] == self._dim:
            return values
        # The set got features after the segment's start: those are 0 here.
        wide = np.zeros((len(values), self._dim), np.float32)
        wide[:, : values.shape[1]] = values
        return wide


class AllEvents:
    """The events of all edge sets of a log with several, in event order.

    All columns are copied, BATCH_ROWS rows at a time. `features` are the row's own set's.
    Immutable; several threads may read it.
    """

    schema = pa.schema([*BASE, pa.field(FEATURES, pa.list_(pa.float32()))])
    default_columns = ("event", "edge_set", *MAPPED)

    def __init__(self, columns: EventColumns) -> None:
        self._columns = columns
        self._log = columns.log
        self._names = pa.array(self._log.state.schema.edge_set_names)

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """As `SetEvents.batches`."""
        log = self._log
        first, end = log.lower_bounds(np.array([since_us, until_us])).tolist()
        for a in range(first, end, BATCH_ROWS):
            b = min(a + BATCH_ROWS, end)
            # These are copies, as the rows of a set are in a file of its own.
            read = dict(zip(MAPPED, log.edges(a, b), strict=True))
            rows = np.flatnonzero(~log.deletions.hides(a, read["src"], read["dst"]))
            if len(rows):
                events = _events_at(a, rows, read)
                yield len(rows), {name: self._make(name, events) for name in columns}

    def _make(self, name: str, events: Events) -> Any:
        if name == "edge_set":
            return self._names.take(pa.array(self._log.edge_sets_of(events.ids())))
        if name == FEATURES:
            return self._feature_lists(events.ids())
        return self._columns.make(name, events)

    def _feature_lists(self, ids: Int64) -> Any:
        """The features of each event's own set, as lists of its width."""
        schema = self._log.state.schema
        sets = self._log.edge_sets_of(ids)
        rows = self._log.features_of(ids)
        # Of the columns of all sets keep those of the event's own.
        own = np.zeros(rows.shape, np.bool_)
        for number in np.unique(sets).tolist():
            own[sets == number, schema.edge_columns(number)] = True
        offsets = np.concatenate([[0], np.cumsum(own.sum(1))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows[own]))


def _events_at(first: int, rows: Int64, read: dict[str, Int64]) -> Events:
    """Some rows of events that were read from an event id on."""
    return Events(lambda: first + rows, lambda name: read[name][rows])
