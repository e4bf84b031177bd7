"""Dead letters read back, and sent again to the topics they came from once what was wrong is
mended."""

import base64
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from kafka import TopicPartition

from streamd.errors import KafkaError
from streamd.events import MAX_TIME_US
from streamd.ingest.client import make_consumer, make_producer, settle
from streamd.ingest.deadletter import FOLDER, MAX_KEY_BYTES, MAX_TOPIC_BYTES, DeadLetter
from streamd.settings import Settings
from streamd.storage import write_durably

SENT = "replayed.json"
FLUSH_EVERY = 1_000
UNREPEATABLE = ("bad_batch", "tombstone")
"""Reasons whose letters do not hold what was sent: a batch that could not be opened, and a null
value."""
Name = tuple[str, int, int, int]


@dataclass(frozen=True)
class Found:
    """A dead letter read back. whole: whether all bytes of value and key are there.

    Letters written before keys and timestamps were kept have None and -1.
    """

    letter: DeadLetter
    whole: bool

    @property
    def name(self) -> Name:
        """Where the event was: topic, partition, offset, index."""
        return self.letter.topic, self.letter.partition, self.letter.offset, self.letter.index


def read_letters(settings: Settings) -> Iterator[Found]:
    """All dead letters kept, oldest first: of the topic where one is set, of the local files
    otherwise."""
    topic = settings.ingest.dead_letter_topic
    return _of_topic(settings, topic) if topic else _of_files(settings.data_dir / FOLDER)


def _of_files(folder: Path) -> Iterator[Found]:
    for name in ("previous.jsonl", "current.jsonl"):
        path = folder / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                f = msgspec.json.decode(line)
                value = base64.b64decode(f["value_base64"])
                key = base64.b64decode(f["key_base64"]) if "key_base64" in f else None
                letter = DeadLetter(
                    topic=f["topic"],
                    partition=f["partition"],
                    offset=f["offset"],
                    index=f["index"],
                    reason=f["reason"],
                    error=f["error"],
                    time_us=f["time_us"],
                    value=value,
                    content_type=f["content_type"],
                    key=key,
                    timestamp_ms=f.get("timestamp_ms", -1),
                )
            except (ValueError, KeyError, TypeError):
                continue  # a line that a crash tore
            yield Found(
                letter,
                len(value) == f["num_bytes"] and len(key or b"") == f.get("num_key_bytes", 0),
            )


def _of_topic(settings: Settings, topic: str) -> Iterator[Found]:
    consumer = make_consumer(settings.kafka)
    try:
        partitions = [
            TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        if not partitions:
            raise KafkaError(f"There is no topic {topic}.", "check ingest.dead_letter_topic.")
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    found = _from_record(record)
                    if found is not None:
                        yield found
    finally:
        consumer.close()


def _from_record(record: Any) -> Found | None:
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
        )
    except (KeyError, ValueError):
        return None
    return Found(letter, len(letter.value) < MAX_TOPIC_BYTES and len(key or b"") < MAX_KEY_BYTES)


class Replayed(NamedTuple):
    """Numbers of letters: sent now, sent before, not whole, and naming a topic not in
    `kafka.topics`."""

    sent: int
    before: int
    broken: int
    foreign: int


def replay(settings: Settings, reasons: Collection[str], again: bool) -> Replayed:
    """Send letters to the topics they came from, each once, with key and timestamp of their
    records.

    A letter's topic is only what its writer claims: one that is not in `kafka.topics` gets nothing.
    Args: reasons: which letters, all where empty; again: also those sent before.
    Raises: KafkaError where one was not acknowledged; those before it count as sent.
    """
    path = settings.data_dir / FOLDER / SENT
    before: set[Name] = (
        set(msgspec.json.decode(path.read_bytes(), type=list[Name])) if path.exists() else set()
    )
    present: set[Name] = set()
    chosen = []
    skipped = 0
    broken = 0
    foreign = 0
    for found in read_letters(settings):
        if found.name in present:
            continue  # a crash may leave a letter twice
        present.add(found.name)
        if reasons and found.letter.reason not in reasons:
            continue
        if found.letter.topic not in settings.kafka.topics:
            foreign += 1
        elif not found.whole or found.letter.reason in UNREPEATABLE:
            broken += 1
        elif found.name in before and not again:
            skipped += 1
        else:
            chosen.append(found)
    done = before & present
    producer = make_producer(settings.kafka) if chosen else None
    try:
        for at in range(0, len(chosen), FLUSH_EVERY):
            part = chosen[at : at + FLUSH_EVERY]
            _send(producer, part)
            done |= {f.name for f in part}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, msgspec.json.encode(sorted(done)))
    finally:
        if producer is not None:
            producer.close()
    return Replayed(len(chosen), skipped, broken, foreign)


def _send(producer: Any, part: list[Found]) -> None:
    futures = []
    for found in part:
        letter = found.letter
        headers = [("content-type", letter.content_type.encode())] if letter.content_type else []
        known = 0 <= letter.timestamp_ms <= MAX_TIME_US // 1000
        stamp = letter.timestamp_ms if known else letter.time_us // 1000
        futures.append(
            producer.send(
                letter.topic,
                value=letter.value,
                key=letter.key,
                headers=headers,
                timestamp_ms=stamp,
            )
        )
    settle(producer, futures)
