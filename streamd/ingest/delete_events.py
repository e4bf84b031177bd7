"""Sends deletes of nodes to Kafka as streamd's own events, which every topic accepts."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from streamd.decode.wire import OWN_EVENT
from streamd.errors import SettingsError
from streamd.events import Key, split_key
from streamd.ingest.kafka.client import make_producer, send, settle
from streamd.settings.loading import KafkaSettings
from streamd.settings.sources import SourceSettings

ACKNOWLEDGED_SECONDS = 20.0
"""Longest time that sending a delete waits for the topic's metadata."""


class DeleteTopic(NamedTuple):
    """A topic for deletes. mapped: whether a source maps its records to events."""

    name: str
    mapped: bool


def topic_for_deletes(
    kafka: KafkaSettings, sources: Sequence[SourceSettings], name: str = ""
) -> DeleteTopic:
    """Choose the topic for deletes: the named one, or else the first that holds streamd's own
    events.

    Raises: SettingsError if ingest does not read the named topic; or if no topic is named and all
    topics are mapped: other programs read them too, so an operator must choose.
    """
    mapped = {source.topic for source in sources}
    if name:
        if name not in kafka.topics:
            raise SettingsError(
                f"Ingest does not read topic {name!r}.",
                f"name one of kafka.topics: {', '.join(kafka.topics)}.",
            )
        return DeleteTopic(name, name in mapped)
    # A topic of streamd's own events needs no header, and no other program reads it.
    own = [topic for topic in kafka.topics if topic not in mapped]
    if own:
        return DeleteTopic(own[0], False)
    raise SettingsError(
        f"All topics ({', '.join(kafka.topics)}) have sources, so other programs read them too. A "
        f"delete is a JSON record of streamd's own, with the header content-type: {OWN_EVENT}.",
        f"name a topic whose other readers skip such a record (--topic {kafka.topics[0]}, or the "
        "field topic of a request), or add a topic for streamd's own events to kafka.topics. With "
        "`deletes` or `envelope: debezium` in its source, the system that writes the topic can "
        "also send the delete.",
    )


class SentDelete(NamedTuple):
    """A delete that Kafka has acknowledged."""

    key: Key
    topic: str
    partition: int
    offset: int


def send_deletes(
    kafka: KafkaSettings,
    topic: DeleteTopic,
    keys: Sequence[Key],
    node_set_names: Sequence[str],
) -> list[SentDelete]:
    """Send a delete of each node, and wait until Kafka has acknowledged all of them.

    node_set_names: by number. Raises: KafkaError if no broker accepts the client or a delete is not
    acknowledged.
    """
    # In a mapped topic this header marks the record as streamd's own event.
    headers = [("content-type", OWN_EVENT.encode())] if topic.mapped else []
    producer = make_producer(kafka, acks="all", max_block_ms=int(ACKNOWLEDGED_SECONDS * 1000))
    try:
        pending = []
        for key in keys:
            number, plain = split_key(key)
            event: dict[str, str | int] = {"type": "delete", "node": plain}
            if len(node_set_names) > 1:
                event["node_set"] = node_set_names[number]
            # The record key is the node's, as of its events, so a delete follows them in their
            # partition.
            value = msgspec.json.encode(event)
            record = {"key": str(plain).encode(), "value": value, "headers": headers}
            pending.append(send(producer, topic.name, **record))
        # `settle` clears its list, so keep the futures.
        futures = list(pending)
        settle(producer, pending)
        stored = [future.value for future in futures]
        return [
            SentDelete(key, topic.name, at.partition, at.offset)
            for key, at in zip(keys, stored, strict=True)
        ]
    finally:
        producer.close()
