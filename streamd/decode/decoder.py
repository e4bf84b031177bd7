"""Decodes Kafka records to events; a value that does not fit becomes a dead letter.

Each item of a record is checked by itself, so the others are still taken; an item that is several
events is taken or refused as a whole. Edges are decoded many at a time and checked as columns. If
one of them does not fit, the batch is halved until only a few events are left, which are decoded
one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streamd.decode.block import (
    NO_STAMP,
    Block,
    Checked,
    Decoded,
    EventRows,
    Rejected,
    Taken,
    allow_no_match,
    empty_block,
    has_time,
    joined,
    timestamp_us,
)
from streamd.decode.checks import EventChecker, Rules, rules_of
from streamd.decode.error_texts import Explainer
from streamd.decode.headers import content_header
from streamd.decode.notices import Notices
from streamd.decode.own_events import OwnEvents
from streamd.decode.reader import EventReader
from streamd.decode.record_items import RecordItems
from streamd.decode.rounding import Rounded
from streamd.decode.sources.formats import make_format
from streamd.decode.sources.topic import MappedTopic
from streamd.decode.time_units import OtherUnit
from streamd.decode.wire import REFUSED_HEADER, TOO_DEEP, OddEvent, WireEvent
from streamd.errors import BadEvent
from streamd.events import EDGE, LABEL, Key, Schema, split_key
from streamd.settings.loading import Settings
from streamd.settings.sources import by_topic
from streamd.telemetry import metrics

NO_MEMORY = ("out_of_memory", "there is not enough memory to decode it")
NUM_SINGLES = 512
"""Maximum number of records of one event each that are decoded in one call."""
NUM_ONE_BY_ONE = 8
"""A batch with at most so many records is not halved further, but decoded one by one."""
SINGLES_BYTES = 1_048_576
"""Maximum bytes of such a batch: as Python objects they take up to sixteen times as much memory. A
single larger record is a batch by itself."""
TopicReader = OwnEvents | MappedTopic
"""Reads the records of a topic. It never decides about an event that is not valid: `block` makes
events from records of one form, or returns None; `open` makes items from a record of any kind."""


def make_decoder(settings: Settings, schema: Schema) -> "Decoder":
    """Make a decoder of streamd's own events and of all topics in `sources`."""
    rules = rules_of(settings, schema)
    decoder = Decoder(rules)
    for topic, sources in by_topic(settings.sources).items():
        form = make_format(sources[0], settings.schema_registry, rules.max_record_events)
        decoder.mapped[topic] = MappedTopic(sources, rules, decoder.own, form)
    return decoder


def first_events(block: Block, keys: Sequence[Key]) -> dict[int, tuple[str, int | None]]:
    """The first event of each record, by offset: its key (source or node), and its time in
    microseconds, None if it has none. keys: by the numbers in the block."""
    first = {}
    # Backwards, so that the first event of a record is stored last.
    for event in block.rows[::-1]:
        time = int(event["time"]) if event["kind"] in (EDGE, LABEL) else None
        first[int(event["offset"])] = (str(split_key(keys[int(event["a"])])[1]), time)
    return first


class Decoder:
    """Decodes the records of one partition to events under `rules`. Owner: the poll thread.

    mapped: readers of the topics with sources; they share the numbers of keys.
    """

    def __init__(
        self,
        rules: Rules,
        sender_unit: str = "",
        sender_columns: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """sender_unit: of times in error texts, by default that of the rules. sender_columns: see
        `Explainer`."""
        self.rules = rules
        self.notices = Notices(rules.time_unit, rules.unit_setting)
        checker = EventChecker(rules, self.notices)
        self.keys = checker.keys
        reader = EventReader(checker.sets, self.notices)
        explain = Explainer(checker.sets, sender_unit or rules.time_unit, sender_columns).text
        self.own = OwnEvents(checker, self.notices, reader, explain)
        self.mapped: dict[str, MappedTopic] = {}

    def begin(self) -> None:
        """Forget the records decoded so far, because the numbers of partitions change."""
        for mapped in self.mapped.values():
            mapped.begin()

    @property
    def rounded(self) -> Rounded:
        """The rounded values of all valid events so far, in all topics."""
        topics = self.mapped.values()
        return sum((of.notices.all_rounded for of in topics), self.notices.all_rounded)

    @property
    def other_unit(self) -> OtherUnit | None:
        """The other unit that all times of some topic so far look like, None for none."""
        readers: list[TopicReader] = [self.own, *self.mapped.values()]
        return next((found for of in readers if (found := of.notices.units.found)), None)

    def unit_hint(self, block: Block, now_us: int, topic: str) -> str:
        """A hint if all times of these events alone look like another unit, else "". topic: as for
        `decode`."""
        check = self.mapped.get(topic, self.own).notices.units.fresh()
        check.add(block.rows["time"][has_time(block.rows)], now_us)
        return check.found.hint if check.found else ""

    def decode(self, records: Sequence[Any], source: int, now_us: int, topic: str = "") -> Decoded:
        """Decode kafka-python's records (offset, timestamp, key, value, headers) in order.

        Args: source: number of the partition; now_us: wall clock, microseconds; topic: of the
        records, "" for one of streamd's own events.
        Raises: SchemaRegistryError if a mapped topic cannot be decoded now.
        """
        reader = self.mapped.get(topic, self.own)
        call = _Call(self.rules, reader, source, now_us)
        first = 0
        while first < len(records):
            # Decode a run of records of one object each in one call, or else a single record.
            form, count = self._run(reader, records, first)
            if count:
                call.together(form, records[first : first + count])
            else:
                call.alone(records[first])
            first += max(1, count)
            # A following tombstone depends on this record.
            reader.remember(source, records[first - 1].offset)
        # Count records that the mapping skips, and leave out events of dropped keys.
        if call.num_skipped:
            metrics.skipped.labels(topic).inc(call.num_skipped)
        events, rejected = call.result()
        if rejected or (events.rows["stamp"] == NO_STAMP).any():
            stamps = [r.timestamp for r in records if timestamp_us(r) == NO_STAMP]
            reader.notices.timestamps([stamp for stamp in stamps if stamp >= 0])
        return Decoded(reader.keep(events), rejected)

    def _run(self, reader: TopicReader, records: Sequence[Any], first: int) -> tuple[Any, int]:
        """The form of the records from `first` on, and the number of records that have it in a row.

        The run ends before a record of another form or of none, and at the limits of number and
        size.
        """
        most = self.rules.max_record_bytes
        form_of = reader.form_of
        form = None
        count = size = 0
        # A run ends before its memory as Python objects grows large.
        for record in records[first : first + NUM_SINGLES]:
            value = record.value
            if value is None or len(value) > most:
                break
            size += len(value)
            if size > SINGLES_BYTES and count:
                break
            found = form_of(record)
            if found is None or (count and found is not form):
                break
            form = found
            count += 1
        return form, count


class _Call:
    """Decodes the records of one call. Owner: `Decoder.decode`."""

    def __init__(self, rules: Rules, reader: TopicReader, source: int, now_us: int) -> None:
        self._rules = rules
        self._reader = reader
        self._source = source
        self._now_us = now_us
        self._dim = rules.schema.edge_feature_dim
        self._blocks: list[Block] = []
        self._rejected: list[Rejected] = []
        self.num_skipped = 0
        """Records, or items of one, that are no event."""

    def result(self) -> Decoded:
        """The events so far as one block, and the rejected ones."""
        block = joined(self._blocks) if self._blocks else empty_block(self._dim)
        self._reader.notices.times(block.rows["time"][has_time(block.rows)], self._now_us)
        return Decoded(block, self._rejected)

    def together(self, form: Any, records: Sequence[Any]) -> None:
        """Decode records of one form that contain one object each."""

        def parse(some: Sequence[Any]) -> Taken | None:
            return self._reader.block(form, some, self._source, self._now_us)

        for some, taken in by_halves(records, parse):
            if taken is not None:
                self._take(taken)
            else:
                for record in some:
                    self.alone(record)

    def _take(self, taken: Taken) -> None:
        self.num_skipped += taken.num_skipped
        if len(taken.events):
            self._blocks.append(taken.events)

    def alone(self, record: Any) -> None:
        """Decode a record of any kind; one that does not fit, also not into memory, is rejected as
        a whole."""
        # If a record is refused halfway, undo its events before.
        before = len(self._blocks), len(self._rejected), self.num_skipped
        reader = self._reader
        try:
            # The consumer could not read a batch, and wrote the reason as value.
            if any(name == REFUSED_HEADER for name, _ in record.headers or ()):
                raise BadEvent("bad_batch", (record.value or b"").decode(errors="replace"))
            if len(record.value or b"") > self._rules.max_record_bytes:
                raise BadEvent(
                    "record_too_large",
                    f"{len(record.value)} bytes, at most {self._rules.max_record_bytes}",
                )
            reader = reader.reader_of(record)
            found = reader.open(record, self._source, self._now_us)
            if isinstance(found, RecordItems):
                self._one_by_one(reader, found)
            else:
                self._take(found)
        except BadEvent as bad:
            self._undo(*before)
            self._reject(reader, record, bad)
        except (MemoryError, RecursionError) as error:
            self._undo(*before)
            # A value that could just be read may be too deep to be written into a dead letter.
            is_deep = isinstance(error, RecursionError)
            why = ("too_deep", TOO_DEEP) if is_deep else NO_MEMORY
            self._reject(reader, record, BadEvent(*why))

    def _undo(self, num_blocks: int, num_rejected: int, num_skipped: int) -> None:
        """Remove the events and rejections after these counts."""
        del self._blocks[num_blocks:], self._rejected[num_rejected:]
        self.num_skipped = num_skipped

    def _reject(self, reader: TopicReader, record: Any, bad: BadEvent) -> None:
        """Reject a whole record."""
        value = reader.value_of(record)
        self._rejected.append(
            Rejected(
                offset=record.offset,
                index=-1,
                reason=bad.reason,
                error=reader.explain(bad, value),
                raw=value,
                content_type=content_header(record),
            )
        )

    def _one_by_one(self, reader: TopicReader, items: RecordItems) -> None:
        """Take each valid item of a record with all its events, and reject the others.

        Raises: BadEvent if the record has too many events.
        """
        offset = items.record.offset
        stamp_us = timestamp_us(items.record)
        latest_us = reader.checker.latest(stamp_us, self._now_us)
        rows = EventRows(self._source, self._now_us, self._dim)
        # An item takes one index for each of its events, refused or not.
        index = 0
        for item in items.items:
            num_events = 1
            try:
                events = items.read(item)
                num_events = len(events)
                self._rules.check_count(max(1, index + num_events))
                checked = [
                    None if e is None else _check(reader, e, stamp_us, latest_us, items.scale)
                    for e in events
                ]
            except BadEvent as bad:
                # This limit refuses the record, not an item.
                if bad.reason == "too_many_events":
                    raise
                raw = items.raw(item)
                self._rejected.append(
                    Rejected(
                        offset=offset,
                        index=index,
                        reason=bad.reason,
                        error=reader.explain(bad, raw),
                        raw=raw,
                        content_type=items.content_type,
                    )
                )
                index += num_events
                continue

            # Warn about oddities only in valid events.
            self.num_skipped += all(one is None for one in checked)
            for at, (event, one) in enumerate(zip(events, checked, strict=True), index):
                if one is None or isinstance(event, BadEvent) or event is None:
                    continue
                if type(event) is OddEvent:
                    reader.notices.unknown_fields([items.raw(item)])
                if event.time is None and one.kind in (EDGE, LABEL):
                    reader.notices.no_time()
                reader.notices.rounded(one.rounded)
                taken = allow_no_match(one) if items.may_match_nothing else one
                rows.add(taken, offset, at, stamp_us)
            index += num_events
        if len(rows):
            self._blocks.append(rows.block())


def _check(
    reader: TopicReader,
    event: WireEvent | BadEvent,
    stamp_us: int,
    latest_us: int,
    scale: int | None,
) -> Checked:
    """Check one event of an item. Raises: BadEvent."""
    if isinstance(event, BadEvent):
        raise event
    return reader.checker.event(event, stamp_us, latest_us, scale)


def by_halves(
    records: Sequence[Any], parse: Callable[[Sequence[Any]], Taken | None]
) -> Iterator[tuple[Sequence[Any], Taken | None]]:
    """Parse records in batches, halving a batch that does not fit, so that a bad record costs
    little.

    Yields: in order, records with their events; or a few records with None, to be decoded one by
    one.
    """
    try:
        taken = parse(records)
    except MemoryError:
        # Half of them may fit into memory.
        taken = None
    if taken is not None or len(records) <= NUM_ONE_BY_ONE:
        yield records, taken
        return
    half = len(records) // 2
    yield from by_halves(records[:half], parse)
    yield from by_halves(records[half:], parse)
