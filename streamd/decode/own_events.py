"""Reads records of streamd's own events: JSON, NDJSON or Arrow, by their content type."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from streamd.decode.block import Block, Edges, Origin, Taken, edge_block
from streamd.decode.checks import EventChecker
from streamd.decode.headers import JSONHeaders, content_header, content_of, own_content_type
from streamd.decode.notices import Notices
from streamd.decode.reader import EventReader, WireEdge
from streamd.decode.record_items import RecordItems
from streamd.decode.rounding import EXACT, NOTHING, count_rounded
from streamd.decode.wire import (
    ARROW,
    JSON,
    NDJSON,
    OWN_EVENT,
    Items,
    WireEvent,
    elements,
    has_several,
    parse_several,
)
from streamd.errors import BadEvent
from streamd.events import MAX_TIME_US, MICROSECONDS, Float32, Int64

Explain = Callable[[BadEvent, bytes | msgspec.Raw], str]
"""Writes the text of an error for the sender, given the error and the bytes that were sent."""
_edge_fields = operator.attrgetter("src", "dst", "time", "features")
_fields_of_sets = operator.attrgetter("src", "dst", "time", "features", "set_number")


class OwnEvents:
    """Reads records of streamd's own events. Owner: the decoder. See `TopicReader`."""

    def __init__(
        self, checker: EventChecker, notices: Notices, reader: EventReader, explain: Explain
    ) -> None:
        self.checker = checker
        self.notices = notices
        self.explain = explain
        self.headers = JSONHeaders()
        self._rules = checker.rules
        self._scale = MICROSECONDS[checker.rules.time_unit]
        self._reader = reader

    def checked_by(self, checker: EventChecker) -> "OwnEvents":
        """A reader of streamd's own events with another checker."""
        return OwnEvents(checker, self.notices, self._reader, self.explain)

    def reader_of(self, record: Any) -> "OwnEvents":
        """The reader of a record: always this one."""
        return self

    def remember(self, partition: int, offset: int) -> None:
        """Do nothing, because no record depends on another."""

    def value_of(self, record: Any) -> bytes:
        """The bytes of a record's value."""
        return record.value or b""

    def keep(self, block: Block) -> Block:
        """Return all events, because no key is dropped."""
        return block

    def form_of(self, record: Any) -> str | None:
        """The form of a record of one JSON object; None for any other record, which is decoded
        alone."""
        if record.value[:1] != b"{":
            return None
        # Most headers are known to be harmless, by their name or with their content.
        harmless = self.headers.harmless
        for header in record.headers or ():
            if (
                header[0] not in harmless
                and header not in harmless
                and not self.headers.admit(header)
            ):
                return None
        return JSON

    def block(self, form: str, records: Sequence[Any], partition: int, now_us: int) -> Taken | None:
        """Decode records of one JSON object each; None unless all are valid edges."""
        values = [record.value for record in records]
        # All values are parsed in one call, as lines of one text.
        wire = self._reader.of_lines(values)
        if wire is None:
            return None
        return self._edges(wire, Origin.of_records(records, partition, now_us), values)

    def open(self, record: Any, partition: int, now_us: int) -> Taken | RecordItems:
        """Decode a record of any kind. Returns: its events, or its items to be decoded one by one.
        Raises: BadEvent."""
        value: bytes | None = record.value
        if value is None:
            return self._tombstone(record)

        # The content type is NDJSON, Arrow or JSON, which may be an array or an object.
        kind = own_content_type(record.headers or ())
        if kind == ARROW:
            return self._open_arrow(record, partition, now_us)
        items: Items = [value]
        if has_several(value, kind == NDJSON):
            most = self._rules.max_record_events
            wire, items = parse_several(self._reader, value, kind == NDJSON, most)
            self._rules.check_count(len(items if wire is None else wire))
            if wire is not None:
                origin = Origin.of_items(record, len(wire), partition, now_us)
                taken = self._edges(wire, origin, items or value)
                if taken is not None:
                    return taken
            # Some item is not a valid edge, so decode each by itself.
            items = items or elements(value)

        # In a mapped topic, only the header marks streamd's own events.
        is_marked = content_of(record.headers or ()) == OWN_EVENT
        return RecordItems(
            record=record,
            items=items,
            read=lambda item: [self._reader.parse(item)],
            raw=lambda item: value if len(items) == 1 else bytes(item),
            content_type=content_header(record) if is_marked else "",
        )

    def _open_arrow(self, record: Any, partition: int, now_us: int) -> Taken | RecordItems:
        from streamd.decode.arrow import edges_of, read_table, rows_of

        # A table of valid edges is decoded by columns, any other table row by row.
        table = read_table(record.value, self._rules)
        edges = edges_of(table, self.checker)
        if edges is not None:
            origin = Origin.of_items(record, table.num_rows, partition, now_us)
            block = self.checker.block(edges, origin)
            if block is not None:
                self.notices.rounded(edges.rounded)
                return Taken(block)
        return rows_of(table, record, self._rules.time_unit)

    def _tombstone(self, record: Any) -> RecordItems:
        """Decode a null value as the delete of the node that the record's key names. Raises:
        BadEvent."""
        # The error names the missing part: the setting, the key, or the key's node set.
        why = "" if self._rules.tombstones else "ingest.tombstones is dead_letter"
        if not why and not record.key:
            why = "so is the key"
        if not why and len(self.checker.sets.node_names) > 1:
            why = "the node set of its key is unknown: give the topic a source with deletes"
        if why:
            raise BadEvent("tombstone", f"the value is null, and {why}")
        try:
            event = WireEvent(type="delete", node=record.key.decode())
        except UnicodeDecodeError:
            raise BadEvent("bad_key", "the record's key is not UTF-8") from None
        return RecordItems(record=record, items=[event], read=lambda e: [e], raw=lambda _: b"")

    def _edges(self, wire: Sequence[WireEdge], origin: Origin, sent: Items | bytes) -> Taken | None:
        """Make events from parsed edges; None unless all are valid. sent: their bytes, one by one
        or as an array."""
        # Check the cheap columns first; a value that does not fit ends the fast path.
        sets = self.checker.sets
        fields = _edge_fields if sets.is_only else _fields_of_sets
        src, dst, time, features, *number = zip(*map(fields, wire), strict=True)
        time_E, lacks_time = self._times(time, origin.stamp)
        if time_E is None or not self.checker.is_not_ahead(time_E, origin):
            return None
        number_E = np.fromiter(number[0], np.int64, len(wire)) if number else None
        a = sets.key_numbers(self.checker.keys, src, number_E, 0)
        b = None if a is None else sets.key_numbers(self.checker.keys, dst, number_E, 1)
        if a is None or b is None:
            return None
        edges = self._with_features(time_E, a, b, features, number_E)
        if edges is None:
            return None

        # Report oddities only of events that are taken.
        if lacks_time:
            self.notices.no_time()
        self.notices.rounded(edges.rounded)
        if self._reader.met_unknown:
            self.notices.unknown_fields(elements(sent) if isinstance(sent, bytes) else sent)
        return Taken(edge_block(edges, origin))

    def _times(self, time: Sequence[int | None], stamp: Any) -> tuple[Int64 | None, bool]:
        """Event times in microseconds, int64[n], None if one is not valid; and whether some events
        had none."""
        try:
            column = np.fromiter(time, np.int64, len(time))
        except TypeError:
            # An event without a time gets the timestamp of its record.
            stamps = np.broadcast_to(stamp, len(time)).tolist()
            filled = [
                s if t is None else t * self._scale for t, s in zip(time, stamps, strict=True)
            ]
            if any(not 0 <= t <= MAX_TIME_US for t in filled):
                return None, True
            return np.array(filled, np.int64), True
        except OverflowError:
            return None, False
        # Compare before scaling, which could overflow.
        if column.min() < 0 or column.max() > MAX_TIME_US // self._scale:
            return None, False
        column *= self._scale
        return column, False

    def _with_features(
        self, time_E: Int64, a: Int64, b: Int64, features: Sequence[Any], number_E: Int64 | None
    ) -> Edges | None:
        """Make edges with their feature rows; None if a width or a value does not fit.

        number_E: of the edge sets, int64[n], None if there is one.
        """
        rounded = NOTHING

        def of_set(number: int, at: Int64 | None) -> Float32 | None:
            nonlocal rounded
            given = features if at is None else [features[i] for i in at.tolist()]
            of_edges = self.checker.sets.of_edges[number]
            values = of_edges.columns(given)
            if values is None:
                return None
            # Compare as float64: a value beyond float32 would become infinity. NaN is refused.
            largest = np.abs(values).max(initial=0)
            if not largest <= self._rules.max_feature:
                return None
            if largest > EXACT:
                rounded += count_rounded(values, of_edges.column_names)
            return values.astype(np.float32)

        rows = self.checker.sets.rows(number_E, len(features), of_set)
        return None if rows is None else Edges(time_E, a, b, rows, rounded)
