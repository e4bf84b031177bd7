"""The rules that every event must satisfy, checked for columns of edges or for one event.

The check of columns is the fast path: it only finds whether all edges are valid. The check of one
event also explains its error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamd.decode.block import NO_STAMP, Block, Checked, Edges, Origin, edge_block
from streamd.decode.event_sets import EventSets, NamedFeatures, SetFeatures, named_features
from streamd.decode.node_ids import KeyTable
from streamd.decode.notices import Notices
from streamd.decode.rounding import EXACT, NOTHING, count_rounded
from streamd.decode.time_units import DATES, describe_time, other_unit
from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent
from streamd.events import (
    DELETE,
    EDGE,
    LABEL,
    MAX_TIME_US,
    MICROSECONDS,
    NODE,
    Int64,
    Schema,
)
from streamd.number_texts import count_noun, span
from streamd.settings.loading import Settings

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rules:
    """The limits that an event must satisfy. Times are in microseconds, sizes in bytes or counts.

    features: those that are declared by name. time_unit: of integers as times. max_ahead_us: how
    far an event's time may be ahead of the wall clock and of its record's timestamp. max_feature:
    maximum absolute value of a feature or label target. tombstones: whether a null value with a key
    deletes the node of that key; otherwise it is a dead letter. unit_setting: the setting of
    `time_unit`, "" if there is none.
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

    def check_count(self, count: int) -> None:
        """Refuse a record without events or with too many. Raises: BadEvent."""
        if not count:
            raise BadEvent("empty", "a record without events")
        if count > self.max_record_events:
            raise BadEvent("too_many_events", f"{count} events, at most {self.max_record_events}")


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
    """Checks parsed events against `rules` and numbers their keys. Owner: the decoder."""

    def __init__(self, rules: Rules, notices: Notices, other: "EventChecker | None" = None) -> None:
        """other: a checker to share keys and sets with; without it, they are new."""
        shared = (other.keys, other.sets) if other is not None else None
        self.keys: KeyTable = shared[0] if shared else KeyTable(rules.max_key_bytes)
        self.sets: EventSets = shared[1] if shared else EventSets(rules.schema, rules.features)
        self.rules = rules
        self._notices = notices
        # A source has more units, but passes times in microseconds.
        self._scale = MICROSECONDS.get(rules.time_unit, 1)
        self._schema = rules.schema
        self._rounded = NOTHING

    def block(self, edges: Edges, origin: Origin) -> Block | None:
        """Make a block of edges; None if a time is not valid."""
        return edge_block(edges, origin) if self.has_valid_times(edges.time, origin) else None

    def has_valid_times(self, time: Int64, origin: Origin) -> bool:
        """Whether all times, int64[n] microseconds, are in range and none is too far ahead."""
        if time.min() < 0 or time.max() > MAX_TIME_US:
            return False
        return self.is_not_ahead(time, origin)

    def is_not_ahead(self, time: Int64, origin: Origin) -> bool:
        """Whether no time, int64[n] microseconds, is too far ahead."""
        return not (time > self.horizon(origin.stamp, origin.now_us)).any()

    def horizon(self, stamp: Any, now_us: int) -> Any:
        """The latest valid event time for records with these timestamps, all in microseconds.

        Returns: in the shape of `stamp`.
        """
        # One record of many events has one timestamp, for which Python is faster than numpy.
        if isinstance(stamp, int):
            return self.latest(stamp, now_us)
        return (
            np.where(np.equal(stamp, NO_STAMP), now_us, np.minimum(stamp, now_us))
            + self.rules.max_ahead_us
        )

    def latest(self, stamp_us: int, now_us: int) -> int:
        """The latest valid event time, as `horizon`, for one record."""
        # A producer's clock may be ahead, so its timestamp counts only up to now.
        known_us = now_us if stamp_us == NO_STAMP else min(stamp_us, now_us)
        return known_us + self.rules.max_ahead_us

    def event(self, e: WireEvent, stamp_us: int, horizon: int, scale: int | None = None) -> Checked:
        """Check one event of any type.

        Args: stamp_us: the record's timestamp, negative for none; horizon: the latest valid time;
        scale: as for `checked_time`. Times in microseconds.
        Raises: BadEvent.
        """
        self._rounded = NOTHING
        number = self.keys.number
        if e.type == "edge":
            if any(x is not None for x in (e.id, e.node, e.target, e.node_set)):
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            edge_set = self.sets.edge_set(e.edge_set)
            row = self._row(self.sets.of_edges[edge_set], e.features, edge_set, EDGE)
            of_src, of_dst = self.sets.ends[edge_set]
            a, b = number(e.src, "src", of_src), number(e.dst, "dst", of_dst)
            return Checked(time, EDGE, a, b, row, self._rounded)

        if e.type == "delete" and e.node is None:
            return self._edge_delete(e, scale)
        if e.edge_set is not None:
            raise BadEvent("wrong_type", f"a {e.type} has a node_set, not an edge_set")
        node_set = self.sets.node_set(e.node_set)
        if e.type == "node":
            row = self._row(self.sets.of_nodes[node_set], e.features, node_set, NODE)
            return Checked(0, NODE, number(e.id, "id", node_set), -1, row, self._rounded)

        if e.type == "label":
            dim = self._schema.label_dim
            if dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels are not accepted")
            target = e.target or []
            if len(target) != dim:
                text = f"target has {count_noun(len(target), 'value')}, the stream has {dim}"
                raise BadEvent("feature_width", text)
            self._check_values(target, "target", ["target"] * dim)
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            a = number(e.node, "node", node_set)
            return Checked(time, LABEL, a, -1, target, self._rounded)

        if e.src is not None or e.dst is not None:
            raise BadEvent("wrong_type", "a delete has a node, or src, dst and time")
        return Checked(0, DELETE, number(e.node, "node", node_set), -1, (), NOTHING)

    def _edge_delete(self, e: WireEvent, scale: int | None) -> Checked:
        """Check a delete of the edges with these endpoints and this time. Returns and raises as
        `event`."""
        if e.node_set is not None:
            raise BadEvent("wrong_type", "a delete of an edge has an edge_set, not a node_set")
        if e.time is None:
            raise BadEvent("missing_field", "a delete of an edge needs its time")
        # The time only identifies edges, so it has no horizon.
        time = self.checked_time(e.time, -1, MAX_TIME_US, scale)
        edge_set = self.sets.edge_set(e.edge_set)
        of_src, of_dst = self.sets.ends[edge_set]
        a = self.keys.number(e.src, "src", of_src)
        b = self.keys.number(e.dst, "dst", of_dst)
        return Checked(0, DELETE, a, b, (time, edge_set), NOTHING)

    def _row(self, of_set: SetFeatures, given: Any, number: int, kind: int) -> Sequence[float]:
        """The feature row of one event of a set. Raises: BadEvent."""
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

        Args: stamp_us, horizon: as for `event`; scale: microseconds of the time's unit, None for
        the stream's unit.
        Raises: BadEvent.
        """
        # An event without a time gets the timestamp of its record.
        if time is None:
            if stamp_us < 0:
                raise BadEvent("bad_time", "no time, and the record has no timestamp in ms")
            time_us = stamp_us
        elif type(time) is not int:
            raise BadEvent("bad_time", f"time is not an integer number of {self.rules.time_unit}")
        else:
            time_us = time * (scale or self._scale)

        # Add a hint to the error if the time would fit in another unit.
        if not 0 <= time_us <= MAX_TIME_US:
            shown = describe_time(time_us, self.rules.time_unit)
            raise BadEvent("bad_time", f"time is {shown}{self._unit_hint(time_us, horizon)}")
        if time_us > horizon:
            ahead = (time_us - horizon + self.rules.max_ahead_us) / 1e6
            raise BadEvent(
                "time_ahead",
                f"time is {span(ahead)} ahead of the wall clock or of its record's timestamp, "
                f"at most {span(self.rules.max_ahead_us / 1e6)} are accepted"
                f"{self._unit_hint(time_us, horizon)}",
            )
        return time_us

    def _unit_hint(self, time_us: int, horizon: int) -> str:
        """Text to add to an error if the refused time looks like one in another unit."""
        # The time of a delete has no horizon to compare it with.
        setting = self.rules.unit_setting
        if horizon == MAX_TIME_US or not setting:
            return ""
        unit = other_unit(time_us, horizon, self.rules.time_unit)
        if unit is None:
            return ""
        self._notices.unit(unit)
        looks = "a date in digits" if unit == DATES else unit
        return f"; it looks like {looks}, {setting} is {self.rules.time_unit}"

    def _check_values(self, values: Sequence[float], name: str, columns: Sequence[str]) -> None:
        """Refuse features or label targets that are too large, and count rounded ones. Raises:
        BadEvent."""
        largest = 0.0
        for at, v in enumerate(values):
            # NaN fails every comparison, so this form also refuses it.
            if not -self.rules.max_feature <= v <= self.rules.max_feature:
                raise BadEvent(
                    "bad_features",
                    f"{name} holds a value beyond ingest.max_feature, {self.rules.max_feature:g}, "
                    f"in {columns[at]}",
                )
            largest = max(largest, abs(v))
        if largest > EXACT:
            self._rounded += count_rounded(np.array([values], np.float64), columns)
