"""Reads ranges of offsets, for readers that need no more of a topic."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import TopicPartition

from streamd.errors import KafkaError

POLL_SECONDS = 0.2
SILENT_SECONDS = 5.0
"""Longest wait for further records."""


def read_offsets(
    consumer: Any, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Sequence[Any]]]:
    """Yield the records of partitions in [first, end), as they arrive.

    first, end: offsets by partition. The consumer is assigned these partitions. Raises: KafkaError
    if none arrives for SILENT_SECONDS; kafka.errors.KafkaError.
    """
    # Partitions without records in the range are not read.
    due = {tp for tp in end if end[tp] > first[tp]}
    consumer.assign(sorted(due))
    for tp in due:
        consumer.seek(tp, first[tp])
    # The last offsets of a partition may be no records, so its position decides.
    waits = SILENT_SECONDS
    while due:
        for tp, records in consumer.poll(timeout_ms=int(1000 * POLL_SECONDS)).items():
            waits = SILENT_SECONDS
            yield tp, [record for record in records if record.offset < end[tp]]
        waits -= POLL_SECONDS
        due = {tp for tp in due if consumer.position(tp, timeout_ms=1_000) < end[tp]}
        if due and waits <= 0:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(due))
            raise KafkaError(f"The broker sends no records of {names}.", "check the brokers.")
