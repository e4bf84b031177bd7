"""Prepares the decoding of polled records: fetches their schemas, and for some records the one
before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kafka import TopicPartition

from streamd.decode.decoder import Decoder


class Source(Protocol):
    """Partitions by number; older records of them can be read again."""

    partitions: list[TopicPartition]

    def records_before(self, source: int, offset: int) -> Sequence[Any]: ...


def prepare(
    decoder: Decoder,
    source: Source,
    polled: Mapping[int, Sequence[Any]],
    now_us: int,
    waiting: Callable[[], None],
) -> None:
    """Fetch everything that decoding needs and the records do not contain.

    1. Read the record before the first one, if that is a tombstone of a mapped topic after a
       restart.
    2. Fetch the schemas of all these records. Without them, decoding would wait for the registry.
    3. Decode the earlier record, only to restore the topic's state: its events are in the log
       already. Without that, the tombstone of a deleted row would be a delete or a dead letter.

    Args: polled: records by number of the partition, at least one each; now_us: wall clock;
    waiting: called while schemas take time.
    Raises: KafkaError, SchemaRegistryError if fetching fails now; then no polled record was
    decoded.
    """
    for number, records in polled.items():
        topic = source.partitions[number].topic
        mapped = decoder.mapped.get(topic)
        if mapped is None:
            continue
        earlier: Sequence[Any] = ()
        # 1. The record before.
        if mapped.lacks_record_before(number, records[0]):
            earlier = source.records_before(number, records[0].offset)[-1:]
        # 2. The schemas.
        mapped.prepare([*earlier, *records], waiting)
        # 3. Restore the topic's state.
        if earlier:
            decoder.decode(earlier, number, now_us, topic)
