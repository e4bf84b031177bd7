"""Leaders, replicas, standbys and brokers, killed, paused and cut off: at the end all have one log, and nobody was told anything that was not so.

`CHAOS_SECONDS` is the length of the mix, `CHAOS_SEED` decides its moments. Only correctness is judged here: machines that share two
cores say nothing about times."""

import os
import random
import time
import uuid

import pytest

from streamd.demo.broker import ApacheKafka
from tests.crash.cluster import PATIENCE, Cluster, small_disks
from tests.crash.daemons import wait

SECONDS = float(os.environ.get("CHAOS_SECONDS", "600"))
SEED = int(os.environ.get("CHAOS_SEED", "0"))
DISKS = ("leader disk", "replica disk")
STANDBY_FAULTS = (
    "leader ingest", "leader train", "leader serve", "leader archive", "leader daemon", "leader machine", "leader paused", "leader ingest-paused",
    "standby ingest", "standby train", "standby serve", "standby machine", "standby wiped", "standby paused", "standby asked", "store away",
    "broker lost")
FAULTS = (
    "leader ingest", "leader train", "leader serve", "leader archive", "leader daemon", "leader machine", "replica follow", "replica serve",
    "replica daemon", "replica machine", "replica wiped", "store away", "broker lost", *DISKS)


@pytest.fixture(scope="module")
def three(kafka_home, tmp_path_factory):
    """Three brokers, a leader, three replicas with servers; each directory on a disk of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    broker = ApacheKafka(kafka_home, folder / "kafka", nodes=3)
    paths = [folder / name for name in ("leader", "replica0", "replica1", "replica2")]
    with small_disks(paths) as mounted:
        cluster = None
        try:
            broker.create_topic("t", 4)
            cluster = Cluster(folder, broker, "t", replicas=3)
            cluster.mounted = mounted
            yield cluster.start()
        finally:
            if cluster is not None:
                cluster.close()
            broker.close()


@pytest.mark.slow
def test_a_leader_that_is_killed_and_a_standby_from_nothing_on_one_broker(kafka, tmp_path):
    """The short form: two standbys with all their roles, and the faults that need no further machine."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 4)
    cluster = Cluster(tmp_path, kafka, topic, standbys=2, timeout=3)
    try:
        cluster.start()
        first = cluster.leader
        first.kill_machine()
        wait(lambda: cluster.leader is not first, "the other one leads", PATIENCE)
        first.start()
        first.answers_again()
        cluster.fault("standby wiped", random.Random(SEED))
        kept = cluster.finish(verify=False)
        assert kept and cluster.checked > 20, "some were asked"
        assert len(cluster.terms) > 1
    finally:
        cluster.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_by_itself(three, fault):
    if fault in DISKS and not three.mounted:
        pytest.skip("needs the right to mount a small disk")
    three.fault(fault, random.Random(f"{fault} {SEED}"))
    assert three.done[fault] == 1, "it was done"
    three.check()


def mix(cluster, faults):
    """Let one thing after the other go wrong for SECONDS, and check all at the end. Returns: windows, and what to print."""
    rng = random.Random(SEED)
    before = cluster.done.copy()
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        cluster.fault(rng.choice(faults), rng)
        time.sleep(rng.uniform(0, 5))
    kept = cluster.finish()
    windows = cluster.check_models()
    excused = sum(a.excused for a in cluster.askers)
    assert kept > SECONDS / 60 and len(windows) > SECONDS / 60
    print(f"\n{len(cluster.sent)} events, {cluster.checked} answers checked, {kept} tokens kept, {excused} refused by members that were killed, "
          f"{len(windows)} windows, {dict(cluster.done - before)}")


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS + 1800)
def test_the_mix(three):
    mix(three, FAULTS if three.mounted else [f for f in FAULTS if f not in DISKS])
    print(f"disks of their own: {three.mounted}")


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS + 1800)
def test_the_mix_where_the_lead_moves(kafka_home, tmp_path):
    """Two standbys and a replica on three brokers: leaders are killed and paused, trainers killed, the lead is asked for."""
    broker = ApacheKafka(kafka_home, tmp_path / "kafka", nodes=3)
    cluster = None
    try:
        broker.create_topic("t", 4)
        cluster = Cluster(tmp_path, broker, "t", replicas=1, standbys=2).start()
        mix(cluster, STANDBY_FAULTS)
        assert len(cluster.terms) > SECONDS / 120, "the lead moved"
        print(f"{len(cluster.terms)} terms were seen, the last is {max(cluster.terms)}")
    finally:
        if cluster is not None:
            cluster.close()
        broker.close()
