"""Sends events to a topic at a chosen speed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from streamd.errors import KafkaError
from streamd.events import MICROSECONDS
from streamd.ingest.kafka.client import asking_about_topics, make_producer, send, settle
from streamd.ingest.kafka.topic_watch import creation, describe
from streamd.settings.loading import KafkaSettings

FLUSH_EVERY = 5_000
"""Events sent between two waits for all acknowledgements, which bounds memory."""


@dataclass(frozen=True)
class Outgoing:
    """A record to be sent. key: determines its partition.

    time: in the stream's unit, None if the event has none. row: its number in the file, from 1; 0
    for none.
    """

    key: bytes
    value: bytes
    time: int | None
    row: int = 0


def check_topic(kafka: KafkaSettings, topic: str) -> None:
    """Check that a topic exists: a producer would wait a minute for it. Raises: KafkaError."""
    # An admin client gets its answer at once.
    with asking_about_topics(kafka) as admin:
        missing = describe(admin, (topic,)).missing
    if missing:
        servers = kafka.bootstrap_servers
        raise KafkaError(
            f"Topic {topic} does not exist on {servers}, or this user may not see it.",
            f"{creation(topic, servers)}.",
        )


def send_events(
    kafka: KafkaSettings,
    topic: str,
    events: Iterator[Outgoing],
    time_unit: str,
    speed: float,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Send events in order.

    Args: time_unit: of `Outgoing.time`; speed: seconds of event time per second, 0 for no pauses;
    progress: called with the number of events sent so far.
    Returns: the number of events sent, all acknowledged.
    Raises: KafkaError if an event was not acknowledged.
    """
    producer = make_producer(kafka, linger_ms=20, batch_size=262_144, compression_type="lz4")
    begun = time.monotonic()
    first: int | None = None
    pending: list[Any] = []
    sent = 0
    try:
        for event in events:
            # Wait until the event is due, counted from the first.
            if speed and event.time is not None:
                first = event.time if first is None else first
                due = begun + (event.time - first) * MICROSECONDS[time_unit] / 1e6 / speed
                if (wait := due - time.monotonic()) > 0:
                    # Events must not wait in the producer during the pause.
                    producer.flush()
                    time.sleep(wait)

            # Send it, and wait for the acknowledgements after each FLUSH_EVERY events.
            pending.append(send(producer, topic, key=event.key, value=event.value))
            sent += 1
            if len(pending) >= FLUSH_EVERY:
                settle(producer, pending)
                progress(sent)
        settle(producer, pending)
        progress(sent)
    finally:
        producer.close()
    return sent
