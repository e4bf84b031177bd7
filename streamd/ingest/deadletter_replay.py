"""Dead letters read back, and sent again to the topics they came from."""

import base64
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from kafka import TopicPartition

from streamd.errors import KafkaError
from streamd.events import MAX_TIME_US
from streamd.ingest.client import make_consumer, make_producer, send, settle
from streamd.ingest.deadletter import FOLDER, MAX_KEY_BYTES, MAX_TOPIC_BYTES, DeadLetter
from streamd.settings import Settings
from streamd.storage import write_durably

SENT = "replayed.json"
FLUSH_EVERY = 1_000
"""Letters sent before the names of those sent are stored; a crash sends so many again."""
UNREPEATABLE = ("bad_batch", "tombstone")
"""Reasons whose letters lack what was sent: an unreadable batch, and a null value."""
LetterName = tuple[str, int, int, int]
"""Topic, partition, offset and index of the event."""


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter read back. whole: whether value and key were kept in full.

    Letters of releases that kept no keys and timestamps have None and -1.
    """

    letter: DeadLetter
    whole: bool

    @property
    def name(self) -> LetterName:
        """Where the event was, which names the letter."""
        return self.letter.topic, self.letter.partition, self.letter.offset, self.letter.index


def read_letters(settings: Settings) -> Iterator[StoredLetter]:
    """Read all dead letters, oldest first: of the topic where one is set, else the local files."""
    topic = settings.ingest.dead_letter_topic
    return _of_topic(settings, topic) if topic else _of_files(settings.data_dir / FOLDER)


def _of_files(folder: Path) -> Iterator[StoredLetter]:
    """Letters of the two local files; a line that cannot be read is passed over."""
    for name in ("previous.jsonl", "current.jsonl"):
        path = folder / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            # Letters of older releases lack the fields of the key and the timestamp.
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

            # Shorter than it came: the writer cut the value or the key.
            yield StoredLetter(
                letter,
                len(value) == f["num_bytes"] and len(key or b"") == f.get("num_key_bytes", 0),
            )


def _of_topic(settings: Settings, topic: str) -> Iterator[StoredLetter]:
    """Letters of a topic up to its present end. Raises: KafkaError where it does not exist."""
    consumer = make_consumer(settings.kafka)
    try:
        partitions = [
            TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        if not partitions:
            raise KafkaError(f"There is no topic {topic}.", "check ingest.dead_letter_topic.")

        # The ends are read once: letters that arrive meanwhile are left for another run.
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        # Positions are compared, since the last offsets may be markers that give no record.
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                for record in records:
                    stored = _from_record(record)
                    if stored is not None:
                        yield stored
    finally:
        consumer.close()


def _from_record(record: Any) -> StoredLetter | None:
    """The letter in a record; None where its headers are not those of a letter."""
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
        )
    except (KeyError, ValueError):
        return None

    # The topic does not say what was cut: a value or key of the full length may have been.
    return StoredLetter(
        letter, len(letter.value) < MAX_TOPIC_BYTES and len(key or b"") < MAX_KEY_BYTES
    )


class Replayed(NamedTuple):
    """Numbers of letters. before: sent earlier. broken: not whole. foreign: of a topic that is not
    in `kafka.topics`."""

    sent: int
    before: int
    broken: int
    foreign: int


def replay(settings: Settings, reasons: Collection[str], again: bool) -> Replayed:
    """Send letters to the topics they came from, with the key and timestamp of their records.

    The topic is what a letter says, and anybody may have written it. So only topics in
    `kafka.topics` get letters.

    Args: reasons: which letters, all where empty; again: also those sent before.
    Raises: KafkaError where one was not acknowledged; those before it count as sent.
    """
    # Choose the letters, each once.
    path = settings.data_dir / FOLDER / SENT
    before: set[LetterName] = (
        set(msgspec.json.decode(path.read_bytes(), type=list[LetterName]))
        if path.exists()
        else set()
    )
    present: set[LetterName] = set()
    chosen = []
    skipped = 0
    broken = 0
    foreign = 0
    for stored in read_letters(settings):
        if stored.name in present:
            continue  # a crash may leave a letter twice
        present.add(stored.name)
        if reasons and stored.letter.reason not in reasons:
            continue
        if stored.letter.topic not in settings.kafka.topics:
            foreign += 1
        elif not stored.whole or stored.letter.reason in UNREPEATABLE:
            broken += 1
        elif stored.name in before and not again:
            skipped += 1
        else:
            chosen.append(stored)

    # Send them part by part, and remember what was acknowledged.
    done = before & present
    producer = make_producer(settings.kafka) if chosen else None
    try:
        for first in range(0, len(chosen), FLUSH_EVERY):
            part = chosen[first : first + FLUSH_EVERY]
            _send(producer, part)
            # Acknowledged, so they count as sent even if the next part fails.
            done |= {f.name for f in part}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, msgspec.json.encode(sorted(done)))
    finally:
        if producer is not None:
            producer.close()
    return Replayed(len(chosen), skipped, broken, foreign)


def _send(producer: Any, part: list[StoredLetter]) -> None:
    """Send letters and wait for all of them. Raises: KafkaError."""
    futures = []
    for stored in part:
        letter = stored.letter
        headers = [("content-type", letter.content_type.encode())] if letter.content_type else []
        # A record without a timestamp gets the time at which it was refused.
        known = 0 <= letter.timestamp_ms <= MAX_TIME_US // 1000
        stamp = letter.timestamp_ms if known else letter.time_us // 1000
        futures.append(
            send(
                producer,
                letter.topic,
                value=letter.value,
                key=letter.key,
                headers=headers,
                timestamp_ms=stamp,
            )
        )
    settle(producer, futures)
