"""Leader, replicas and brokers, killed and cut off: at the end all have one log, and nobody was told anything that was not so.

`CHAOS_SECONDS` is the length of the mix, `CHAOS_SEED` decides its moments. Only correctness is judged here: machines that share two
cores say nothing about times."""

import os
import random
import time
import uuid

import pytest

from streamd.demo.broker import ApacheKafka
from tests.crash.cluster import Cluster, small_disks

SECONDS = float(os.environ.get("CHAOS_SECONDS", "600"))
SEED = int(os.environ.get("CHAOS_SEED", "0"))
DISKS = ("leader disk", "replica disk")
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


def test_kills_and_a_replica_from_nothing_on_one_broker(kafka, tmp_path):
    """The short form: a leader with all its roles, one replica with its server, and the faults that need no further machine."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 4)
    cluster = Cluster(tmp_path, kafka, topic, replicas=1)
    try:
        cluster.start()
        for fault in ("leader ingest", "replica wiped"):
            cluster.fault(fault, random.Random(f"{fault} {SEED}"))
        kept = cluster.finish(verify=False)
        assert kept and cluster.checked > 20, "some were asked"
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


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS + 1800)
def test_the_mix(three):
    rng = random.Random(SEED)
    before = three.done.copy()
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        fault = rng.choice(FAULTS if three.mounted else [f for f in FAULTS if f not in DISKS])
        three.fault(fault, rng)
        time.sleep(rng.uniform(0, 5))
    kept = three.finish()
    windows = three.check_models()
    excused = sum(a.excused for a in three.askers)
    assert kept > SECONDS / 60 and len(windows) > SECONDS / 60
    print(f"\n{len(three.sent)} events, {three.checked} answers checked, {kept} tokens kept, {excused} refused by members that were killed, "
          f"{len(windows)} windows, {dict(three.done - before)}, disks of their own: {three.mounted}")
