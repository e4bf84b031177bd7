"""The state of ingest that belongs to one assignment of partitions."""

from collections.abc import Sequence

from streamd.events import Position
from streamd.ingest.kafka.consumer import KafkaSource
from streamd.ingest.kafka.silence import SilenceDetector
from streamd.ingest.order.merge import Merger
from streamd.ingest.order.suspects import StreamSuspects


class Assignment:
    """Buffers, positions and times of the partitions of a source. Owner: the poll thread.

    Lists are indexed by partition number; times are monotonic seconds unless named otherwise.
    """

    def __init__(
        self,
        source: KafkaSource,
        begun: Sequence[Position],
        *,
        merge_wait_seconds: float,
        max_ahead_us: int,
        dim: int,
        now: float,
    ) -> None:
        """begun: start position of each partition. max_ahead_us: how far an event's lead may exceed
        the usual one, microseconds (`Suspects`). dim: number of edge features."""
        self.topics = [tp.topic for tp in source.partitions]
        self.merger = Merger(len(begun), merge_wait_seconds, dim)
        for number, position in enumerate(begun):
            self.merger.start(number, position)
        self.suspects = StreamSuspects(len(begun), max_ahead_us, dim)
        self.silence = SilenceDetector(source, now)
        self.resume = list(begun)
        # This assignment has no commit yet: position -1 differs from every real one.
        self.stored = [Position(-1)] * len(begun)
        """Last committed position of each partition."""
        self.stamps_ms = [0] * len(begun)
        """Kafka timestamp of each partition's last decoded record, milliseconds; 0 before the
        first."""
        self.has_events = False
        self.last_commit = self.last_event = self.last_report = now

    @property
    def positions(self) -> list[Position]:
        """Position of each partition before which the merge has released all events."""
        return [self.merger.position(i) for i in range(len(self.resume))]
