"""Heartbeat fields and metrics about records in Kafka that the log does not have yet."""

from collections.abc import Sequence
from typing import Any

from streamd.clock import Clock
from streamd.ingest.kafka.consumer import KafkaSource
from streamd.ingest.order.merge import Merger
from streamd.telemetry import metrics


def unread(source: KafkaSource, merger: Merger, clock: Clock) -> dict[str, Any]:
    """Heartbeat fields about records that are not committed yet.

    lag: number of offsets. behind: topic -> partition -> end offset, of partitions with such
    records; once the log has passed these ends, the server knows that it has all records of this
    moment; it is left out while a topic is missing, since records of that may be lost.
    broker_age_seconds: time since the broker last answered: the ends are that old.
    broker_asked: whether the watch has had its first answer or failure.
    """
    lag = 0
    behind: dict[str, dict[int, int]] = {}
    for number, tp in enumerate(source.partitions):
        end = source.end(number)
        records = end - merger.position(number).offset
        if records > 0:
            lag += records
            behind.setdefault(tp.topic, {})[tp.partition] = end
    age = max(0.0, clock.monotonic() - source.answered_at)
    return {
        "lag": lag,
        **({} if source.missing_topics else {"behind": behind}),
        "broker_age_seconds": age,
        "broker_asked": source.has_asked,
    }


def report_lag(source: KafkaSource, merger: Merger, clock: Clock, stamps_ms: Sequence[int]) -> None:
    """Set the lag metrics of each partition, if its topic exists.

    stamps_ms: timestamp of the newest record read, 0 for none.
    """
    for number, tp in enumerate(source.partitions):
        # The lag in a topic that was deleted is unknown.
        if tp.topic in source.missing_topics:
            for gauge in (metrics.lag, metrics.lag_seconds):
                gauge.remove(tp.topic, str(tp.partition))
            continue
        lag = max(0, source.end(number) - merger.position(number).offset)
        metrics.lag.labels(tp.topic, str(tp.partition)).set(lag)
        behind = (
            clock.now_us() / 1e6 - stamps_ms[number] / 1e3 if lag and stamps_ms[number] else 0.0
        )
        metrics.lag_seconds.labels(tp.topic, str(tp.partition)).set(max(0.0, behind))
