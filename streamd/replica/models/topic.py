"""The models topic `<log.name>.models` in Kafka: one partition, read from its first record."""

import time
from typing import Any, Protocol

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError, reason_of
from streamd.ingest.kafka.client import (
    OWN_TOPIC,
    close_producer,
    make_admin,
    make_consumer,
    make_producer,
)
from streamd.replica.changelog.topics import ensure_topic, find_topic
from streamd.settings.loading import KafkaSettings
from streamd.store.changelog import models_topic

ACKNOWLEDGED_SECONDS = 20.0
"""Longest wait for a record's acknowledgement; after that, a read of the topic shows whether the
record arrived."""
READ_SECONDS = 60.0
"""Longest wait for records that the topic has."""
POLLED = 1000
"""Maximum number of records of one poll: each is at most 1 MiB, nearly all are below 1 KiB."""


class ModelsTopic(Protocol):
    """The interface of the topic on each machine; tests have one in memory."""

    def read(self, wait_seconds: float) -> list[bytes | None]:
        """Read the values of all records up to the end; if there are none, wait for them. Raises:
        KafkaError, also if the topic lost its first records since it was opened; then it must be
        opened and read again."""

    def append(self, value: bytes) -> None:
        """Append a record and wait until it is acknowledged. Raises: KafkaError without an
        acknowledgement; the record may have arrived all the same."""

    def close(self) -> None:
        """Close the connections."""


class KafkaModelsTopic:
    """The topic in Kafka. Owner: one thread."""

    def __init__(self, kafka: KafkaSettings, log_name: str, make: bool = False) -> None:
        """log_name: `log.name`, which names the topic. make: whether to create a missing topic;
        only the trainer does. Raises: KafkaError, also if it is missing and not created;
        ChangelogError."""
        self._kafka = kafka
        self._partition = TopicPartition(models_topic(log_name), 0)
        self._consumer: Any = None
        self._begin = 0
        """Offset of the first record when it was opened; not 0 if the topic was trimmed."""
        self._producer: Any = None
        admin = make_admin(kafka)
        try:
            if make:
                ensure_topic(admin, kafka, self._partition.topic)
            elif find_topic(admin, kafka, self._partition.topic) is None:
                raise KafkaError(
                    f"{kafka.bootstrap_servers} has no topic {self._partition.topic}.",
                    "start the trainer, which creates it; if it runs, check log.name and broker.",
                )
        finally:
            admin.close()

    def read(self, wait_seconds: float) -> list[bytes | None]:
        """As in `ModelsTopic`."""
        partition = self._partition
        try:
            if self._consumer is None:
                consumer = make_consumer(self._kafka)
                consumer.assign([partition])
                self._begin = consumer.beginning_offsets([partition])[partition]
                consumer.seek(partition, self._begin)
                self._consumer = consumer
            begin = self._consumer.beginning_offsets([partition])[partition]
            if begin != self._begin:
                raise KafkaError(
                    f"Topic {partition.topic} begins at {begin}: records were deleted.",
                    "find out why records are deleted; the trainer sends missing ones again.",
                )
            end = self._consumer.end_offsets([partition])[partition]
            if self._consumer.position(partition) > end:
                raise KafkaError(
                    f"Topic {partition.topic} ends at {end}, before the position read so far.",
                    "it was created again: the trainer sends models/ again.",
                )
            values = []
            deadline = time.monotonic() + max(wait_seconds, READ_SECONDS)
            wait_ms = int(1000 * wait_seconds)
            while True:
                polled = self._consumer.poll(timeout_ms=wait_ms, max_records=POLLED)
                values += [record.value for records in polled.values() for record in records]
                if self._consumer.position(partition) >= end:
                    return values
                if time.monotonic() > deadline:
                    raise KafkaError(
                        f"Topic {partition.topic} was not read to its end in {READ_SECONDS:.0f} s.",
                        "check the broker.",
                    )
                wait_ms = 500
        except ClientError as error:
            raise KafkaError(
                f"Topic {partition.topic} cannot be read: {error}.", "check the broker."
            ) from None

    def append(self, value: bytes) -> None:
        """As in `ModelsTopic`."""
        try:
            if self._producer is None:
                self._producer = make_producer(self._kafka, OWN_TOPIC)
            sent = self._producer.send(self._partition.topic, value=value, partition=0)
            self._producer.flush(ACKNOWLEDGED_SECONDS)
            sent.get(ACKNOWLEDGED_SECONDS)
        except ClientError as error:
            # Its unsent records must not arrive after later decisions.
            self._drop_producer()
            raise KafkaError(
                f"Topic {self._partition.topic} did not acknowledge a record: {reason_of(error)}.",
                "check the broker.",
            ) from None

    def _drop_producer(self) -> None:
        if self._producer is not None:
            close_producer(self._producer)
            self._producer = None

    def close(self) -> None:
        """As in `ModelsTopic`."""
        self._drop_producer()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
