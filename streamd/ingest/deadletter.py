"""Stores of dead letters, which are events that do not fit: a topic, or bounded local files.

Letters are acknowledged before the commit that moves the position past them.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from streamd.errors import DiskError, KafkaError
from streamd.events import Key, split_key
from streamd.settings import Settings
from streamd.storage import DISK, Disk, write_durably

FOLDER = "deadletter"
MAX_TOPIC_BYTES = 900_000
"""Most bytes of a value that go to a topic; brokers take records of a megabyte by default."""
MAX_KEY_BYTES = 50_000
"""Most bytes of a record's key that are kept; value and key together stay below that megabyte."""
MAX_SENT = 10_000
"""Letters sent to a topic and not acknowledged: beyond this `add` waits, which bounds memory."""
ACKNOWLEDGED_SECONDS = 20.0
"""Longest wait for a topic to acknowledge the letters of a commit; then ingest restarts."""
INTEGER = re.compile(r"-?[0-9]{1,19}")
"""Text behind a prefix that may have been an integer."""
FIELDS = ("topic", "partition", "offset", "index", "reason", "error")
"""Headers of a dead letter in a topic."""

REASONS = (
    "bad_json",
    "too_deep",
    "wrong_type",
    "unknown_type",
    "missing_field",
    "bad_time",
    "time_ahead",
    "bad_features",
    "feature_width",
    "unknown_set",
    "bad_key",
    "record_too_large",
    "too_many_events",
    "empty",
    "unknown_content_type",
    "bad_arrow",
    "bad_frame",
    "unknown_schema",
    "bad_schema",
    "bad_avro",
    "bad_protobuf",
    "bad_batch",
    "out_of_memory",
    "tombstone",
    "unsupported",
    "node_limit",
    "late",
    "unmatched_delete",
)


@dataclass(frozen=True)
class DeadLetter:
    """An event that was not taken. index: in a batched record, -1 for the whole value.

    time_us: wall clock. content_type: the record's header of that name where the whole value is
    kept, empty for one event as JSON. key, timestamp_ms: those of the record that the event came
    in, None and -1 where it had none. topic_id: of Kafka, which tells topics of one name that were
    made one after the other; empty where it is not known.
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
    key: bytes | None = None
    timestamp_ms: int = -1
    topic_id: str = ""


class DeadLetters(Protocol):
    """A store of dead letters, which survive a crash after `flush`."""

    def add(self, letter: DeadLetter) -> None: ...

    def flush(self) -> None: ...

    def purge(self, keys: Collection[Key]) -> None: ...


class LocalDeadLetters:
    """Dead letters as JSON lines in two files, of at most `max_bytes`. Owner: the poll thread.

    The current file replaces the previous one where it is full.

    Raises: DiskError where a write or sync fails.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        disk: Disk = DISK,
        prefixes: Collection[str] = (),
    ) -> None:
        """prefixes: those that mappings put before keys, which are not in the records."""
        self._folder = folder
        self._prefixes = prefixes
        # Two files share the limit; when one is full, the one before it is dropped.
        self._half = max(max_bytes // 2, 1)
        self._disk = disk
        folder.mkdir(parents=True, exist_ok=True)
        self._current = folder / "current.jsonl"
        self._dirty = False
        with self._as_disk_error():
            self._open()

    def add(self, letter: DeadLetter) -> None:
        """Write a letter, cut to what the files may hold; `flush` syncs it."""
        # Encode it; the lengths tell whether value and key were cut.
        fields = {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "index": letter.index,
            "reason": letter.reason,
            "error": letter.error[:500],
            "time_us": letter.time_us,
            "content_type": letter.content_type,
            "num_bytes": len(letter.value),
            "value_base64": base64.b64encode(letter.value[: self._half // 2]).decode(),
            "timestamp_ms": letter.timestamp_ms,
        }
        if letter.topic_id:
            fields["topic_id"] = letter.topic_id
        if letter.key is not None:
            kept = letter.key[: min(MAX_KEY_BYTES, self._half // 8)]
            fields |= {
                "num_key_bytes": len(letter.key),
                "key_base64": base64.b64encode(kept).decode(),
            }
        line = msgspec.json.encode(fields) + b"\n"

        # Begin a new file where this one is full.
        with self._as_disk_error():
            if self._size + len(line) > self._half:
                self._disk.sync(self._fd)
                self._disk.close(self._fd)
                self._disk.replace(self._current, self._folder / "previous.jsonl")
                self._open()
            self._disk.write(self._fd, line, self._size)
        self._size += len(line)
        self._dirty = True

    def flush(self) -> None:
        """Sync the letters written since the last call."""
        if self._dirty:
            with self._as_disk_error():
                self._disk.sync(self._fd)
            self._dirty = False

    def purge(self, keys: Collection[Key]) -> None:
        """Remove the letters that mention one of the keys, and those that cannot be searched."""
        if not keys:
            return
        keys = as_sent(keys, self._prefixes)
        with self._as_disk_error():
            self._disk.close(self._fd)
            # The rewrite replaces the files, so `_open` must open the current one again.
            for path in (self._folder / "previous.jsonl", self._current):
                if path.exists():
                    kept = [
                        line
                        for line in path.read_bytes().splitlines(keepends=True)
                        if not mentions(line, keys)
                    ]
                    write_durably(path, b"".join(kept), self._disk)
            self._open()

    def _open(self) -> None:
        """Continue after the last whole line: a torn one would spoil the next letter."""
        self._fd = self._disk.open(self._current, os.O_RDWR | os.O_CREAT)
        self._size = self._current.read_bytes().rfind(b"\n") + 1
        self._disk.truncate(self._fd, self._size)
        self._disk.sync(self._fd)
        self._disk.sync_folder(self._folder)

    @contextmanager
    def _as_disk_error(self) -> Iterator[None]:
        """Turn an error of the disk into one that tells the operator what to do."""
        try:
            yield
        except OSError as error:
            raise DiskError(
                f"A dead letter in {self._folder} could not be written: {error.strerror or error}.",
                "free space or mend the disk; ingest resumes from the last commit by itself.",
            ) from error


def as_sent(keys: Collection[Key], prefixes: Collection[str]) -> set[Key]:
    """The keys, and what records may hold in their place where a mapping makes keys of it."""
    # What was sent holds a key as it is within its node set.
    plain = {split_key(key)[1] for key in keys}
    sent: set[Key] = set(plain)
    for key in plain:
        # Text of digits and the integer make the same key behind a prefix.
        for prefix in prefixes if isinstance(key, str) else ():
            if isinstance(key, str) and key.startswith(prefix):
                rest = key.removeprefix(prefix)
                sent |= {rest, int(rest)} if INTEGER.fullmatch(rest) else {rest}
    return sent


def mentions(line: bytes, keys: Collection[Key]) -> bool:
    """Whether a stored letter has one of the keys among its strings and integers, or may have it.

    A letter that was cut or cannot be parsed may have it. The record's key counts where a node's
    key is any part of it.
    """
    # Parse the value, and search the record's key as text.
    try:
        letter = msgspec.json.decode(line)
        value = base64.b64decode(letter["value_base64"])
        record_key = base64.b64decode(letter.get("key_base64", ""))
        if letter["num_bytes"] != len(value) or letter.get("num_key_bytes", 0) != len(record_key):
            return True  # `error` names nothing that is not in the value
        if any(str(k) in record_key.decode() for k in keys):
            return True
        if b"data_base64" in value:
            return True  # data of a CloudEvent that is not searched
        if b"\\" in record_key:
            return True  # JSON may spell a key with escapes
        parts = [
            json.loads(part, object_pairs_hook=list) for part in value.splitlines() if part.strip()
        ]
    except (ValueError, RecursionError, KeyError, TypeError):
        return True

    # Search all values of all objects, which were parsed as lists of pairs to keep duplicates.
    unseen = parts
    while unseen:
        part = unseen.pop()
        if isinstance(part, list | tuple):
            unseen.extend(part)
        elif part in keys:
            return True
    return False


class TopicDeadLetters:
    """Dead letters as records of a topic: the raw value, with provenance in the headers."""

    def __init__(self, make_producer: Callable[[], Any], topic: str) -> None:
        """make_producer: called for the first letter, so that a start needs no broker."""
        self._make_producer = make_producer
        self._topic = topic
        self._producer: Any = None
        self._sent: list[Any] = []

    def purge(self, keys: Collection[Key]) -> None:
        """Do nothing: records in Kafka cannot be removed one by one."""

    def add(self, letter: DeadLetter) -> None:
        """Send a letter; where too many are under way, wait for them first. Raises: KafkaError."""
        self._producer = self._producer or self._make_producer()
        with self._as_kafka_error():
            self._send(letter)

    def _send(self, letter: DeadLetter) -> None:
        # All but the value goes into headers, so that the value stays as it was sent.
        headers = [(name, str(getattr(letter, name)).encode()) for name in FIELDS]
        if letter.content_type:
            headers.append(("content-type", letter.content_type.encode()))
        headers.append(("timestamp", str(letter.timestamp_ms).encode()))
        if letter.topic_id:
            headers.append(("topic_id", letter.topic_id.encode()))
        if letter.key is not None:
            headers.append(("key", letter.key[:MAX_KEY_BYTES]))

        # A broker that acknowledges slowly must not fill the memory.
        if len(self._sent) >= MAX_SENT:
            self.flush()
        self._sent.append(
            self._producer.send(self._topic, value=letter.value[:MAX_TOPIC_BYTES], headers=headers)
        )

    def flush(self) -> None:
        """Wait until all letters are acknowledged. Raises: KafkaError."""
        if not self._sent:
            return
        with self._as_kafka_error():
            self._producer.flush(ACKNOWLEDGED_SECONDS)
            for future in self._sent:
                future.get(ACKNOWLEDGED_SECONDS)
        self._sent.clear()

    @contextmanager
    def _as_kafka_error(self) -> Iterator[None]:
        """Turn what the client raises into an error that tells the operator what to do."""
        try:
            yield
        except KafkaError:
            raise
        except Exception as error:  # noqa: BLE001 - any error means not acknowledged
            raise KafkaError(
                f"A dead letter was not acknowledged by topic {self._topic}: {error}.",
                "check the topic and its permissions; ingest resumes where it stopped.",
            ) from error


def make_dead_letters(settings: Settings) -> DeadLetters:
    """Make the store of dead letters that the settings name."""
    topic = settings.ingest.dead_letter_topic
    if topic:
        # A server reads local letters only, and needs no Kafka client for it.
        from streamd.ingest.client import make_producer

        return TopicDeadLetters(
            # The topic is the user's, who may leave it to the broker to make it.
            lambda: make_producer(settings.kafka, allow_auto_create_topics=True),
            topic,
        )
    prefixes = {prefix for source in settings.sources for prefix in source.prefixes()}
    most = settings.ingest.dead_letter_max_bytes
    return LocalDeadLetters(settings.data_dir / FOLDER, most, prefixes=prefixes)
