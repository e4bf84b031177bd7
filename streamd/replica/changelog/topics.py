"""Creates the topics of a log with a name, and checks their settings, on which durability and
fencing depend."""

import contextlib
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError as ClientError
from kafka.errors import TopicAlreadyExistsError

from streamd.errors import ChangelogError, KafkaError
from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.number_texts import count_noun
from streamd.settings.loading import KafkaSettings

REPLICAS = 3
MIN_IN_SYNC = 2
"""With three copies, the loss of one broker loses no acknowledged record."""
FOREVER = "-1"
CLUSTER_CHARACTERS = 128
"""Characters of a cluster's id that are stored: Kafka's ids have 22."""
DEFAULT_MAX_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""
MIN_MESSAGE_BYTES = 72_000
"""Smallest `max.message.bytes`. Of each record, HEAD_BYTES and OVERHEAD_BYTES are reserved: less
leaves no room for rows, and no number of records would take a commit."""
WANTED = {
    "cleanup.policy": "delete",
    "retention.ms": FOREVER,
    "retention.bytes": FOREVER,
}
"""Only streamd deletes records, once a manifest has their commits."""
CHECKED = {**WANTED, "unclean.leader.election.enable": "false"}
"""With unclean elections, a broker that was out of sync may discard acknowledged records. This is
only checked: off is Kafka's default, and the topic must be created even if the broker does not let
streamd set it."""


class TopicState(NamedTuple):
    """The broker's description of a topic. changelog: ids of cluster and topic. num_brokers: of the
    cluster. warnings: texts for the log of streamd."""

    name: str
    changelog: ChangelogId
    num_brokers: int
    replicas: int
    max_message_bytes: int
    warnings: list[str]

    @property
    def shown(self) -> str:
        warnings = "".join(f"; {warning}" for warning in self.warnings)
        copies = count_noun(self.replicas, "copy", "copies")
        brokers = count_noun(self.num_brokers, "broker")
        return f"{self.name} with {copies} on {brokers}{warnings}"


def settings_of_topic(num_brokers: int) -> dict[str, str]:
    """The settings of a new topic."""
    in_sync = MIN_IN_SYNC if num_brokers >= REPLICAS else 1
    return {**WANTED, "min.insync.replicas": str(in_sync)}


def ensure_topic(admin: KafkaAdminClient, kafka: KafkaSettings, name: str) -> TopicState:
    """Create a topic of one partition if it is missing, and check it. Raises: KafkaError,
    ChangelogError."""
    try:
        if _describe_topic(admin, name) is None:
            num_brokers = len(admin.describe_cluster()["brokers"])
            topic = {
                "num_partitions": 1,
                "replication_factor": min(REPLICAS, num_brokers),
                "configs": settings_of_topic(num_brokers),
            }
            with contextlib.suppress(TopicAlreadyExistsError):
                admin.create_topics({name: topic}, wait_for_metadata=True)
        state = look_at_topic(admin, name)
    except ClientError as error:
        raise _unanswered_error(kafka, name, error) from None
    if state is None:
        raise KafkaError(f"The topic {name!r} was created and is not visible yet.", "wait.")
    return state


def find_topic(admin: KafkaAdminClient, kafka: KafkaSettings, name: str) -> TopicState | None:
    """Check a topic. Returns: None if it does not exist. Raises: KafkaError, ChangelogError."""
    try:
        return look_at_topic(admin, name)
    except ClientError as error:
        raise _unanswered_error(kafka, name, error) from None


def look_at_topic(admin: KafkaAdminClient, name: str) -> TopicState | None:
    """Check a topic. Returns: None if it does not exist. Raises: ChangelogError if its settings
    could lose or reorder acknowledged records, kafka.errors.KafkaError."""
    described = _describe_topic(admin, name)
    if described is None:
        return None
    cluster = admin.describe_cluster()
    num_brokers = len(cluster["brokers"])
    partitions = described["partitions"]
    replicas = len(partitions[0]["replica_nodes"])
    found = _configs(admin, name)
    wrong = [f"{len(partitions)} partitions, not one"] if len(partitions) != 1 else []
    wrong += [
        f"{key} {found[key]}, not {value}"
        for key, value in CHECKED.items()
        if found.get(key, value) != value
    ]
    size = int(found.get("max.message.bytes", DEFAULT_MAX_BYTES))
    if size < MIN_MESSAGE_BYTES:
        wrong.append(f"max.message.bytes {size:,}, not {MIN_MESSAGE_BYTES:,} or more")
    if wrong:
        raise ChangelogError(
            f"The topic {name!r} has {', '.join(wrong)}.",
            "set it with kafka-configs.sh --alter, or remove the topic and let streamd create it.",
        )

    # One broker is no error: many users start with one.
    warnings = []
    in_sync = int(found.get("min.insync.replicas", "1"))
    if num_brokers < REPLICAS:
        brokers = count_noun(num_brokers, "broker")
        warnings.append(f"{brokers}: a lost disk loses acknowledged commits")
    elif replicas < REPLICAS or in_sync < MIN_IN_SYNC:
        warnings.append(f"{replicas} copies, {in_sync} in sync: fewer than 3 and 2")
    changelog = ChangelogId(
        str(cluster.get("cluster_id") or "")[:CLUSTER_CHARACTERS],
        str(described.get("topic_id") or ""),
        name,
    )
    return TopicState(name, changelog, num_brokers, replicas, size, warnings)


def topic_exists(admin: KafkaAdminClient, kafka: KafkaSettings, name: str) -> bool:
    """Whether the brokers know a topic. Raises: KafkaError."""
    try:
        return _describe_topic(admin, name) is not None
    except ClientError as error:
        raise _unanswered_error(kafka, name, error) from None


def _describe_topic(admin: KafkaAdminClient, name: str) -> dict[str, Any] | None:
    for topic in admin.describe_topics([name]):
        if topic["name"] == name and not topic["error_code"] and topic["partitions"]:
            found: dict[str, Any] = topic
            return found
    return None


def _configs(admin: KafkaAdminClient, name: str) -> dict[str, str]:
    """The settings of a topic, including those inherited from its broker."""
    wanted = dict.fromkeys((*CHECKED, "min.insync.replicas", "max.message.bytes"))
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=wanted)
    answer = admin.describe_configs([resource], config_filter="all")
    values: dict[str, Any] = {}
    for topics in answer.values():
        for config in topics.get(name, {}).items():
            values[config[0]] = config[1]
    return {
        key: str(value["value"] if isinstance(value, dict) else value)
        for key, value in values.items()
    }


def _unanswered_error(kafka: KafkaSettings, name: str, error: Exception) -> KafkaError:
    return KafkaError(
        f"The topic {name!r} cannot be created or described: {error}.",
        f"check {kafka.bootstrap_servers}, kafka.client and this user's rights to the topic.",
    )
