"""Two machines of which either may lead: the leader is killed, and the other one goes on. Nothing that was acknowledged is lost."""

import time
import uuid

import pytest

from streamd.eventlog.recovery import published_seq
from streamd.telemetry.heartbeat import leads_here, read_beat
from tests.crash.cluster import Member
from tests.crash.daemons import produce, rows_of, wait
from tests.replica.directories import difference

TIMEOUT = 3


@pytest.fixture
def pair(kafka, topic, tmp_path):
    """Two standbys of one log, with a store, without trainers' work to speak of."""
    store = tmp_path / "store"
    store.mkdir()
    together = {"log__name": f"log-{uuid.uuid4().hex[:8]}", "log__store": f"file://{store}", "log__member": "standby", "leader__timeout_seconds": TIMEOUT,
                "model__name": "pair", "telemetry__archive_port": 0, "ingest__segment_edges": 700}
    made = [Member(tmp_path / name, kafka.bootstrap_servers, topic, **together) for name in ("one", "two")]
    yield made
    for member in made:
        if member.process is not None and member.process.poll() is None:
            member.kill_machine()
        print(f"--- {member.name}\n{member.output()[-6000:]}" if member.process else "")


def is_(member, state):
    beat = read_beat(member.path, "ingest")
    return beat is not None and beat.alive and beat.state == state


def test_the_other_machine_goes_on_where_the_leader_is_killed(pair, producer, topic):
    first, second = pair
    rows = rows_of(1500)
    first.start("ingest")
    wait(lambda: leads_here(first.path), "the first one leads a log that nobody had begun", 60)
    second.start("ingest")
    wait(lambda: is_(second, "following"), "the second one follows", 60)
    produce(producer, topic, rows[:700], size=7)
    wait(lambda: first.edges() == 700, "the leader shows the first events", 60)
    term = read_beat(first.path, "ingest").detail["term"]

    # In the midst of events.
    produce(producer, topic, rows[700:1000], size=7)
    first.kill()
    begun = time.monotonic()
    produce(producer, topic, rows[1000:1200], size=7)
    wait(lambda: leads_here(second.path), "the second one leads", 60)
    wait(lambda: second.edges() == 1200, "it has all events", 60)
    print(f"seconds until all was visible: {time.monotonic() - begun:.1f}")
    assert read_beat(second.path, "ingest").detail["term"] > term

    # The one that was killed comes back as a follower, and takes the lead when it is told to.
    first.start("ingest")
    wait(lambda: is_(first, "following"), "it follows", 60)
    status, said = first.command("lead")
    assert status == 0 and said.startswith("leads in term "), said
    assert leads_here(first.path)
    wait(lambda: is_(second, "following"), "the one that was deposed follows", 60)
    assert second.process.poll() is None, "in the process that led, which no service manager sees end"
    produce(producer, topic, rows[1200:], size=7)
    wait(lambda: first.edges() == second.edges() == 1500, "both have all events", 60)
    assert first.stop() == 0
    wait(lambda: published_seq(second.path) == published_seq(first.path), "both have the last commit", 60)
    assert second.stop() == 0
    assert difference(first.path, second.path) == ""
    assert sorted(first.events_as_sent()) == sorted(rows)
