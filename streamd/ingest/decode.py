"""Kafka values to events, each event judged on its own: what does not fit is a dead letter, its neighbours go in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import EDGE, LABEL, MAX_TIME_US, MICROSECONDS, NODE, Event, Key, Schema

JSON = "application/json"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
INT64_MAX = 2**63 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)
MAX_DEPTH_NAME = "nested deeper than the decoder goes"


class WireEvent(msgspec.Struct, gc=False):
    """An event as producers send it (DESIGN section 3). `time` admits floats here so that they can be refused by name."""

    type: Literal["edge", "node", "label", "delete"] = "edge"
    src: int | str | None = None
    dst: int | str | None = None
    time: int | float | None = None
    features: list[float] | None = None
    id: int | str | None = None
    node: int | str | None = None
    target: list[float] | None = None


@dataclass(frozen=True)
class Rules:
    """What an event must satisfy. Times in microseconds, sizes in bytes or counts."""

    schema: Schema
    time_unit: str = "ms"
    max_ahead_us: int = 600_000_000
    max_key_bytes: int = 256
    max_record_bytes: int = 4_194_304
    max_record_events: int = 100_000


class Origin(NamedTuple):
    """Where a value came from: number of its topic-partition, offset, Kafka timestamp (us, -1 for none)."""

    source: int
    offset: int
    timestamp_us: int
    log_append_time: bool = False


@dataclass(frozen=True)
class Rejected:
    """An event (or a whole value, index -1) that does not fit, with its raw bytes."""

    origin: Origin
    index: int
    reason: str
    error: str
    raw: bytes


_one = msgspec.json.Decoder(WireEvent)
_many = msgspec.json.Decoder(list[WireEvent])
_raw = msgspec.json.Decoder(list[msgspec.Raw])


class Decoder:
    """Turns values into events under `rules`. Owner: the poll thread; it holds no state but the keys it has checked."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._scale = MICROSECONDS[rules.time_unit]
        self._dim = rules.schema.edge_feature_dim
        self._good_keys: set[Key] = set()

    def decode(
        self, value: bytes | None, headers: Sequence[tuple[str, bytes]], origin: Origin, newest_us: int, now_us: int
    ) -> tuple[list[Event], list[Rejected]]:
        """Decode one Kafka value.

        Args: newest_us: the partition's newest event time, which node events take; now_us: wall clock.
        Returns: valid events with their index in the value, and the rejected ones.
        """
        try:
            wire = self._split(value, headers)
        except BadEvent as bad:
            return [], [Rejected(origin, -1, bad.reason, str(bad), value or b"")]
        good: list[Event] = []
        rejected: list[Rejected] = []
        horizon = now_us + self.rules.max_ahead_us
        if origin.log_append_time and origin.timestamp_us >= 0:
            horizon = min(horizon, origin.timestamp_us + self.rules.max_ahead_us)
        for index, item in enumerate(wire):
            try:
                event = self._event(item, index, origin, newest_us, horizon)
            except BadEvent as bad:
                raw = bytes(item) if isinstance(item, msgspec.Raw) else msgspec.json.encode(item)
                if len(wire) == 1 and value is not None:
                    raw = value
                rejected.append(Rejected(origin, index, bad.reason, str(bad), raw))
                continue
            newest_us = max(newest_us, event.time)
            good.append(event)
        return good, rejected

    def _split(self, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Sequence[WireEvent | msgspec.Raw]:
        """The events of a value; where one of an array does not parse, all come as Raw and are parsed singly."""
        if value is None:
            raise BadEvent("tombstone", "the value is null and deletes are not supported")
        if len(value) > self.rules.max_record_bytes:
            raise BadEvent("record_too_large", f"{len(value)} bytes, at most {self.rules.max_record_bytes}")
        content_type = JSON
        for name, content in headers:
            if name.lower() == "content-type":
                content_type = (content or b"").decode("latin-1").split(";")[0].strip().lower()
        if content_type != JSON:
            raise BadEvent("unknown_content_type", f"content-type {content_type[:80]!r}, known is {JSON}")
        if value[:1] != b"[" and value.lstrip()[:1] != b"[":
            return (self._parse(value),)
        try:
            events: list[Any] = _many.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                events = _raw.decode(value)
            except RecursionError:
                raise BadEvent("too_deep", MAX_DEPTH_NAME) from None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadEvent("bad_json", str(error)) from None
        if not events:
            raise BadEvent("empty", "an empty array")
        if len(events) > self.rules.max_record_events:
            raise BadEvent("too_many_events", f"{len(events)} events, at most {self.rules.max_record_events}")
        return events

    @staticmethod
    def _parse(raw: bytes | msgspec.Raw) -> WireEvent:
        try:
            return _one.decode(raw)
        except msgspec.ValidationError as error:
            where = str(error)
            reason = "unknown_type" if "`$.type`" in where else "wrong_type"
            raise BadEvent(reason, where) from None
        except RecursionError:
            raise BadEvent("too_deep", MAX_DEPTH_NAME) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadEvent("bad_json", str(error)) from None

    def _event(self, item: WireEvent | msgspec.Raw, index: int, origin: Origin, newest_us: int, horizon: int) -> Event:
        e = item if isinstance(item, WireEvent) else self._parse(item)
        if e.type == "edge":
            if e.id is not None or e.node is not None or e.target is not None:
                raise BadEvent("wrong_type", "an edge has src, dst, time and features only")
            time = self._time(e.time, origin, horizon)
            values = self._values(e.features, self._dim, "features")
            return Event(time, origin.source, origin.offset, index, EDGE, self._key(e.src, "src"),
                         self._key(e.dst, "dst"), values)
        if e.type == "node":
            values = self._values(e.features, self.rules.schema.node_feature_dim, "features")
            return Event(newest_us, origin.source, origin.offset, index, NODE, self._key(e.id, "id"), "", values)
        if e.type == "label":
            if self.rules.schema.label_dim == 0:
                raise BadEvent("unsupported", "stream.label_dim is 0, so labels have no place")
            values = self._values(e.target, self.rules.schema.label_dim, "target")
            return Event(self._time(e.time, origin, horizon), origin.source, origin.offset, index, LABEL,
                         self._key(e.node, "node"), "", values)
        raise BadEvent("unsupported", "deletes are not supported yet")

    def _time(self, time: int | float | None, origin: Origin, horizon: int) -> int:
        if time is None:
            if origin.timestamp_us < 0:
                raise BadEvent("bad_time", "no time, and the record has no timestamp")
            time_us = origin.timestamp_us
        elif type(time) is not int:
            raise BadEvent("bad_time", f"time {time!r} is not an integer")
        else:
            time_us = time * self._scale
        if not 0 <= time_us <= MAX_TIME_US:
            raise BadEvent("bad_time", f"time {time!r} {self.rules.time_unit} is out of range")
        if time_us > horizon:
            raise BadEvent("time_ahead", f"time {time_us} us is more than {self.rules.max_ahead_us} us ahead")
        return time_us

    def _values(self, values: list[float] | None, dim: int, name: str) -> list[float]:
        if values is None:
            values = []
        if len(values) != dim:
            raise BadEvent("feature_width", f"{name} has {len(values)} values, the stream has {dim}")
        for v in values:
            if not -FLOAT32_MAX <= v <= FLOAT32_MAX:
                raise BadEvent("bad_features", f"{name} holds {v!r}, which float32 cannot")
        return values

    def _key(self, key: Key | None, name: str) -> Key:
        if key in self._good_keys:
            return key
        if key is None:
            raise BadEvent("missing_field", f"{name} is missing")
        if isinstance(key, str):
            if not key or CONTROL.search(key):
                raise BadEvent("bad_key", f"{name} is empty or holds a control character")
            try:
                size = len(key.encode())
            except UnicodeEncodeError:
                raise BadEvent("bad_key", f"{name} is not valid unicode") from None
            if size > self.rules.max_key_bytes:
                raise BadEvent("bad_key", f"{name} has {size} bytes, at most {self.rules.max_key_bytes}")
        elif not -INT64_MAX <= key <= INT64_MAX:
            raise BadEvent("bad_key", f"{name} {key} does not fit int64")
        if len(self._good_keys) >= 1_000_000:
            self._good_keys.clear()
        self._good_keys.add(key)
        return key
