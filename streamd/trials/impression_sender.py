"""Sends impressions to the topic in a thread of its own, so that no answer waits for Kafka."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from streamd.errors import KafkaError
from streamd.scoring.outbox import Receipt, Sink
from streamd.telemetry import trial_metrics
from streamd.trials.impressions import Impression

logger = structlog.get_logger()
MAX_WAITING = 10_000
"""Maximum number of impressions that wait, some megabytes."""
MAX_AGE_SECONDS = 30.0
"""Impressions that wait for longer are lost. A reader of topic and log can therefore wait for this
long, and then has all impressions that an event could belong to."""
PAUSE_SECONDS = 0.25
"""Pause between two passes: impressions of this time share a request to the broker, which alone
takes about 2 ms of CPU."""
RETRY_SECONDS = 1.0
"""Pause before another try after the topic rejected an impression."""
CLOSE_SECONDS = 5.0
"""Longest wait at a stop for acknowledgements."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """An impression that is not acknowledged. since: monotonic seconds."""

    impression: Impression
    since: float
    receipt: Receipt | None = None


class ImpressionSender:
    """Keeps impressions until the topic has acknowledged them, sends them again after a failure,
    and counts those that it loses. Owner: the server's state.

    open_sink: makes a sink, or raises KafkaError; called in the thread.
    """

    def __init__(self, open_sink: Callable[[], Sink]) -> None:
        self._open_sink = open_sink
        self._unsent: deque[_Waiting] = deque()
        """The server's thread appends at the right; the sender's thread takes from the left, and
        puts back there."""
        self._in_flight: deque[_Waiting] = deque()
        self._sink: Sink | None = None
        self._retry_at = 0.0
        self._is_away = False
        self._wake = threading.Event()
        self._stop_at: float | None = None
        """Monotonic time at which the thread ends although impressions wait."""
        self._thread = threading.Thread(target=self._run, name="impressions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, impression: Impression) -> None:
        """Send an impression soon. It never waits: with MAX_WAITING before it, it is lost."""
        if len(self._unsent) + len(self._in_flight) >= MAX_WAITING:
            trial_metrics.impressions_lost.labels("full").inc()
            return
        self._unsent.append(_Waiting(impression, time.monotonic()))
        self._wake.set()

    def close(self) -> None:
        """Wait for acknowledgements, for CLOSE_SECONDS at most, and end the thread."""
        if self._thread.is_alive():
            self._stop_at = time.monotonic() + CLOSE_SECONDS
            self._wake.set()
            self._thread.join()

    def _run(self) -> None:
        # It sleeps without impressions, so that a server without requests uses no CPU.
        while not self._is_over():
            if not self._unsent and not self._in_flight:
                self._wake.wait()
            self._wake.clear()
            self.step(time.monotonic())
            time.sleep(PAUSE_SECONDS)
        self._lose("stop", len(self._unsent) + len(self._in_flight))
        self._abandon()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return time.monotonic() >= self._stop_at or not (self._unsent or self._in_flight)

    def step(self, now: float) -> None:
        """Process acknowledgements, send the due impressions, and drop those that waited too long.
        now: monotonic seconds."""
        try:
            self._take_receipts()
            if now >= self._retry_at:
                self._send()
        except KafkaError as error:
            self._retry_later(now, error)

        # Only unsent ones are dropped: those in flight fail or are acknowledged first.
        num_old = 0
        while self._unsent and now - self._unsent[0].since > MAX_AGE_SECONDS:
            self._unsent.popleft()
            num_old += 1
        self._lose("broker", num_old)

    def _take_receipts(self) -> None:
        """Remove the acknowledged impressions. Raises: KafkaError if one failed."""
        while self._in_flight:
            oldest = self._in_flight[0]
            assert oldest.receipt is not None
            if not oldest.receipt.is_written():
                return
            self._in_flight.popleft()
            trial_metrics.impressions_written.labels(oldest.impression.arm).inc()
            if self._is_away:
                logger.info("trial_topic_back")
                self._is_away = False

    def _send(self) -> None:
        """Send all impressions that are not in flight. Raises: KafkaError."""
        while self._unsent:
            if self._sink is None:
                self._sink = self._open_sink()
            one = self._unsent[0]
            value = msgspec.json.encode(one.impression)
            one.receipt = self._sink.send(one.impression.key(), value)
            self._in_flight.append(one)
            self._unsent.popleft()

    def _retry_later(self, now: float, error: KafkaError) -> None:
        if not self._is_away:
            self._is_away = True
            logger.warning(
                "trial_topic_away",
                error=str(error),
                meaning="impressions wait, and are lost after half a minute",
            )
        self._abandon()
        self._retry_at = now + RETRY_SECONDS

    def _abandon(self) -> None:
        """Close the sink; all impressions that are not acknowledged have to be sent again."""
        if self._sink is not None:
            self._sink.abandon()
        self._sink = None
        self._unsent.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def _lose(self, reason: str, number: int) -> None:
        if number:
            trial_metrics.impressions_lost.labels(reason).inc(number)
