"""Decoded events as columns; the decoder, the merge and a commit pass them on in this form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.decode.rounding import NOTHING, Rounded
from streamd.events import EDGE, LABEL, Bools, Float32, Int64

ROW = np.dtype(
    [
        ("time", "<i8"),
        ("stamp", "<i8"),
        ("source", "<i4"),
        ("offset", "<i8"),
        ("item", "<i4"),
        ("kind", "<i1"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("extra", "<i4"),
    ],
    align=True,
)
"""time: event time, int64 microseconds; 0 for NODE and DELETE, which have none. stamp: the Kafka
record's timestamp in microseconds, NO_STAMP without one. source: number of the topic-partition in
sorted order. offset: of the record in its partition. item: index in a batched record. kind: EDGE (a
= src, b = dst), NODE, LABEL (a = node) or DELETE (a = node, b = -1; or a = src, b = dst); a and b
are numbers of a `KeyTable`. extra: index into `Block.extras`, -1 for none."""
NO_STAMP = -1
"""The timestamp of a record without one, as in Kafka."""
SECONDS_FROM, SECONDS_UNTIL = 315_532_800, 4_102_444_800
"""From 1980 until 2100 in seconds. Kafka's timestamps are milliseconds; as such, these are in the
first weeks of 1970."""
MAX_STAMP_MS = SECONDS_FROM * 1_000_000
"""A larger timestamp is more likely microseconds or nanoseconds since 1980."""
Rows = NDArray[np.void]
_offset, _timestamp = attrgetter("offset"), attrgetter("timestamp")


def has_time(rows: Rows) -> Bools:
    """Whether each row has an event time, as edges and labels have: bool[n]."""
    kind = rows["kind"]
    timed: Bools = (kind == EDGE) | (kind == LABEL)
    return timed


def timestamp_us(record: Any) -> int:
    """The record's Kafka timestamp in microseconds; NO_STAMP if it is absent, or cannot be
    milliseconds."""
    stamp = int(record.timestamp)
    is_valid = 0 <= stamp < MAX_STAMP_MS and not SECONDS_FROM <= stamp < SECONDS_UNTIL
    return stamp * 1000 if is_valid else NO_STAMP


@dataclass
class Block:
    """A block of n events.

    rows: `ROW` [n]. values: rows of edge features with the edge set (`streamd.schema.Schema`),
    float32[n, D]. extras: feature row of a NODE, target of a LABEL, or (time of the edge in
    microseconds, number of its edge set) of a DELETE of edges; rows refer to them by index. The
    extra of a DELETE that is skipped if it matches nothing has a third value, also that of a node.
    """

    rows: Rows
    values: Float32
    extras: list[Sequence[float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: NDArray[Any]) -> "Block":
        """The events at `index`, which is an array of indices or a mask."""
        rows = self.rows[index]
        if not self.extras:
            return Block(rows, self.values[index])
        # Copy only the extras in use, and number them from 0.
        held = np.flatnonzero(rows["extra"] >= 0)
        extras = [self.extras[i] for i in rows["extra"][held].tolist()]
        rows["extra"][held] = np.arange(len(held))
        return Block(rows, self.values[index], extras)

    def split(self, count: int) -> tuple["Block", "Block"]:
        """The first `count` events, and the others. Both are views if there are no extras."""
        if self.extras:
            # Each half needs its own extras, numbered from 0.
            return self.take(np.arange(count)), self.take(np.arange(count, len(self)))
        return Block(self.rows[:count], self.values[:count]), Block(
            self.rows[count:], self.values[count:]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A refused event, or a whole refused value (index -1), with its raw bytes.

    offset: of the record. index: of the event in the record. reason: of the dead letter. error:
    text for the sender. content_type: of `raw`.
    """

    offset: int
    index: int
    reason: str
    error: str
    raw: bytes
    content_type: str = ""


class Decoded(NamedTuple):
    """The valid events of some records, and the rejected ones."""

    events: Block
    rejected: list[Rejected]


class Taken(NamedTuple):
    """The events of records that are all valid.

    num_skipped: records, or items of one, that are no event. rounded: feature values.
    """

    events: Block
    num_skipped: int = 0
    rounded: Rounded = NOTHING


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The records of n events.

    source: number of the partition. now_us: wall clock, microseconds. offset, item, stamp: one for
    all events or int64[n]; offset and item as in `ROW`, stamp the timestamp of the record in
    microseconds, NO_STAMP without one.
    """

    source: int
    now_us: int
    offset: Any
    item: Any
    stamp: Any

    @staticmethod
    def of_records(records: Sequence[Any], source: int, now_us: int) -> "Origin":
        """The origin of events if each record is one event."""
        offset = np.fromiter(map(_offset, records), np.int64, len(records))
        stamp_ms = np.fromiter(map(_timestamp, records), np.int64, len(records))
        valid = (stamp_ms >= 0) & (stamp_ms < MAX_STAMP_MS)
        valid &= (stamp_ms < SECONDS_FROM) | (stamp_ms >= SECONDS_UNTIL)
        stamp = np.where(valid, stamp_ms, 0) * 1000
        stamp[~valid] = NO_STAMP
        return Origin(source=source, now_us=now_us, offset=offset, item=0, stamp=stamp)

    @staticmethod
    def of_items(record: Any, count: int, source: int, now_us: int) -> "Origin":
        """The origin of `count` events in one record."""
        return Origin(
            source=source,
            now_us=now_us,
            offset=record.offset,
            item=np.arange(count),
            stamp=timestamp_us(record),
        )

    def of(self, i: int) -> tuple[int, int, int]:
        """Offset, item and timestamp of one event."""
        offset, item, stamp = (
            int(column[i]) if isinstance(column, np.ndarray) else column
            for column in (self.offset, self.item, self.stamp)
        )
        return offset, item, stamp

    def take(self, at: NDArray[Any]) -> "Origin":
        """The origin of the events at `at`, an array of indices or a mask."""
        offset, item, stamp = (
            column[at] if isinstance(column, np.ndarray) else column
            for column in (self.offset, self.item, self.stamp)
        )
        return Origin(source=self.source, now_us=self.now_us, offset=offset, item=item, stamp=stamp)


@dataclass(frozen=True, slots=True)
class Edges:
    """Columns of n edges.

    time: int64[n] microseconds. src, dst: key numbers, int64[n]. values: feature rows, float32[n,
    D]. rounded: those among the values.
    """

    time: Int64
    src: Int64
    dst: Int64
    values: Float32
    rounded: Rounded = NOTHING


def edge_block(edges: Edges, origin: Origin) -> Block:
    """Make a block of valid edges."""
    rows = np.zeros(len(edges.time), ROW)
    rows["time"] = edges.time
    rows["source"] = origin.source
    rows["offset"] = origin.offset
    rows["item"] = origin.item
    stamp, now_us = origin.stamp, origin.now_us
    # A producer's clock may be ahead.
    rows["stamp"] = min(stamp, now_us) if isinstance(stamp, int) else np.minimum(stamp, now_us)
    rows["kind"] = EDGE
    rows["a"] = edges.src
    rows["b"] = edges.dst
    rows["extra"] = -1
    return Block(rows, edges.values)


class Checked(NamedTuple):
    """A valid event of any kind. The first four fields are as in `ROW`.

    values: the feature row of an edge, or the extra of another kind of event.
    """

    time: int
    kind: int
    a: int
    b: int
    values: Sequence[float]
    rounded: Rounded


def allow_no_match(event: Checked) -> Checked:
    """A delete that is skipped if the log has no such node or edge, instead of refused."""
    # The delete of a node has no time and no set.
    return event._replace(values=(*(event.values or (-1, 0)), 1))


class EventRows:
    """Collects events of any kind into a block. Owner: the call that decodes them."""

    def __init__(self, source: int, now_us: int, dim: int) -> None:
        self._source = source
        self._now_us = now_us
        self._zeros = (0.0,) * dim
        self._rows: list[tuple[int, ...]] = []
        self._values: list[Sequence[float]] = []
        self._extras: list[Sequence[float]] = []

    def add(self, event: Checked, offset: int, item: int, stamp_us: int) -> None:
        """Add an event. offset, item, stamp_us: as in `Origin`."""
        time, kind, a, b, values, _ = event
        # Edges have their features in a row of the matrix, other kinds have an extra.
        is_edge = kind == EDGE
        extra = -1
        if not is_edge and values:
            extra = len(self._extras)
            self._extras.append(values)
        stamp = min(stamp_us, self._now_us)
        self._rows.append((time, stamp, self._source, offset, item, kind, a, b, extra))
        self._values.append(values if is_edge else self._zeros)

    def __len__(self) -> int:
        return len(self._rows)

    def block(self) -> Block:
        """The events so far, in the order in which they were added."""
        matrix = np.array(self._values, np.float32).reshape(len(self._rows), len(self._zeros))
        return Block(np.array(self._rows, ROW), matrix, self._extras)


def renumber_keys(blocks: Sequence[Block], renumber: Callable[[Int64], Int64]) -> None:
    """Replace the key numbers of blocks in place.

    renumber: gets the distinct numbers in use, ascending, and returns the new number of each.
    """
    ends = [b.rows[end] for b in blocks for end in ("a", "b")]
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *ends]))
    used = used[used >= 0]

    # Write the new numbers; -1 means that there is no second end.
    new = renumber(used)
    for end in ends:
        known = end >= 0
        end[known] = new[np.searchsorted(used, end[known])]


def empty_block(dim: int) -> Block:
    """A block without events, with `dim` edge features."""
    return Block(np.zeros(0, ROW), np.zeros((0, dim), np.float32))


def joined(blocks: Sequence[Block]) -> Block:
    """Join one or more blocks in order."""
    if len(blocks) == 1:
        return blocks[0]
    rows = np.concatenate([b.rows for b in blocks])
    extras: list[Sequence[float]] = []
    first = 0
    for b in blocks:
        if b.extras:
            # Append their extras to those of the blocks before.
            part = rows[first : first + len(b)]
            part["extra"] += np.where(part["extra"] >= 0, len(extras), 0).astype(np.int32)
            extras += b.extras
        first += len(b)
    return Block(rows, np.concatenate([b.values for b in blocks]), extras)
