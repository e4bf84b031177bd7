"""Reports to log, heartbeat and metric why ingest waits for Kafka or the schema registry, and when
the wait is over."""

from collections.abc import Collection, Sequence
from typing import Any

import structlog

from streamd.clock import Clock
from streamd.errors import KafkaError, SchemaRegistryError, SilentBrokerError
from streamd.ingest.kafka.consumer import KafkaSource
from streamd.ingest.kafka.topic_watch import missing_topic
from streamd.number_texts import span
from streamd.settings.loading import KafkaSettings
from streamd.telemetry import metrics
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()
MISSING_STATE = "topic missing"
"""State of ingest while Kafka lacks a topic; it still reads the others."""
SILENT_SECONDS = 10.0
"""A broker is silent after this long without an answer: the watch asks it every five seconds."""
AWAY, LACKS = "broker_unavailable", "waiting_for_topic"
"""Names of the warnings."""


class BrokerWait:
    """Logs each reason at most every five minutes, and once when it is over. Owner: the poll
    thread."""

    def __init__(self, kafka: KafkaSettings, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock
        self._failures = LastingFailures(clock.monotonic)
        self._registry = LastingFailures(clock.monotonic)
        self._answered_at = clock.monotonic()
        self._failed_at: float | None = None
        """Time of the newest failure since the broker last answered; None if it answers."""
        self._missing_since: dict[str, float] = {}
        self.missing: dict[str, Any] = {}
        """Fields of the heartbeat about topics that do not exist; empty if all exist."""

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
        self._failed_at = self._clock.monotonic()
        self.warn(AWAY, why)
        return {
            "why": why,
            "answers": not isinstance(error, SilentBrokerError),
            "unanswered_seconds": self._failed_at - self._answered_at,
        }

    def for_registry(self, error: SchemaRegistryError) -> str:
        """Log why the schema registry does not answer. Returns: the reason."""
        metrics.schema_registry_away.set(1)
        if self._registry.is_due("away"):
            logger.warning("schema_registry_away", error=str(error))
        return str(error)

    def note_registry(self) -> None:
        """Note that all schemas are known, and log it if the registry failed before."""
        metrics.schema_registry_away.set(0)
        self._registry.end("schema_registry_answers_again")

    def for_topics(self, names: Sequence[str], read: Collection[str] = ()) -> dict[str, Any]:
        """Log how to create topics that do not exist, and which exist again.

        read: topics with records in the log. Returns: fields of the heartbeat: the reason, the
        missing topics, for how long the first of them is missing, and whether the log has records
        of one; empty if none is missing.
        """
        # The broker did answer, although without these topics.
        self.note_answer()
        self._note_missing(names, read)
        return self.missing

    def _note_missing(self, names: Sequence[str], read: Collection[str]) -> None:
        now = self._clock.monotonic()
        for name in [name for name in self._missing_since if name not in names]:
            seconds = round(now - self._missing_since.pop(name))
            self._failures.over(LACKS + name)
            logger.info("topic_exists_again", topic=name, missing_seconds=seconds)

        # Log the missing ones.
        servers = self._kafka.bootstrap_servers
        whys = [missing_topic(name, servers, name in read) for name in names]
        for name, why in zip(names, whys, strict=True):
            self._missing_since.setdefault(name, now)
            self.warn(LACKS, why, name)
        for name in self._kafka.topics:
            metrics.topic_missing.labels(name).set(name in names)
        self.missing = {}
        if names:
            self.missing = {
                "why": "; ".join(whys),
                "missing_topics": list(names),
                "missing_seconds": now - min(self._missing_since.values()),
                "was_read": not set(names).isdisjoint(read),
            }

    def look(self, source: KafkaSource, read: Collection[str]) -> None:
        """Look, while ingest reads, whether the broker answers and has all topics.

        read: topics with records in the log.
        """
        # A poll of a broker that does not answer fails no call: it only brings no records.
        answered_at = source.answered_at
        silent = self._clock.monotonic() - answered_at
        if source.has_asked and silent > SILENT_SECONDS:
            self._failed_at = self._clock.monotonic()
            self.warn(AWAY, f"{self._kafka.bootstrap_servers} has not answered for {span(silent)}.")
        elif self._failed_at is None or answered_at > self._failed_at:
            self.note_answer(answered_at)
            self._note_missing(source.missing_topics, read)

    def note_answer(self, at: float | None = None) -> None:
        """Note that a broker answered, and log it if it failed before. at: monotonic seconds, by
        default now."""
        before = self._answered_at
        self._answered_at = max(before, self._clock.monotonic() if at is None else at)
        if self._failed_at is not None:
            self._failed_at = None
            self._failures.over(AWAY)
            logger.info("broker_answers_again", away_seconds=round(self._answered_at - before))

    def over(self) -> None:
        """Note that the wait is over: a later failure is a new one, which is logged at once."""
        self.for_topics(())
        self._failures.over()
