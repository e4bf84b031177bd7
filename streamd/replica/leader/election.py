"""One attempt of a standby to be elected leader, in which it claims the next term (Kafka: leader
epoch) in the changelog."""

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
ELECTION_TIMEOUT_SECONDS = 60.0
"""Longest wait until a claim is acknowledged and all records before it are read. Without it a
standby whose brokers accept no records would wait for ever, while another standby may reach
them."""
CLAIMING = "claiming the lead"


def run_election(
    settings: Settings, beat: Heartbeat, stop: threading.Event, after_term: int
) -> ChangelogPublisher:
    """Claim the lead once, as successor of the leader of a term. Returns: the publisher of the
    log that this member leads.

    Raises: FencedError if another member claimed first, KafkaError if the brokers do not accept
    the claim in time, `Stopped` if `stop` was set, and those of `lead`.
    """
    until = time.monotonic() + ELECTION_TIMEOUT_SECONDS

    def waiting() -> None:
        beat.touch(CLAIMING)

    def idle() -> None:
        waiting()
        if stop.is_set():
            raise Stopped
        if time.monotonic() > until:
            raise KafkaError(
                f"The changelog did not store a claim within {ELECTION_TIMEOUT_SECONDS:.0f} s.",
                "check that enough brokers are in sync; the standby tries again.",
            )

    waiting()
    with ExitStack() as stack:
        topic = open_topic(settings.kafka, settings.log.name, settings.data_dir)
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
        # Closing the log waits for acknowledgements even after a stop.
        publisher.waiting = waiting
        stack.pop_all()
    logger.info("leading", topic=topic.shown, term=publisher.term)
    return publisher
