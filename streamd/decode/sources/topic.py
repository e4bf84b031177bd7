"""Mapped topics: applies the mapping of a topic's sources to Kafka records."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from streamd.decode.block import Block, Origin, Taken, timestamp_us
from streamd.decode.checks import EventChecker, Rules
from streamd.decode.encoding import Times
from streamd.decode.error_texts import MAX_TEXT, foreign
from streamd.decode.headers import content_header, content_of, media_type_of
from streamd.decode.notices import Notices
from streamd.decode.own_events import OwnEvents
from streamd.decode.record_items import ItemEvents, RecordItems
from streamd.decode.sources.cloudevents import STRUCTURED, as_structured, mode_of, with_data
from streamd.decode.sources.column_events import column_events
from streamd.decode.sources.drop_keys import DropKeys
from streamd.decode.sources.envelopes import CHANGED, DELETED, TRUNCATED, Form, FormMaker, forms_of
from streamd.decode.sources.formats import Format
from streamd.decode.sources.paths import Columns, kind_of, parsed
from streamd.decode.time_units import UNITS_NS
from streamd.decode.wire import (
    OWN_EVENT,
    OWN_ROW,
    REFUSED_HEADER,
    Items,
    WireEvent,
    elements,
    has_several,
    parse_several,
)
from streamd.errors import BadEvent
from streamd.settings.sources import SourceSettings
from streamd.telemetry import metrics

IN_US = ("time_unit", "us")
"""The parameter of the content type of streamd's own events with times in microseconds."""
TRUNCATE = "truncate"
"""Label of truncated tables in `streamd_dropped_events_total`."""
SPECIAL = "special"
"""The name of the form of a record that has none of the topic's forms."""
WHOLE_ROWS = "deletes need whole rows (Postgres: REPLICA IDENTITY FULL)"
WRAPPED = b'{"schema"'
"""Prefix of a value that a converter with schemas wrote: `payload` follows the schema."""


class MappedTopic:
    """Reads records of one topic by its sources' mapping. Owner: the decoder. See `TopicReader`.

    It stores the last record of each partition and the last one that deleted a row: a tombstone
    with the same key directly after that one is skipped.
    """

    def __init__(
        self,
        sources: Sequence[SourceSettings],
        rules: Rules,
        own: OwnEvents,
        form: Format | None,
    ) -> None:
        """sources: of the topic, in order. own: reads streamd's own events; the topic has the same
        keys and sets. form: of the values, None for JSON."""
        source = sources[0]
        times = list(dict.fromkeys(one.time or rules.time_unit for one in sources))
        has_unit = len(times) == 1 and times[0] in UNITS_NS
        # The checker gets times in microseconds; the record may have another unit.
        self._rules = replace(
            rules,
            time_unit=times[0] if has_unit else "us",
            unit_setting=f"time in the source of {source.topic}" if has_unit else "",
        )
        self.notices = Notices(self._rules.time_unit, self._rules.unit_setting)
        self.checker = EventChecker(self._rules, self.notices, own.checker)
        in_us = EventChecker(
            replace(rules, time_unit="us", unit_setting=""), self.notices, own.checker
        )
        self._own, self._own_in_us = own, own.checked_by(in_us)
        self._source = source
        # All sources read the times of typed formats in the same way.
        self._times = Times(next((time for time in times if time != "record"), "record"))
        maker = FormMaker(sources, rules, self.checker.keys, rules.time_unit)
        self._drop_keys = DropKeys(sources, own.checker.keys)
        self._forms = forms_of(sources, maker, form is None)
        self._tombstone = maker.tombstone()
        self._format = form
        self._newest: dict[int, int] = {}
        """Partition -> offset of the last decoded record."""
        self._row_delete: dict[int, tuple[int, bytes | None]] = {}
        """Partition -> offset and key of the last record that deleted a row."""
        metrics.begin_at_zero(metrics.skipped, (source.topic,))
        if source.envelope == "debezium":
            metrics.dropped.labels(source.topic, TRUNCATE)

    def prepare(self, records: Sequence[Any], waiting: Callable[[], None]) -> None:
        """Fetch everything that decoding these records needs. waiting: called whenever that takes
        time.

        Raises: SchemaRegistryError.
        """
        if self._format is not None:
            most = self._rules.max_record_bytes
            read = self._format.value_of
            values = (read(r) for r in records if r.value is not None and len(r.value) <= most)
            self._format.prepare(values, waiting)

    def begin(self) -> None:
        """Forget the records decoded so far, because the numbers of partitions change."""
        self._newest.clear()
        self._row_delete.clear()

    def lacks_record_before(self, partition: int, record: Any) -> bool:
        """Whether the meaning of a partition's first record depends on the record before it, which
        was decoded before a restart."""
        is_first = partition not in self._newest
        return is_first and record.value is None and self._source.envelope == "debezium"

    def remember(self, partition: int, offset: int) -> None:
        """Store the offset of the last decoded record of a partition."""
        self._newest[partition] = offset

    def explain(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str:
        """The text of an error, which contains paths and never values."""
        hint = ""
        if bad.reason == "bad_json" and self._format is None:
            # Other formats explain their own errors.
            hint = foreign(bytes(memoryview(raw)[:64]))
        return f"{bad}{'; ' if hint else ''}{hint}"[:MAX_TEXT]

    def reader_of(self, record: Any) -> "OwnEvents | MappedTopic":
        """The reader of a record: that of streamd's own events if its header marks it as one."""
        if record.value is None or self._form_name(record) != SPECIAL:
            return self
        # A replayed dead letter may have its time in microseconds.
        is_in_us = IN_US in media_type_of(record.headers).parameters
        return self._own_in_us if is_in_us else self._own

    def value_of(self, record: Any) -> bytes:
        """The bytes of a record's value from which a dead letter can be decoded again."""
        if self._format is None or not record.value or self._is_json(record, ""):
            return record.value or b""
        return self._format.value_of(record)

    def keep(self, block: Block) -> Block:
        """The events of a block without those of dropped keys, which are counted."""
        return self._drop_keys.keep(block)

    def form_of(self, record: Any) -> Form | None:
        """The form of a record of one object; None for any other record, which is decoded alone."""
        if self._format is None and record.value[:1] != b"{":
            return None
        name = self._form_name(record)
        # In a topic of another format, a value in JSON is decoded alone.
        if self._format is not None and self._is_json(record, name):
            return None
        return self._forms.get(name)

    def _form_name(self, record: Any) -> str:
        """The name of a record's form; `SPECIAL` if its headers mark another form."""
        kind = ""
        if record.headers:
            kind = content_of(record.headers)
            if kind == OWN_EVENT or any(name == REFUSED_HEADER for name, _ in record.headers):
                return SPECIAL
        if self._source.envelope == "debezium":
            is_wrapped = self._format is None and record.value.startswith(WRAPPED)
            return "wrapped" if is_wrapped else "bare"
        if self._source.envelope == "cloudevents":
            return mode_of(record.headers or (), kind)
        return "plain"

    def _is_json(self, record: Any, name: str) -> bool:
        """Whether a record is JSON in a topic of any format, as dead letters that were rows and
        structured CloudEvents are. name: of its form."""
        if self._format is None or name == "structured":
            return True
        return content_of(record.headers or ()) == OWN_ROW

    def block(
        self, form: Form, records: Sequence[Any], partition: int, now_us: int
    ) -> Taken | None:
        """Decode records of one object each, without those that are skipped; None if one has to be
        decoded alone."""
        of_values = self._columns_of_values(form, records)
        if of_values is None:
            return None
        origin = Origin.of_records(records, partition, now_us)
        return self._block(form, records, of_values, origin)

    def _columns_of_values(self, form: Form, records: Sequence[Any]) -> Columns | None:
        if self._format is None:
            return form.shape.of_lines([record.value for record in records])
        # A registry's formats parse one value at a time.
        rows = []
        for record in records:
            try:
                of_value = self._format.decode(self._format.value_of(record))
            except BadEvent:
                return None
            if len(of_value) != 1 or type(of_value[0]) is not dict:
                return None
            rows += of_value
        return form.shape.of_rows(rows)

    def _block(
        self, form: Form, records: Sequence[Any], of_values: Columns, origin: Origin
    ) -> Taken | None:
        """Decode as `block` does. records: of each object. of_values: the columns that are in the
        values."""
        columns = form.columns(records, of_values)
        if columns is None:
            return None
        most = self._rules.max_record_events
        taken = column_events(form, columns, origin, len(records), self.checker, most)
        if taken is not None:
            self.notices.rounded(taken.rounded)
        return taken

    def open(self, record: Any, partition: int, now_us: int) -> Taken | RecordItems:
        """Decode a record of any kind. Returns: its events, or its items to be decoded one by one.

        Raises: BadEvent, SchemaRegistryError.
        """
        value: bytes | None = record.value
        if value is None:
            return self._open_tombstone(record, partition)
        name = self._form_name(record)
        form = self._forms[name]

        # Values of other formats are rows; a dead letter of a row returns as JSON.
        if self._format is not None and not self._is_json(record, name):
            return self._open_rows(form, record, partition, now_us)
        content = content_of(record.headers or ())
        is_lines = self._source.format == "ndjson" and content not in STRUCTURED
        items: Items = [value]
        if has_several(value, is_lines):
            most = self._rules.max_record_events
            columns, items = parse_several(form.shape, value, is_lines, most)
            count = len(items) if columns is None else len(columns[0])
            self._rules.check_count(count)
            if columns is not None:
                origin = Origin.of_items(record, count, partition, now_us)
                taken = self._block(form, [record] * count, list(columns), origin)
                if taken is not None:
                    return taken
            items = items or elements(value)
        return self._json_items(form, record, items, partition)

    def _open_rows(
        self, form: Form, record: Any, partition: int, now_us: int
    ) -> Taken | RecordItems:
        """Decode a record of another format, as `open` does. Raises: BadEvent,
        SchemaRegistryError."""
        assert self._format is not None
        value = self._format.value_of(record)
        rows: Sequence[Any] = self._format.decode(value)
        self._rules.check_count(len(rows))
        if all(type(row) is dict for row in rows):
            origin = Origin.of_items(record, len(rows), partition, now_us)
            taken = self._block(form, [record] * len(rows), form.shape.of_rows(rows), origin)
            if taken is not None:
                return taken
        # A dead letter of a single row has the original bytes; one of several rows has JSON. So has
        # one of a binary CloudEvent, because letters do not contain its headers.
        is_binary = form is self._forms.get("binary")
        as_it_came = len(rows) == 1 and not is_binary

        def raw(row: Any) -> bytes:
            if as_it_came:
                return bytes(value)
            of_row = self._times.as_json(row)
            return as_structured(record.headers, of_row) if is_binary else of_row

        return RecordItems(
            record=record,
            items=rows,
            read=lambda row: self._events(
                form, record, form.shape.of_row(row), partition, lambda: row
            ),
            raw=raw,
            scale=1,
            content_type=content_header(record) if as_it_came else OWN_ROW,
        )

    def _json_items(self, form: Form, record: Any, items: Items, partition: int) -> RecordItems:
        """The JSON objects of one record, as items."""
        is_binary = form is self._forms.get("binary")

        def read(item: bytes | msgspec.Raw) -> ItemEvents:
            of_value = form.shape.of_one(item)
            form.check_mark(of_value, item)
            if form.inlined >= 0 and of_value[form.inlined] is not None:
                of_value = form.shape.of_row(with_data(parsed(item)))
            chosen = form
            # If the operation is not at the expected path, the event is in `payload`, next to its
            # schema.
            if form.operation >= 0 and of_value[form.operation] is None:
                for other in self._forms.values():
                    of_other = other.shape.of_one(item)
                    if of_other[other.operation] is not None:
                        chosen, of_value = other, of_other
            return self._events(chosen, record, of_value, partition, lambda: parsed(item))

        # A letter does not contain headers, so move attributes from there into the value.
        return RecordItems(
            record=record,
            items=items,
            read=read,
            raw=lambda item: (
                as_structured(record.headers, bytes(item)) if is_binary else bytes(item)
            ),
            scale=1,
            content_type=OWN_ROW if is_binary else "",
        )

    def _events(
        self,
        form: Form,
        record: Any,
        of_value: Sequence[Any],
        partition: int,
        parse: Callable[[], Any],
    ) -> ItemEvents:
        """Make the events of one object. parse: returns the whole object. Raises: BadEvent."""
        row = form.row(record, of_value)
        is_deleted = False
        if form.operation >= 0:
            operation = row[form.operation]
            if operation is None:
                raise BadEvent("missing_field", "op is missing: this is no event of Debezium")
            is_deleted = operation == DELETED
            if is_deleted:
                # The tombstone directly after it is skipped.
                self._row_delete[partition] = record.offset, record.key
            elif type(operation) is not str:
                what = f"op is {kind_of(operation)}: this is no event of Debezium"
                raise BadEvent("wrong_type", what)
            elif operation not in CHANGED:
                if operation == TRUNCATED:
                    self._note_truncate()
                return [None]
        most = self._rules.max_record_events
        found = form.events(row, timestamp_us(record), is_deleted, most)
        return [
            self._add_cause(form, event, is_deleted, parse)
            if isinstance(event, BadEvent)
            else event
            for event in found
        ]

    def _add_cause(
        self, form: Form, bad: BadEvent, is_deleted: bool, parse: Callable[[], Any]
    ) -> BadEvent:
        """Add the likely cause to the error of an object's event."""
        if is_deleted and bad.reason == "missing_field":
            return BadEvent(bad.reason, f"{bad}: {WHOLE_ROWS}")
        return form.name_text(bad, parse())

    def _note_truncate(self) -> None:
        """Count a truncated table and warn about it: the edges of its rows stay."""
        metrics.dropped.labels(self._source.topic, TRUNCATE).inc()
        self.notices.truncate(self._source.topic)

    def _open_tombstone(self, record: Any, partition: int) -> RecordItems:
        """Decode a null value as the delete of the node or edge that its key names. Raises:
        BadEvent, except for change events."""
        event: WireEvent | None = None
        # Skip the tombstone directly after the record that deleted its row.
        before = self._newest.get(partition), record.key
        if record.key is None or before != self._row_delete.get(partition):
            try:
                event = self._delete_of_key(record)
            except BadEvent as bad:
                # The tombstones of change events let Kafka compact the topic: compaction may have
                # removed the record that deleted the row.
                if self._source.envelope != "debezium":
                    raise
                self.notices.tombstone(self._source.topic, str(bad))
        return RecordItems(
            record=record,
            items=[event],
            read=lambda e: [e],
            raw=lambda _: b"",
            scale=1,
            # The row may be gone already, by the delete before the tombstone or by another record.
            may_match_nothing=self._source.envelope == "debezium",
        )

    def _delete_of_key(self, record: Any) -> WireEvent | None:
        if self._source.envelope != "debezium" and not self._rules.tombstones:
            raise BadEvent("tombstone", "the value is null, and ingest.tombstones is dead_letter")
        form = self._tombstone
        if form is None or record.key is None:
            lacks = "the key is null too" if record.key is None else "the source has no deletes"
            raise BadEvent("tombstone", f"the value is null, and {lacks}")
        (event,) = form.events(form.row(record, ()), timestamp_us(record), False, 1)
        if isinstance(event, BadEvent):
            raise BadEvent("tombstone", f"the value is null, and its key cannot be used: {event}")
        return event
