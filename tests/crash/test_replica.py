"""The leader's ingest and a follower on a real Kafka, both killed at any moment: two logs that are equal byte for byte."""

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest
from kafka import KafkaAdminClient, TopicPartition

from streamd.cli.doctor_checks import run_check
from streamd.errors import ChangelogError
from streamd.eventlog.journal.changelog_position import read_position
from streamd.eventlog.recovery import published_seq
from streamd.replica.changelog.topics import WANTED, ensure_topic
from streamd.settings.loading import KafkaSettings, as_environment
from streamd.store.objects import Store
from streamd.store.upload import upload
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
    started(leader, "ingest", "leading")
    started(replica, "follow", "following")
    for number in range(4):
        some = rows[number * 750: (number + 1) * 750]
        produce(producer, topic, some[:600], size=7)
        time.sleep(rng.uniform(0, 0.3))
        (leader, replica)[number % 2].kill()
        produce(producer, topic, some[600:], size=7)
        started(*((leader, "ingest", "leading"), (replica, "follow", "following"))[number % 2])
    wait(lambda: leader.edges() == 3000, "the leader shows all events", 90)
    assert leader.stop() == 0
    wait(lambda: published_seq(replica.path) == published_seq(leader.path), "the replica has the leader's last commit", 60)
    assert replica.stop() == 0
    assert difference(leader.path, replica.path) == ""
    assert sorted(leader.events_as_sent()) == sorted(rows) == sorted(replica.events_as_sent())


def test_a_replica_from_nothing_takes_the_manifest_and_answers(pair, producer, topic, kafka, tmp_path):
    """The whole daemon on both sides: records are deleted up to the manifest, a new replica starts from it, and serves."""
    leader, replica = pair
    store = f"file://{tmp_path}/store"
    rows = rows_of(1200)
    started(leader, "ingest", "leading")
    produce(producer, topic, rows[:800], size=7)
    wait(lambda: leader.edges() == 800, "the leader shows the first events", 60)
    check = run_check("changelog", leader.settings)
    assert check.good and "1 copy on 1 broker; 1 broker: a lost disk" in check.seen
    at = read_position(leader.path)
    upload(leader.path, Store(store))
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(f"{leader.settings.log.name}.changelog", 0): at.offset})
    admin.close()
    produce(producer, topic, rows[800:], size=7)

    replica.settings = replica.settings.model_copy(update={"log": replica.settings.log.model_copy(update={"store": store})})
    replica.start()
    wait(lambda: replica.seen() == 1200, "the replica's server has all events", 120)
    assert read_beat(replica.path, "follow").state == "following" and read_beat(replica.path, "ingest") is None
    body = json.dumps({"src": rows[0][0], "dst": [rows[0][1]]}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{replica.settings.server.port}/v1/score", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert len(json.load(answer)["scores"]) == 1, "it answers"
    out = subprocess.run([sys.executable, "-m", "streamd", "changelog", "verify"], env=os.environ | as_environment(replica.settings),
                         capture_output=True, text=True, check=False)
    assert out.returncode == 0 and out.stdout.startswith("equal: ") and "; 0 commits" in out.stdout, out.stdout + out.stderr
    assert leader.stop() == 0 and replica.stop() == 0
    assert difference(leader.path, replica.path) == ""


def test_a_topic_that_would_lose_records_is_refused(kafka):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    settings_of_client = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    try:
        made = ensure_topic(admin, settings_of_client, f"made-{uuid.uuid4().hex[:8]}")
        assert (made.replicas, made.num_brokers, made.max_message_bytes) == (1, 1, 1_048_588)
        assert ensure_topic(admin, settings_of_client, made.name) == made
        for key, value in (("cleanup.policy", "compact"), ("retention.ms", "1000"), ("retention.bytes", "1000"),
                           ("unclean.leader.election.enable", "true")):
            name = f"wrong-{uuid.uuid4().hex[:8]}"
            topic = {"num_partitions": 1, "replication_factor": 1, "configs": WANTED | {key: value}}
            admin.create_topics({name: topic}, wait_for_metadata=True)
            with pytest.raises(ChangelogError, match=f"{key} {value}"):
                ensure_topic(admin, settings_of_client, name)
        name = f"wrong-{uuid.uuid4().hex[:8]}"
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1, "configs": WANTED}}, wait_for_metadata=True)
        with pytest.raises(ChangelogError, match="2 partitions, not one"):
            ensure_topic(admin, settings_of_client, name)
    finally:
        admin.close()
