"""Kafka values to events, each event judged on its own: what does not fit is a dead letter, its
neighbours go in.

Edges are decoded many at a time and checked as columns; where anything among them does not fit, the
few concerned are decoded again one by one, which also says what is wrong with which.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
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
    Key,
    Schema,
)
from streamd.ingest.block import NO_STAMP, ROW, Block, empty_block, has_time, joined
from streamd.ingest.explain import Explainer
from streamd.ingest.kafka_records import REFUSED_HEADER
from streamd.ingest.node_ids import KeyTable
from streamd.ingest.notices import Notices, other_unit
from streamd.ingest.wire import (
    ARROW,
    NDJSON,
    EventReader,
    WireEdge,
    WireEvent,
    content_type,
    elements,
    lines,
    unknown_fields,
)
from streamd.settings import Settings

FLOAT32_MAX = float(np.finfo(np.float32).max)
LINES = 512
FEW = 8
"""Single events decoded in one go; where one does not fit, by halves, until so few go one by one."""
LINES_BYTES = 1_048_576
"""Most bytes decoded in one go, but for a larger record: objects take up to sixteen times as much."""
_columns = operator.attrgetter("src", "dst", "time", "features")


@dataclass(frozen=True)
class Rules:
    """What an event must satisfy. Times in microseconds, sizes in bytes or counts.

    max_ahead_us: how far an event's time may lie ahead of the wall clock and of its record's
    timestamp. max_feature: largest absolute value of a feature or label target. tombstones: whether
    a null value with a key deletes the node of that key; else it is a dead letter.
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


@dataclass(frozen=True, kw_only=True, slots=True)
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
        self.reader = EventReader()
        self.notices = Notices(rules.time_unit)
        self.explain = Explainer(rules.schema, rules.time_unit).text
        self._scale = MICROSECONDS[rules.time_unit]
        self._dim = rules.schema.edge_feature_dim
        self._any_filled = False
        """Whether the edges looked at last had some without a time."""

    def decode(
        self, records: Sequence[Any], source: int, now_us: int
    ) -> tuple[Block, list[Rejected]]:
        """Decode records in order (kafka-python's: offset, timestamp, key, value, headers).

        Args: now_us: wall clock.
        Returns: valid events, each with its place in its record, and the rejected ones.
        """
        batch = _Batch(self, source, now_us)
        at = 0
        while at < len(records):
            end = at
            size = 0
            while (
                end < len(records)
                and end - at < LINES
                and _is_single(records[end], self.rules.max_record_bytes)
            ):
                size += len(records[end].value)
                if size > LINES_BYTES and end > at:
                    break
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

        Args: offset, item, stamp: one for all, or each; stamp: the records' timestamps,
        microseconds.
        """
        src, dst, time, features = zip(*map(_columns, wire), strict=True)
        self._any_filled = False
        times = self._times(time, stamp, self.horizon(stamp, now_us))
        a = None if times is None else self.keys.numbers(src)
        b = None if a is None else self.keys.numbers(dst)
        values = None if b is None else self._features(features)
        if times is None or a is None or b is None or values is None:
            return None
        if self._any_filled:
            self.notices.no_time()
        return edge_block(times, a, b, values, offset, item, source, np.minimum(stamp, now_us))

    def horizon(self, stamp: Any, now_us: int) -> Any:
        """Latest time that an event may have, given its record's timestamp. Microseconds, shaped as
        `stamp`."""
        return (
            np.where(np.equal(stamp, NO_STAMP), now_us, np.minimum(stamp, now_us))
            + self.rules.max_ahead_us
        )

    def _times(self, time: Sequence[int | None], stamp: Any, horizon: Any) -> Int64 | None:
        try:
            column = np.fromiter(time, np.int64, len(time))
        except TypeError:
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
        return (
            None
            if (np.abs(flat) > self.rules.max_feature).any()
            else flat.astype(np.float32).reshape(count, self._dim)
        )

    def checked_time(
        self, time: int | float | None, stamp_us: int, horizon: int, scale: int | None = None
    ) -> int:
        """Microseconds of one event's time. Raises: BadEvent.

        scale: microseconds of its unit, the stream's where None.
        """
        if time is None:
            if stamp_us < 0:
                raise BadEvent("bad_time", "no time, and the record has no timestamp")
            time_us = stamp_us
        elif type(time) is not int:
            raise BadEvent(
                "bad_time", f"time is not an integer, which counts {self.rules.time_unit}"
            )
        else:
            time_us = time * (scale or self._scale)
        if not 0 <= time_us <= MAX_TIME_US:
            raise BadEvent("bad_time", f"time is out of range{self._looks_like(time_us, horizon)}")
        if time_us > horizon:
            ahead = (time_us - horizon + self.rules.max_ahead_us) / 1e6
            raise BadEvent(
                "time_ahead",
                f"time is {ahead:,.0f} s ahead of the wall clock or of its record's timestamp, "
                f"at most {self.rules.max_ahead_us / 1e6:,.0f} s are taken"
                f"{self._looks_like(time_us, horizon)}",
            )
        return time_us

    def _looks_like(self, time_us: int, horizon: int) -> str:
        """What to add where a time that is refused looks like another unit."""
        unit = other_unit(time_us, horizon, self.rules.time_unit)
        if unit is None or horizon == MAX_TIME_US:
            return ""
        self.notices.unit(unit)
        return f"; it looks like {unit}, stream.time_unit is {self.rules.time_unit}"


class _Batch:
    """The records of one partition on their way to one block."""

    def __init__(self, decoder: Decoder, source: int, now_us: int) -> None:
        self._decoder = decoder
        self._rules = decoder.rules
        self._source = source
        self._now = now_us
        self.max_feature = decoder.rules.max_feature
        self.time_unit = decoder.rules.time_unit
        self.dim = decoder.rules.schema.edge_feature_dim
        self.key_numbers = decoder.keys.numbers
        self._reader = decoder.reader
        self._blocks: list[Block] = []
        self._rejected: list[Rejected] = []

    def finish(self) -> tuple[Block, list[Rejected]]:
        block = joined(self._blocks) if self._blocks else empty_block(self.dim)
        self._decoder.notices.times(block.rows["time"][has_time(block.rows)], self._now)
        return block, self._rejected

    def singles(self, records: Sequence[Any]) -> None:
        """Records that hold one JSON object each."""
        num_blocks = len(self._blocks)
        try:
            if self._singles(records):
                return
        except MemoryError:
            del self._blocks[num_blocks:]  # fewer at a time may go
        if len(records) > FEW:
            half = len(records) // 2
            self.singles(records[:half])
            self.singles(records[half:])
            return
        for record in records:
            self.record(record)

    def _singles(self, records: Sequence[Any]) -> bool:
        """Take the edges that records hold, one each; False, and nothing taken, where one does not
        fit."""
        values = [r.value for r in records]
        wire = self._reader.edges_of_lines(values)
        if wire is None:
            return False
        offset = np.fromiter((r.offset for r in records), np.int64, len(records))
        stamp = np.fromiter(map(_stamp, records), np.int64, len(records))
        return self._add(
            self._decoder.edges(wire, offset, 0, self._source, stamp, self._now), values
        )

    def record(self, record: Any) -> None:
        """A record of any kind; one that takes more memory than there is is refused as a whole."""
        num_blocks = len(self._blocks)
        num_rejected = len(self._rejected)
        try:
            self._record(record)
        except MemoryError:
            del self._blocks[num_blocks:], self._rejected[num_rejected:]
            self._reject_whole(
                record, BadEvent("out_of_memory", "there is not enough memory to decode it")
            )

    def _reject_whole(self, record: Any, bad: BadEvent) -> None:
        value = record.value or b""
        self._rejected.append(
            Rejected(
                offset=record.offset,
                index=-1,
                reason=bad.reason,
                error=self._decoder.explain(bad, value),
                raw=value,
                content_type=_content_header(record),
            )
        )

    def _record(self, record: Any) -> None:
        value: bytes | None = record.value
        try:
            if any(name == REFUSED_HEADER for name, _ in record.headers or ()):
                raise BadEvent("bad_batch", (value or b"").decode(errors="replace"))
            if value is None:
                self._tombstone(record)
                return
            if len(value) > self._rules.max_record_bytes:
                raise BadEvent(
                    "record_too_large",
                    f"{len(value)} bytes, at most {self._rules.max_record_bytes}",
                )
            kind = content_type(record.headers or ())
            if kind == ARROW:
                from streamd.ingest.arrow import decode_arrow

                decode_arrow(value, self, record)
            elif kind == NDJSON:
                self._many(
                    lines(value, self._rules.max_record_events), self._reader.edges_of_lines, record
                )
            elif value.lstrip()[:1] == b"[":
                self._array(value, record)
            else:
                self._one_by_one([value], record)
        except BadEvent as bad:
            self._reject_whole(record, bad)

    def _array(self, value: bytes, record: Any) -> None:
        wire = self._reader.edges_of_array(value)
        if not wire or not self.add_edges(wire, record):
            self._many(elements(value), lambda _: None, record)
        elif self._reader.met_unknown:
            self._notice_fields(elements(value))

    def _many(
        self,
        items: Sequence[bytes | msgspec.Raw],
        fast: Callable[[Sequence[Any]], list[WireEdge] | None],
        record: Any,
    ) -> None:
        self.check_count(len(items))
        wire = fast(items)
        if wire is None or not self.add_edges(wire, record, items):
            self._one_by_one(items, record)

    def check_count(self, count: int) -> None:
        """Raises: BadEvent where a batched record holds no events or too many."""
        if not count:
            raise BadEvent("empty", "a record without events")
        if count > self._rules.max_record_events:
            raise BadEvent(
                "too_many_events", f"{count} events, at most {self._rules.max_record_events}"
            )

    def add_edges(self, wire: Sequence[WireEdge], record: Any, items: Sequence[Any] = ()) -> bool:
        """Take the edges of one record; False, and nothing taken, where one of them is not valid."""
        self.check_count(len(wire))
        return self._add(
            self._decoder.edges(
                wire, record.offset, np.arange(len(wire)), self._source, _stamp(record), self._now
            ),
            items,
        )

    def add_columns(
        self, time_E: Int64, src: Int64, dst: Int64, values_ED: Float32, record: Any
    ) -> bool:
        """Take edges that come as columns, keys as numbers of the key table; False where a time
        does not fit."""
        if time_E.min() < 0 or time_E.max() > min(MAX_TIME_US, self._horizon_of(record)):
            return False
        return self._add(
            edge_block(
                time_E,
                src,
                dst,
                values_ED,
                record.offset,
                np.arange(len(time_E)),
                self._source,
                min(_stamp(record), self._now),
            )
        )

    def _add(self, block: Block | None, items: Sequence[bytes | msgspec.Raw] = ()) -> bool:
        """Take valid events, if any. items: their bytes, where the reader may have met unknown
        fields in them."""
        if block is None:
            return False
        self._blocks.append(block)
        if items and self._reader.met_unknown:
            self._notice_fields(items)
        return True

    def _notice_fields(self, items: Sequence[bytes | msgspec.Raw]) -> None:
        self._decoder.notices.unknown_fields(unknown_fields(items))
        self._reader.watches = False

    def _one_by_one(self, items: Sequence[bytes | msgspec.Raw], record: Any) -> None:
        self.events(
            items,
            self._reader.parse,
            record,
            lambda item: record.value if len(items) == 1 else bytes(item),
        )

    def events(
        self,
        items: Sequence[Any],
        read: Callable[[Any], WireEvent],
        record: Any,
        raw: Callable[[Any], bytes],
        first: int = 0,
        scale: int | None = None,
    ) -> None:
        """Take the items of one record that `read` makes valid events of; the others are rejected
        as `raw` bytes.

        first: place of the first item in the record; scale: microseconds of their unit of time, the
        stream's where None.
        """
        horizon = self._horizon_of(record)
        stamp = _stamp(record)
        self._reader.met_unknown = False
        rows: list[tuple[int, ...]] = []
        values: list[Sequence[float]] = []
        extras: list[Sequence[float]] = []
        for index, item in enumerate(items, first):
            try:
                event = read(item)
                time, kind, a, b, carried = self._event(event, stamp, horizon, scale)
            except BadEvent as bad:
                sent = raw(item)
                self._rejected.append(
                    Rejected(
                        offset=record.offset,
                        index=index,
                        reason=bad.reason,
                        error=self._decoder.explain(bad, sent),
                        raw=sent,
                    )
                )
                continue
            if self._reader.met_unknown:
                self._notice_fields([raw(item)])
            if event.time is None and kind in (EDGE, LABEL):
                self._decoder.notices.no_time()
            extra = -1
            if kind != EDGE and carried:
                extra = len(extras)
                extras.append(carried)
            rows.append(
                (time, min(stamp, self._now), self._source, record.offset, index, kind, a, b, extra)
            )
            values.append(carried if kind == EDGE else (0.0,) * self.dim)
        if rows:
            matrix = np.array(values, np.float32).reshape(len(rows), self.dim)
            self._add(Block(np.array(rows, ROW), matrix, extras))

    def _event(
        self, e: WireEvent, stamp_us: int, horizon: int, scale: int | None = None
    ) -> tuple[int, int, int, int, Sequence[float]]:
        """(time, kind, a, b, values) of one event. Raises: BadEvent."""
        schema = self._rules.schema
        number = self._decoder.keys.number
        if e.type == "edge":
            if e.id is not None or e.node is not None or e.target is not None:
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self._decoder.checked_time(e.time, stamp_us, horizon, scale)
            values = self._checked(e.features, schema.edge_feature_dim, "features")
            return time, EDGE, number(e.src, "src"), number(e.dst, "dst"), values
        if e.type == "node":
            values = self._checked(e.features, schema.node_feature_dim, "features")
            return 0, NODE, number(e.id, "id"), -1, values
        if e.type == "label":
            if schema.label_dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels have no place")
            values = self._checked(e.target, schema.label_dim, "target")
            time = self._decoder.checked_time(e.time, stamp_us, horizon, scale)
            return time, LABEL, number(e.node, "node"), -1, values
        if e.node is not None:
            if e.src is not None or e.dst is not None:
                raise BadEvent("wrong_type", "a delete has a node, or src, dst and time")
            return 0, DELETE, number(e.node, "node"), -1, ()
        if e.time is None:
            raise BadEvent("missing_field", "a delete of an edge needs its time")
        time = self._decoder.checked_time(e.time, -1, MAX_TIME_US, scale)
        return 0, DELETE, number(e.src, "src"), number(e.dst, "dst"), (time,)

    def _tombstone(self, record: Any) -> None:
        if not self._rules.tombstones or not record.key:
            raise BadEvent(
                "tombstone",
                "the value is null"
                + (
                    ", and so is the key"
                    if self._rules.tombstones
                    else ", and ingest.tombstones is dead_letter"
                ),
            )
        try:
            key: Key = record.key.decode()
        except UnicodeDecodeError:
            raise BadEvent("bad_key", "the record's key is not UTF-8") from None
        self.events([key], lambda key: WireEvent(type="delete", node=key), record, lambda _: b"")

    def _horizon_of(self, record: Any) -> int:
        stamp = _stamp(record)
        return (
            self._now if stamp == NO_STAMP else min(stamp, self._now)
        ) + self._rules.max_ahead_us

    def _checked(self, values: list[float] | None, dim: int, name: str) -> list[float]:
        """Features or targets that fit. Raises: BadEvent."""
        if values is None:
            values = []
        if len(values) != dim:
            raise BadEvent(
                "feature_width", f"{name} has {len(values)} values, the stream has {dim}"
            )
        for v in values:
            if not -self.max_feature <= v <= self.max_feature:
                raise BadEvent(
                    "bad_features",
                    f"{name} holds a value beyond ingest.max_feature, {self.max_feature:g}",
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
    """Columns of valid edges as a block."""
    rows = np.zeros(len(time), ROW)
    rows["time"], rows["source"], rows["offset"], rows["item"] = time, source, offset, item
    rows["stamp"] = stamp
    rows["kind"], rows["a"], rows["b"], rows["extra"] = EDGE, a, b, -1
    return Block(rows, values)


def _is_single(record: Any, max_bytes: int) -> bool:
    """Whether a record plainly holds one JSON object: what the fast path for single events takes."""
    value = record.value
    return bool(
        value is not None and not record.headers and value[:1] == b"{" and len(value) <= max_bytes
    )


def _content_header(record: Any) -> str:
    """The header `content-type` as it came, bounded; empty without one."""
    values = [
        value for name, value in record.headers or () if name.lower() == "content-type" and value
    ]
    return values[-1][:100].decode(errors="replace") if values else ""


def _stamp(record: Any) -> int:
    """Kafka's timestamp in microseconds, NO_STAMP for none or one beyond all times."""
    stamp = int(record.timestamp)
    return stamp * 1000 if 0 <= stamp <= MAX_TIME_US // 1000 else NO_STAMP
