"""Partitions that have more to read but send nothing although the broker answers."""

import structlog

from streamd.ingest.kafka.consumer import KafkaSource
from streamd.telemetry import metrics

logger = structlog.get_logger()
SILENT_SECONDS = 5.0
"""After so long without a record, the other partitions stop waiting for this one: it has an open
transaction, or no leader. An election takes about as long."""


class SilenceDetector:
    """Notes when each partition of `source` last sent a record. Owner: the poll thread."""

    def __init__(self, source: KafkaSource, now: float) -> None:
        """now: monotonic seconds."""
        self._source = source
        self._heard_at = [now] * len(source.partitions)
        self._silent = [False] * len(source.partitions)
        # The metric has a row for every partition from the start, so that a rise can be seen.
        for tp in source.partitions:
            metrics.silent_partitions.labels(tp.topic, str(tp.partition))

    def is_silent(self, number: int, heard: bool, paused: bool, now: float) -> bool:
        """Whether a partition with more to read has sent nothing for SILENT_SECONDS.

        Args: heard: the last poll brought records of it; paused: it was not polled.
        """
        source = self._source
        if heard or paused or source.position(number) >= source.end(number):
            self._heard_at[number] = now
            self._silent[number] = False
        elif not self._silent[number] and now - self._heard_at[number] >= SILENT_SECONDS:
            # Silence of a broker that does not answer proves nothing about the partition.
            self._silent[number] = source.answered_at >= self._heard_at[number] + SILENT_SECONDS
            if self._silent[number]:
                tp = source.partitions[number]
                metrics.silent_partitions.labels(tp.topic, str(tp.partition)).inc()
                logger.warning(
                    "partition_silent",
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=source.position(number),
                    meaning="an open transaction or no leader; the others no longer wait for it",
                )
        return self._silent[number]
