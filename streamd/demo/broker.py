"""The brokers of the demo and of tests. Apache Kafka is started from an unpacked release."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from kafka import KafkaAdminClient
from kafka.errors import KafkaError as ClientError
from kafka.errors import TopicAlreadyExistsError

from streamd.errors import DemoError
from streamd.ingest.kafka.listener import why_silent
from streamd.processes import end_with_parent

READY = "Kafka Server started"
"""The line in a node's log when it is ready."""
START_SECONDS = 60.0
"""Longest wait for READY; several nodes may start at once on a busy machine."""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Any 16 bytes in base64, equal for all nodes of a cluster."""


class Broker(Protocol):
    """A broker for the demo. client: options for every kafka-python client. note: its description
    for the user."""

    bootstrap_servers: str
    client: dict[str, Any]
    note: str

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def close(self) -> None: ...


def free_port() -> int:
    """Find a free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Create a topic; an existing topic is left unchanged. Raises: DemoError without a broker."""
    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","))
    except ClientError as error:
        why = why_silent(bootstrap_servers, {}) or error
        raise DemoError(
            f"No broker answers at {bootstrap_servers}: {why}.",
            "start it, or correct --bootstrap-servers.",
        ) from None
    try:
        with contextlib.suppress(TopicAlreadyExistsError):
            admin.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
    finally:
        admin.close()


class ApacheKafka:
    """One or more Kafka nodes in KRaft mode on loopback. Owner: its creator, which must call
    `close`."""

    client: dict[str, Any] = {}

    def __init__(self, home: Path, folder: Path, nodes: int = 1) -> None:
        """Start the nodes and wait for them.

        Args: home: an unpacked release; folder: for data and logs, which `close` keeps.
        Raises: DemoError.
        """
        if not list((home / "libs").glob("kafka_*.jar")):
            raise DemoError(
                f"{home} has no libs/kafka_*.jar.",
                "set KAFKA_HOME to an unpacked Apache Kafka release.",
            )
        java = shutil.which("java")
        if java is None:
            raise DemoError(
                "Java is not installed, Apache Kafka needs it.",
                "install Java 17, or unset KAFKA_HOME.",
            )

        # Each node is a process with two ports: one for clients, one for the controllers.
        self._command = [java, "-Xms128m", "-Xmx512m", "-cp", f"{home}/libs/*"]
        self._folder = folder
        self._ports = [(free_port(), free_port()) for _ in range(nodes)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port, _ in self._ports)
        self.note = "Apache Kafka"
        try:
            # Start all before waiting for any: the quorum needs most of them.
            for node in range(nodes):
                self.configure(node)
                self.start(node, wait=False)
            for node in range(nodes):
                self._wait(node)
        except BaseException:
            # Else nodes that have started would keep running.
            self.close()
            raise

    def start(self, node: int = 0, wait: bool = True) -> None:
        """Start a node on its data, for the first time or after `kill`. wait: until it is ready.
        Raises: DemoError."""
        # Format the storage of a new node.
        here = self._folder / str(node)
        config = here / "server.properties"
        log4j = f"-Dlog4j2.configurationFile={here / 'log4j2.properties'}"
        if not (here / "log" / "meta.properties").exists():
            formatted = subprocess.run(
                [
                    *self._command[:3],
                    log4j,
                    *self._command[3:],
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    CLUSTER_ID,
                    "-c",
                    str(config),
                ],
                capture_output=True,
                check=False,
            )
            if formatted.returncode:
                raise DemoError(
                    f"Kafka's storage cannot be formatted: {formatted.stderr.decode()[-300:]}"
                )

        # The node ends with this process, even if `close` is never called.
        with (here / "server.log").open("wb") as output:
            self._processes[node] = subprocess.Popen(
                [*self._command[:3], log4j, *self._command[3:], "kafka.Kafka", str(config)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        if wait:
            self._wait(node)

    def kill(self, node: int = 0) -> None:
        """Kill a node with SIGKILL, so that it loses its unwritten data."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        create_topic(self.bootstrap_servers, topic, partitions)

    def close(self) -> None:
        """End all nodes."""
        # Signal all first, so that they end at the same time.
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _wait(self, node: int) -> None:
        """Wait until a node is ready. Raises: DemoError."""
        # Do not wait for the deadline if the node has ended.
        output = self._folder / str(node) / "server.log"
        deadline = time.monotonic() + START_SECONDS
        while READY not in output.read_text(errors="replace"):
            if self._processes[node].poll() is not None or time.monotonic() > deadline:
                raise DemoError(
                    f"Apache Kafka did not start: {output.read_text(errors='replace')[-400:]}",
                    f"read {output}.",
                )
            time.sleep(0.1)

    def configure(self, node: int) -> None:
        """Write the configuration of a node."""
        here = self._folder / str(node)
        here.mkdir(parents=True, exist_ok=True)
        port, controller = self._ports[node]
        voters = ",".join(f"{n + 1}@127.0.0.1:{c}" for n, (_, c) in enumerate(self._ports))
        nodes = len(self._ports)

        # With several nodes an acknowledged record survives the loss of one.
        replicas = min(nodes, 3)
        in_sync = 2 if nodes > 1 else 1
        settings = {
            "process.roles": "broker,controller",
            "node.id": node + 1,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": here / "log",
            "num.partitions": 4,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
        }
        (here / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        (here / "log4j2.properties").write_text(
            "rootLogger.level=INFO\nrootLogger.appenderRef.out.ref=OUT\nappender.out.type=Console\n"
            "appender.out.name=OUT\nappender.out.layout.type=PatternLayout\n"
            "appender.out.layout.pattern=[%d] %p %m (%c)%n\n"
        )


class GivenBroker:
    """A broker that is already running."""

    client: dict[str, Any] = {}

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.note = f"the broker at {bootstrap_servers}"

    def create_topic(self, topic: str, partitions: int) -> None:
        create_topic(self.bootstrap_servers, topic, partitions)

    def close(self) -> None:
        """Leave the broker running."""


def find_broker(bootstrap_servers: str | None, folder: Path) -> Broker:
    """Return the given broker, else start Apache Kafka from KAFKA_HOME, else start a `StandIn`."""
    if bootstrap_servers:
        return GivenBroker(bootstrap_servers)
    home = os.environ.get("KAFKA_HOME")
    if home:
        return ApacheKafka(Path(home), folder)
    # Imported here, since it needs an optional package.
    from streamd.demo.standin import StandIn

    return StandIn()
