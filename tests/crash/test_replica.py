"""The leader's ingest and a follower on a real Kafka, both killed at any moment: two logs that are equal byte for byte."""

import random
import time
import uuid

import pytest

from streamd.replica.start import published_seq
from streamd.telemetry.heartbeat import read_beat
from tests.crash.daemons import produce, rows_of, wait
from tests.replica.directories import difference


@pytest.fixture
def pair(daemon_on, kafka, topic):
    """A leader and a replica of one log, without a store."""
    name = f"log-{uuid.uuid4().hex[:8]}"
    together = {"log__name": name, "ingest__segment_edges": 700}
    leader = daemon_on(kafka.bootstrap_servers, topic, "leader", **together)
    replica = daemon_on(kafka.bootstrap_servers, topic, "replica", log__member="replica", **together)
    return leader, replica


def started(daemon, role, state):
    """Start a role, and wait until it does its work."""
    daemon.start(role)

    def does_its_work():
        beat = read_beat(daemon.path, role)
        return beat is not None and beat.pid == daemon.process.pid and beat.state == state

    wait(does_its_work, f"{role} is {state}", 60)


def test_kills_of_leader_and_follower_leave_two_equal_logs(pair, producer, topic):
    leader, replica = pair
    rng = random.Random(3)
    rows = rows_of(3000)
    started(leader, "ingest", "running")
    started(replica, "follow", "following")
    for number in range(4):
        some = rows[number * 750: (number + 1) * 750]
        produce(producer, topic, some[:600], size=7)
        time.sleep(rng.uniform(0, 0.3))
        (leader, replica)[number % 2].kill()
        produce(producer, topic, some[600:], size=7)
        started(*((leader, "ingest", "running"), (replica, "follow", "following"))[number % 2])
    wait(lambda: leader.edges() == 3000, "the leader shows all events", 90)
    assert leader.stop() == 0
    wait(lambda: published_seq(replica.path) == published_seq(leader.path), "the replica has the leader's last commit", 60)
    assert replica.stop() == 0
    assert difference(leader.path, replica.path) == ""
    assert sorted(leader.events()) == sorted(rows) == sorted(replica.events())
