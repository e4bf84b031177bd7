"""The changelog in Kafka: one partition, read by assignment, written by an idempotent producer."""

import contextlib
from collections.abc import Callable
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.errors import OffsetOutOfRangeError

from streamd.errors import KafkaError
from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.ingest.kafka.client import OWN_TOPIC, close_producer, make_consumer, make_producer
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import CHANGELOG, Entry, Read, decode_records
from streamd.settings.loading import KafkaSettings
from streamd.telemetry import replica_metrics

READ_RECORDS = 200
"""Maximum number of records in one read: 200 MB if each has a megabyte."""
ANSWER_SECONDS = 5.0
"""Longest wait for an offset from the brokers: the caller writes no heartbeat meanwhile."""
OVERHEAD_BYTES = 4_096
"""Bytes of a record besides its value, and of its batch."""
SEND_BYTES = 1 << 20
"""Maximum size of a record that is sent, even if the topic admits more: it bounds memory on both
sides."""


class KafkaReader:
    """Reads the changelog's partition, without a consumer group. Owner: one thread."""

    def __init__(
        self,
        kafka: KafkaSettings,
        changelog: ChangelogId,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """changelog: the topic's name, and its ids if the caller compares them with a directory's.
        idle: called after a read without records. Raises: KafkaError."""
        self.changelog = changelog
        self._partition = TopicPartition(changelog.topic, 0)
        self._kafka = kafka
        self._idle = idle
        replica_metrics.stray_records.labels(CHANGELOG)
        self._consumer = make_consumer(kafka)
        self._consumer.assign([self._partition])
        self.position = 0

    def bounds(self) -> tuple[int, int]:
        """Offsets of the first record, and one past the newest. Raises: KafkaError."""
        tp = self._partition
        limit = int(ANSWER_SECONDS * 1000)
        try:
            begin = self._consumer.beginning_offsets([tp], timeout_ms=limit)[tp]
            return begin, self._consumer.end_offsets([tp], timeout_ms=limit)[tp]
        except ClientError as error:
            raise self._unanswered_error(error) from None

    @property
    def lag(self) -> int | None:
        """Number of records after the position, by the broker's newest answer; None before the
        first."""
        end = self._consumer.highwater(self._partition)
        return None if end is None else max(0, end - self.position)

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._partition, offset)
        self.position = offset

    def read(self, seconds: float) -> list[Read]:
        """The next records. Raises: OutOfRange, KafkaError, ChangelogError."""
        try:
            polled = self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=READ_RECORDS)
            records = polled.get(self._partition, [])
            self.position = self._consumer.position(self._partition, timeout_ms=1_000)
        except OffsetOutOfRangeError:
            raise OutOfRange(f"the changelog has no record {self.position} any more") from None
        except ClientError as error:
            raise self._unanswered_error(error) from None
        if not records:
            self._idle()
        return decode_records((r.offset, r.headers, r.value) for r in records)

    def close(self) -> None:
        self._consumer.close()

    def _unanswered_error(self, error: Exception) -> KafkaError:
        return KafkaError(
            f"The changelog {self._partition.topic} cannot be read: {error}.",
            f"check {self._kafka.bootstrap_servers}, kafka.client and this user's rights.",
        )


class KafkaReceipt:
    """The acknowledgement of a record that was sent."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def offset(self) -> int | None:
        """The record's offset, -1 if the broker had stored it before (a duplicate); None before the
        acknowledgement. Raises: KafkaError."""
        if not self._future.is_done:
            return None
        if self._future.failed():
            raise _not_stored_error(self._future.exception)
        return int(self._future.value.offset)

    def wait(self, seconds: float) -> None:
        # `offset` raises the error.
        with contextlib.suppress(ClientError):
            self._future.get(timeout=seconds)


class KafkaProducer:
    """Appends records to the changelog's partition, in order and each once."""

    def __init__(self, kafka: KafkaSettings, topic: str, max_message_bytes: int) -> None:
        """Raises: KafkaError if no broker answers, SettingsError."""
        self._topic = topic
        self.part_bytes = min(max_message_bytes, SEND_BYTES) - OVERHEAD_BYTES
        fixed = {**OWN_TOPIC, "linger_ms": 0, "max_request_size": self.part_bytes + OVERHEAD_BYTES}
        self._producer = make_producer(kafka, fixed)

    def send(self, record: Entry) -> KafkaReceipt:
        """Send a record. Raises: KafkaError."""
        try:
            sent = self._producer.send(
                self._topic, record.value, headers=record.headers(), partition=0
            )
        except ClientError as error:
            raise _not_stored_error(error) from None
        return KafkaReceipt(sent)

    def close(self) -> None:
        """Close the client. Commits without an acknowledgement by now are published again at the
        next start."""
        close_producer(self._producer, 1.0)


def _not_stored_error(error: Exception) -> KafkaError:
    return KafkaError(
        f"The changelog did not store a record: {type(error).__name__} {error}.",
        "check the brokers; ingest restarts, and publishes the missing commits again.",
    )
