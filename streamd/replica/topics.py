"""The topics by which machines follow: made where they are missing, and checked."""

from typing import Any

import structlog
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError as ClientError

from streamd.errors import KafkaError
from streamd.ingest.client import make_admin
from streamd.settings import KafkaSettings

logger = structlog.get_logger()
REPLICAS = 3
"""Copies of a topic: with two of them in sync, a broker may be lost at any time."""
CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""What a topic must have: records go only when we delete them."""


def ensure_topic(kafka: KafkaSettings, name: str) -> None:
    """Make a topic of one partition where it is missing, and check one that is there.

    Raises: KafkaError where it has several partitions or loses records by itself, or where no
    broker answers.
    """
    admin = make_admin(kafka)
    try:
        brokers = len(admin.describe_cluster()["brokers"])
        replicas = min(REPLICAS, brokers)
        configs = {**CONFIGS, "min.insync.replicas": str(max(1, replicas - 1))}
        try:
            made = {name: {"num_partitions": 1, "replication_factor": replicas, "configs": configs}}
            admin.create_topics(made, wait_for_metadata=True)
            logger.info("topic_made", topic=name, replicas=replicas)
        except ClientError as error:
            if type(error).__name__ != "TopicAlreadyExistsError":
                raise
        _check(admin, name)
        if replicas < REPLICAS:
            logger.warning(
                "topic_with_few_replicas",
                topic=name,
                brokers=brokers,
                meaning="what a lost broker held may be lost",
            )
    except ClientError as error:
        raise KafkaError(
            f"Topic {name} cannot be made or described: {error}.",
            "check kafka.client, and that its user may create topics.",
        ) from None
    finally:
        admin.close()


def _check(admin: Any, name: str) -> None:
    """Check a topic. Raises: KafkaError."""
    partitions = len(admin.describe_topics([name])[0]["partitions"])
    if partitions != 1:
        raise KafkaError(
            f"Topic {name} has {partitions} partitions, and must have one.",
            "delete it, or set another log.name.",
        )
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict.fromkeys(CONFIGS))
    described = admin.describe_configs([resource], config_filter="all")
    found = next(iter(next(iter(described.values())).values()))
    for key, value in CONFIGS.items():
        seen = str(found[key]["value"])
        if seen != value:
            raise KafkaError(
                f"Topic {name} has {key} {seen}, and must have {value}.",
                f"set it with kafka-configs.sh --alter --add-config {key}={value}.",
            )
