"""A user is erased over REST on a replica: whole daemons of a leader and a replica on a real Kafka, with a store."""

import contextlib
import json
import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.builders import stream
from tests.crash.cluster import Member
from tests.crash.daemons import wait

pytestmark = pytest.mark.kafka
SECRET = "customer:to-be-erased"


@pytest.fixture
def members(kafka, topic, tmp_path):
    common = {"log__name": f"log-{uuid.uuid4().hex[:8]}", "log__store": f"file://{tmp_path}/store",
              "ingest__segment_edges": 400}
    made = [Member(tmp_path / name, kafka.bootstrap_servers, topic, log__member=name, **common) for name in ("leader", "replica")]
    yield made
    for one in made:
        one.kill_machine()


def files_with(path, needle):
    found = []
    for p in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if p.is_file() and needle in p.read_bytes():
                found.append(str(p.relative_to(path)))
    return found


def child_of(parent):
    """The process that works on requests to erase, of a server."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"--requests" in (path / "cmdline").read_bytes() and int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                return int(path.name)
    return None


@pytest.mark.slow
def test_a_user_is_erased_on_a_replica_while_its_server_is_killed(members, producer, topic, tmp_path):
    leader, replica = members
    src, dst, when = stream(1600, hours=9)
    rows = list(zip([SECRET if u == 3 else f"u:{u}" for u in src.tolist()], [f"i:{v}" for v in dst.tolist()], when.tolist(), strict=True))

    def send(some):
        for a, b, time in some:
            producer.send(topic, json.dumps({"src": a, "dst": b, "time": time}).encode(), partition=0)
        producer.flush()

    leader.start()
    send(rows[:800])
    wait(lambda: leader.seen() == 800, "the leader has seen all", 120)
    replica.start()
    wait(lambda: replica.seen() == 800 and replica.get("/v1/models")["champion"], "the replica has seen all, and serves a version", 120)
    # Roles store their memory in a thread, and the archiver copies in rounds of its own.
    wait(lambda: files_with(tmp_path / "store", SECRET.encode()), "the store has the key", 120)
    assert "nodes.keys" in files_with(replica.path, SECRET.encode())

    # The request outlives a kill of the server, and of the process that works on it.
    with replica.client() as client:
        made = client.erase([SECRET, "nobody"])
        assert made.state == "deleting" and made.nodes == 2
        wait(lambda: client.erasure(made.request).state == "compacting", "both nodes are deleted", 60)
    server = replica.children()["serve"]
    worker = child_of(server)
    assert worker is not None
    assert replica.kill_role("serve")
    wait(lambda: not Path(f"/proc/{worker}").exists(), "it ends with its server")
    wait(lambda: replica.is_ready() and child_of(replica.children()["serve"]), "the next server goes on", 120)
    os.kill(child_of(replica.children()["serve"]), signal.SIGKILL)

    send([row for row in rows[800:] if SECRET not in row])
    with replica.client() as client:
        wait(lambda: client.erasure(made.request).ended_at, "it has ended", 200)
        done = client.erasure(made.request)
    assert done.state == "done" and done.unknown == 1 and "found 0 times" in done.proof, (done, replica.output()[-3000:])
    assert files_with(replica.path, SECRET.encode()) == files_with(leader.path, SECRET.encode()) == files_with(tmp_path / "store", SECRET.encode()) == []
    assert SECRET not in replica.output() + leader.output()
