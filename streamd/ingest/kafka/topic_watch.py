"""A thread that publishes positions to Kafka and detects changes of the topics."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError as ClientError
from kafka.structs import OffsetAndMetadata

from streamd.errors import KafkaError
from streamd.ingest.kafka.client import make_admin
from streamd.settings.loading import KafkaSettings

logger = structlog.get_logger()
INTERVAL_SECONDS = 5.0
"""Two or three small requests at this interval cost little, and delay nothing."""


@dataclass(frozen=True)
class Topics:
    """The broker's answer about its cluster and our topics. topic_ids: by name; partitions: sorted.

    leaderless: partitions without a leader at that moment; answers that differ only in them are
    equal. missing: topics that do not exist, or that this user may not see.
    """

    cluster_id: str
    topic_ids: dict[str, str]
    partitions: tuple[TopicPartition, ...]
    leaderless: frozenset[TopicPartition] = field(default=frozenset(), compare=False)
    missing: tuple[str, ...] = ()


def describe(admin: KafkaAdminClient, names: tuple[str, ...]) -> Topics:
    """Ask the broker about its cluster and these topics. Raises: kafka.errors.KafkaError."""
    cluster = admin.describe_cluster().get("cluster_id") or ""
    described = {
        t["name"]: t
        for t in admin.describe_topics(sorted(set(names)))
        if not t["error_code"] and t["partitions"]
    }

    # Old brokers give no topic ids.
    ids = {n: str(t["topic_id"]) if t.get("topic_id") else "" for n, t in described.items()}
    leader = {
        TopicPartition(n, p["partition_index"]): p["leader_id"]
        for n, t in described.items()
        for p in t["partitions"]
    }
    return Topics(
        cluster_id=cluster,
        topic_ids=ids,
        partitions=tuple(sorted(leader)),
        leaderless=frozenset(tp for tp, node in leader.items() if node < 0),
        missing=tuple(sorted(set(names) - set(described))),
    )


def missing_topic(name: str, bootstrap_servers: str, was_read: bool = False) -> str:
    """The message about a missing topic, with a command that creates it. was_read: whether the log
    has records of it."""
    if was_read:
        return (
            f"topic {name!r} no longer exists on {bootstrap_servers}, or this user may not see it "
            "any more: restore it; if it was deleted, its unread records are lost: "
            f"{creation(name, bootstrap_servers)}, and set ingest.on_data_loss: continue"
        )
    return (
        f"topic {name!r} does not exist on {bootstrap_servers}, "
        f"or this user may not see it: {creation(name, bootstrap_servers)}"
    )


def creation(name: str, bootstrap_servers: str) -> str:
    """The operator action for a missing topic."""
    return (
        f"create it, e.g. with kafka-topics.sh --create --bootstrap-server {bootstrap_servers} "
        f"--topic {name} --partitions 4"
    )


class BrokerWatch:
    """Asks the broker from a thread with its own admin client. Owner: the source.

    So a slow coordinator never delays reading. changed: set once the topics differ from `known`;
    the poll loop then begins again.
    """

    def __init__(self, kafka: KafkaSettings, known: Topics) -> None:
        self._kafka = kafka
        self._known = known
        self._offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self._admin: Any = None
        self._well = True
        self.answered_at = time.monotonic()
        """Monotonic seconds of the broker's last answer; the first is the one with `known`."""
        self.has_asked = False
        """Whether a round has ended, well or not."""
        self.missing: tuple[str, ...] = ()
        """Topics that the broker's last answer did not have."""
        self._stop = threading.Event()
        self.changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-watch", daemon=True)
        self._thread.start()

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Publish these offsets in the next round, for lag tools only."""
        self._offsets = {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}

    def close(self) -> None:
        """Publish a last time and end the thread."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        published: dict[TopicPartition, OffsetAndMetadata] = {}
        stopping = False
        num_failed = 0
        while not stopping:
            stopping = self._stop.wait(INTERVAL_SECONDS)
            offsets = self._offsets
            try:
                # Publish changed offsets, and compare the topics with those known.
                self._admin = self._admin or make_admin(self._kafka)
                if offsets != published:
                    self._commit_offsets(offsets)
                    published = offsets
                # The last round only publishes: a change would have no effect.
                now = None if stopping else describe(self._admin, self._kafka.topics)
                if now is not None:
                    # The partitions of the other topics are still read.
                    self.missing = now.missing
                    if not now.missing and now != self._known:
                        self.changed.set()
                self._well = True
                num_failed = 0
                self.answered_at = time.monotonic()
            except (ClientError, KafkaError, OSError) as error:
                # Log the second failure in a row: a new broker has no coordinator for the group at
                # first, and answers in the next round.
                num_failed += 1
                if num_failed == 2 or stopping:
                    logger.warning("broker_watch_failed", error=str(error))
                self._well = False
                self._drop_admin()
            self.has_asked = True
        self._drop_admin()

    def _commit_offsets(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets to the group; log a refusal by the broker."""
        answers = self._admin.alter_group_offsets(self._kafka.group_id, offsets)
        refused = sorted({e.__name__ for e in answers.values() if getattr(e, "errno", 0)})
        if refused and self._well:
            logger.warning(
                "lag_not_published",
                group=self._kafka.group_id,
                errors=refused,
                meaning="lag tools show old offsets of the group; ingest does not use them",
            )

    def _drop_admin(self) -> None:
        """Close the client after an error: it would keep asking the controller that it
        remembers."""
        admin = self._admin
        self._admin = None
        if admin is not None:
            try:
                admin.close()
            except (ClientError, OSError) as error:
                logger.debug("admin_not_closed", error=str(error))
