"""Offsets of commits, published to Kafka once readers are shown the commits."""

import threading
from collections import deque
from collections.abc import Sequence

from streamd.clock import Clock
from streamd.events import Position
from streamd.ingest.event_log import Log
from streamd.ingest.kafka.consumer import KafkaSource

LOOK_SECONDS = 0.005
"""Pause between two looks at whether the changelog has acknowledged a commit, which takes it some
milliseconds."""


class ShownOffsets:
    """Step 5 of a commit: it follows what readers are shown, as another machine may have taken a
    commit's place until then. Owner: the ingest loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: deque[tuple[int, Sequence[Position]]] = deque()

    def begin(self) -> None:
        """Forget the positions of other partitions."""
        self._waiting.clear()

    def add(self, positions: Sequence[Position]) -> None:
        """Take the positions after the newest commit."""
        self._waiting.append((self._log.seq, positions))

    def publish(self, source: KafkaSource) -> None:
        """Show the commits that are acknowledged, and publish the newest one's offsets. Other
        machines hear by it that this one runs."""
        shown = self._log.show_acknowledged()
        newest = None
        while self._waiting and self._waiting[0][0] <= shown:
            newest = self._waiting.popleft()[1]
        if newest is not None:
            source.publish(newest)

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Wait for what is away; other machines hear meanwhile that this one runs."""
        self._log.show_acknowledged()
        stop.wait(seconds)

    def longest_wait(self, seconds: float) -> float:
        """How long nobody need look, up to some seconds."""
        return min(seconds, LOOK_SECONDS) if self._log.is_waiting else seconds

    def sleep(self, seconds: float, source: KafkaSource, clock: Clock) -> None:
        """Sleep, and publish meanwhile what is acknowledged."""
        until = clock.monotonic() + seconds
        while (left := until - clock.monotonic()) > 0:
            clock.sleep(self.longest_wait(left))
            self.publish(source)
