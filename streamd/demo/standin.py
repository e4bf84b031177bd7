"""A broker for the demo without Kafka: librdkafka's mock cluster, in this process.

It creates topics with 4 partitions at their first use, keeps 5 MiB per partition, and loses all
data at exit. kafka-python 3 cannot parse its ApiVersions response, so clients are configured with a
version. It answers a waiting fetch after fetch.max.wait.ms, not when a record arrives.
"""

import time
from typing import Any

from streamd.errors import DemoError

PARTITIONS = 4
"""Partitions of each topic of the mock cluster; fixed."""
FETCH_MS = 50
"""fetch.max.wait.ms, and so the delay of a new record. With kafka-python's default of 500 ms it was
.4 s; with 20 ms, fetches take a twelfth of a core all the time."""


class StandIn:
    """A mock broker inside this process. Owner: the demo."""

    # With a configured version, kafka-python sends no ApiVersions request.
    client: dict[str, Any] = {"api_version": [2, 3], "fetch_max_wait_ms": FETCH_MS}

    def __init__(self) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise DemoError(
                "There is no broker: KAFKA_HOME is not set and confluent-kafka is not installed.",
                "pip install 'streamd-gnn[demo]', or name one with --bootstrap-servers.",
            ) from None
        # The mock cluster is part of a client, which then ignores bootstrap.servers.
        self._cluster = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 2}
        )
        self.bootstrap_servers = self._find()
        self.note = (
            "a stand-in for Kafka inside this process, for a first look only "
            "(set KAFKA_HOME or --bootstrap-servers for a real one)"
        )

    def _find(self) -> str:
        """Wait for the mock broker. Returns: its address. Raises: DemoError."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            brokers = self._cluster.list_topics(timeout=5).brokers.values()
            if brokers:
                return ",".join(f"{b.host}:{b.port}" for b in brokers)
            time.sleep(0.05)
        raise DemoError("The stand-in broker did not start.")

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic by requesting its metadata. Raises: DemoError for another number of
        partitions."""
        if partitions != PARTITIONS:
            raise DemoError(f"The stand-in has {PARTITIONS} partitions a topic, not {partitions}.")
        self._cluster.list_topics(topic, timeout=5)

    def close(self) -> None:
        """Flush the client of the mock cluster."""
        self._cluster.flush(1)
