"""Reports to log and heartbeat why ingest waits for Kafka."""

from collections.abc import Sequence
from typing import Any

import structlog

from streamd.clock import Clock
from streamd.errors import KafkaError, SilentBrokerError
from streamd.ingest.kafka.topic_watch import missing_topic
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()


class BrokerWait:
    """Logs each reason at most every five minutes, and measures the time since a broker last
    answered. Owner: the poll thread."""

    def __init__(self, bootstrap_servers: str, clock: Clock) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._failures = LastingFailures(clock.monotonic)
        self._answered_at = clock.monotonic()

    def warn(self, event: str, error: str, about: str = "") -> None:
        """Log a warning, unless the same was logged in the last five minutes. about: distinguishes
        warnings of one name, as the topic does."""
        if self._failures.is_due(event + about):
            logger.warning(event, error=error)

    def for_broker(self, error: KafkaError) -> dict[str, Any]:
        """Log why no broker can be used. Returns: fields of the heartbeat: the reason, whether a
        broker answered at all, and the seconds since the last answer."""
        # The heartbeat gets the reason each time, the log every five minutes.
        why = str(error)
        self.warn("broker_unavailable", why)
        return {
            "why": why,
            "answers": not isinstance(error, SilentBrokerError),
            "unanswered_seconds": self._clock.monotonic() - self._answered_at,
        }

    def for_topics(self, names: Sequence[str]) -> dict[str, Any]:
        """Log how to create topics that do not exist. Returns: fields of the heartbeat: the reason
        and the missing topics; empty if none is missing."""
        # The broker did answer, although without these topics.
        self.note_answer()
        whys = [missing_topic(name, self._bootstrap_servers) for name in names]
        for name, why in zip(names, whys, strict=True):
            self.warn("waiting_for_topic", why, name)
        return {"why": whys[0], "missing_topics": list(names)} if names else {}

    def note_answer(self) -> None:
        """Note that a broker answered."""
        self._answered_at = self._clock.monotonic()

    def over(self) -> None:
        """Note that the wait is over: a later failure is a new one, which is logged at once."""
        self.note_answer()
        self._failures.over()
