"""Where events go that do not fit: a topic, or bounded local files; acknowledged before the commit that passes them."""

import base64
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from streamd.errors import KafkaError
from streamd.events import Key
from streamd.ingest.client import make_producer
from streamd.settings import Settings
from streamd.storage import write_durably

FOLDER = "deadletter"
MAX_TOPIC_BYTES = 900_000
"""Most of a value that goes to a dead letter topic: a broker takes records of a megabyte by default."""
ACKNOWLEDGED_SECONDS = 20.0
"""Longest wait for a topic to take the letters of a commit; then ingest ends and starts again."""
FIELDS = ("topic", "partition", "offset", "index", "reason", "error")
"""Headers of a dead letter in a topic."""

REASONS = (
    "bad_json", "too_deep", "wrong_type", "unknown_type", "missing_field", "bad_time", "time_ahead", "bad_features",
    "feature_width", "bad_key", "record_too_large", "too_many_events", "empty", "unknown_content_type", "bad_arrow",
    "bad_batch", "tombstone", "unsupported", "node_limit", "late", "unmatched_delete",
)


@dataclass(frozen=True)
class DeadLetter:
    """One event that was not taken. index: place in a batched record, -1 for the whole value. time_us: wall clock.

    content_type: the record's header of that name where the whole value is kept, empty for one event as JSON.
    """

    topic: str
    partition: int
    offset: int
    index: int
    reason: str
    error: str
    time_us: int
    value: bytes
    content_type: str = ""


class DeadLetters(Protocol):
    """Takes dead letters; after `flush` they survive a crash."""

    def add(self, letter: DeadLetter) -> None: ...

    def flush(self) -> None: ...

    def purge(self, keys: Collection[Key]) -> None: ...


class LocalDeadLetters:
    """JSON lines in two files that take turns, so that at most `max_bytes` are kept. Owner: the poll thread."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._half = folder, max(max_bytes // 2, 1)
        folder.mkdir(parents=True, exist_ok=True)
        self._current = folder / "current.jsonl"
        self._fd = os.open(self._current, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._dirty = False

    def add(self, letter: DeadLetter) -> None:
        fields = {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset, "index": letter.index,
                  "reason": letter.reason, "error": letter.error[:500], "time_us": letter.time_us,
                  "content_type": letter.content_type, "num_bytes": len(letter.value),
                  "value_base64": base64.b64encode(letter.value[: self._half // 2]).decode()}
        line = msgspec.json.encode(fields) + b"\n"
        if os.fstat(self._fd).st_size + len(line) > self._half:
            os.fsync(self._fd)
            os.close(self._fd)
            self._current.replace(self._folder / "previous.jsonl")
            self._fd = os.open(self._current, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view):]
        self._dirty = True

    def flush(self) -> None:
        if self._dirty:
            os.fsync(self._fd)
            self._dirty = False


    def purge(self, keys: Collection[Key]) -> None:
        """Take away the letters that speak of some keys; one that cannot be read as JSON goes with them."""
        if not keys:
            return
        for path in (self._folder / "previous.jsonl", self._current):
            if path.exists():
                kept = [line for line in path.read_bytes().splitlines(keepends=True) if not mentions(line, keys)]
                write_durably(path, b"".join(kept))
        os.close(self._fd)
        self._fd = os.open(self._current, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)


def mentions(line: bytes, keys: Collection[Key]) -> bool:
    """Whether a stored letter has one of the keys among its strings and integers, or might have it."""
    try:
        letter = msgspec.json.decode(line)
        value = base64.b64decode(letter["value_base64"])
        if letter["num_bytes"] != len(value) or any(str(k) in letter["error"] for k in keys):
            return True
        parts = [json.loads(part, object_pairs_hook=list) for part in value.splitlines() if part.strip()]
    except (ValueError, RecursionError, KeyError, TypeError):
        return True
    left = parts
    while left:
        part = left.pop()
        if isinstance(part, list | tuple):
            left.extend(part)
        elif part in keys:
            return True
    return False


class TopicDeadLetters:
    """Dead letters as records of a topic: the raw value, with provenance in the headers."""

    def __init__(self, make_producer: Callable[[], Any], topic: str) -> None:
        """make_producer: called with the first letter, so that a start needs no broker."""
        self._make_producer, self._topic = make_producer, topic
        self._producer: Any = None
        self._sent: list[Any] = []

    def purge(self, keys: Collection[Key]) -> None:
        """Nothing: what is in Kafka is out of reach."""

    def add(self, letter: DeadLetter) -> None:
        self._producer = self._producer or self._make_producer()
        headers = [(name, str(getattr(letter, name)).encode()) for name in FIELDS]
        if letter.content_type:
            headers.append(("content-type", letter.content_type.encode()))
        self._sent.append(self._producer.send(self._topic, value=letter.value[:MAX_TOPIC_BYTES], headers=headers))

    def flush(self) -> None:
        if not self._sent:
            return
        try:
            self._producer.flush(ACKNOWLEDGED_SECONDS)
            for future in self._sent:
                future.get(ACKNOWLEDGED_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the letter is not acknowledged
            raise KafkaError(f"A dead letter was not acknowledged by topic {self._topic}: {error}.",
                             "check the topic and its permissions; ingest resumes where it stopped.") from error
        self._sent.clear()


def make_dead_letters(settings: Settings) -> DeadLetters:
    """Where dead letters go by the settings."""
    topic = settings.ingest.dead_letter_topic
    if topic:
        return TopicDeadLetters(lambda: make_producer(settings.kafka), topic)
    return LocalDeadLetters(settings.data_dir / FOLDER, settings.ingest.dead_letter_max_bytes)
