"""Why ingest waits for Kafka, as its log and its heartbeat have it."""

from collections.abc import Sequence
from typing import Any

import structlog

from streamd.clock import Clock
from streamd.errors import KafkaError, SilentBrokerError
from streamd.ingest.kafka.topic_watch import missing_topic
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()


class BrokerWait:
    """Logs the same reason at most every five minutes, and knows since when no broker answered.
    Owner: the poll thread."""

    def __init__(self, bootstrap_servers: str, clock: Clock) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._failures = LastingFailures(clock.monotonic)
        self._answered_at = clock.monotonic()

    def warn(self, event: str, error: str, about: str = "") -> None:
        """Log a reason. about: the topic of the event."""
        if self._failures.is_due(event + about):
            logger.warning(event, error=error)

    def for_broker(self, error: KafkaError) -> dict[str, Any]:
        """Log why no broker can be used. Returns: fields of the heartbeat: why, whether a broker
        answered at all, and seconds since one could be used."""
        # The heartbeat has it each time, the log seldom.
        why = str(error)
        self.warn("broker_unavailable", why)
        return {
            "why": why,
            "answers": not isinstance(error, SilentBrokerError),
            "unanswered_seconds": self._clock.monotonic() - self._answered_at,
        }

    def for_topics(self, names: Sequence[str]) -> dict[str, Any]:
        """Log how to create topics that do not exist. Returns: fields of the heartbeat: why, and
        the missing topics; empty if none is missing."""
        # An answer without the topic is an answer.
        self.note_answer()
        whys = [missing_topic(name, self._bootstrap_servers) for name in names]
        for name, why in zip(names, whys, strict=True):
            self.warn("waiting_for_topic", why, name)
        return {"why": whys[0], "missing_topics": list(names)} if names else {}

    def note_answer(self) -> None:
        """Note that a broker answered."""
        self._answered_at = self._clock.monotonic()

    def over(self) -> None:
        """Note that nothing is waited for: a failure after this is a new one."""
        self.note_answer()
        self._failures.over()
