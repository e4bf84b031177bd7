"""Detects a wall clock that is far behind the newest event time of the log."""

import structlog

from streamd.clock import Clock
from streamd.telemetry import metrics

logger = structlog.get_logger()


class ClockWatch:
    """Logs when this machine's clock becomes wrong and when it is right again. Owner: the ingest
    loop."""

    def __init__(self, clock: Clock, max_ahead_us: int) -> None:
        """max_ahead_us: how far an event may be ahead of the clock, microseconds."""
        self._clock = clock
        self._max_ahead_us = max_ahead_us
        self._is_wrong = False

    def is_behind(self, known_us: int) -> bool:
        """Whether the log's newest time is further ahead of the wall clock than an event may be.

        Then the clock is wrong: it would refuse every event as ahead of it.

        known_us: newest event time of the log, microseconds.
        """
        behind_us = known_us - self._clock.now_us()
        is_wrong = behind_us > self._max_ahead_us
        # Set the metric each time, but log only changes.
        metrics.clock_behind.set(behind_us / 1e6 if is_wrong else 0)
        if is_wrong and not self._is_wrong:
            logger.error(
                "clock_behind_the_log",
                seconds=round(behind_us / 1e6),
                action="set this machine's clock; ingest waits for it and reads nothing meanwhile",
            )
        elif self._is_wrong and not is_wrong:
            logger.info("clock_is_right_again")
        self._is_wrong = is_wrong
        return is_wrong
