"""The rules that every event must satisfy, checked over columns of edges or for one event.

The check over columns is the fast path: it says only whether all edges are valid. The check of one
event also says what is wrong with it.
"""

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
from streamd.ingest.block import NO_STAMP, ROW, Block
from streamd.ingest.node_ids import KeyTable
from streamd.ingest.notices import Notices, other_unit
from streamd.ingest.wire import WireEdge, WireEvent
from streamd.settings import Settings

FLOAT32_MAX = float(np.finfo(np.float32).max)
_edge_fields = operator.attrgetter("src", "dst", "time", "features")


@dataclass(frozen=True)
class Rules:
    """The limits that an event must satisfy. Times are in microseconds, sizes in bytes or counts.

    max_ahead_us: how far an event's time may be ahead of the wall clock and of its record's
    timestamp. max_feature: largest absolute value of a feature or label target. tombstones: whether
    a null value with a key deletes the node of that key; otherwise it is a dead letter.
    unit_setting: the setting that says `time_unit`, empty where no unit is said.
    """

    schema: Schema
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

    def __init__(self, rules: Rules, notices: Notices, keys: KeyTable | None = None) -> None:
        """keys: a table that it shares with others; otherwise it has its own."""
        self.keys = KeyTable(rules.max_key_bytes) if keys is None else keys
        self._rules = rules
        self._notices = notices
        self._scale = MICROSECONDS[rules.time_unit]
        self._dim = rules.schema.edge_feature_dim
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
        src, dst, time, features = zip(*map(_edge_fields, wire), strict=True)
        self._any_filled = False
        times = self._times(time, stamp, self.horizon(stamp, now_us))
        a = None if times is None else self.keys.numbers(src)
        b = None if a is None else self.keys.numbers(dst)
        values = None if b is None else self._features(features)
        if times is None or a is None or b is None or values is None:
            return None

        # Only events that are taken are worth a notice.
        if self._any_filled:
            self._notices.no_time()
        return edge_block(times, a, b, values, offset, item, source, np.minimum(stamp, now_us))

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

    def _features(self, features: Sequence[list[float] | None]) -> Float32 | None:
        """Edge features, float32[n, D]; None where a width or a value does not fit."""
        count = len(features)
        if not self._dim:
            return None if any(features) else np.zeros((count, 0), np.float32)
        try:
            if set(map(len, features)) != {self._dim}:  # type: ignore[arg-type]
                return None
        except TypeError:
            return None
        # Compare as float64: a value beyond float32 would turn into infinity.
        values = itertools.chain.from_iterable(features)  # type: ignore[arg-type]
        flat = np.fromiter(values, np.float64, count * self._dim)
        return (
            None
            if (np.abs(flat) > self._rules.max_feature).any()
            else flat.astype(np.float32).reshape(count, self._dim)
        )

    def event(
        self, e: WireEvent, stamp_us: int, horizon: int, scale: int | None = None
    ) -> tuple[int, int, int, int, Sequence[float]]:
        """Check one event of any type.

        Args: horizon: the latest valid time, microseconds; scale: as of `checked_time`.
        Returns: (time, kind, a, b, values), the first four as in a row of a block.
        Raises: BadEvent.
        """
        schema = self._rules.schema
        number = self.keys.number
        if e.type == "edge":
            if e.id is not None or e.node is not None or e.target is not None:
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            values = self._checked_values(e.features, schema.edge_feature_dim, "features")
            return time, EDGE, number(e.src, "src"), number(e.dst, "dst"), values

        if e.type == "node":
            values = self._checked_values(e.features, schema.node_feature_dim, "features")
            return 0, NODE, number(e.id, "id"), -1, values

        if e.type == "label":
            if schema.label_dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels have no place")
            values = self._checked_values(e.target, schema.label_dim, "target")
            time = self.checked_time(e.time, stamp_us, horizon, scale)
            return time, LABEL, number(e.node, "node"), -1, values

        # A delete, of a node or of the edges with these ends and this time.
        if e.node is not None:
            if e.src is not None or e.dst is not None:
                raise BadEvent("wrong_type", "a delete has a node, or src, dst and time")
            return 0, DELETE, number(e.node, "node"), -1, ()
        if e.time is None:
            raise BadEvent("missing_field", "a delete of an edge needs its time")
        time = self.checked_time(e.time, -1, MAX_TIME_US, scale)
        return 0, DELETE, number(e.src, "src"), number(e.dst, "dst"), (time,)

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

    def _checked_values(self, values: list[float] | None, dim: int, name: str) -> list[float]:
        """Features or label targets of one event, [] for None. Raises: BadEvent."""
        if values is None:
            values = []
        if len(values) != dim:
            raise BadEvent(
                "feature_width", f"{name} has {len(values)} values, the stream has {dim}"
            )
        for v in values:
            # Written so that NaN is refused too, which no comparison holds for.
            if not -self._rules.max_feature <= v <= self._rules.max_feature:
                raise BadEvent(
                    "bad_features",
                    f"{name} holds a value beyond ingest.max_feature, {self._rules.max_feature:g}",
                )
        return values


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
