"""The trial's topic in Kafka, read from stored offsets."""

from collections.abc import Iterator
from dataclasses import dataclass

from kafka import TopicPartition
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError
from streamd.ingest.kafka.client import make_consumer
from streamd.settings.loading import KafkaSettings

POLL_MS = 200
"""Longest wait of one poll."""


@dataclass(frozen=True, slots=True)
class TopicBatch:
    """Records in order within each partition. offsets: partition -> offset after them. lost: number
    of records before them that Kafka has dropped."""

    values: list[bytes | None]
    offsets: dict[int, int]
    lost: int


class TrialTopic:
    """Reads the topic. Owner: the role's loop."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        """Raises: KafkaError if no broker answers, SettingsError."""
        self._topic = topic
        self._consumer = make_consumer(kafka)

    def close(self) -> None:
        self._consumer.close()

    def read_to_end(self, offsets: dict[int, int]) -> Iterator[TopicBatch]:
        """Yield the records from stored offsets to the topic's present end. offsets: partition ->
        offset; partitions without one are read from their beginning. A batch may be empty while a
        broker is slow. Raises: KafkaError."""
        try:
            yield from self._read(offsets)
        except ClientError as error:
            raise KafkaError(
                f"The topic {self._topic!r} cannot be read: {error}.", "check the brokers."
            ) from None

    def _read(self, offsets: dict[int, int]) -> Iterator[TopicBatch]:
        consumer = self._consumer
        numbers = consumer.partitions_for_topic(self._topic)
        if numbers is None:
            return
        parts = [TopicPartition(self._topic, number) for number in sorted(numbers)]
        begin, end = consumer.beginning_offsets(parts), consumer.end_offsets(parts)

        # A topic that was created again is read from its beginning; records before it are lost.
        start: dict[TopicPartition, int] = {}
        lost = 0
        for part in parts:
            stored = offsets.get(part.partition, begin[part])
            stored = begin[part] if stored > end[part] else stored
            lost += max(0, begin[part] - stored)
            start[part] = max(stored, begin[part])
        if lost:
            yield TopicBatch([], {part.partition: start[part] for part in parts}, lost)

        # Each partition up to its end of a moment ago.
        due = {part for part in parts if start[part] < end[part]}
        consumer.assign(sorted(due))
        for part in due:
            consumer.seek(part, start[part])
        while due:
            records = consumer.poll(timeout_ms=POLL_MS)
            values = [record.value for of_part in records.values() for record in of_part]
            at = {part: consumer.position(part, timeout_ms=1_000) for part in records}
            yield TopicBatch(values, {part.partition: offset for part, offset in at.items()}, 0)
            due = {part for part in due if consumer.position(part, timeout_ms=1_000) < end[part]}
