"""Forwards events from REST to Kafka, after the checks that ingest will make. Events reach the log
only through Kafka."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamd.clock import SystemClock
from streamd.decode.decoder import Decoder, first_events
from streamd.decode.sources.formats import JSON_FORMATS
from streamd.errors import BadEvent, KafkaError, reason_of
from streamd.settings.loading import KafkaSettings
from streamd.settings.sources import SourceSettings
from streamd.telemetry.spans import current

ACKNOWLEDGED_SECONDS = 10.0
"""Maximum time until Kafka must acknowledge the events."""


@dataclass(frozen=True)
class Record:
    """A record with the fields that the decoder reads, named as in kafka-python."""

    value: bytes
    offset: int
    timestamp: int
    key: bytes | None = None
    timestamp_type: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


class Forwarder:
    """Produces events to Kafka. Thread-safe. The first event opens the producer."""

    def __init__(
        self,
        kafka: KafkaSettings,
        sources: Sequence[SourceSettings],
        make_decoder: Callable[[], Decoder],
    ) -> None:
        """make_decoder: makes a decoder for the present sets and features of the log."""
        self.topic = kafka.topics[0]
        """The topic that the events are produced to: the first of `kafka.topics`."""
        self._kafka = kafka
        self._source = next((s for s in sources if s.topic == self.topic), None)
        self._make_decoder = make_decoder
        self._decoder: Decoder | None = None
        self._producer: Any = None
        self._lock = threading.Lock()

    def reset_decoder(self) -> None:
        """Make a new decoder at the next use, because the log has other sets or features now."""
        with self._lock:
            self._decoder = None

    async def send(
        self, values: Sequence[bytes], mapped: bool = False
    ) -> tuple[list[tuple[int, int]], str]:
        """Send records of one event each, and wait until Kafka has acknowledged all.

        1. Decode all of them, as ingest will. If ingest would refuse one, none is sent: otherwise a
           retry of the corrected request would duplicate the others.
        2. Produce all of them, then wait for the acknowledgements. If one is missing, some of the
           events may be in the topic.

        mapped: whether they have the format of the topic's source. Returns: (partition, offset) of
        each event, and a hint if all times look like another unit, else "". Raises: BadEvent for
        the first event that ingest would refuse; KafkaError.
        """
        # 1. Decode all of them.
        source = self._source
        if mapped != (source is not None):
            own = "records of a source" if source is not None else "streamd's own events"
            body = '{"records": [...]}' if source is not None else '{"events": [...]}'
            raise BadEvent("wrong_type", f"topic {self.topic} has {own}: send them as {body}")
        if source is not None and source.format not in JSON_FORMATS:
            raise BadEvent(
                "unsupported",
                f"topic {self.topic} has records in {source.format}, not JSON; send them to Kafka",
            )
        now_us = SystemClock().now_us()
        records = [Record(value, i, now_us // 1000) for i, value in enumerate(values)]
        with self._lock:
            # All requests share one decoder, since it takes time to build one from a mapping.
            decoder = self._decoder = self._decoder or self._make_decoder()
            block, rejected = decoder.decode(records, 0, now_us, self.topic)
            first = first_events(block, decoder.keys.keys)
            hint = decoder.unit_hint(block, now_us, self.topic)
            decoder.keys.shrink(np.zeros(0, np.int64))
        if rejected:
            raise BadEvent(rejected[0].reason, f"event {rejected[0].offset}: {rejected[0].error}")

        # 2. Produce them with the source as the record's key, so that the events of a node are in
        # one partition. The Kafka client blocks, so another thread calls it.
        keyed = [(first.get(i, ("", None))[0].encode(), value) for i, value in enumerate(values)]
        return await asyncio.to_thread(self.produce, keyed), hint

    def produce(self, events: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
        """Produce checked events; blocks the thread until all are acknowledged. events: (key,
        value) of each record. Returns: (partition, offset) of each. Raises: KafkaError."""
        topic = self.topic
        timeout = ACKNOWLEDGED_SECONDS
        # The trace goes into the records, so that the span of the commit links to this request.
        span = current.get()
        headers = [] if span is None else [("traceparent", span.trace.response.encode())]
        try:
            # Send all before waiting for the first acknowledgement.
            producer = self.open_producer()
            sent = [
                producer.send(topic, key=key, value=value, headers=headers) for key, value in events
            ]
            producer.flush(timeout)
            return [(m.partition, m.offset) for m in (f.get(timeout) for f in sent)]
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the events are not acknowledged
            raise KafkaError(
                f"Kafka did not acknowledge the events: {self._reason_of(error)}.",
                "send them again; some may be in the topic already.",
            ) from error

    def _reason_of(self, error: Exception) -> str:
        """The text of an error of the Kafka client, or a plain one if the broker is silent."""
        # For a silent broker, the client's text names an internal object.
        if "waiting for future" not in str(error):
            return reason_of(error)
        return f"{self._kafka.bootstrap_servers} did not answer within {ACKNOWLEDGED_SECONDS:g} s"

    def open_producer(self) -> Any:
        """Return the producer; the first call opens it."""
        from streamd.ingest.kafka.client import make_producer

        with self._lock:
            if self._producer is None:
                # A send also blocks while the topic's metadata is missing; there are few threads.
                self._producer = make_producer(
                    self._kafka,
                    acks="all",
                    linger_ms=2,
                    max_block_ms=int(ACKNOWLEDGED_SECONDS * 1000),
                )
            return self._producer

    def close(self) -> None:
        """Close the connection to Kafka, if there is one."""
        if self._producer is not None:
            from streamd.ingest.kafka.client import close_producer

            close_producer(self._producer, 1.0)
