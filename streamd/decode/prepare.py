"""Prepare decoding of polled records: fetch their schemas, and for some the record before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kafka import TopicPartition

from streamd.decode.decoder import Decoder


class Source(Protocol):
    """Partitions by number, whose older records can be read again."""

    partitions: list[TopicPartition]

    def records_before(self, source: int, offset: int) -> Sequence[Any]: ...


def prepare(
    decoder: Decoder,
    source: Source,
    polled: Mapping[int, Sequence[Any]],
    now_us: int,
    waiting: Callable[[], None],
) -> None:
    """Fetch what is needed to decode records but is not in them.

    Args: polled: records by number of the partition, one or more each; now_us: wall clock; waiting:
    called while schemas take time.
    Raises: KafkaError, SchemaRegistryError if that fails now; nothing is decoded then.
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
        # Decode it only to restore the topic's state: its events are in the log already.
        if earlier:
            decoder.decode(earlier, number, now_us, topic)
