"""What ingest's heartbeat says of the records in Kafka that the log does not have yet."""

from typing import Any

from streamd.clock import Clock
from streamd.ingest.consumer import KafkaSource
from streamd.ingest.merge import Merger


def unread(source: KafkaSource, merger: Merger, clock: Clock) -> dict[str, Any]:
    """Collect the fields about what is to be committed.

    lag: number of records. behind: topic -> partition -> the end of what can be read, of partitions
    with such records, by which a server tells until when it has all that was in Kafka.
    broker_age_seconds: time since the broker last answered, without which the ends are old.
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
    return {"lag": lag, "behind": behind, "broker_age_seconds": age}
