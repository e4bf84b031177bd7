"""The state of ingest that belongs to one assignment of partitions."""

from collections.abc import Sequence

from streamd.events import Position
from streamd.ingest.kafka.consumer import KafkaSource
from streamd.ingest.kafka.silence import SilenceDetector
from streamd.ingest.order.merge import Merger
from streamd.ingest.order.suspects import StreamSuspects


class Assignment:
    """Buffers, positions and times of the partitions of a source. Owner: the poll thread.

    Lists are by number of the partition; times are monotonic seconds.
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
        """begun: position at which each partition begins. max_ahead_us: as of `Suspects`. dim: edge
        features."""
        self.topics = [tp.topic for tp in source.partitions]
        self.merger = Merger(len(begun), merge_wait_seconds, dim)
        for number, position in enumerate(begun):
            self.merger.start(number, position)
        self.suspects = StreamSuspects(len(begun), max_ahead_us, dim)
        self.silence = SilenceDetector(source, now)
        self.resume = list(begun)
        # Nothing is committed of this assignment yet: position -1 is equal to no other.
        self.stored = [Position(-1)] * len(begun)
        """The positions in the log."""
        self.stamps_ms = [0] * len(begun)
        """Timestamp of the last decoded record."""
        self.has_events = False
        self.last_commit = self.last_event = self.last_report = now

    @property
    def positions(self) -> list[Position]:
        """The positions up to which all events are released by the merge."""
        return [self.merger.position(i) for i in range(len(self.resume))]
