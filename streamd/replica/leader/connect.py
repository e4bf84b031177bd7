"""Connects a leader to its changelog, and waits for brokers that do not answer."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import structlog
from kafka import KafkaAdminClient

from streamd.errors import KafkaError
from streamd.eventlog.journal.changelog_position import ChangelogId, read_position
from streamd.ingest.kafka.client import make_admin
from streamd.replica.changelog.kafka import KafkaProducer, KafkaReader
from streamd.replica.changelog.topics import (
    TopicState,
    ensure_topic,
    find_topic,
    topic_exists,
)
from streamd.replica.leader.leader import lead
from streamd.replica.leader.publisher import ChangelogPublisher
from streamd.replica.members import member_name
from streamd.replica.start import check_changelog, lost_error
from streamd.settings.loading import KafkaSettings, Settings
from streamd.store.changelog import changelog_topic
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
RETRY_SECONDS = 1.0
WAITING = "waiting for the changelog"
LOOKS, LOOK_SECONDS = 4, 1.0
"""Number of times that a lost topic is looked for, and the pause between two: a broker that has
just started may not know all topics yet."""


class Stopped(Exception):  # noqa: N818 - a stop is no error
    """The role was stopped while it waited."""


def open_topic(kafka: KafkaSettings, log_name: str, data_dir: Path) -> TopicState:
    """Create the changelog's topic if this directory never read one, and check it. Only members
    that may lead call this. Raises: KafkaError, ChangelogError."""
    admin = make_admin(kafka)
    name = changelog_topic(log_name)
    try:
        _check_not_lost(admin, kafka, name, data_dir)
        return _log_warnings(ensure_topic(admin, kafka, name))
    finally:
        admin.close()


def find_changelog(kafka: KafkaSettings, log_name: str, data_dir: Path) -> TopicState | None:
    """Check the changelog's topic. Returns: None if no leader has created it. Raises: KafkaError;
    ChangelogError, also if this directory has read a topic that is lost."""
    admin = make_admin(kafka)
    name = changelog_topic(log_name)
    try:
        _check_not_lost(admin, kafka, name, data_dir)
        state = find_topic(admin, kafka, name)
    finally:
        admin.close()
    return None if state is None else _log_warnings(state)


def _check_not_lost(
    admin: KafkaAdminClient, kafka: KafkaSettings, name: str, data_dir: Path
) -> None:
    """Check that the topic that a directory has read exists: a new, empty one would hide the loss.
    Raises: ChangelogError, KafkaError."""
    check_changelog(data_dir, ChangelogId(topic=name))
    stored = read_position(data_dir)
    if stored is None:
        return
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_SECONDS)
        if topic_exists(admin, kafka, name):
            return
    raise lost_error(data_dir, name, stored)


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
                topic = open_topic(settings.kafka, settings.log.name, settings.data_dir)
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
