"""Topics in a shape of their own: a source's mapping applied to Kafka records."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from streamd.decode.block import ROW, Block, Rejected, joined, timestamp_us
from streamd.decode.checks import EventChecker, Rules, edge_block, rules_of
from streamd.decode.decoder import NUM_SINGLES, SINGLES_BYTES, Batch, Decoder
from streamd.decode.encoding import Times
from streamd.decode.error_texts import MAX_TEXT, foreign
from streamd.decode.event_sets import features_of
from streamd.decode.headers import content_header, content_of
from streamd.decode.notices import Notices
from streamd.decode.rounding import NOTHING
from streamd.decode.sources.cloudevents import STRUCTURED, as_structured, mode_of, with_data
from streamd.decode.sources.drop_keys import DropKeys
from streamd.decode.sources.envelopes import CHANGED, DELETED, Form, FormMaker, forms_of
from streamd.decode.sources.formats import JSON_FORMATS, Format, make_format
from streamd.decode.sources.paths import Columns, kind_of, parsed
from streamd.decode.sources.rules import FeatureSets
from streamd.decode.wire import (
    OWN_EVENT,
    OWN_EVENT_US,
    OWN_ROW,
    REFUSED_HEADER,
    WireEvent,
    elements,
    lines,
)
from streamd.errors import BadEvent
from streamd.events import EDGE, LABEL, MAX_TIME_US, Int64, Key, Schema, split_key
from streamd.settings.loading import Settings, edge_sets, node_sets
from streamd.settings.sources import SourceSettings
from streamd.telemetry import metrics

SPECIAL = "special"
"""The name of the form of a record that is not the topic's own."""
WRAPPED = b'{"schema"'
"""Beginning of a value that a converter with schemas wrote: `payload` comes behind the schema."""


def make_decoder(settings: Settings, schema: Schema) -> Decoder:
    """A decoder of our own events and of all topics in `sources`."""
    rules = rules_of(settings, schema)
    decoder = Decoder(rules)
    for source in settings.sources:
        decoder.mapped[source.topic] = MappedTopic(settings, source, rules, decoder.checker)
    return decoder


def first_events(block: Block, keys: Sequence[Key]) -> dict[int, tuple[str, int | None]]:
    """By offset of its record, the first event's key (source or node) and its time in microseconds,
    None where it has none. keys: by the numbers in the block."""
    first = {}
    for event in block.rows[::-1]:
        time = int(event["time"]) if event["kind"] in (EDGE, LABEL) else None
        first[int(event["offset"])] = (str(split_key(keys[int(event["a"])])[1]), time)
    return first


class MappedTopic:
    """Makes events of one topic's records, as its source says. Owner: the decoder.

    It remembers the last record of each partition and the last one that deleted a row: a tombstone
    with the same key directly after that one is skipped.
    """

    def __init__(
        self, settings: Settings, source: SourceSettings, rules: Rules, native: EventChecker
    ) -> None:
        """native: the checker of our own events, with which it shares keys and sets."""
        form = source.time or settings.stream.time_unit
        has_unit = form in ("s", "ms", "us")
        # Times arrive at the checker in microseconds, whatever their unit is in the record.
        self._rules = replace(
            rules,
            time_unit=form if has_unit else "us",
            unit_setting="the source's time" if has_unit else "",
        )
        self.notices = Notices(self._rules.time_unit, self._rules.unit_setting)
        self.checker = EventChecker(self._rules, self.notices, native)
        own_rules = replace(rules, time_unit="us", unit_setting="")
        self._own_checker = EventChecker(own_rules, self.notices, native)
        self._source = source
        self._drop_keys = DropKeys(source, native.keys)
        self._times = Times(form)
        edges = edge_sets(settings)
        nodes = node_sets(settings)
        of_nodes = source.nodes.node_set if source.nodes is not None else None
        sets = FeatureSets(
            features_of(edges[source.edge_set or next(iter(edges))]),
            features_of(nodes[of_nodes or next(iter(nodes))]),
        )
        maker = FormMaker(source, sets, native.keys, rules.schema, rules.max_feature, form)
        self._forms = forms_of(source, maker, source.format in JSON_FORMATS)
        self._tombstone = maker.tombstone()
        self._is_ndjson = source.format == "ndjson"
        self._format: Format | None = None
        if source.format not in JSON_FORMATS:
            self._format = make_format(source, settings)
        self._newest: dict[int, int] = {}
        """Partition -> offset of the last decoded record."""
        self._row_delete: dict[int, tuple[int, bytes | None]] = {}
        """Partition -> offset and key of the last record that deleted a row."""
        self._num_skipped = 0
        self._rounded = NOTHING
        metrics.begin_at_zero(metrics.skipped, (source.topic,))

    def prepare(self, records: Sequence[Any], waiting: Callable[[], None]) -> None:
        """Learn what decoding records needs. waiting: called where that takes time.

        Raises: SchemaRegistryError.
        """
        if self._format is not None:
            most = self._rules.max_record_bytes
            values = (r.value for r in records if r.value is not None and len(r.value) <= most)
            self._format.prepare(values, waiting)

    def begin(self) -> None:
        """Forget the records decoded so far: the numbers of partitions change."""
        self._newest.clear()
        self._row_delete.clear()

    def lacks_record_before(self, partition: int, record: Any) -> bool:
        """Whether the meaning of a partition's first record depends on the record before it, which
        was decoded before a restart."""
        is_first = partition not in self._newest
        return is_first and record.value is None and self._source.envelope == "debezium"

    def feed(self, batch: Batch, records: Sequence[Any]) -> tuple[Block, list[Rejected]]:
        """Decode records of one partition. Raises: SchemaRegistryError."""
        self._num_skipped = 0
        first = 0
        while first < len(records):
            name, values = self._values_of_singles(records, first)
            if values:
                batch.singles(
                    records[first : first + len(values)],
                    values,
                    partial(self._take, batch, self._forms[name]),
                    partial(self._record, batch),
                )
                first += len(values)
            else:
                batch.record(records[first], partial(self._record, batch))
                first += 1
            self._newest[batch.source] = records[first - 1].offset

        # What was skipped is counted once the records are done with.
        if self._num_skipped:
            metrics.skipped.labels(self._source.topic).inc(self._num_skipped)
        block, rejected = batch.finish()
        return self._drop_keys.keep(block), rejected

    def explain(self, bad: BadEvent, raw: bytes | msgspec.Raw) -> str:
        """The text of an error, which names paths and never shows values."""
        hint = ""
        if bad.reason == "bad_json" and self._format is None:
            hint = foreign(bytes(memoryview(raw)[:64]))
        return f"{bad}{'; ' if hint else ''}{hint}"[:MAX_TEXT]

    def _values_of_singles(self, records: Sequence[Any], first: int) -> tuple[str, list[bytes]]:
        """The values of the records from `first` on that hold one object each and have one form,
        up to the first that does not or is too much; and the name of the form."""
        values: list[bytes] = []
        name = ""
        size = 0
        for record in records[first : first + NUM_SINGLES]:
            value = record.value
            if value is None or len(value) > self._rules.max_record_bytes:
                break
            if self._format is None and value[:1] != b"{":
                break
            size += len(value)
            if size > SINGLES_BYTES and values:
                break
            form = self._form_name(record)
            if form not in self._forms or (values and form != name):
                break
            # Among values of another format, one in JSON goes alone.
            if self._format is not None and self._is_json(record, form):
                break
            name = form
            values.append(value)
        return name, values

    def _form_name(self, record: Any) -> str:
        """The name of a record's form; `SPECIAL` where its headers say that it is none of them."""
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
        """Whether a record is JSON: as a dead letter that was a row, or a structured CloudEvent, is
        in a topic of any format. name: of its form."""
        if self._format is None or name == "structured":
            return True
        return content_of(record.headers or ()) == OWN_ROW

    def _take(
        self, batch: Batch, form: Form, records: Sequence[Any], values: Sequence[bytes]
    ) -> bool:
        """Take one event of each record; False where one needs a look alone, then none is taken."""
        columns = self._columns_of_singles(form, values)
        if columns is None:
            return False
        offset = np.fromiter((r.offset for r in records), np.int64, len(records))
        stamp = np.fromiter(map(timestamp_us, records), np.int64, len(records))
        item = np.zeros(len(records), np.int64)
        return self._take_columns(batch, form, records, columns, offset, item, stamp)

    def _columns_of_singles(self, form: Form, values: Sequence[bytes]) -> Columns | None:
        if self._format is None:
            return form.shape.of_lines(values)
        rows = []
        for value in values:
            try:
                of_value = self._format.decode(value)
            except BadEvent:
                return None
            if len(of_value) != 1 or type(of_value[0]) is not dict:
                return None
            rows += of_value
        return form.shape.of_rows(rows)

    def _take_columns(
        self,
        batch: Batch,
        form: Form,
        records: Sequence[Any],
        of_values: Columns,
        offset: Int64,
        item: Int64,
        stamp: Int64,
    ) -> bool:
        """Take n events, or skip them; False where one needs a look alone, then none is taken.

        offset, item, stamp: int64[n], of their records.
        """
        columns = form.columns(records, of_values)
        if columns is None:
            return False
        is_edge, is_other = form.layout.split(columns, len(records))
        at_edges, at_others = np.flatnonzero(is_edge), np.flatnonzero(is_other)

        # Edges as columns, events of other types from the same columns one by one.
        self._rounded = NOTHING
        blocks = []
        if len(at_edges):
            columns_E = columns
            if len(at_edges) < len(records):
                kept = is_edge.tolist()
                columns_E = [list(itertools.compress(column, kept)) for column in columns]
            places = offset[is_edge], item[is_edge], stamp[is_edge]
            blocks.append(self._edge_block(batch, form, columns_E, *places))
        if len(at_others):
            blocks.append(self._other_block(batch, form, columns, at_others, offset, item, stamp))
        made = [block for block in blocks if block is not None]
        if len(made) < len(blocks):
            return False

        # Together in the order in which the records hold them.
        if len(made) == 1:
            batch.add(made[0])
        elif made:
            order = np.argsort(np.concatenate([at_edges, at_others]))
            batch.add(joined(made).take(order))
        self._num_skipped += len(records) - len(at_edges) - len(at_others)
        self.notices.rounded(self._rounded)
        return True

    def _edge_block(
        self,
        batch: Batch,
        form: Form,
        columns: Columns,
        offset: Int64,
        item: Int64,
        stamp: Int64,
    ) -> Block | None:
        """The block of n edges; None where one of them is not valid."""
        edges = form.layout.edges(columns, stamp)
        if edges is None or edges.time.min() < 0 or edges.time.max() > MAX_TIME_US:
            return None
        if (edges.time > self.checker.horizon(stamp, batch.now_us)).any():
            return None
        self._rounded += edges.rounded
        return edge_block(
            edges.time,
            edges.src,
            edges.dst,
            edges.values,
            offset,
            item,
            batch.source,
            np.minimum(stamp, batch.now_us),
        )

    def _other_block(
        self,
        batch: Batch,
        form: Form,
        columns: Columns,
        at: Int64,
        offset: Int64,
        item: Int64,
        stamp: Int64,
    ) -> Block | None:
        """The block of the events at some rows, none of which is an edge; None where one of them
        is not valid."""
        rows = []
        extras: list[Sequence[float]] = []
        horizon = self.checker.horizon(stamp[at], batch.now_us).tolist()
        for i, latest in zip(at.tolist(), horizon, strict=True):
            stamp_us = int(stamp[i])
            try:
                event = form.layout.event([column[i] for column in columns], stamp_us)
                assert event is not None
                time, kind, a, b, carried = self.checker.event(event, stamp_us, latest, 1)
            except BadEvent:
                return None
            self._rounded += self.checker.rounded
            extra = len(extras) if carried else -1
            extras += [carried] if carried else []
            seen = min(stamp_us, batch.now_us)
            rows.append((time, seen, batch.source, int(offset[i]), int(item[i]), kind, a, b, extra))
        return Block(np.array(rows, ROW), np.zeros((len(rows), batch.dim), np.float32), extras)

    def _record(self, batch: Batch, record: Any) -> None:
        """Decode a record of any kind. Raises: BadEvent, SchemaRegistryError."""
        if record.value is None:
            self._decode_tombstone(batch, record)
            return
        name = self._form_name(record)
        if name == SPECIAL:
            is_finer = content_header(record) == OWN_EVENT_US
            batch.native(self._own_checker if is_finer else None).record(record)
            return

        # Values of other formats are rows; a dead letter that was one comes back as JSON.
        form = self._forms[name]
        value: bytes = record.value
        if self._format is not None and not self._is_json(record, name):
            self._rows(batch, form, record, self._format.decode(value))
        elif self._is_ndjson and content_of(record.headers or ()) not in STRUCTURED:
            items = lines(value, self._rules.max_record_events)
            self._many(batch, form, record, form.shape.of_lines(items), items)
        elif value.lstrip()[:1] == b"[":
            columns = form.shape.of_array(value)
            self._many(batch, form, record, columns, () if columns else elements(value))
        else:
            self._one_by_one(batch, form, record, [value])

    def _many(
        self,
        batch: Batch,
        form: Form,
        record: Any,
        columns: Columns | None,
        items: Sequence[bytes | msgspec.Raw],
    ) -> None:
        """Take the items of one record by their columns, else one by one. Raises: BadEvent."""
        if columns is None:
            batch.check_count(len(items))
        elif self._take_record(batch, form, record, columns):
            return
        self._one_by_one(batch, form, record, items or elements(record.value))

    def _take_record(self, batch: Batch, form: Form, record: Any, of_values: Columns) -> bool:
        """Take the events of one record by their columns; False where one needs a look alone."""
        count = form.num_rows(of_values)
        batch.check_count(count)
        return self._take_columns(
            batch,
            form,
            [record] * count,
            of_values,
            np.full(count, record.offset, np.int64),
            np.arange(count),
            np.full(count, timestamp_us(record), np.int64),
        )

    def _rows(self, batch: Batch, form: Form, record: Any, rows: list[dict[str, Any]]) -> None:
        """Take rows of one record that are parsed already. Raises: BadEvent."""
        batch.check_count(len(rows))
        are_objects = all(type(row) is dict for row in rows)
        if are_objects and self._take_record(batch, form, record, form.shape.of_rows(rows)):
            return
        # One row is sent again as it came, one of several as JSON, and so is one whose attributes
        # are in headers, which a letter does not hold.
        is_binary = form is self._forms.get("binary")
        as_it_came = len(rows) == 1 and not is_binary
        stamp = timestamp_us(record)

        def raw(row: Any) -> bytes:
            if as_it_came:
                return bytes(record.value)
            of_row = self._times.as_json(row)
            return as_structured(record.headers, of_row) if is_binary else of_row

        batch.events(
            rows,
            lambda row: self._event(batch, form, record, form.shape.of_row(row), stamp),
            record,
            raw,
            scale=1,
            content_type=content_header(record) if as_it_came else OWN_ROW,
        )

    def _one_by_one(
        self, batch: Batch, form: Form, record: Any, items: Sequence[bytes | msgspec.Raw]
    ) -> None:
        """Take the JSON objects of one record one by one."""
        stamp = timestamp_us(record)
        is_binary = form is self._forms.get("binary")

        def read(item: bytes | msgspec.Raw) -> WireEvent | None:
            of_value = form.shape.of_one(item)
            form.check_mark(of_value, item)
            if form.inlined >= 0 and of_value[form.inlined] is not None:
                of_value = form.shape.of_row(with_data(parsed(item)))
            chosen = form
            # Where the operation is not where it was expected, the schema is beside the payload.
            if form.operation >= 0 and of_value[form.operation] is None:
                for other in self._forms.values():
                    of_other = other.shape.of_one(item)
                    if of_other[other.operation] is not None:
                        chosen, of_value = other, of_other
            return self._event(batch, chosen, record, of_value, stamp)

        # A letter holds no headers, so attributes that were there go into the value.
        batch.events(
            items,
            read,
            record,
            lambda item: as_structured(record.headers, bytes(item)) if is_binary else bytes(item),
            scale=1,
            content_type=OWN_ROW if is_binary else "",
        )

    def _event(
        self, batch: Batch, form: Form, record: Any, of_value: Sequence[Any], stamp_us: int
    ) -> WireEvent | None:
        """The event of one object; None where it is to be skipped. Raises: BadEvent."""
        row = form.row(record, of_value)
        deleted = False
        if form.operation >= 0:
            operation = row[form.operation]
            if operation is None:
                raise BadEvent("missing_field", "op is missing: this is no event of Debezium")
            deleted = operation == DELETED
            if deleted:
                self._row_delete[batch.source] = record.offset, record.key
            elif type(operation) is not str:
                what = f"op is {kind_of(operation)}: this is no event of Debezium"
                raise BadEvent("wrong_type", what)
            elif operation not in CHANGED:
                self._num_skipped += 1
                return None
        event = form.layout.event(row, stamp_us, deleted)
        self._num_skipped += event is None
        return event

    def _decode_tombstone(self, batch: Batch, record: Any) -> None:
        """Take a null value as the delete of what its key names. Raises: BadEvent."""
        # Skip the tombstone directly after the record that deleted its row.
        before = self._newest.get(batch.source), record.key
        if record.key is not None and before == self._row_delete.get(batch.source):
            self._num_skipped += 1
            return
        if self._source.envelope != "debezium" and not self._rules.tombstones:
            raise BadEvent("tombstone", "the value is null, and ingest.tombstones is dead_letter")
        form = self._tombstone
        if form is None or record.key is None:
            lacks = "the key is null too" if record.key is None else "the source has no deletes"
            raise BadEvent("tombstone", f"the value is null, and {lacks}")
        try:
            event = form.layout.event(form.row(record, ()), timestamp_us(record))
        except BadEvent as bad:
            raise BadEvent("tombstone", f"the value is null, and of its key: {bad}") from None
        batch.events([event], lambda event: event, record, lambda _: b"", scale=1)
