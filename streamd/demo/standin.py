"""The stand-in for Kafka where none is at hand: librdkafka's mock cluster, embedded. All that is
peculiar to it is here.

It makes topics on first use with 4 partitions, keeps 5 MiB a partition, forgets all on exit, and
answers ApiVersions in a form kafka-python 3 cannot read, so clients are told its version.
"""

import time
from typing import Any

from streamd.errors import DemoError

PARTITIONS = 4


class StandIn:
    """A broker inside this process. Owner: the demo."""

    client: dict[str, Any] = {"api_version": [2, 3]}

    def __init__(self) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise DemoError(
                "There is no broker: KAFKA_HOME is not set and confluent-kafka is not installed.",
                "pip install 'streamd[demo]', or name one with --bootstrap-servers.",
            ) from None
        self._cluster = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 2}
        )
        self.bootstrap_servers = self._find()
        self.note = (
            "a stand-in for Kafka inside this process, for a first look only "
            "(set KAFKA_HOME or --bootstrap-servers for a real one)"
        )

    def _find(self) -> str:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            brokers = self._cluster.list_topics(timeout=5).brokers.values()
            if brokers:
                return ",".join(f"{b.host}:{b.port}" for b in brokers)
            time.sleep(0.05)
        raise DemoError("The stand-in broker did not start.")

    def create_topic(self, topic: str, partitions: int) -> None:
        """Topics come with their first use."""
        if partitions != PARTITIONS:
            raise DemoError(f"The stand-in has {PARTITIONS} partitions a topic, not {partitions}.")
        self._cluster.list_topics(topic, timeout=5)

    def close(self) -> None:
        self._cluster.flush(1)
