"""Connects a leader to its changelog, and waits for brokers that do not answer."""

import threading
from contextlib import ExitStack

import structlog

from streamd.errors import KafkaError
from streamd.ingest.kafka.client import make_admin
from streamd.replica.changelog.kafka import KafkaProducer, KafkaReader
from streamd.replica.changelog.topics import TopicState, ensure_topic, find_topic
from streamd.replica.leader.leader import lead
from streamd.replica.leader.publisher import ChangelogPublisher
from streamd.replica.members import member_name
from streamd.settings.loading import KafkaSettings, Settings
from streamd.store.changelog import changelog_topic
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
RETRY_SECONDS = 1.0
WAITING = "waiting for the changelog"


class Stopped(Exception):  # noqa: N818 - a stop is no error
    """The role was stopped while it waited."""


def open_topic(kafka: KafkaSettings, log_name: str) -> TopicState:
    """Create the changelog's topic if it is missing, and check it. Only members that may lead call
    this. Raises: KafkaError, ChangelogError."""
    admin = make_admin(kafka)
    try:
        return _log_warnings(ensure_topic(admin, kafka, changelog_topic(log_name)))
    finally:
        admin.close()


def find_changelog(kafka: KafkaSettings, log_name: str) -> TopicState | None:
    """Check the changelog's topic. Returns: None if no leader has created it. Raises: KafkaError,
    ChangelogError."""
    admin = make_admin(kafka)
    try:
        state = find_topic(admin, kafka, changelog_topic(log_name))
    finally:
        admin.close()
    return None if state is None else _log_warnings(state)


def _log_warnings(state: TopicState) -> TopicState:
    for warning in state.warnings:
        logger.warning("changelog_at_risk", topic=state.name, why=warning)
    return state


def connect_leader(
    settings: Settings, beat: Heartbeat, stop: threading.Event
) -> ChangelogPublisher | None:
    """Claim the lead, bring the directory and the changelog to the same commit, and return the
    publisher of later commits.

    It waits for the brokers, and touches the heartbeat meanwhile. Returns: None if `stop` was set.
    Raises: FencedError, LockedError, ChangelogError, DataDirectoryError, SettingsError.
    """

    def waiting() -> None:
        beat.touch(WAITING)

    def idle() -> None:
        waiting()
        if stop.is_set():
            raise Stopped

    warned = False
    while not stop.is_set():
        waiting()
        with ExitStack() as stack:
            try:
                topic = open_topic(settings.kafka, settings.log.name)
                reader = KafkaReader(settings.kafka, topic.changelog, idle)
                stack.callback(reader.close)
                producer = KafkaProducer(settings.kafka, topic.name, topic.max_message_bytes)
                stack.callback(producer.close)
                name = member_name(settings.data_dir)
                publisher = lead(
                    settings.data_dir,
                    producer,
                    reader,
                    waiting=idle,
                    member=name,
                    heartbeat_seconds=settings.leader.heartbeat_seconds,
                )
                # Closing the log waits for acknowledgements even after a stop.
                publisher.waiting = waiting
                stack.pop_all()
                logger.info("leading", topic=topic.shown, seq=publisher.acknowledged().seq)
                return publisher
            except Stopped:
                return None
            except KafkaError as error:
                if not warned:
                    logger.warning("changelog_away", error=str(error))
                warned = True
        stop.wait(RETRY_SECONDS)
    return None
