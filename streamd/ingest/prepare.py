"""What decoding the records of a poll needs first: their schemas, and of some the record before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kafka import TopicPartition

from streamd.ingest.decode import Decoder


class Source(Protocol):
    """Partitions by number, of which older records can be read again."""

    partitions: list[TopicPartition]

    def records_before(self, source: int, offset: int) -> Sequence[Any]: ...


def prepare(
    decoder: Decoder,
    source: Source,
    polled: Mapping[int, Sequence[Any]],
    now_us: int,
    waiting: Callable[[], None],
) -> None:
    """Learn what decoding records needs that is not in them.

    Args: polled: records by number of the partition, one or more each; now_us: wall clock; waiting:
    called where schemas take time.
    Raises: KafkaError, SchemaRegistryError where it cannot be learned now; nothing is decoded then.
    """
    for number, records in polled.items():
        topic = source.partitions[number].topic
        mapped = decoder.mapped.get(topic)
        if mapped is None:
            continue
        earlier: Sequence[Any] = ()
        if mapped.lacks_record_before(number, records[0]):
            earlier = source.records_before(number, records[0].offset)[-1:]
        mapped.prepare([*earlier, *records], waiting)
        # Its events are in the log already: only the topic's memory of it is wanted.
        if earlier:
            decoder.decode(earlier, number, now_us, topic)
