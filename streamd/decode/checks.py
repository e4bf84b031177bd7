"""The rules that every event must satisfy, checked over columns of edges or for one event.

The check over columns is the fast path: it says only whether all edges are valid. The check of one
event also says what is wrong with it.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamd.decode.block import NO_STAMP, ROW, Block
from streamd.decode.event_sets import EventSets, NamedFeatures, SetFeatures, named_features
from streamd.decode.node_ids import KeyTable
from streamd.decode.notices import Notices, other_unit
from streamd.decode.reader import WireEdge
from streamd.decode.rounding import EXACT, NOTHING, count_rounded
from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent
from streamd.events import (
    DELETE,
    EDGE,
    LABEL,
    MAX_TIME_US,
    MICROSECONDS,
    NODE,
    Float32,
    Int64,
    Schema,
)
from streamd.settings.loading import Settings

FLOAT32_MAX = float(np.finfo(np.float32).max)
_edge_fields = operator.attrgetter("src", "dst", "time", "features")
_fields_of_sets = operator.attrgetter("src", "dst", "time", "features", "set_number")


@dataclass(frozen=True)
class Rules:
    """The limits that an event must satisfy. Times are in microseconds, sizes in bytes or counts.

    features: those that are declared by name.
    max_ahead_us: how far an event's time may be ahead of the wall clock and of its record's
    timestamp. max_feature: largest absolute value of a feature or label target. tombstones: whether
    a null value with a key deletes the node of that key; otherwise it is a dead letter.
    unit_setting: the setting that says `time_unit`, empty where no unit is said.
    """

    schema: Schema
    features: NamedFeatures = field(default_factory=NamedFeatures)
    time_unit: str = "ms"
    max_ahead_us: int = 60_000_000
    max_feature: float = FLOAT32_MAX
    max_key_bytes: int = 256
    max_record_bytes: int = 4_194_304
    max_record_events: int = 100_000
    tombstones: bool = False
    unit_setting: str = "stream.time_unit"


def rules_of(settings: Settings, schema: Schema) -> Rules:
    """Make the rules from the settings and the widths of the log."""
    s = settings.ingest
    return Rules(
        schema=schema,
        features=named_features(settings),
        time_unit=settings.stream.time_unit,
        max_ahead_us=int(s.max_ahead_seconds * 1e6),
        max_feature=min(s.max_feature, FLOAT32_MAX),
        max_key_bytes=s.max_key_bytes,
        max_record_bytes=s.max_record_bytes,
        max_record_events=s.max_record_events,
        tombstones=s.tombstones == "delete",
    )


class EventChecker:
    """Checks parsed events against `rules` and numbers their keys. Owner: the decoder.

    rounded: the rounded values of the last check.
    """

    def __init__(
        self, rules: Rules, notices: Notices, beside: "EventChecker | None" = None
    ) -> None:
        """beside: a checker whose keys and sets it shares; otherwise it has its own."""
        shared = (beside.keys, beside.sets) if beside is not None else None
        self.keys: KeyTable = shared[0] if shared else KeyTable(rules.max_key_bytes)
        self.sets: EventSets = shared[1] if shared else EventSets(rules.schema, rules.features)
        self._rules = rules
        self._notices = notices
        self._scale = MICROSECONDS[rules.time_unit]
        self._schema = rules.schema
        self.rounded = NOTHING
        self._any_filled = False
        """Whether the edges checked last had some without a time."""

    def edges(
        self, wire: Sequence[WireEdge], offset: Any, item: Any, source: int, stamp: Any, now_us: int
    ) -> Block | None:
        """Make a block of edges; None unless every one of them is valid.

        Args: offset, item, stamp: one value for all edges, or one for each. stamp: the records'
        timestamps in microseconds.
        """
        # Check the cheap columns first; one that does not fit ends the fast path.
        fields = _edge_fields if self.sets.is_only else _fields_of_sets
        src, dst, time, features, *number = zip(*map(fields, wire), strict=True)
        self._any_filled = False
        self.rounded = NOTHING
        times = self._times(time, stamp, self.horizon(stamp, now_us))
        if times is None:
            return None
        number_E = np.fromiter(number[0], np.int64, len(wire)) if number else None
        a = self.sets.key_numbers(self.keys, src, number_E, 0)
        b = None if a is None else self.sets.key_numbers(self.keys, dst, number_E, 1)
        rows = None if b is None else self._rows(features, number_E)
        if a is None or b is None or rows is None:
            return None

        # Only events that are taken are worth a notice.
        if self._any_filled:
            self._notices.no_time()
        self._notices.rounded(self.rounded)
        return edge_block(times, a, b, rows, offset, item, source, np.minimum(stamp, now_us))

    def horizon(self, stamp: Any, now_us: int) -> Any:
        """The latest valid event time for records with these timestamps.

        Returns: microseconds, in the shape of `stamp`.
        """
        return (
            np.where(np.equal(stamp, NO_STAMP), now_us, np.minimum(stamp, now_us))
            + self._rules.max_ahead_us
        )

    def _times(self, time: Sequence[int | None], stamp: Any, horizon: Any) -> Int64 | None:
        """Event times in microseconds, int64[n]; None where one of them is not valid."""
        try:
            column = np.fromiter(time, np.int64, len(time))
        except TypeError:
            # Some have no time: they get the timestamp of their record.
            stamps = np.broadcast_to(stamp, len(time)).tolist()
            filled = [
                s if t is None else t * self._scale for t, s in zip(time, stamps, strict=True)
            ]
            if any(not 0 <= t <= MAX_TIME_US for t in filled):
                return None
            column = np.array(filled, np.int64)
            self._any_filled = True
        except OverflowError:
            return None
        else:
            # Compare before scaling, which could overflow.
            if column.min() < 0 or column.max() > MAX_TIME_US // self._scale:
                return None
            column *= self._scale
        return None if (column > horizon).any() else column

    def _rows(self, features: Sequence[Any], number_E: Int64 | None) -> Float32 | None:
        """Rows of edge features, float32[n, D]; None where a width or a value does not fit.

        number_E: of the edge sets, None where there is one.
        """

        def of_set(number: int, at: Int64 | None) -> Float32 | None:
            given = features if at is None else [features[i] for i in at.tolist()]
            of_edges = self.sets.of_edges[number]
            values = of_edges.columns(given)
            if values is None:
                return None
            # Compare as float64: a value beyond float32 would turn into infinity. NaN is refused.
            largest = np.abs(values).max(initial=0)
            if not largest <= self._rules.max_feature:
                return None
            if largest > EXACT:
                self.rounded += count_rounded(values, of_edges.column_names)
            return values.astype(np.float32)

        return self.sets.rows(number_E, len(features), of_set)

    def event(
        self, e: WireEvent, stamp_us: int, horizon: int, scale: int | None = None
    ) -> tuple[int, int, int, int, Sequence[float]]:
        """Check one event of any type.

        Args: horizon: the latest valid time, microseconds; scale: as of `checked_time`.
        Returns: (time, kind, a, b, values), the first four as in a row of a block.
        Raises: BadEvent.
        """
        self.rounded = NOTHING
        number = self.keys.number
        if e.type == "edge":
            if any(x is not None for x in (e.id, e.node, e.target, e.node_set)):
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            edge_set = self.sets.edge_set(e.edge_set)
            row = self._row(self.sets.of_edges[edge_set], e.features, edge_set, EDGE)
            of_src, of_dst = self.sets.ends[edge_set]
            return time, EDGE, number(e.src, "src", of_src), number(e.dst, "dst", of_dst), row

        if e.type == "delete" and e.node is None:
            return self._edge_delete(e, scale)
        if e.edge_set is not None:
            raise BadEvent("wrong_type", f"a {e.type} has a node_set, not an edge_set")
        node_set = self.sets.node_set(e.node_set)
        if e.type == "node":
            row = self._row(self.sets.of_nodes[node_set], e.features, node_set, NODE)
            return 0, NODE, number(e.id, "id", node_set), -1, row

        if e.type == "label":
            dim = self._schema.label_dim
            if dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels have no place")
            target = e.target or []
            if len(target) != dim:
                raise BadEvent(
                    "feature_width", f"target has {len(target)} values, the stream has {dim}"
                )
            self._check_values(target, "target", ["target"] * dim)
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            return time, LABEL, number(e.node, "node", node_set), -1, target

        if e.src is not None or e.dst is not None:
            raise BadEvent("wrong_type", "a delete has a node, or src, dst and time")
        return 0, DELETE, number(e.node, "node", node_set), -1, ()

    def _edge_delete(
        self, e: WireEvent, scale: int | None
    ) -> tuple[int, int, int, int, Sequence[float]]:
        """Check a delete of edges of these ends and this time. Returns, raises: as `event`."""
        if e.node_set is not None:
            raise BadEvent("wrong_type", "a delete of an edge has an edge_set, not a node_set")
        if e.time is None:
            raise BadEvent("missing_field", "a delete of an edge needs its time")
        time = self.checked_time(e.time, -1, MAX_TIME_US, scale)
        edge_set = self.sets.edge_set(e.edge_set)
        of_src, of_dst = self.sets.ends[edge_set]
        a = self.keys.number(e.src, "src", of_src)
        return 0, DELETE, a, self.keys.number(e.dst, "dst", of_dst), (time, edge_set)

    def _row(self, of_set: SetFeatures, given: Any, number: int, kind: int) -> Sequence[float]:
        """The row of features of one event of a set. Raises: BadEvent."""
        values = of_set.one(given, "features")
        self._check_values(values, "features", of_set.column_names)
        schema = self._schema
        if (schema.num_edge_sets if kind == EDGE else schema.num_node_sets) == 1:
            return values
        rows = schema.edge_rows if kind == EDGE else schema.node_rows
        row: list[float] = rows(number, np.array([values], np.float32))[0].tolist()
        return row

    def checked_time(
        self, time: int | float | None, stamp_us: int, horizon: int, scale: int | None = None
    ) -> int:
        """The time of one event in microseconds.

        Args: scale: microseconds of the time's unit, None for the stream's unit.
        Raises: BadEvent.
        """
        # An event without a time gets the timestamp of its record.
        if time is None:
            if stamp_us < 0:
                raise BadEvent("bad_time", "no time, and the record has no timestamp")
            time_us = stamp_us
        elif type(time) is not int:
            raise BadEvent(
                "bad_time", f"time is not an integer, which counts {self._rules.time_unit}"
            )
        else:
            time_us = time * (scale or self._scale)

        # A refused time that fits in another unit gets a hint.
        if not 0 <= time_us <= MAX_TIME_US:
            raise BadEvent("bad_time", f"time is out of range{self._unit_hint(time_us, horizon)}")
        if time_us > horizon:
            ahead = (time_us - horizon + self._rules.max_ahead_us) / 1e6
            raise BadEvent(
                "time_ahead",
                f"time is {ahead:,.0f} s ahead of the wall clock or of its record's timestamp, "
                f"at most {self._rules.max_ahead_us / 1e6:,.0f} s are taken"
                f"{self._unit_hint(time_us, horizon)}",
            )
        return time_us

    def _unit_hint(self, time_us: int, horizon: int) -> str:
        """Text to add to an error where the refused time looks like one in another unit."""
        unit = other_unit(time_us, horizon, self._rules.time_unit)
        # The time of a delete has no horizon, so nothing tells in which unit it is.
        setting = self._rules.unit_setting
        if unit is None or horizon == MAX_TIME_US or not setting:
            return ""
        self._notices.unit(unit)
        return f"; it looks like {unit}, {setting} is {self._rules.time_unit}"

    def _check_values(self, values: Sequence[float], name: str, columns: Sequence[str]) -> None:
        """Refuse features or label targets that are too large, and count rounded ones. Raises:
        BadEvent."""
        largest = 0.0
        for v in values:
            # Written so that NaN is refused too, which no comparison holds for.
            if not -self._rules.max_feature <= v <= self._rules.max_feature:
                raise BadEvent(
                    "bad_features",
                    f"{name} holds a value beyond ingest.max_feature, {self._rules.max_feature:g}",
                )
            largest = max(largest, abs(v))
        if largest > EXACT:
            self.rounded += count_rounded(np.array([values], np.float64), columns)


def edge_block(
    time: Int64,
    a: Int64,
    b: Int64,
    values: Float32,
    offset: Any,
    item: Any,
    source: int,
    stamp: Any = NO_STAMP,
) -> Block:
    """Make a block of valid edges from their columns; the columns are those of `ROW`."""
    rows = np.zeros(len(time), ROW)
    rows["time"] = time
    rows["source"] = source
    rows["offset"] = offset
    rows["item"] = item
    rows["stamp"] = stamp
    rows["kind"] = EDGE
    rows["a"] = a
    rows["b"] = b
    rows["extra"] = -1
    return Block(rows, values)
