"""The archive's interface to the changelog, a topic with one partition: it reads the topic's bounds
and deletes its first records."""

from typing import Any, Protocol

from streamd.errors import KafkaError
from streamd.ingest.kafka.client import make_admin
from streamd.settings.loading import KafkaSettings


class Changelog(Protocol):
    """Reads the changelog's bounds, and deletes its first records."""

    def bounds(self) -> tuple[int, int]:
        """Offset of the oldest record, and one past the newest; both 0 if ingest has not created
        the topic yet. Raises: KafkaError."""

    def delete_before(self, offset: int) -> None:
        """Delete all records below an offset. Raises: KafkaError."""


def changelog_topic(log_name: str) -> str:
    """Name of the changelog's topic, by the setting `log.name`."""
    return f"{log_name}.changelog"


def models_topic(log_name: str) -> str:
    """Name of the topic of versions and requests."""
    return f"{log_name}.models"


class KafkaChangelog:
    """The changelog as a topic in Kafka. Each call opens a connection, since the archive makes few
    calls a round."""

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic

    def bounds(self) -> tuple[int, int]:
        """As in `Changelog`."""
        from kafka.admin import OffsetSpec
        from kafka.errors import UnknownTopicOrPartitionError

        def ask(admin: Any, partition: Any) -> tuple[int, int]:
            try:
                first, end = (
                    admin.list_partition_offsets({partition: spec})[partition].offset
                    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
                )
            except UnknownTopicOrPartitionError:
                return 0, 0
            return first, end

        found: tuple[int, int] = self._with_admin(ask)
        return found

    def delete_before(self, offset: int) -> None:
        """As in `Changelog`."""
        self._with_admin(lambda admin, partition: admin.delete_records({partition: offset}))

    def _with_admin(self, act: Any) -> Any:
        """Call `act` with a new admin client, since a client that lost its controller does not
        recover. Raises: KafkaError."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError as ClientError

        admin = make_admin(self._kafka)
        try:
            return act(admin, TopicPartition(self._topic, 0))
        except (ClientError, OSError) as error:
            raise KafkaError(
                f"The topic {self._topic} cannot be trimmed: {type(error).__name__} {error}.",
                "check the broker and the rights of kafka.client to delete records.",
            ) from None
        finally:
            admin.close()
