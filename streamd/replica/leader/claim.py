"""A standby's one try to lead."""

import threading
import time
from contextlib import ExitStack

import structlog

from streamd.errors import KafkaError
from streamd.replica.changelog.kafka import KafkaProducer, KafkaReader
from streamd.replica.leader.connect import Stopped, open_topic
from streamd.replica.leader.leader import lead
from streamd.replica.leader.publisher import ChangelogPublisher
from streamd.replica.members import member_name
from streamd.settings.loading import Settings
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
CLAIM_SECONDS = 60.0
"""Longest wait until a claim is acknowledged and all before it is read. Brokers that take no
records would let it wait for ever, while another member may reach them."""
CLAIMING = "claiming the lead"


def claim_lead(
    settings: Settings, beat: Heartbeat, stop: threading.Event, after_term: int
) -> ChangelogPublisher:
    """Claim the lead once, behind the leader of a term. Returns: the publisher of what this member
    leads.

    Raises: FencedError where another one claimed first, KafkaError where the brokers do not take
    the claim in time, `Stopped` where `stop` was set, and those of `lead`.
    """
    until = time.monotonic() + CLAIM_SECONDS

    def waiting() -> None:
        beat.touch(CLAIMING)

    def idle() -> None:
        waiting()
        if stop.is_set():
            raise Stopped
        if time.monotonic() > until:
            raise KafkaError(
                f"The changelog did not take a claim within {CLAIM_SECONDS:.0f} s.",
                "check that enough brokers are in sync; it is tried again.",
            )

    waiting()
    with ExitStack() as stack:
        topic = open_topic(settings.kafka, settings.log.name)
        reader = KafkaReader(settings.kafka, topic.changelog, idle)
        stack.callback(reader.close)
        producer = KafkaProducer(settings.kafka, topic.name, topic.max_message_bytes)
        stack.callback(producer.close)
        publisher = lead(
            settings.data_dir,
            producer,
            reader,
            waiting=idle,
            member=member_name(settings.data_dir),
            heartbeat_seconds=settings.leader.heartbeat_seconds,
            after_term=after_term,
        )
        # A log that is closed waits for acknowledgements although it was told to stop.
        publisher.waiting = waiting
        stack.pop_all()
    logger.info("leading", topic=topic.shown, term=publisher.term)
    return publisher
