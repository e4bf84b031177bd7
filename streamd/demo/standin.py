"""The stand-in for Kafka where none is at hand: librdkafka's mock cluster, in this process.

It creates topics on first use with 4 partitions, keeps 5 MiB a partition and forgets all on exit.
Its answer to ApiVersions cannot be read by kafka-python 3, so clients are given its version. It
answers a waiting fetch when the client's longest wait is over, not when a record comes.
"""

import time
from typing import Any

from streamd.errors import DemoError

PARTITIONS = 4
"""Partitions of every topic of the mock cluster, which cannot be changed."""
FETCH_MS = 50
"""Longest wait of a fetch, so that a new record is read this soon. By kafka-python's default of
500 ms it would wait .4 s; a fetch every 20 ms takes a twelfth of a core, all the time."""


class StandIn:
    """A mock broker inside this process. Owner: the demo."""

    # With a version given, kafka-python does not ask for it.
    client: dict[str, Any] = {"api_version": [2, 3], "fetch_max_wait_ms": FETCH_MS}

    def __init__(self) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise DemoError(
                "There is no broker: KAFKA_HOME is not set and confluent-kafka is not installed.",
                "pip install 'streamd-gnn[demo]', or name one with --bootstrap-servers.",
            ) from None
        # The mock cluster comes with a client, whose own address is then not used.
        self._cluster = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 2}
        )
        self.bootstrap_servers = self._find()
        self.note = (
            "a stand-in for Kafka inside this process, for a first look only "
            "(set KAFKA_HOME or --bootstrap-servers for a real one)"
        )

    def _find(self) -> str:
        """The address of the mock broker, once it answers. Raises: DemoError."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            brokers = self._cluster.list_topics(timeout=5).brokers.values()
            if brokers:
                return ",".join(f"{b.host}:{b.port}" for b in brokers)
            time.sleep(0.05)
        raise DemoError("The stand-in broker did not start.")

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic by asking for it. Raises: DemoError for another number of partitions."""
        if partitions != PARTITIONS:
            raise DemoError(f"The stand-in has {PARTITIONS} partitions a topic, not {partitions}.")
        self._cluster.list_topics(topic, timeout=5)

    def close(self) -> None:
        """Flush the client that holds the mock cluster."""
        self._cluster.flush(1)
