"""Reads stored dead letters, and sends them again to their original topics."""

import base64
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.errors import OffsetOutOfRangeError

from streamd.errors import CorruptionError, KafkaError
from streamd.events import MAX_TIME_US
from streamd.ingest.dead_letters.purge import FILES, FOLDER
from streamd.ingest.dead_letters.sinks import MAX_KEY_BYTES, MAX_TOPIC_BYTES, DeadLetter
from streamd.ingest.kafka.client import make_consumer, make_producer, settle
from streamd.ingest.kafka.consumer import ANSWER_MS
from streamd.settings.loading import Settings
from streamd.storage import write_durably

logger = structlog.get_logger()
SENT = "replayed.json"
FLUSH_EVERY = 1_000
"""Number of letters sent between two writes of the list of sent ones: after a crash at most so many
are sent twice."""
UNREPEATABLE = ("bad_batch", "tombstone")
"""Reasons of letters without the original value: the batch was unreadable, or the value was
null."""
SILENT_SECONDS = 30.0
"""Longest wait for further letters of a topic, which may have been removed meanwhile."""


class LetterName(NamedTuple):
    """The position of a letter's event. topic_id: as in `DeadLetter`; empty in letters of older
    releases."""

    topic: str
    partition: int
    offset: int
    event_index: int
    topic_id: str = ""


class Repeated(NamedTuple):
    """A letter as a record for its topic. timestamp: milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class _Line(msgspec.Struct):
    """A letter as a line of the local files. Older releases kept no keys, timestamps and ids."""

    topic: str
    partition: int
    offset: int
    index: int
    reason: str
    error: str
    time_us: int
    content_type: str
    num_bytes: int
    value_base64: str
    num_key_bytes: int = 0
    key_base64: str | None = None
    timestamp_ms: int = -1
    topic_id: str = ""


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter read back. whole: whether value and key were kept in full.

    Letters of releases that kept no keys and timestamps have None and -1.
    """

    letter: DeadLetter
    whole: bool

    @property
    def name(self) -> LetterName:
        """The position of the event, which identifies the letter."""
        own = self.letter
        return LetterName(own.topic, own.partition, own.offset, own.index, own.topic_id)


def read_letters(settings: Settings) -> Iterator[StoredLetter]:
    """Read all dead letters, oldest first: from the topic `ingest.dead_letter_topic` if it is set,
    else from the local files."""
    topic = settings.ingest.dead_letter_topic
    return _of_topic(settings, topic) if topic else _of_files(settings.data_dir / FOLDER)


def _of_files(folder: Path) -> Iterator[StoredLetter]:
    """Letters of the two local files; unreadable lines are skipped."""
    for name in FILES:
        path = folder / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                f = msgspec.json.decode(line, type=_Line)
                value = base64.b64decode(f.value_base64)
                key = None if f.key_base64 is None else base64.b64decode(f.key_base64)
            except ValueError:
                continue  # a line torn by a crash
            letter = DeadLetter(
                topic=f.topic,
                partition=f.partition,
                offset=f.offset,
                index=f.index,
                reason=f.reason,
                error=f.error,
                time_us=f.time_us,
                value=value,
                content_type=f.content_type,
                key=key,
                timestamp_ms=f.timestamp_ms,
                topic_id=f.topic_id,
            )

            # If value or key is shorter than the original, the writer cut it.
            whole = len(value) == f.num_bytes and len(key or b"") == f.num_key_bytes
            yield StoredLetter(letter, whole)


def _of_topic(settings: Settings, topic: str) -> Iterator[StoredLetter]:
    """Letters of a topic up to its present end; other records are skipped and counted. Raises:
    KafkaError if the topic does not exist or stops sending."""
    num_strange = 0
    try:
        with closing(make_consumer(settings.kafka)) as consumer:
            for record in _records_of(consumer, topic):
                stored = _from_record(record)
                if stored is None:
                    num_strange += 1
                else:
                    yield stored
    except ClientError as error:
        raise KafkaError(
            f"The dead letters of topic {topic} cannot be read: {error}.", "check the broker."
        ) from error
    if num_strange:
        logger.warning(
            "records_skipped",
            topic=topic,
            count=num_strange,
            why="their headers are not those of dead letters",
        )


def _records_of(consumer: Any, topic: str) -> Iterator[Any]:
    """The records of a topic up to its present end. Raises: KafkaError, ClientError."""
    partitions = [
        TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())
    ]
    if not partitions:
        raise KafkaError(
            f"The topic of dead letters, {topic}, does not exist.",
            "check ingest.dead_letter_topic.",
        )

    # Read the end offsets once: letters that arrive later are left for another run.
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions, ANSWER_MS)
    heard = time.monotonic()
    # Compare positions, because the last offsets may be transaction markers without a record.
    while any(consumer.position(tp, ANSWER_MS) < ends[tp] for tp in partitions):
        try:
            polled = consumer.poll(timeout_ms=500)
        except OffsetOutOfRangeError:
            # Retention removed letters meanwhile: continue with the remaining ones.
            first = consumer.beginning_offsets(partitions, ANSWER_MS)
            for tp in partitions:
                consumer.seek(tp, max(first[tp], consumer.position(tp, ANSWER_MS)))
            polled = {}
        for records in polled.values():
            yield from records
        if polled:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENT_SECONDS:
            raise KafkaError(
                f"Topic {topic} has more dead letters, but sent none for {SILENT_SECONDS:g} s.",
                "try again; the topic may have been removed or created again meanwhile.",
            )


def _from_record(record: Any) -> StoredLetter | None:
    """The letter in a record; None if its headers are not those of a letter."""
    # All headers but the key are text.
    raw = dict(record.headers or ())
    headers = {name: (value or b"").decode(errors="replace") for name, value in raw.items()}
    key = raw.get("key")
    try:
        letter = DeadLetter(
            topic=headers["topic"],
            partition=int(headers["partition"]),
            offset=int(headers["offset"]),
            index=int(headers["index"]),
            reason=headers["reason"],
            error=headers["error"],
            time_us=record.timestamp * 1000,
            value=record.value or b"",
            content_type=headers.get("content-type", ""),
            key=key,
            timestamp_ms=int(headers.get("timestamp", "-1")),
            topic_id=headers.get("topic_id", ""),
        )
    except (KeyError, ValueError):
        return None

    # The topic does not record cuts: a value or key of the maximum length may have been cut.
    return StoredLetter(
        letter, len(letter.value) < MAX_TOPIC_BYTES and len(key or b"") < MAX_KEY_BYTES
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The letters to send in a replay, and counts of the others.

    sent: names of all stored letters that were sent before. before: letters left out because they
    were sent before. broken: letters that were cut or lack the original value. foreign: letters of
    topics that are not in `kafka.topics`. topics: those of all stored letters.
    """

    letters: list[StoredLetter]
    sent: set[LetterName]
    before: int
    broken: int
    foreign: int
    topics: frozenset[str]


def read_sent_names(settings: Settings) -> set[LetterName]:
    """Read the names of the letters that were sent again. Raises: CorruptionError."""
    path = settings.data_dir / FOLDER / SENT
    if not path.exists():
        return set()
    try:
        return set(msgspec.json.decode(path.read_bytes(), type=list[LetterName]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{path}, the list of dead letters that were sent again, cannot be read: {error}.",
            "restore it from a backup; or remove it, then all letters count as not sent.",
        ) from None


def plan(
    settings: Settings, reasons: Collection[str], topics: Collection[str], again: bool
) -> Plan:
    """Choose the letters to send, each once.

    A letter's topic is text in the letter, which anyone with access to the store may have written.
    So only topics in `kafka.topics` get letters.

    Args: reasons, topics: of the letters to send, empty for all; again: send also letters that were
    sent before. Raises: CorruptionError, KafkaError.
    """
    sent = read_sent_names(settings)
    present: set[LetterName] = set()
    found: set[str] = set()
    chosen = []
    skipped = broken = foreign = 0
    for stored in read_letters(settings):
        letter = stored.letter
        found.add(letter.topic)
        if stored.name in present:
            continue  # a crash may store a letter twice
        present.add(stored.name)
        if (reasons and letter.reason not in reasons) or (topics and letter.topic not in topics):
            continue
        if letter.topic not in settings.kafka.topics:
            foreign += 1
        elif not stored.whole or letter.reason in UNREPEATABLE:
            broken += 1
        elif stored.name in sent and not again:
            skipped += 1
        else:
            chosen.append(stored)
    return Plan(
        letters=chosen,
        sent=sent & present,
        before=skipped,
        broken=broken,
        foreign=foreign,
        topics=frozenset(found),
    )


def send(settings: Settings, chosen: Plan) -> None:
    """Send letters to their original topics, with the key and timestamp of their records.

    For each FLUSH_EVERY letters:

    1. Send them, and wait until Kafka has acknowledged all.
    2. Store their names durably, so that the next replay leaves them out.

    A failure between the steps sends these letters again in the next replay.

    Raises: KafkaError if a letter was not acknowledged; only earlier parts count as sent.
    """
    path = settings.data_dir / FOLDER / SENT
    sent = set(chosen.sent)
    producer = make_producer(settings.kafka) if chosen.letters else None
    try:
        for first in range(0, len(chosen.letters), FLUSH_EVERY):
            part = chosen.letters[first : first + FLUSH_EVERY]
            _send(producer, part)
            # 2. Store their names, before the next part is sent.
            sent |= {stored.name for stored in part}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, msgspec.json.encode(sorted(sent)))
    finally:
        if producer is not None:
            producer.close()


def as_record(letter: DeadLetter, offset: int = 0) -> Repeated:
    """The record to send for a letter. offset: of the record, if it is decoded here."""
    headers = [("content-type", letter.content_type.encode())] if letter.content_type else []
    # A record without a timestamp gets the time at which it was refused.
    known = 0 <= letter.timestamp_ms <= MAX_TIME_US // 1000
    stamp = letter.timestamp_ms if known else letter.time_us // 1000
    return Repeated(offset, max(stamp, 0), letter.key, letter.value, headers)


def _send(producer: Any, part: list[StoredLetter]) -> None:
    """Send letters and wait for all of them. Raises: KafkaError."""
    futures = []
    for stored in part:
        record = as_record(stored.letter)
        try:
            future = producer.send(
                stored.letter.topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                timestamp_ms=record.timestamp,
            )
        except ClientError as error:
            where = (
                f"{stored.letter.topic}/{stored.letter.partition}, offset {stored.letter.offset}"
            )
            raise KafkaError(
                f"The dead letter of {where} cannot be sent: {error}.",
                "check the topic, and max_request_size in kafka.client.",
            ) from error
        futures.append(future)
    settle(producer, futures)
