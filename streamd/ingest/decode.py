"""Kafka values to events, each event judged on its own: what does not fit is a dead letter, its neighbours go in.

Edges are decoded many at a time and checked as columns; where anything among them does not fit, the few concerned are
decoded again one by one, which also says what is wrong with which.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import DELETE, EDGE, LABEL, MAX_TIME_US, MICROSECONDS, NODE, Float32, Int64, Key, Schema
from streamd.ingest.block import NO_STAMP, ROW, Block, empty_block, joined
from streamd.ingest.kafka_records import REFUSED_HEADER
from streamd.ingest.keys import KeyTable
from streamd.ingest.wire import (
    ARROW,
    NDJSON,
    WireEdge,
    WireEvent,
    content_type,
    edges_of_array,
    edges_of_lines,
    elements,
    parse,
)
from streamd.settings import Settings

FLOAT32_MAX = float(np.finfo(np.float32).max)
LINES, FEW = 512, 8
"""Single events decoded in one go; where one does not fit, by halves, until so few go one by one."""
_columns = operator.attrgetter("src", "dst", "time", "features")


@dataclass(frozen=True)
class Rules:
    """What an event must satisfy. Times in microseconds, sizes in bytes or counts.

    max_ahead_us: how far an event's time may lie ahead of the wall clock and of its record's
    timestamp. max_feature: largest absolute value of a feature or label target.
    tombstones: whether a null value with a key deletes the node of that key; else it is a dead letter.
    """

    schema: Schema
    time_unit: str = "ms"
    max_ahead_us: int = 60_000_000
    max_feature: float = FLOAT32_MAX
    max_key_bytes: int = 256
    max_record_bytes: int = 4_194_304
    max_record_events: int = 100_000
    tombstones: bool = False


def rules_of(settings: Settings, schema: Schema) -> Rules:
    """The rules that the settings make."""
    s = settings.ingest
    return Rules(schema, settings.stream.time_unit, int(s.max_ahead_seconds * 1e6),
                 min(s.max_feature, FLOAT32_MAX), s.max_key_bytes, s.max_record_bytes,
                 s.max_record_events, s.tombstones == "delete")


@dataclass(frozen=True)
class Rejected:
    """An event (or a whole value, index -1) that does not fit, with its raw bytes."""

    offset: int
    index: int
    reason: str
    error: str
    raw: bytes
    content_type: str = ""


class Decoder:
    """Turns the records of one partition into events under `rules`. Owner: the poll thread."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.keys = KeyTable(rules.max_key_bytes)
        self._scale = MICROSECONDS[rules.time_unit]
        self._dim = rules.schema.edge_feature_dim

    def decode(self, records: Sequence[Any], source: int, now_us: int) -> tuple[Block, list[Rejected]]:
        """Decode records in order (kafka-python's: offset, timestamp, key, value, headers).

        Args: now_us: wall clock.
        Returns: valid events, each with its place in its record, and the rejected ones.
        """
        batch = _Batch(self, source, now_us)
        at = 0
        while at < len(records):
            end = at
            while end < len(records) and end - at < LINES and _is_single(records[end], self.rules.max_record_bytes):
                end += 1
            if end > at:
                batch.singles(records[at:end])
                at = end
            else:
                batch.record(records[at])
                at += 1
        return batch.finish()

    def edges(
        self, wire: Sequence[WireEdge], offset: Any, item: Any, source: int, stamp: Any, now_us: int
    ) -> Block | None:
        """Edges as a block where every one of them is valid, else None.

        Args: offset, item, stamp: one for all, or each; stamp: the records' timestamps, microseconds.
        """
        src, dst, time, features = zip(*map(_columns, wire), strict=True)
        times = self._times(time, stamp, self.horizon(stamp, now_us))
        a = None if times is None else self.keys.numbers(src)
        b = None if a is None else self.keys.numbers(dst)
        values = None if b is None else self._features(features)
        if times is None or a is None or b is None or values is None:
            return None
        return edge_block(times, a, b, values, offset, item, source, np.minimum(stamp, now_us))

    def horizon(self, stamp: Any, now_us: int) -> Any:
        """Latest time that an event may have, given its record's timestamp. Microseconds, shaped as `stamp`."""
        return np.where(np.equal(stamp, NO_STAMP), now_us, np.minimum(stamp, now_us)) + self.rules.max_ahead_us

    def _times(self, time: Sequence[int | None], stamp: Any, horizon: Any) -> Int64 | None:
        try:
            column = np.fromiter(time, np.int64, len(time))
        except TypeError:
            stamps = np.broadcast_to(stamp, len(time)).tolist()
            filled = [s if t is None else t * self._scale for t, s in zip(time, stamps, strict=True)]
            if any(not 0 <= t <= MAX_TIME_US for t in filled):
                return None
            column = np.array(filled, np.int64)
        except OverflowError:
            return None
        else:
            if column.min() < 0 or column.max() > MAX_TIME_US // self._scale:
                return None
            column *= self._scale
        return None if (column > horizon).any() else column

    def _features(self, features: Sequence[list[float] | None]) -> Float32 | None:
        count = len(features)
        if not self._dim:
            return None if any(features) else np.zeros((count, 0), np.float32)
        try:
            if set(map(len, features)) != {self._dim}:  # type: ignore[arg-type]
                return None
        except TypeError:
            return None
        values = itertools.chain.from_iterable(features)  # type: ignore[arg-type]
        flat = np.fromiter(values, np.float64, count * self._dim)
        return None if (np.abs(flat) > self.rules.max_feature).any() else flat.astype(np.float32).reshape(count, self._dim)

    def checked_time(self, time: int | float | None, stamp_us: int, horizon: int) -> int:
        """Microseconds of one event's time. Raises: BadEvent."""
        if time is None:
            if stamp_us < 0:
                raise BadEvent("bad_time", "no time, and the record has no timestamp")
            time_us = stamp_us
        elif type(time) is not int:
            raise BadEvent("bad_time", f"time {time!r} is not an integer")
        else:
            time_us = time * self._scale
        if not 0 <= time_us <= MAX_TIME_US:
            raise BadEvent("bad_time", f"time {time!r} {self.rules.time_unit} is out of range")
        if time_us > horizon:
            ahead = (time_us - horizon + self.rules.max_ahead_us) / 1e6
            raise BadEvent("time_ahead", f"time {time!r} is {ahead:,.0f} s ahead of the wall clock or of its record's "
                                         f"timestamp, at most {self.rules.max_ahead_us / 1e6:,.0f} s are taken")
        return time_us


class _Batch:
    """The records of one partition on their way to one block."""

    def __init__(self, decoder: Decoder, source: int, now_us: int) -> None:
        self._decoder, self._rules, self._source, self._now = decoder, decoder.rules, source, now_us
        self.max_feature = decoder.rules.max_feature
        self.time_unit, self.dim = decoder.rules.time_unit, decoder.rules.schema.edge_feature_dim
        self.key_numbers = decoder.keys.numbers
        self._blocks: list[Block] = []
        self._rejected: list[Rejected] = []

    def finish(self) -> tuple[Block, list[Rejected]]:
        block = joined(self._blocks) if self._blocks else empty_block(self.dim)
        return block, self._rejected

    def singles(self, records: Sequence[Any]) -> None:
        """Records that hold one JSON object each."""
        wire = edges_of_lines([r.value for r in records])
        if wire is not None:
            offset = np.fromiter((r.offset for r in records), np.int64, len(records))
            stamp = np.fromiter(map(_stamp, records), np.int64, len(records))
            if self._add(self._decoder.edges(wire, offset, 0, self._source, stamp, self._now)):
                return
        if len(records) > FEW:
            half = len(records) // 2
            self.singles(records[:half])
            self.singles(records[half:])
            return
        for record in records:
            self._one_by_one([record.value], record)

    def record(self, record: Any) -> None:
        """A record of any kind."""
        value: bytes | None = record.value
        try:
            if any(name == REFUSED_HEADER for name, _ in record.headers or ()):
                raise BadEvent("bad_batch", (value or b"").decode(errors="replace"))
            if value is None:
                self._tombstone(record)
                return
            if len(value) > self._rules.max_record_bytes:
                raise BadEvent("record_too_large", f"{len(value)} bytes, at most {self._rules.max_record_bytes}")
            kind = content_type(record.headers or ())
            if kind == ARROW:
                from streamd.ingest.arrow import decode_arrow

                decode_arrow(value, self, record)
            elif kind == NDJSON:
                self._many([x for x in value.split(b"\n") if x.strip()], edges_of_lines, record)
            elif value.lstrip()[:1] == b"[":
                self._array(value, record)
            else:
                self._one_by_one([value], record)
        except BadEvent as bad:
            self._rejected.append(Rejected(record.offset, -1, bad.reason, str(bad), value or b"", _content_header(record)))

    def _array(self, value: bytes, record: Any) -> None:
        wire = edges_of_array(value)
        if not wire or not self.add_edges(wire, record):
            self._many(elements(value), lambda _: None, record)

    def _many(
        self, items: Sequence[bytes | msgspec.Raw], fast: Callable[[Sequence[Any]], list[WireEdge] | None], record: Any
    ) -> None:
        self.check_count(len(items))
        wire = fast(items)
        if wire is None or not self.add_edges(wire, record):
            self._one_by_one(items, record)

    def check_count(self, count: int) -> None:
        """Raises: BadEvent where a batched record holds no events or too many."""
        if not count:
            raise BadEvent("empty", "a record without events")
        if count > self._rules.max_record_events:
            raise BadEvent("too_many_events", f"{count} events, at most {self._rules.max_record_events}")

    def add_edges(self, wire: Sequence[WireEdge], record: Any) -> bool:
        """Take the edges of one record; False, and nothing taken, where one of them is not valid."""
        self.check_count(len(wire))
        return self._add(self._decoder.edges(
            wire, record.offset, np.arange(len(wire)), self._source, _stamp(record), self._now))

    def add_columns(self, time_E: Int64, src: Int64, dst: Int64, values_ED: Float32, record: Any) -> bool:
        """Take edges that come as columns, keys as numbers of the key table; False where a time does not fit."""
        if time_E.min() < 0 or time_E.max() > min(MAX_TIME_US, self._horizon_of(record)):
            return False
        return self._add(edge_block(time_E, src, dst, values_ED, record.offset, np.arange(len(time_E)),
                                    self._source, min(_stamp(record), self._now)))

    def _add(self, block: Block | None) -> bool:
        if block is None:
            return False
        self._blocks.append(block)
        return True

    def _one_by_one(self, items: Sequence[bytes | msgspec.Raw], record: Any) -> None:
        self.events(items, parse, record, lambda item: record.value if len(items) == 1 else bytes(item))

    def events(
        self, items: Sequence[Any], read: Callable[[Any], WireEvent], record: Any, raw: Callable[[Any], bytes]
    ) -> None:
        """Take the items of one record that `read` makes valid events of; the others are rejected as `raw` bytes."""
        horizon, stamp = self._horizon_of(record), _stamp(record)
        rows: list[tuple[int, ...]] = []
        values: list[Sequence[float]] = []
        extras: list[Sequence[float]] = []
        for index, item in enumerate(items):
            try:
                time, kind, a, b, carried = self._event(read(item), stamp, horizon)
            except BadEvent as bad:
                self._rejected.append(Rejected(record.offset, index, bad.reason, str(bad), raw(item)))
                continue
            extra = -1
            if kind != EDGE and carried:
                extra = len(extras)
                extras.append(carried)
            rows.append((time, min(stamp, self._now), self._source, record.offset, index, kind, a, b, extra))
            values.append(carried if kind == EDGE else (0.0,) * self.dim)
        if rows:
            matrix = np.array(values, np.float32).reshape(len(rows), self.dim)
            self._add(Block(np.array(rows, ROW), matrix, extras))

    def _event(self, e: WireEvent, stamp_us: int, horizon: int) -> tuple[int, int, int, int, Sequence[float]]:
        """(time, kind, a, b, values) of one event. Raises: BadEvent."""
        schema, number = self._rules.schema, self._decoder.keys.number
        if e.type == "edge":
            if e.id is not None or e.node is not None or e.target is not None:
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self._decoder.checked_time(e.time, stamp_us, horizon)
            values = self._checked(e.features, schema.edge_feature_dim, "features")
            return time, EDGE, number(e.src, "src"), number(e.dst, "dst"), values
        if e.type == "node":
            values = self._checked(e.features, schema.node_feature_dim, "features")
            return 0, NODE, number(e.id, "id"), -1, values
        if e.type == "label":
            if schema.label_dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels have no place")
            values = self._checked(e.target, schema.label_dim, "target")
            return self._decoder.checked_time(e.time, stamp_us, horizon), LABEL, number(e.node, "node"), -1, values
        if e.node is not None:
            if e.src is not None or e.dst is not None:
                raise BadEvent("wrong_type", "a delete has a node, or src, dst and time")
            return 0, DELETE, number(e.node, "node"), -1, ()
        if e.time is None:
            raise BadEvent("missing_field", "a delete of an edge needs its time")
        time = self._decoder.checked_time(e.time, -1, MAX_TIME_US)
        return 0, DELETE, number(e.src, "src"), number(e.dst, "dst"), (time,)

    def _tombstone(self, record: Any) -> None:
        if not self._rules.tombstones or not record.key:
            raise BadEvent("tombstone", "the value is null" + (
                ", and so is the key" if self._rules.tombstones else ", and ingest.tombstones is dead_letter"))
        try:
            key: Key = record.key.decode()
        except UnicodeDecodeError:
            raise BadEvent("bad_key", "the record's key is not UTF-8") from None
        self.events([key], lambda key: WireEvent(type="delete", node=key), record, lambda _: b"")

    def _horizon_of(self, record: Any) -> int:
        stamp = _stamp(record)
        return (self._now if stamp == NO_STAMP else min(stamp, self._now)) + self._rules.max_ahead_us

    def _checked(self, values: list[float] | None, dim: int, name: str) -> list[float]:
        """Features or targets that fit. Raises: BadEvent."""
        if values is None:
            values = []
        if len(values) != dim:
            raise BadEvent("feature_width", f"{name} has {len(values)} values, the stream has {dim}")
        for v in values:
            if not -self.max_feature <= v <= self.max_feature:
                raise BadEvent("bad_features", f"{name} holds {v!r}, beyond ingest.max_feature, "
                                               f"{self.max_feature:g}")
        return values


def edge_block(
    time: Int64, a: Int64, b: Int64, values: Float32, offset: Any, item: Any, source: int, stamp: Any = NO_STAMP
) -> Block:
    """Columns of valid edges as a block."""
    rows = np.zeros(len(time), ROW)
    rows["time"], rows["source"], rows["offset"], rows["item"] = time, source, offset, item
    rows["stamp"] = stamp
    rows["kind"], rows["a"], rows["b"], rows["extra"] = EDGE, a, b, -1
    return Block(rows, values)


def _is_single(record: Any, max_bytes: int) -> bool:
    """Whether a record plainly holds one JSON object: what the fast path for single events takes."""
    value = record.value
    return bool(value is not None and not record.headers and value[:1] == b"{" and len(value) <= max_bytes)


def _content_header(record: Any) -> str:
    """The header `content-type` as it came, bounded; empty without one."""
    values = [value for name, value in record.headers or () if name.lower() == "content-type" and value]
    return values[-1][:100].decode(errors="replace") if values else ""


def _stamp(record: Any) -> int:
    """Kafka's timestamp in microseconds, NO_STAMP for none or one beyond all times."""
    stamp = int(record.timestamp)
    return stamp * 1000 if 0 <= stamp <= MAX_TIME_US // 1000 else NO_STAMP
