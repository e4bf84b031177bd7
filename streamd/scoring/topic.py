"""The score topic in Kafka: written by an idempotent producer, and read at its end to find the
position at which to resume."""

from collections.abc import Sequence
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError
from streamd.ingest.kafka.bounded_read import read_offsets
from streamd.ingest.kafka.client import (
    asking_about_topics,
    close_producer,
    make_consumer,
    make_producer,
)
from streamd.scoring.outbox import Receipt
from streamd.scoring.record import HEADERS, ScoreRecord, decode
from streamd.settings.loading import KafkaSettings

FIXED = {"acks": "all", "enable_idempotence": True}
"""Settings on which delivery depends; `kafka.client` cannot change them."""
OWN = {
    # The topic is the user's, who may let the broker create it.
    "allow_auto_create_topics": True,
    # A few milliseconds collect the records of one pass into one request.
    "linger_ms": 2,
    # Waits are bounded: the loop also has to move its graph.
    "max_block_ms": 2_000,
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
}
LAST = 20
"""Number of newest records of each partition that are read: records of other logs may follow this
log's."""


class SentReceipt:
    def __init__(self, futures: Sequence[Any]) -> None:
        self._futures = futures

    def is_written(self) -> bool:
        for future in self._futures:
            if not future.is_done:
                return False
            if future.failed():
                raise _not_taken(future.exception)
        return True


class KafkaSink:
    """A producer of the topic, and of the one for alarms. Owner: the outbox."""

    def __init__(self, kafka: KafkaSettings, topic: str, alarm_topic: str = "") -> None:
        """Raises: KafkaError if no broker answers, SettingsError."""
        self._topic = topic
        self._alarm_topic = alarm_topic
        self._producer = make_producer(kafka, FIXED, **OWN)
        # Ask for the topic's brokers at once, so that no record waits for that.
        try:
            for name in filter(None, (topic, alarm_topic)):
                self._producer.partitions_for(name)
        except ClientError as error:
            self.abandon()
            raise _not_taken(error) from None

    def send(self, key: bytes, value: bytes, alarm: bytes | None = None) -> Receipt:
        """Send a score, and its alarm if it has one. Raises: KafkaError."""
        records = [(self._topic, value)]
        if alarm is not None:
            records.append((self._alarm_topic, alarm))
        try:
            return SentReceipt(
                [self._producer.send(topic, one, key, list(HEADERS)) for topic, one in records]
            )
        except ClientError as error:
            raise _not_taken(error) from None

    def abandon(self) -> None:
        # The outbox still has the unsent records, for the next sink.
        close_producer(self._producer)


def read_end(kafka: KafkaSettings, topic: str) -> list[ScoreRecord]:
    """Read the last records of each partition, skipping any that are no scores. Raises:
    KafkaError."""
    consumer = make_consumer(kafka)
    try:
        numbers = consumer.partitions_for_topic(topic)
        parts = [TopicPartition(topic, number) for number in sorted(numbers or ())]
        begin, end = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
        first = {tp: max(begin[tp], end[tp] - LAST) for tp in parts}
        decoded = [
            decode(record.value)
            for _, records in read_offsets(consumer, first, end)
            for record in records
        ]
    except ClientError as error:
        raise KafkaError(
            f"The end of the topic {topic!r} cannot be read: {error}.",
            f"check {kafka.bootstrap_servers}, kafka.client and this user's rights.",
        ) from None
    finally:
        consumer.close()
    return [one for one in decoded if one is not None]


def look_at_score_topic(kafka: KafkaSettings, topic: str) -> str:
    """The broker's description of the topic, in words. Raises: KafkaError if the topic is missing
    and the broker does not create it."""
    with asking_about_topics(kafka) as admin:
        for found in admin.describe_topics([topic]):
            if found["name"] == topic and not found["error_code"] and found["partitions"]:
                return f"{topic} has {len(found['partitions'])} partitions"
        allowed = _makes_topics(admin)
    if allowed:
        return f"{topic} does not exist yet: the broker creates it with the first record"
    raise KafkaError(
        f"The topic {topic!r} does not exist, and the broker creates none by itself.",
        "create it, with a retention of your own.",
    )


def _makes_topics(admin: Any) -> bool:
    """Whether the broker creates a topic at the first write to it."""
    from kafka.admin import ConfigResource, ConfigResourceType

    name = "auto.create.topics.enable"
    node = admin.describe_cluster()["brokers"][0]["broker_id"]
    resource = ConfigResource(ConfigResourceType.BROKER, str(node), configs={name: None})
    answer = admin.describe_configs([resource], config_filter="all")
    for configs in answer.values():
        for values in configs.values():
            value = values.get(name)
            if value is not None:
                return str(value["value"] if isinstance(value, dict) else value) == "true"
    return False


def _not_taken(error: Exception) -> KafkaError:
    return KafkaError(
        f"The score topic did not store a record: {type(error).__name__} {error}.",
        "check the brokers, the topic and this user's right to write it.",
    )
