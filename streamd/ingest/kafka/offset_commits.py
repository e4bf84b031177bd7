"""Publishes the offsets of commits to Kafka, once readers may see the commits."""

import threading
from collections import deque
from collections.abc import Sequence

from streamd.clock import Clock
from streamd.events import Position
from streamd.ingest.event_log import Log
from streamd.ingest.kafka.consumer import KafkaSource

LOOK_SECONDS = 0.005
"""Interval of checks whether the changelog has acknowledged a commit, which takes some
milliseconds."""
OUTBOX_SECONDS = 0.02
"""Interval of looks into the outbox while it is in use: a trainer waits for each."""


class PublishedOffsets:
    """Step 5 of a commit. It follows the publication to readers, because until then a commit of
    another machine may replace this one. Owner: the ingest loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: deque[tuple[int, Sequence[Position]]] = deque()

    def begin(self) -> None:
        """Forget the positions of other partitions."""
        self._waiting.clear()

    def add(self, positions: Sequence[Position]) -> None:
        """Add the positions after the newest commit."""
        self._waiting.append((self._log.seq, positions))

    def publish(self, source: KafkaSource) -> None:
        """Publish acknowledged commits to readers, and then the offsets of the newest one to Kafka.
        The call also sends the leader's heartbeat if one is due."""
        shown = self._log.show_acknowledged()
        newest = None
        while self._waiting and self._waiting[0][0] <= shown:
            newest = self._waiting.popleft()[1]
        if newest is not None:
            source.publish(newest)

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Publish acknowledged commits to readers, which also sends the leader's heartbeat, and
        wait."""
        self._log.show_acknowledged()
        stop.wait(seconds)

    def longest_wait(self, seconds: float) -> float:
        """Seconds until the next check for acknowledgements and learned lines, at most
        `seconds`."""
        if self._log.is_waiting:
            return min(seconds, LOOK_SECONDS)
        return min(seconds, OUTBOX_SECONDS) if self._log.expects_lines else seconds

    def sleep(self, seconds: float, source: KafkaSource, clock: Clock) -> None:
        """Sleep, and publish acknowledged commits meanwhile."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            clock.sleep(self.longest_wait(left))
            self.publish(source)
