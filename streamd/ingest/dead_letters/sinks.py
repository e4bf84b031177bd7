"""Stores of dead letters (refused events): a topic, or bounded local files.

A letter is durable before the commit that moves the position past its record.
"""

import base64
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path
from typing import Any, Protocol

import msgspec

from streamd.errors import KafkaError, reason_of
from streamd.events import Key
from streamd.ingest.dead_letters.purge import FILES, FOLDER, LetterPurge, as_disk_error, lock_of
from streamd.settings.loading import Settings
from streamd.storage import DISK, Disk

MAX_TOPIC_BYTES = 900_000
"""Maximum size of a value in a topic, in bytes; brokers accept records of a megabyte by default."""
MAX_KEY_BYTES = 50_000
"""Maximum size of a stored record key, in bytes; value and key together stay below that
megabyte."""
MAX_SENT = 10_000
"""Maximum number of unacknowledged letters: at this number `add` waits, which bounds memory."""
ACKNOWLEDGED_SECONDS = 20.0
"""Longest wait for a topic to acknowledge the letters of a commit; then ingest restarts."""
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
    """A refused event. index: of the event in its record, -1 for the whole value.

    time_us: wall clock at the refusal, microseconds. content_type: header for a replay. For the
    whole value it is the record's own header; for one event as JSON it is empty or names streamd's
    own events. key, timestamp_ms: of the event's record, None and -1 if it had none. topic_id:
    Kafka's id, which distinguishes a topic from an earlier one of the same name; empty if unknown.
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

    def purge(self, keys: Collection[Key]) -> Iterable[None]: ...


class LocalDeadLetters:
    """Dead letters as JSON lines in two files, together at most `max_bytes`. Owner: the poll
    thread.

    The current file replaces the previous one when it is full.

    Raises: DiskError if a write or sync fails.
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
        self._previous, self._current = (folder / name for name in FILES)
        self._dirty = False
        self._fd = -1
        """Descriptor of the current file; -1 if it must be opened again."""
        self._size = 0
        with as_disk_error(folder):
            LetterPurge(folder, prefixes, disk).sweep()
            with lock_of(folder):
                self._open()

    def add(self, letter: DeadLetter) -> None:
        """Write a letter, cut to the limits of the files; `flush` makes it durable."""
        # Encode the letter; the lengths show whether value and key were cut.
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

        # Start a new file if this one is full.
        with as_disk_error(self._folder), lock_of(self._folder):
            self._follow_file()
            if self._size + len(line) > self._half:
                self._disk.sync(self._fd)
                self._disk.close(self._fd)
                self._fd = -1
                self._disk.replace(self._current, self._previous)
                self._open()
            self._disk.write(self._fd, line, self._size)
        self._size += len(line)
        self._dirty = True

    def flush(self) -> None:
        """Make the letters written since the last call durable."""
        with as_disk_error(self._folder):
            if self._fd < 0:
                with lock_of(self._folder):
                    self._open()
            elif self._dirty:
                # A purge that has replaced the file has copied these letters durably.
                self._disk.sync(self._fd)
        self._dirty = False

    def purge(self, keys: Collection[Key]) -> Iterator[None]:
        """Remove the letters that contain one of the keys, as `LetterPurge.remove` does."""
        return LetterPurge(self._folder, self._prefixes, self._disk).remove(keys)

    def _follow_file(self) -> None:
        """Open the current file again if a purge, perhaps of another process, has replaced it:
        letters would be lost with the old one."""
        if self._fd >= 0 and not _is_open(self._current, self._fd):
            # The next letter must go to the new file, even if a call below fails.
            fd, self._fd = self._fd, -1
            self._disk.close(fd)
        if self._fd < 0:
            self._open()

    def _open(self) -> None:
        """Open the current file and truncate it after its last complete line: a torn line would
        corrupt the next letter."""
        fd = self._disk.open(self._current, os.O_RDWR | os.O_CREAT)
        try:
            self._size = self._current.read_bytes().rfind(b"\n") + 1
            self._disk.truncate(fd, self._size)
            self._disk.sync(fd)
            self._disk.sync_folder(self._folder)
        except OSError:
            self._disk.close(fd)
            raise
        self._fd = fd


def _is_open(path: Path, fd: int) -> bool:
    """Whether a descriptor is that of the file at a path."""
    try:
        return samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


class TopicDeadLetters:
    """Dead letters as records of a topic: the raw value, with provenance in the headers."""

    def __init__(
        self, make_producer: Callable[[], Any], topic: str, local: LetterPurge | None = None
    ) -> None:
        """make_producer: called for the first letter, so that a start needs no broker. local:
        purges the files of letters from before the topic was set."""
        self._make_producer = make_producer
        self._topic = topic
        self._local = local
        self._producer: Any = None
        self._sent: list[Any] = []

    def purge(self, keys: Collection[Key]) -> Iterable[None]:
        """Remove letters from the local files: records in Kafka cannot be removed one by one."""
        return () if self._local is None else self._local.remove(keys)

    def add(self, letter: DeadLetter) -> None:
        """Send a letter; if too many are in flight, wait for them first. Raises: KafkaError."""
        self._producer = self._producer or self._make_producer()
        with self._as_kafka_error():
            self._send(letter)

    def _send(self, letter: DeadLetter) -> None:
        # All other fields go into headers, so that the value stays unchanged.
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
        """Wait until all letters are acknowledged. Raises: KafkaError; then the caller sends all
        letters since its last commit again."""
        # A letter that failed once would fail here for ever.
        sent, self._sent = self._sent, []
        if not sent:
            return
        with self._as_kafka_error():
            self._producer.flush(ACKNOWLEDGED_SECONDS)
            for future in sent:
                future.get(ACKNOWLEDGED_SECONDS)

    @contextmanager
    def _as_kafka_error(self) -> Iterator[None]:
        """Convert any error of the client to a KafkaError with an action for the operator."""
        try:
            yield
        except KafkaError:
            raise
        except Exception as error:  # noqa: BLE001 - any error means not acknowledged
            raise KafkaError(
                f"Topic {self._topic} did not acknowledge a dead letter: {reason_of(error)}.",
                "check the topic and its permissions; ingest resumes from the last commit.",
            ) from error


def make_purge(settings: Settings) -> LetterPurge:
    """Make the purge of the local files; they may have letters although a topic is set now."""
    prefixes = {prefix for source in settings.sources for prefix in source.prefixes()}
    return LetterPurge(settings.data_dir / FOLDER, prefixes)


def make_dead_letters(settings: Settings) -> DeadLetters:
    """Make the store of dead letters that the settings configure."""
    topic = settings.ingest.dead_letter_topic
    if topic:
        # Imported here because a server, which reads local letters only, needs no Kafka client.
        from streamd.ingest.kafka.client import make_producer

        return TopicDeadLetters(
            # The topic belongs to the user, who may let the broker create it.
            lambda: make_producer(settings.kafka, allow_auto_create_topics=True),
            topic,
            make_purge(settings),
        )
    prefixes = {prefix for source in settings.sources for prefix in source.prefixes()}
    most = settings.ingest.dead_letter_max_bytes
    return LocalDeadLetters(settings.data_dir / FOLDER, most, prefixes=prefixes)
