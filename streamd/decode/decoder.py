"""Kafka records decoded to events: a value that does not fit becomes a dead letter.

Each event is judged on its own, so the others of its record are still taken. Edges are decoded many
at a time and checked as columns. Where one of them does not fit, the batch is halved until a few
events are left, which are decoded one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from streamd.decode.block import (
    NO_STAMP,
    ROW,
    Block,
    Rejected,
    empty_block,
    has_time,
    joined,
    timestamp_us,
)
from streamd.decode.checks import EventChecker, Rules, edge_block
from streamd.decode.error_texts import Explainer
from streamd.decode.headers import JSONHeaders, content_header
from streamd.decode.notices import Notices
from streamd.decode.reader import EventReader, WireEdge
from streamd.decode.rounding import Rounded
from streamd.decode.wire import (
    ARROW,
    NDJSON,
    OWN_EVENT,
    REFUSED_HEADER,
    TOO_DEEP,
    WireEvent,
    content_type,
    elements,
    lines,
    unknown_fields,
)
from streamd.errors import BadEvent
from streamd.events import EDGE, LABEL, MAX_TIME_US, Float32, Int64

NO_MEMORY = ("out_of_memory", "there is not enough memory to decode it")
NUM_SINGLES = 512
"""Most records of one event each that are decoded in one call."""
NUM_ONE_BY_ONE = 8
"""Where a batch of records does not fit, it is halved until so few are left."""
SINGLES_BYTES = 1_048_576
"""Most bytes of such a batch: as Python objects they take up to sixteen times as much memory. A
single larger record is a batch of its own."""


Explain = Callable[[BadEvent, bytes | msgspec.Raw], str]
"""Writes the text of an error for the sender; it has the bytes that were sent."""
Take = Callable[[Sequence[Any], Sequence[bytes]], bool]
"""Takes the one event of each record and its value, or returns False and takes none."""


class Mapped(Protocol):
    """A topic in a shape of its own: makes events of its records."""

    checker: EventChecker
    notices: Notices

    def explain(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str: ...

    def begin(self) -> None: ...

    def lacks_record_before(self, partition: int, record: Any) -> bool: ...

    def prepare(self, records: Sequence[Any], waiting: Callable[[], None]) -> None: ...

    def feed(self, batch: "Batch", records: Sequence[Any]) -> tuple[Block, list[Rejected]]: ...


class Decoder:
    """Turns the records of one partition into events under `rules`. Owner: the poll thread.

    mapped: the topics in a shape of their own; they share the keys' numbers.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.mapped: dict[str, Mapped] = {}
        self.notices = Notices(rules.time_unit)
        self.checker = EventChecker(rules, self.notices)
        self.keys = self.checker.keys
        self.reader = EventReader(self.checker.sets)
        self.headers = JSONHeaders()
        self.explain = Explainer(self.checker.sets, rules.time_unit).text

    def begin(self) -> None:
        """Forget the records decoded so far: the numbers of partitions change."""
        for mapped in self.mapped.values():
            mapped.begin()

    @property
    def rounded(self) -> Rounded:
        """The rounded values of all valid events so far, in all topics."""
        topics = self.mapped.values()
        return sum((of.notices.all_rounded for of in topics), self.notices.all_rounded)

    def decode(
        self, records: Sequence[Any], source: int, now_us: int, topic: str = ""
    ) -> tuple[Block, list[Rejected]]:
        """Decode kafka-python's records (offset, timestamp, key, value, headers) in order.

        Args: source: number of the partition; now_us: wall clock; topic: of the records, empty for
        one of our own events.
        Returns: the valid events, each with its index in its record, and the rejected ones.
        Raises: SchemaRegistryError where a mapped topic cannot be decoded now.
        """
        mapped = self.mapped.get(topic)
        batch = Batch(self, source, now_us, mapped)
        if mapped is not None:
            return mapped.feed(batch, records)
        first = 0
        while first < len(records):
            # Decode as many records of one event each as may be taken together.
            values = self._values_of_singles(records, first)
            if values:
                batch.singles(records[first : first + len(values)], values)
                first += len(values)
            # A record of any other kind goes alone.
            else:
                batch.record(records[first])
                first += 1
        return batch.finish()

    def _values_of_singles(self, records: Sequence[Any], first: int) -> list[bytes]:
        """The values of the records from `first` on that hold one JSON object each, up to the first
        that does not or is too much."""
        most = self.rules.max_record_bytes
        harmless = self.headers.harmless
        values: list[bytes] = []
        size = 0
        for record in records[first : first + NUM_SINGLES]:
            value = record.value
            if value is None or value[:1] != b"{" or len(value) > most:
                break
            size += len(value)
            if size > SINGLES_BYTES and values:
                break
            # Most headers are known to be harmless: by their name, or as they are.
            for header in record.headers or ():
                if (
                    header[0] not in harmless
                    and header not in harmless
                    and not self.headers.admit(header)
                ):
                    return values
            values.append(value)
        return values


class Batch:
    """Decodes the records of one call into one block; the sink of Arrow rows too.

    Owner: the call of `Decoder.decode`, and the mapped topic that it is fed to.
    """

    def __init__(
        self, decoder: Decoder, source: int, now_us: int, mapped: Mapped | None = None
    ) -> None:
        self._decoder = decoder
        self._checker = decoder.checker if mapped is None else mapped.checker
        self.notices = decoder.notices if mapped is None else mapped.notices
        self._explain: Explain = decoder.explain if mapped is None else mapped.explain
        self._rules = decoder.rules
        self.source = source
        self.now_us = now_us
        self.max_feature = decoder.rules.max_feature
        self.time_unit = decoder.rules.time_unit
        self.dim = decoder.rules.schema.edge_feature_dim
        self.sets = self._checker.sets
        self.keys = decoder.keys
        self._reader = decoder.reader
        self._blocks: list[Block] = []
        self._rejected: list[Rejected] = []

    def finish(self) -> tuple[Block, list[Rejected]]:
        """The events taken so far as one block, and the rejected ones."""
        block = joined(self._blocks) if self._blocks else empty_block(self.dim)
        self.notices.times(block.rows["time"][has_time(block.rows)], self.now_us)
        return block, self._rejected

    def native(self, checker: EventChecker | None) -> "Batch":
        """A batch of our own events, with a checker of theirs, that go into the same block."""
        own = Batch(self._decoder, self.source, self.now_us)
        own._checker = checker or own._checker
        own._blocks, own._rejected = self._blocks, self._rejected
        return own

    def singles(
        self,
        records: Sequence[Any],
        values: Sequence[bytes],
        take: Take | None = None,
        decode: Callable[[Any], None] | None = None,
    ) -> None:
        """Decode records that hold one JSON object each, halving a batch that does not fit.

        Args: values: the records'; take: takes all of them, or returns False; decode: decodes one
        record of any kind. Both are those of our own events where they are not given.
        """
        take = take or self._take_singles
        decode = decode or self._decode_record
        # Try the fast path; half as many may fit into memory.
        num_blocks = len(self._blocks)
        try:
            if take(records, values):
                return
        except MemoryError:
            del self._blocks[num_blocks:]

        # Halve the batch, so that one bad record costs little.
        if len(records) > NUM_ONE_BY_ONE:
            half = len(records) // 2
            self.singles(records[:half], values[:half], take, decode)
            self.singles(records[half:], values[half:], take, decode)
            return
        for record in records:
            self.record(record, decode)

    def _take_singles(self, records: Sequence[Any], values: Sequence[bytes]) -> bool:
        """Take one edge of each record.

        Returns: False where one does not fit; then none is taken.
        """
        wire = self._reader.edges_of_lines(values)
        if wire is None:
            return False

        # Each record has an offset and a timestamp of its own.
        offset = np.fromiter((r.offset for r in records), np.int64, len(records))
        stamp = np.fromiter(map(timestamp_us, records), np.int64, len(records))
        return self.add(
            self._checker.edges(wire, offset, 0, self.source, stamp, self.now_us), values
        )

    def record(self, record: Any, decode: Callable[[Any], None] | None = None) -> None:
        """Decode a record of any kind by `decode`, which is as in `singles`; one that does not fit,
        or does not fit into memory, is rejected as a whole."""
        num_blocks = len(self._blocks)
        num_rejected = len(self._rejected)
        try:
            if any(name == REFUSED_HEADER for name, _ in record.headers or ()):
                raise BadEvent("bad_batch", (record.value or b"").decode(errors="replace"))
            if len(record.value or b"") > self._rules.max_record_bytes:
                raise BadEvent(
                    "record_too_large",
                    f"{len(record.value)} bytes, at most {self._rules.max_record_bytes}",
                )
            (decode or self._decode_record)(record)
        except BadEvent as bad:
            self.reject(record, bad)
        except (MemoryError, RecursionError) as error:
            del self._blocks[num_blocks:], self._rejected[num_rejected:]
            # What could just be read may be too deep to be written into a letter.
            is_deep = isinstance(error, RecursionError)
            why = ("too_deep", TOO_DEEP) if is_deep else NO_MEMORY
            self.reject(record, BadEvent(*why))

    def reject(self, record: Any, bad: BadEvent) -> None:
        """Reject a whole record."""
        value = record.value or b""
        self._rejected.append(
            Rejected(
                offset=record.offset,
                index=-1,
                reason=bad.reason,
                error=self._explain(bad, value),
                raw=value,
                content_type=content_header(record),
            )
        )

    def _decode_record(self, record: Any) -> None:
        """Decode a record by its content type. Raises: BadEvent."""
        value: bytes | None = record.value
        if value is None:
            self._tombstone(record)
            return

        # The content type says how a value holds its events; JSON may be an array or an object.
        kind = content_type(record.headers or ())
        if kind == ARROW:
            from streamd.decode.arrow import decode_arrow

            decode_arrow(value, self, record)
        elif kind == NDJSON:
            self._many(
                lines(value, self._rules.max_record_events), self._reader.edges_of_lines, record
            )
        elif value.lstrip()[:1] == b"[":
            self._array(value, record)
        else:
            self._one_by_one([value], record)

    def _array(self, value: bytes, record: Any) -> None:
        """Decode a JSON array: as edges in one call, else element by element."""
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
        """Decode the items of one record: by `fast` where all are valid edges, else one by one."""
        self.check_count(len(items))
        wire = fast(items)
        if wire is None or not self.add_edges(wire, record, items):
            self._one_by_one(items, record)

    def check_count(self, count: int) -> None:
        """Refuse a record that holds no events or too many. Raises: BadEvent."""
        if not count:
            raise BadEvent("empty", "a record without events")
        if count > self._rules.max_record_events:
            raise BadEvent(
                "too_many_events", f"{count} events, at most {self._rules.max_record_events}"
            )

    def add_edges(self, wire: Sequence[WireEdge], record: Any, items: Sequence[Any] = ()) -> bool:
        """Take the edges of one record.

        Args: items: their bytes, to name unknown fields.
        Returns: False where one of them is not valid; then none is taken.
        """
        self.check_count(len(wire))
        return self.add(
            self._checker.edges(
                wire,
                record.offset,
                np.arange(len(wire)),
                self.source,
                timestamp_us(record),
                self.now_us,
            ),
            items,
        )

    def add_columns(
        self, time_E: Int64, src: Int64, dst: Int64, values_ED: Float32, record: Any
    ) -> bool:
        """Take edges that come as columns, with the keys as numbers of the key table.

        Returns: False where a time is not valid; then none is taken.
        """
        if time_E.min() < 0 or time_E.max() > min(MAX_TIME_US, self.horizon(record)):
            return False
        return self.add(
            edge_block(
                time_E,
                src,
                dst,
                values_ED,
                record.offset,
                np.arange(len(time_E)),
                self.source,
                min(timestamp_us(record), self.now_us),
            )
        )

    def add(self, block: Block | None, items: Sequence[bytes | msgspec.Raw] = ()) -> bool:
        """Keep a block of valid events, if there is one.

        Args: items: the events' bytes, where the reader may have met unknown fields in them.
        Returns: whether there was a block.
        """
        if block is None:
            return False
        self._blocks.append(block)
        if items and self._reader.met_unknown:
            self._notice_fields(items)
        return True

    def _notice_fields(self, items: Sequence[bytes | msgspec.Raw]) -> None:
        """Warn once of fields that no event has; then the reader stops looking for them."""
        self._decoder.notices.unknown_fields(unknown_fields(items))
        self._reader.watches = False

    def _one_by_one(self, items: Sequence[bytes | msgspec.Raw], record: Any) -> None:
        # In a topic of another shape only its header tells our own event.
        sent = content_header(record)
        self.events(
            items,
            self._reader.parse,
            record,
            lambda item: record.value if len(items) == 1 else bytes(item),
            content_type=sent if sent.startswith(OWN_EVENT) else "",
        )

    def events(
        self,
        items: Sequence[Any],
        read: Callable[[Any], WireEvent | None],
        record: Any,
        raw: Callable[[Any], bytes],
        first: int = 0,
        scale: int | None = None,
        content_type: str = "",
    ) -> None:
        """Decode the items of one record one by one.

        Args: read: parses an item, None where it is no event; raw: its bytes, kept where the event
        is rejected; first: index of the first item in the record; scale: microseconds of the items'
        unit of time, None for the stream's; content_type: of what `raw` returns.
        """
        horizon = self.horizon(record)
        stamp = timestamp_us(record)
        self._reader.met_unknown = False
        rows: list[tuple[int, ...]] = []
        values: list[Sequence[float]] = []
        extras: list[Sequence[float]] = []
        for index, item in enumerate(items, first):
            # Check the event, or reject it alone.
            try:
                event = read(item)
                if event is None:
                    continue
                time, kind, a, b, carried = self._checker.event(event, stamp, horizon, scale)
            except BadEvent as bad:
                sent = raw(item)
                self._rejected.append(
                    Rejected(
                        offset=record.offset,
                        index=index,
                        reason=bad.reason,
                        error=self._explain(bad, sent),
                        raw=sent,
                        content_type=content_type,
                    )
                )
                continue

            # Warn of what is odd in a valid event.
            if self._reader.met_unknown:
                self._notice_fields([raw(item)])
            if event.time is None and kind in (EDGE, LABEL):
                self.notices.no_time()
            self.notices.rounded(self._checker.rounded)

            # Edges carry their features as a row of the matrix, other kinds as an extra.
            extra = -1
            if kind != EDGE and carried:
                extra = len(extras)
                extras.append(carried)
            rows.append(
                (
                    time,
                    min(stamp, self.now_us),
                    self.source,
                    record.offset,
                    index,
                    kind,
                    a,
                    b,
                    extra,
                )
            )
            values.append(carried if kind == EDGE else (0.0,) * self.dim)

        # One block for all valid events, in the order in which the record holds them.
        if rows:
            matrix = np.array(values, np.float32).reshape(len(rows), self.dim)
            self.add(Block(np.array(rows, ROW), matrix, extras))

    def _tombstone(self, record: Any) -> None:
        """Take a null value as the delete of the node that its key names. Raises: BadEvent."""
        # The error says what is missing: the setting, the key, or the key's node set.
        why = "" if self._rules.tombstones else "ingest.tombstones is dead_letter"
        if not why and not record.key:
            why = "so is the key"
        if not why and len(self._checker.sets.node_names) > 1:
            why = "nothing says of which node set its key is: give the topic a source with deletes"
        if why:
            raise BadEvent("tombstone", f"the value is null, and {why}")
        try:
            key = record.key.decode()
        except UnicodeDecodeError:
            raise BadEvent("bad_key", "the record's key is not UTF-8") from None
        self.events([key], lambda key: WireEvent(type="delete", node=key), record, lambda _: b"")

    def horizon(self, record: Any) -> int:
        """The latest valid time of the record's events, microseconds."""
        stamp = timestamp_us(record)
        # A producer's clock may be ahead: its timestamp counts up to now only.
        return (
            self.now_us if stamp == NO_STAMP else min(stamp, self.now_us)
        ) + self._rules.max_ahead_us
