"""Reads a few records of a topic or a file without side effects, and decodes them by the
settings."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError
from msgspec.json import encode

from streamd.clock import Clock
from streamd.decode.block import Block, empty_block, joined
from streamd.decode.decoder import make_decoder
from streamd.decode.encoded_decimals import doubt_of_decimals
from streamd.decode.rounding import Rounded
from streamd.decode.sources.formats import make_format
from streamd.decode.sources.paths import open_text, parsed
from streamd.errors import BadEvent, KafkaError, SettingsError
from streamd.eventlog.odd_keys import OddKeys, count_copies, odd_keys, placeholder_ids
from streamd.events import DELETE, EDGE, LABEL, NODE, Key, Schema, split_key
from streamd.exchange.absent_paths import absent_paths
from streamd.exchange.event_files import EventFile, is_named_as_file, siblings_of
from streamd.exchange.key_cells import all_doubts
from streamd.exchange.load import FileRow
from streamd.exchange.named_features import with_named_features
from streamd.exchange.sourced import read_rows, rows_of_sources, sources_of
from streamd.ingest.kafka.client import make_consumer
from streamd.ingest.kafka.safe_records import make_reading_safe
from streamd.ingest.order.batch_builder import as_json
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings, schema_of
from streamd.settings.nearest import nearest
from streamd.settings.sets import nearest_of
from streamd.settings.sources import by_topic

PATIENCE_SECONDS = 10.0
"""Maximum wait for the records of a topic: its last offsets may have no records."""
NOW = (
    "The rows of {file} have no timestamp, which `time: record` asks for: the times above are "
    "those of this command, as if the rows were sent to Kafka now. `streamd import` and `streamd "
    "backtest` refuse such rows; map a column of times for them."
)
LISTS = ("features", "target")
"""Columns of streamd's own events that a table has as JSON lists."""
SHOWN = 3
"""Number of events of one record that are shown, and of its refusals."""
WORDS = {EDGE: "edge", NODE: "node", LABEL: "label", DELETE: "delete"}


@dataclass(frozen=True, slots=True)
class Sample:
    """Records by partition.

    topic: of the source that maps them; "" for streamd's own events. doubts: sentences on cells of
    a file.
    """

    topic: str
    records: dict[int, list[Any]]
    doubts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    @property
    def all(self) -> list[Any]:
        """The records of all partitions."""
        return [record for part in self.records.values() for record in part]


def read_sample(settings: Settings, name: str, count: int, clock: Clock, topic: str = "") -> Sample:
    """Read the first records of a file, or the newest of a topic, `count` in all.

    Args: name: of a file if it exists, else of a topic; topic: of the sources that map a file's
    rows; "" for the only topic with sources.
    Raises: SettingsError, KafkaError.
    """
    path = Path(name)
    if not path.exists():
        if topic:
            raise SettingsError(
                f"--source describes a file, and there is no file {name}.",
                "leave it out for a topic, which has its own source, or check the path.",
            )
        return Sample(name, _of_topic(settings, name, count))
    topics = by_topic(settings.sources)
    if not topic and len(topics) == 1:
        (topic,) = topics
    file = EventFile(path)
    doubts: list[str] = []
    if topic:
        unit = settings.stream.time_unit
        sources = sources_of(settings, topic)
        all_rows = rows_of_sources(sources, file, unit, doubts.append)
        if any(source.time == "record" for source in sources):
            doubts.append(NOW.format(file=name))
    else:
        all_rows = ((n, _with_lists(value)) for n, value in read_rows(file))
    # A row of a file has no timestamp; Kafka would add one when it is sent.
    now_ms = clock.now_us() // 1000
    records = [FileRow(offset=n, value=v, timestamp=now_ms) for n, v in islice(all_rows, count)]
    return Sample(topic, {0: records}, tuple(doubts))


def _with_lists(value: bytes) -> bytes:
    """A row of streamd's own events, with lists in the cells of a table as lists."""
    try:
        row = parsed(value)
    except BadEvent:
        # The decoder gives the reason.
        return value
    if type(row) is not dict:
        return value
    opened = {name: open_text(row[name]) for name in LISTS if type(row.get(name)) is str}
    return encode(row | opened) if opened else value


def as_json_rows(settings: Settings, sample: Sample) -> tuple[list[Any], str]:
    """A sample's records, decoded to JSON if the settings have a source of the topic with another
    format.

    Returns: the records, and that format; "" for JSON and without a source. A record that does not
    have the format stays as it is. Raises: SettingsError, SchemaRegistryError.
    """
    records = sample.all
    sources = by_topic(settings.sources).get(sample.topic)
    if not sources:
        return records, ""
    form = make_format(sources[0], settings.schema_registry, settings.ingest.max_record_events)
    if form is None:
        return records, ""
    values = {n: form.value_of(one) for n, one in enumerate(records) if one.value is not None}
    form.prepare(values.values(), lambda: None)
    out = []
    for n, record in enumerate(records):
        try:
            rows = form.decode(values[n])
        except (BadEvent, KeyError):
            out.append(record)
            continue
        out.append(
            FileRow(
                offset=record.offset,
                value=encode(rows),
                timestamp=record.timestamp,
                headers=record.headers or (),
                key=record.key,
            )
        )
    return out, sources[0].format


def shares(sizes: Mapping[TopicPartition, int], count: int) -> dict[TopicPartition, int]:
    """Divide `count` records among partitions: each gets the same number, or all its records if it
    has fewer, and the others share the difference. sizes: records of each."""
    out: dict[TopicPartition, int] = {}
    left = count
    # Start with the smallest, so that the larger ones make up the difference.
    for part in sorted(sizes, key=lambda one: sizes[one]):
        out[part] = min(sizes[part], left // (len(sizes) - len(out)))
        left -= out[part]
    return out


def _of_topic(settings: Settings, topic: str, count: int) -> dict[int, list[Any]]:
    """Read the newest records of a topic, without a consumer group. Raises: KafkaError."""
    make_reading_safe(settings.ingest.max_batch_bytes)
    consumer = make_consumer(settings.kafka)
    try:
        numbers = sorted(consumer.partitions_for_topic(topic) or ())
        if not numbers:
            known = sorted(one for one in consumer.topics() if not one.startswith("__"))
            there = nearest_of(topic, known) if known else "; the broker has no topics"
            raise KafkaError(
                f"There is no topic {topic}, and no file of that name{there}.",
                "check its name.",
            )
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        first = consumer.beginning_offsets(partitions)
        end = consumer.end_offsets(partitions)

        share = shares({tp: end[tp] - first[tp] for tp in partitions}, count)
        for tp in partitions:
            # Without a group, the consumer starts at an explicit offset.
            consumer.seek(tp, end[tp] - share[tp])
        found: dict[int, list[Any]] = {number: [] for number in numbers}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and any(
            consumer.position(tp) < end[tp] for tp in partitions
        ):
            for tp, records in consumer.poll(timeout_ms=500, max_records=count).items():
                # Ignore records that arrived since.
                found[tp.partition] += [r for r in records if r.offset < end[tp]]
        return {tp.partition: found[tp.partition][: share[tp]] for tp in partitions}
    except ClientError as error:
        raise KafkaError(f"Topic {topic} cannot be read: {error}.", "check the broker.") from None
    finally:
        consumer.close(autocommit=False)


@dataclass(frozen=True, slots=True)
class Judged:
    """The result for one record, or for one event in it.

    index: of the event in the record, -1 for a whole record. what: type of event, or the reason of
    a refusal. event: as JSON, "" if refused. error: the error text if refused.
    """

    partition: int
    offset: int
    index: int
    what: str
    event: str
    error: str = ""


def first_of_record(judged: Sequence[Judged]) -> tuple[list[Judged], int]:
    """The first events and the first refusals of one record, which may be a batch of thousands.

    Returns: up to SHOWN of both in their order, and the number of the others.
    """
    events = [one for one in judged if one.event]
    refused = [one for one in judged if not one.event]
    shown = sorted([*events[:SHOWN], *refused[:SHOWN]], key=lambda one: one.index)
    num_more = len(judged) - len(shown)
    # A line about a single event is no shorter than the event.
    return (list(judged), 0) if num_more == 1 else (shown, num_more)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results for a sample.

    judged: in order of partition and offset. num_taken, num_skipped, num_refused: records with an
    event, without event or error, and with errors only; each record is one of these. counts: of
    events by type. refused: by reason. rounded: feature values. absent: a sentence for each path of
    the source at which no record has a value. odd_keys: of the edges. doubts: a sentence each.
    held: a sentence on why a log would not accept these as its first times; "" if it would.
    """

    judged: list[Judged]
    num_taken: int
    num_skipped: int
    num_refused: int
    counts: Counter[str]
    refused: Counter[str]
    rounded: Rounded
    absent: list[str]
    odd_keys: OddKeys
    doubts: list[str]
    held: str = ""

    def sentences(self, of_file: Sequence[str] = ()) -> list[str]:
        """A sentence on each reason to correct the records or the settings. of_file: the doubts of
        the file's reader."""
        held = [self.held] if self.held else []
        return [*held, *self.absent, *all_doubts(self.odd_keys, (*self.doubts, *of_file))]

    @property
    def words(self) -> str:
        """The counts as text. The numbers of records after the colon add up to the one before."""
        events = ", ".join(count_noun(n, what) for what, n in self.counts.items()) or "no events"
        # A record may contain several events, of which some may be refused.
        if self.counts.total() != self.num_taken:
            events = f"{self.num_taken:,} with {events}"
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in self.refused.most_common())
        refused = f"{self.num_refused:,} refused"
        if self.refused.total() != self.num_refused:
            refused += f" entirely; {count_noun(self.refused.total(), 'event')} refused"
        if reasons:
            refused += f" ({reasons})"
        records = count_noun(self.num_taken + self.num_skipped + self.num_refused, "record")
        return f"{records}: {events}; {self.num_skipped:,} skipped; {refused}"

    @property
    def reason_for_none(self) -> str:
        """Why no record is an event, as a clause; "" if one is."""
        if self.num_taken:
            return ""
        skipped, refused = count_noun(self.num_skipped, "record"), f"{self.num_refused:,}"
        reasons = [
            f"{skipped} met no `where` of the source, or had no value" if self.num_skipped else "",
            f"{refused} had the errors above" if self.num_refused else "",
        ]
        return " and ".join(filter(None, reasons))


def judge(settings: Settings, sample: Sample, clock: Clock) -> Verdict:
    """Decode a sample's records as ingest would now, in their order.

    Raises: SchemaRegistryError; SettingsError if the settings have no source for the sample.
    """
    schema = schema_of(settings)
    decoder = make_decoder(settings, schema)
    unit = settings.stream.time_unit
    prefixes = _prefixes(settings, sample.topic)
    judged: list[Judged] = []
    num_taken = num_refused = 0
    blocks = [empty_block(schema.edge_feature_dim)]
    mapped = decoder.mapped.get(sample.topic)
    for partition, records in sample.records.items():
        # A tombstone may follow a delete that is just not in the sample, so it is skipped.
        if records and mapped and mapped.lacks_record_before(partition, records[0]):
            records = records[1:]
        block, rejected = decoder.decode(records, partition, clock.now_us(), sample.topic)
        blocks.append(block)
        told: list[Judged] = []
        for row, event in enumerate(block.rows):
            written = as_json(block, row, decoder.keys.keys, unit, schema)
            text = with_named_features(written, settings)
            place = (partition, int(event["offset"]), int(event["item"]))
            told.append(Judged(*place, WORDS[int(event["kind"])], text))
        told += [Judged(partition, r.offset, r.index, r.reason, "", r.error) for r in rejected]
        with_events = {j.offset for j in told if j.event}
        num_taken += len(with_events)
        num_refused += len({j.offset for j in told} - with_events)
        judged += sorted(told, key=lambda j: (j.offset, j.index))
    found = None if settings.ingest.accept_first_times else decoder.other_unit
    refused = Counter(j.what for j in judged if not j.event)
    without = _sentence_without_source(settings, sample.topic) if refused else []
    return Verdict(
        judged,
        num_taken,
        len(sample) - num_taken - num_refused,
        num_refused,
        Counter(j.what for j in judged if j.event),
        refused,
        decoder.rounded,
        _find_absent_paths(settings, sample),
        _odd_keys(blocks, decoder.keys.keys, schema, prefixes),
        [*without, *_doubts_of_ends(blocks, decoder.keys.keys, prefixes)],
        "" if found is None else f"{found.words}; {found.action}",
    )


def check_file(settings: Settings, name: str) -> None:
    """Check that there is such a file, if a name is that of a file: with a folder, or with the
    ending of a file of events, unless ingest reads a topic of that name. Raises: SettingsError."""
    path = Path(name)
    is_file = path.name != name or is_named_as_file(path)
    if is_file and not path.exists() and name not in settings.kafka.topics:
        near = nearest(path.name, [one.name for one in siblings_of(path)])
        hint = f"; did you mean {path.with_name(near)}?" if near else "."
        raise SettingsError(f"There is no file {name}{hint}", "check the path.")


def check_is_read(settings: Settings, topic: str) -> None:
    """Check that ingest would read a topic. Raises: SettingsError."""
    topics = settings.kafka.topics
    if topic not in topics:
        near = nearest_of(topic, topics)
        raise SettingsError(
            f"{topic} is neither a file nor a topic that the settings read{near}.",
            f"check its name, or give it a source; `streamd sources guess {topic}` proposes one.",
        )


def _sentence_without_source(settings: Settings, topic: str) -> list[str]:
    """A sentence on records that no source maps, if other topics have sources."""
    topics = by_topic(settings.sources)
    if not topics or topic in topics:
        return []
    which = f"topic {topic}" if topic else "this file"
    return [
        f"{which} has no source, so its records were read as streamd's own events; there are "
        f"sources of {', '.join(topics)}"
    ]


def _prefixes(settings: Settings, topic: str) -> set[str]:
    """The prefixes that the sources of a topic add to keys."""
    sources = by_topic(settings.sources).get(topic, ())
    return {prefix for source in sources for prefix in source.prefixes()}


def _odd_keys(blocks: list[Block], keys: list[Key], schema: Schema, prefixes: set[str]) -> OddKeys:
    """Find odd keys of the edges in blocks. keys: by the numbers in the blocks."""
    edges = joined([block.take(block.rows["kind"] == EDGE) for block in blocks])
    rows = edges.rows
    # The node sets of the ends are known only if the log has one set of edges.
    one_kind = schema.num_edge_sets == 1 and len(set(schema.ends_of(0))) == 1
    return odd_keys(
        rows["a"],
        rows["b"],
        keys.__getitem__,
        placeholder_ids({key: n for n, key in enumerate(keys)}, schema.num_node_sets, prefixes),
        count_copies(rows["a"], rows["b"], rows["time"], edges.values.__getitem__),
        np.full(len(rows), one_kind),
    )


def _doubts_of_ends(blocks: list[Block], keys: list[Key], prefixes: set[str]) -> list[str]:
    """Sentences on doubtful keys of the edges in blocks."""
    doubts = []
    for name, end in (("src", "a"), ("dst", "b")):
        edges = (block.rows[block.rows["kind"] == EDGE] for block in blocks)
        numbers = {number for rows in edges for number in rows[end].tolist()}
        texts = {_without_prefix(split_key(keys[number])[1], prefixes) for number in numbers}
        doubts.append(doubt_of_decimals(name, texts) or "")
    return list(filter(None, doubts))


def _without_prefix(key: str | int, prefixes: set[str]) -> str | int:
    """A key as in the records, without a source's prefix."""
    if isinstance(key, int):
        return key
    return key.removeprefix(next((p for p in prefixes if key.startswith(p)), ""))


def _find_absent_paths(settings: Settings, sample: Sample) -> list[str]:
    """Find the paths of the sample's sources at which no record has a value."""
    return absent_paths(by_topic(settings.sources).get(sample.topic, ()), sample.all)
