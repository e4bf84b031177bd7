"""The loop of a follower, and of a standby, on a changelog in memory and a clock moved by hand: what it waits for, and when it leads."""

import json
import os
import time
from pathlib import Path

import pytest

from streamd import storage
from streamd.errors import DiskError, FencedError, KafkaError, LockedError, StoreError
from streamd.eventlog.journal.changelog_position import read_position
from streamd.eventlog.recovery import lock_directory
from streamd.eventlog.writable import check_writable
from streamd.eventlog.writer import LogWriter
from streamd.replica import follow_loop as role
from streamd.replica.follow_loop import FollowLoop
from streamd.replica.leader import leading
from streamd.replica.leader.leader import lead
from streamd.replica.leader.succession import ANSWER_SECONDS, Silence, StandbySuccession
from streamd.replica.start import has_log
from streamd.store.objects import Store
from streamd.store.upload import upload
from streamd.telemetry import replica_metrics
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from tests.builders import settings
from tests.eventlog import test_crash as life
from tests.readings import reading
from tests.replica.directories import difference
from tests.replica.twin import Topic

TIMEOUT = 10
TURN = 0.05
"""Seconds of a read that brings nothing."""


class World:
    """One standby or replica, and a leader on another machine. The clock moves with each read and each wait of the loop."""

    def __init__(self, folder, **values):
        self.folder, self.topic, self.now = folder, Topic(), 1000.0
        (folder / "store").mkdir(exist_ok=True)
        chosen = {"log__name": "t", "log__store": f"file://{folder}/store", "log__member": "standby", "leader__timeout_seconds": TIMEOUT, **values}
        self.settings = settings(folder / "b", **chosen)
        (folder / "b").mkdir()
        self.away = self.slow = False
        self.states, self.claims, self.plan, self.log, self.publisher = [], 0, lambda: None, None, None
        self.beat = Heartbeat(folder / "b", "ingest")
        touch = self.beat.touch
        self.beat.touch = lambda state, **detail: (self.states.append((state, detail)), touch(state, **detail))
        self.beats = True
        self.beat_at = self.now
        self.deaf = False
        """Whether reads bring nothing although there is something, as of a member that is behind."""
        self.parts = []
        self.ends = 1e9
        self.schema, self.segment_edges, self.disk = life.SCHEMA, life.SEGMENT_EDGES, storage.DISK

    # The clock and the signal to stop.
    def monotonic(self):
        return self.now

    def now_us(self):
        return int(self.now * 1e6)

    def is_set(self):
        return self.now >= self.ends

    def wait(self, seconds):
        self.now += seconds
        self.turn()

    def turn(self):
        """What happens elsewhere meanwhile."""
        if self.publisher is not None and self.beats and self.now - self.beat_at >= 1:
            self.beat_at = self.now
            self.log.show_acknowledged()
            self.topic.turn()
        self.plan()

    # The leader elsewhere.

    def lead_elsewhere(self, commits=3):
        self.publisher = lead(self.folder / "a", self.topic.producer(), self.topic.reader(), waiting=lambda: None, member="a")
        self.publisher._now = lambda: self.now
        self.log = LogWriter(self.folder / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=self.publisher)
        self.commit(commits)

    def commit(self, number):
        at = self.log.progress.positions.get("t", {0: life.Position(0)})[0].offset
        for i in range(at, at + number):
            self.log.commit(life.commit_number(i), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(i + 1)}}), i * 10)
        self.topic.turn()
        self.log.show_acknowledged()

    # The member under test.

    def connect(self, data_dir, kafka, log, idle):
        if self.away:
            raise KafkaError("no broker answers")
        return "t.changelog", Reader(self, idle)

    def claim(self, after_term):
        self.claims += 1
        if self.away:
            raise KafkaError("no broker answers")
        return lead(self.settings.data_dir, self.topic.producer(), self.topic.reader(), member="b", after_term=after_term)

    def check(self):
        """What could refuse to lead here, as far as the log and the disk go."""
        check_writable(self.settings.data_dir, self.schema, self.segment_edges, self.disk)

    def run(self, seconds, plan=lambda: None, chance=0.0):
        """Run the loop for at most so long. Returns: what it leads by, None where it does not; `self.took` says after how long."""
        self.plan, self.ends = plan, self.now + seconds
        begun, self.parts = self.now, [Part()]
        succession = None
        if self.settings.log.member == "standby":
            succession = StandbySuccession(self.settings.data_dir, self.settings.log.store, self.settings.leader.timeout_seconds,
                                           lambda: self.now, self.claim, self.check, lambda: chance)
        loop = FollowLoop(self.settings.data_dir, self.settings.log, self.settings.kafka, self, self.beat, self.parts, succession, self.connect)
        led = loop.run(self)
        self.took = self.now - begun
        return led

    def said(self):
        """The states of the heartbeat, each once, in order."""
        return list(dict.fromkeys(state for state, _ in self.states))


class Reader:
    """The twin's reader as Kafka's is: without a broker a read brings nothing, and only questions fail."""

    def __init__(self, world, idle):
        self.world, self.idle, self.inner = world, idle, world.topic.reader()

    position = property(lambda self: self.inner.position)
    changelog = property(lambda self: self.inner.changelog)
    lag = property(lambda self: max(0, self.world.topic.end - self.inner.position))

    def bounds(self):
        if self.world.away:
            raise KafkaError("no broker answers")
        if self.world.slow:
            self.world.now += ANSWER_SECONDS + 1
        return self.inner.bounds()

    def seek(self, offset):
        self.inner.seek(offset)

    def read(self, seconds):
        self.world.now += TURN
        self.world.turn()
        found = [] if self.world.away or self.world.deaf else self.inner.read(seconds)
        if not found:
            self.idle()
        return found

    def close(self): ...


class Part:
    def __init__(self):
        self.steps = self.stops = self.closes = 0

    def step(self):
        self.steps += 1

    def stop(self):
        assert not self.closes
        self.stops += 1

    def close(self):
        self.closes += 1


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    if made.log is not None and not made.log.files.closed:
        made.topic.hold = False
        made.log.close()


def test_a_standby_follows_as_long_as_a_leader_is_heard(world):
    world.lead_elsewhere()
    assert world.run(120) is None
    assert world.claims == 0 and world.said()[-1] == "following"
    told = world.states[-1][1]
    assert told == {"seq": 3, "lag_records": 0, "term": world.publisher.term, "unheard_seconds": told["unheard_seconds"]}
    assert max(detail.get("unheard_seconds", 0) for _, detail in world.states) <= 2
    assert (world.parts[0].stops, world.parts[0].closes) == (1, 1)


def test_a_standby_leads_when_nothing_is_heard_for_the_timeout(world):
    world.lead_elsewhere()
    world.beats = False
    led = world.run(60)
    assert led.term == world.publisher.term + 1
    assert TIMEOUT <= world.took <= TIMEOUT + 2
    assert world.parts[0].closes == 1, "what ran beside the follower has ended"
    log = LogWriter(world.settings.data_dir, life.SCHEMA, life.SEGMENT_EDGES, publisher=led)
    assert log.state.seq == 3
    log.close()


def test_commits_alone_are_signs_of_a_leader(world):
    world.lead_elsewhere()
    world.beats = False
    at = [world.now]

    def commit_seldom():
        if world.now - at[0] > TIMEOUT / 2 and world.log.state.seq < 10:
            at[0] = world.now
            world.commit(1)
    assert world.run(30, commit_seldom) is None and world.claims == 0


def test_two_standbys_seldom_claim_at_the_same_time(world):
    world.lead_elsewhere()
    world.beats = False
    assert world.run(60, chance=1.0) is not None
    assert TIMEOUT * 1.25 <= world.took <= TIMEOUT * 1.25 + 2


def test_brokers_that_are_away_are_no_silence(world):
    world.lead_elsewhere()
    world.beats = False
    world.away = False

    def go_away():
        world.away = 1003 < world.now < 1050
    assert world.run(50 + TIMEOUT - 1, go_away) is None, "counting begins when they answer again"
    assert world.claims == 0 and "waiting for broker" in world.said()
    assert world.run(60, go_away) is not None


def test_brokers_that_answer_late_are_no_silence(world):
    world.lead_elsewhere()
    world.beats, world.slow = False, True
    assert world.run(200) is None and world.claims == 0


def test_a_standby_that_is_behind_does_not_lead(world):
    world.lead_elsewhere()

    def hear_nothing():
        world.deaf = world.now > 1002
        if world.now > 1005 and world.log.state.seq == 3:
            world.commit(2)
    assert world.run(100, hear_nothing) is None
    assert world.claims == 0 and world.states[-1][1]["lag_records"] > 0


def test_a_standby_that_was_paused_hears_the_leader_first(world):
    """Its process stood still for an hour, as by SIGSTOP: what the leader said is still to be read."""
    world.lead_elsewhere()
    paused = [False]

    def pause():
        if not paused[0] and world.now > 1005:
            paused[0] = True
            world.commit(1)
            world.now += 3600
    assert world.run(3700, pause) is None and world.claims == 0 and paused[0]


def test_a_standby_leads_when_it_is_asked_to(world):
    world.lead_elsewhere()

    def ask():
        if world.now > 1005 and not world.claims:
            leading.ask_to_lead(world.settings.data_dir, 60)
    led = world.run(100, ask)
    assert led.term == world.publisher.term + 1 and 5 <= world.took < 7
    assert not leading.is_asked_to_lead(world.settings.data_dir), "it was done"
    with pytest.raises(FencedError):
        world.commit(1)
        world.topic.turn()
        world.log.show_acknowledged()


def test_a_request_whose_time_is_over_is_passed_over(world, monkeypatch):
    world.lead_elsewhere()
    leading.ask_to_lead(world.settings.data_dir, 30)
    later = time.time() + 31
    monkeypatch.setattr(leading.time, "time", lambda: later)
    assert world.run(20) is None and world.claims == 0
    (world.settings.data_dir / "roles" / "ingest" / "lead").write_bytes(b"no request")
    assert world.run(20) is None and world.claims == 0


def test_one_that_lost_the_claim_goes_on_following(world):
    world.lead_elsewhere()
    world.beats = False
    rival = []

    def claim_first():
        rival.append(lead(world.folder / "c", world.topic.producer(), world.topic.reader(), member="c"))
        raise FencedError("Another member claimed first.")

    def claim(after_term):
        world.claims += 1
        claim_first()
    world.claim = claim
    assert world.run(TIMEOUT + 6) is None
    assert world.claims == 1, "it waits for a new silence"
    assert world.states[-1][1]["term"] == rival[0].term == world.publisher.term + 1


def test_one_that_claimed_between_the_silence_and_the_claim_is_not_deposed(world):
    world.lead_elsewhere()
    world.beats = False
    claim, rival = world.claim, []

    def late(after_term):
        if not rival:
            rival.append(lead(world.folder / "c", world.topic.producer(), world.topic.reader(), member="c"))
        return claim(after_term)
    world.claim = late
    assert world.run(TIMEOUT + 6) is None
    assert world.states[-1][1]["term"] == rival[0].term, "it follows the one that was first"


def test_a_claim_that_the_brokers_do_not_take_is_made_again_later(world):
    world.lead_elsewhere()
    world.beats = False
    claim = world.claim

    def fail_once(after_term):
        if not world.claims:
            world.claims += 1
            raise KafkaError("the changelog did not store a claim")
        return claim(after_term)
    world.claim = fail_once
    assert world.run(60) is not None
    assert world.claims == 2 and world.took > 2 * TIMEOUT and "waiting for broker" in world.said()


def test_who_led_last_leads_on_at_once(world):
    world.lead_elsewhere()
    world.beats = False
    led = world.run(60)
    assert not leading.led_term(world.settings.data_dir), "it is noted once the log is open: who fails then leaves the lead to others"
    leading.note_led(world.settings.data_dir, led.term)
    led.close()
    assert world.run(60).term == led.term + 1
    assert world.took < 1, "nobody else has led since"


def test_who_led_before_another_one_follows(world):
    world.lead_elsewhere()
    world.beats = False
    led = world.run(60)
    leading.note_led(world.settings.data_dir, led.term)
    led.close()
    world.log.close()
    world.lead_elsewhere(commits=1)
    world.beats = True
    assert world.run(60) is None


def test_the_first_standby_of_a_new_log_begins_it(world):
    led = world.run(60)
    assert led is not None and TIMEOUT <= world.took <= TIMEOUT + 2
    log = LogWriter(world.settings.data_dir, life.SCHEMA, life.SEGMENT_EDGES, publisher=led)
    log.commit(life.commit_number(0), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(1)}}), 0)
    world.topic.turn()
    assert log.show_acknowledged() == 1
    log.close()


def test_a_standby_without_a_log_begins_none_where_there_is_one_elsewhere(world):
    """A manifest from before the changelog: the machine that has the log must lead first."""
    log = LogWriter(world.folder / "old", life.SCHEMA, life.SEGMENT_EDGES)
    life.live(log, 3)
    log.close()
    upload(world.folder / "old", Store(f"file://{world.folder}/store"))
    assert world.run(60) is None and world.claims == 0 and not has_log(world.settings.data_dir)


def test_a_standby_that_lost_its_position_leads_although_no_manifest_has_as_much(world):
    """The leader is gone, and the changelog before its manifest is deleted: what is here is the whole log."""
    world.lead_elsewhere()
    manifest = upload(world.folder / "a", Store(f"file://{world.folder}/store")).manifest
    world.commit(2)
    assert world.run(5) is None and world.states[-1][1]["seq"] == 5
    world.topic.delete_before(manifest.changelog_offset)
    world.beats = False
    (world.settings.data_dir / "changelog").write_bytes(b"torn")
    led = world.run(60)
    assert led.term == world.publisher.term + 1 and "waiting for manifest" not in world.said()
    assert read_position(world.settings.data_dir).seq == 5


def test_a_replica_never_leads(tmp_path):
    world = World(tmp_path, log__member="replica")
    world.lead_elsewhere()
    world.beats = False
    assert world.run(100) is None
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    world.log.close()


# What a follower waits for.


@pytest.fixture
def replica(tmp_path):
    made = World(tmp_path, log__member="replica")
    made.lead_elsewhere()
    yield made
    made.log.close()


def test_a_broker_that_is_away_is_waited_for(replica):
    replica.away = True

    def come_back():
        replica.away = replica.now < 1010
    replica.run(20, come_back)
    assert replica.said() == ["connecting", "waiting for broker", "following"]
    assert replica.states[-1][1]["seq"] == 3 and replica.parts[0].steps > 10


def test_a_replica_whose_brokers_fall_silent_neither_follows_nor_has_all(replica):
    """A read brings nothing from a broker that does not answer, as from an idle changelog."""
    def fall_silent():
        replica.away = replica.now > 1010
    replica.run(60, fall_silent)
    assert replica.said() == ["connecting", "following", "waiting for broker"]
    assert 1005 <= reading(replica_metrics.follow_caught_up) <= 1015, "before the brokers fell silent, not now"
    assert reading(replica_metrics.follow_waiting.labels("broker")) == 1


def test_a_replica_reports_for_how_long_no_leader_was_heard(replica):
    def end_leader():
        replica.beats = replica.now < 1010
    replica.run(50, end_leader)
    assert replica.states[-1][0] == "following" and 35 < replica.states[-1][1]["unheard_seconds"] < 45
    assert reading(replica_metrics.follow_caught_up) > 1040, "the brokers answer: it has all of the changelog"


def test_a_topic_that_nobody_made_is_waited_for(replica):
    connect = replica.connect
    replica.connect = lambda *args: connect(*args) if replica.now > 1005 else None
    replica.run(10)
    assert replica.said() == ["connecting", "waiting for leader", "following"]


def test_a_store_that_is_away_is_waited_for_by_one_that_starts_from_nothing(replica, monkeypatch):
    upload(replica.folder / "a", Store(f"file://{replica.folder}/store"))
    replica.topic.delete_before(replica.topic.end - 1)
    find = role.newest_manifest

    def away(store, changelog):
        if replica.now < 1010:
            raise StoreError("the store does not answer")
        return find(store, changelog)
    monkeypatch.setattr(role, "newest_manifest", away)
    replica.run(20)
    assert replica.said() == ["connecting", "waiting for store", "bootstrapping", "following"]
    assert replica.states[-1][1]["seq"] == 3


def test_a_manifest_is_waited_for_where_the_changelog_has_no_begin(replica):
    replica.topic.delete_before(replica.topic.end - 1)

    def store():
        if replica.now > 1010 and not list((replica.folder / "store").rglob("*.json")):
            upload(replica.folder / "a", Store(f"file://{replica.folder}/store"))
    replica.run(30, store)
    assert "waiting for manifest" in replica.said() and replica.said()[-1] == "following"
    assert replica.states[-1][1]["seq"] == 3


def test_a_disk_that_is_full_is_waited_for(replica, monkeypatch):
    make = role.Follower

    def full(*args, **more):
        if replica.now < 1010:
            raise DiskError("no space left")
        return make(*args, **more)
    monkeypatch.setattr(role, "Follower", full)
    replica.run(20)
    assert replica.said() == ["connecting", "waiting for disk", "following"]


def test_a_directory_that_another_process_writes_is_waited_for(replica):
    replica.run(2)
    lock = lock_directory(replica.settings.data_dir / "lock")
    with pytest.raises(LockedError):
        lock_directory(replica.settings.data_dir / "lock")
    held = [lock]

    def let_go():
        if replica.now > 1010 and held:
            os.close(held.pop())
    replica.states.clear()
    replica.run(20, let_go)
    assert replica.said() == ["connecting", "waiting for lock", "following"]


def test_a_stop_ends_each_wait(replica):
    for why in ("away", "deaf"):
        setattr(replica, why, True)
        assert replica.run(3) is None and replica.took < 5
        setattr(replica, why, False)


# The pure part.


def test_silence_is_only_what_the_brokers_confirm():
    silence = Silence()
    assert silence.seconds(5) == 0
    silence.note_answer(10, 0)
    silence.note_answer(12, 0)
    assert silence.seconds(12) == 2
    assert silence.seconds(100) == 2, "nobody answered since"
    silence.note_answer(12 + ANSWER_SECONDS + 0.1, 0)
    assert silence.seconds(50) == 0
    silence.note_record(60)
    silence.note_answer(61, 0)
    assert silence.seconds(61) == 1
    silence.note_answer(62, 3)
    assert silence.seconds(62) == 0
    silence.note_answer(63, 0)
    silence.note_answer(64, 0)
    assert silence.seconds(64) == 1


def test_a_heartbeat_says_who_leads(tmp_path):
    beat = Heartbeat(tmp_path, "ingest")
    beat.note(term=4, leading=True)
    beat.touch("leading", edges=3)
    assert read_beat(tmp_path, "ingest").detail == {"term": 4, "leading": True, "edges": 3}
    assert json.loads(Path(tmp_path / "roles/ingest/heartbeat.json").read_text())["state"] == "leading"
