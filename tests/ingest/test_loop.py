import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from streamd.decode import checks, node_ids
from streamd.decode.node_ids import KeyTable
from streamd.errors import KafkaError
from streamd.events import Position
from streamd.ingest import loop
from streamd.telemetry import metrics
from tests.builders import HOUR, SECOND
from tests.faults import FaultyDisk
from tests.ingest.world import FakeSource, World
from tests.readings import reading


def edge(src, dst, time, **more):
    return {"src": src, "dst": dst, "time": time, **more}


def test_events_that_trickle_in_are_polled_and_committed_together(tmp_path):
    world = World(tmp_path, ingest__commit_interval_seconds=0.05)
    commits = 0
    for i in range(2000):
        world.send(0, edge(i % 7, i % 5, i))
        before = world.writer.state.seq
        if world.clock.monotonic() * 1000 <= i:
            world.step()
        commits += world.writer.state.seq - before
    world.run(0.2)
    assert world.writer.num_edges == 2000 and commits < 3 * 2 / 0.05


def test_the_first_events_of_a_stream_wait_for_those_of_partitions_that_begin_a_little_later(tmp_path):
    world = World(tmp_path, 2, ingest__commit_interval_seconds=0.001, ingest__merge_wait_seconds=0.001)
    world.send(0, edge("a", "b", 10))
    world.step()
    world.clock.sleep(0.03)
    world.send(1, edge("c", "d", 5))
    world.run(1)
    assert [e[:2] for e in world.events()] == [("c", "d"), ("a", "b")] and world.writer.watermark == 10
    begun = world.clock.monotonic()
    world.send(1, edge("e", "f", 11))
    while world.writer.num_edges < 3:
        world.step()
    assert world.clock.monotonic() - begun < 0.05, "only the first waits"
    world.kill()


def test_a_long_time_between_commits_holds_up_no_stop_and_no_heartbeat(tmp_path):
    world = World(tmp_path, ingest__commit_interval_seconds=30)
    for i in range(10):
        world.send(0, edge(i, i, i))
        begun = world.clock.monotonic()
        world.step()
        assert world.clock.monotonic() - begun < 0.25
    assert not world.writer.num_edges


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_batched_records_are_taken_once_whenever_ingest_is_killed_and_started(tmp_path_factory, seed):
    """Partitions answer in turn, a record or two each; half of the kills come right after a start."""
    rng = random.Random(seed)
    world = World(tmp_path_factory.mktemp("log"), 4, ingest__commit_interval_seconds=0.01, segment_edges=rng.choice([7, 50]))
    sent = []
    for p in range(4):
        clock = 0
        for _ in range(rng.randint(1, 8)):
            record = []
            for _ in range(rng.randint(1, 12)):
                clock += rng.randint(0, 3)
                record.append(edge(f"{p}", len(sent), clock + rng.randint(0, 2)))
                sent.append((f"{p}", len(sent)))
            world.send(p, *record)
    world.source.per_poll, world.source.max_records = rng.choice([1, 2, 4]), rng.choice([1, 2])
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.5:
            world.step(rng.randint(1, 20))
        elif rng.random() < 0.5:
            world.step(1)
        (world.stop if rng.random() < 0.3 else world.kill)()
        world.start()
    world.run(3)
    assert sorted(e[:2] for e in world.events()) == sorted(sent)
    assert world.dead_letters() == []
    world.kill()


def test_a_start_that_reads_nothing_of_a_partition_forgets_nothing_of_it(tmp_path):
    """The first commit after a start writes the positions of all partitions, also of those that sent nothing yet."""
    world = World(tmp_path, 2, ingest__commit_interval_seconds=0.01)
    world.send(0, *[edge("a", i, 10 + i) for i in range(10)])
    world.send(1, edge("b", 0, 15))
    world.send(1, edge("b", 1, 99))
    world.source.max_records = 1
    world.step()
    world.source.mute = {1}
    world.step(3)
    assert world.writer.progress.positions["events"][0] == Position(0, 5), "events behind 15 wait for the other"
    world.kill().start()
    world.source.mute = {0}
    world.step(3)
    assert world.writer.progress.positions["events"][0] == Position(0, 5)
    world.source.mute = set()
    world.run(1)
    assert len(world.events()) == 12 == len(set(world.events()))


def test_an_open_transaction_stops_nobody_and_idle_windows_close_all_the_same(tmp_path):
    world = World(tmp_path, 2, ingest__idle_timeout_seconds=30)
    world.send(0, edge("a", 1, HOUR + 5))
    world.send(1, edge("b", 1, HOUR + 4))
    world.send(1, edge("b", 2, HOUR + 6))
    world.source.stable = {1: 1}
    world.run(1)
    assert len(world.events()) == 2
    world.run(40)
    assert world.writer.watermark == 2 * HOUR
    world.source.stable = {}
    world.run(1)
    assert len(world.events()) == 3


def test_a_partition_without_a_leader_holds_the_others_back_for_some_seconds_only(tmp_path):
    world, counted = World(tmp_path, 2), metrics.silent_partitions.labels("events", "1")
    before = reading(counted)
    world.send(0, edge("a", 1, 5))
    world.send(1, edge("b", 1, 4))
    world.source.mute = {1}
    world.run(4)
    assert world.events() == []
    world.run(3)
    assert len(world.events()) == 1 and reading(counted) == before + 1
    world.send(0, edge("a", 2, 6))
    world.run(1)
    assert len(world.events()) == 2, "it is silent once, not anew for each event"
    world.source.mute = set()
    world.run(1)
    assert len(world.events()) == 3


def test_while_the_broker_itself_is_away_no_partition_counts_as_silent(tmp_path):
    world = World(tmp_path, 2)
    world.send(0, edge("a", 1, 5))
    world.send(1, edge("b", 1, 4))
    world.source.mute, world.source.answers = {1}, False
    world.run(60)
    assert world.events() == []
    world.source.mute, world.source.answers = set(), True
    world.run(1)
    assert [e[:2] for e in world.events()] == [("b", 1), ("a", 1)], "so the order is kept"


def test_an_event_exactly_at_a_windows_start_is_closed_by_idleness(tmp_path):
    world = World(tmp_path, ingest__idle_timeout_seconds=30)
    world.send(0, edge("a", 1, 5 * HOUR))
    world.run(20)
    assert world.writer.watermark == 5 * HOUR
    world.run(20)
    assert world.writer.watermark == 6 * HOUR
    seq = world.writer.state.seq
    world.kill().start().run(100)
    assert world.writer.watermark == 6 * HOUR and world.writer.state.seq <= seq + 1, "once, also after a restart"


def test_idleness_puts_no_watermark_ahead_of_the_wall_clock(tmp_path):
    world = World(tmp_path, ingest__idle_timeout_seconds=30)
    now = world.clock.now_us()
    start = now // HOUR * HOUR
    world.send(0, edge("a", 1, now))
    until_end = (start + HOUR - now) / 1e6
    world.run(until_end - 10)
    assert world.writer.watermark == now, "an event of this hour may still come"
    world.run(50)
    assert world.writer.watermark == start + HOUR


def test_positions_in_the_journal_are_never_before_the_first(tmp_path):
    world = World(tmp_path, 2, ingest__idle_timeout_seconds=2, ingest__commit_interval_seconds=2)
    world.send(0, edge("a", 1, HOUR))
    world.run(20)
    world.kill().start().run(20)
    for line in world.path.glob("journal/*.journal"):
        assert "[-1," not in line.read_text()
    assert world.writer.watermark == 2 * HOUR and world.writer.progress.positions["events"][1] == Position(0)


def test_a_clock_that_jumps_back_stalls_ingest_and_costs_no_event(tmp_path):
    world = World(tmp_path)
    now = world.clock.now_us()
    world.send(0, edge("a", 1, now))
    world.run(1)
    world.clock.set_wall(world.clock.now_us() - HOUR)
    world.send(0, edge("a", 2, now + 2 * SECOND), stamp_us=now + 2 * SECOND)
    world.run(10)
    assert len(world.events()) == 1 and world.dead_letters() == [] and reading(metrics.clock_behind) > 3500
    assert world.writer.progress.positions["events"][0] == Position(1), "its position has not moved on"
    world.clock.set_wall(world.clock.now_us() + HOUR)
    world.run(1)
    assert len(world.events()) == 2 and world.dead_letters() == [] and reading(metrics.clock_behind) == 0


def test_a_clock_behind_a_window_that_it_closed_itself_is_wrong_too(tmp_path):
    world = World(tmp_path, ingest__idle_timeout_seconds=30)
    world.send(0, edge("a", 1, world.clock.now_us()))
    world.run(2 * 3600)
    closed = world.writer.watermark
    world.clock.set_wall(closed - 120 * SECOND)
    world.send(0, edge("a", 2, closed + 5))
    world.run(30)
    assert len(world.events()) == 1 and world.dead_letters() == []


def test_one_clock_ahead_takes_nobodys_time(tmp_path):
    """10 of 12,010 events are 590 s ahead of the clock; nobody else is clamped or refused."""
    world = World(tmp_path, 4, ingest__commit_interval_seconds=0.01)
    wrong = set(np.random.default_rng(0).choice(12_010, 10, replace=False).tolist())
    for i in range(12_010):
        time = world.clock.now_us() + (590 * SECOND if i in wrong else 0)
        world.send(i % 4, edge(i % 100, i, time))
        if i % 10 == 9:
            world.step()
    world.run(2)
    assert {int(e[1]) for e in world.events()} == set(range(12_010)) - wrong
    letters = world.dead_letters()
    assert len(letters) == 10 and {x["reason"] for x in letters} == {"time_ahead"} and "10 min ahead" in letters[0]["error"]
    late = world.writer.state.files.get("edges/default/late.rows")
    assert late is None or late.num_bytes == 0


def test_in_a_backlog_of_five_days_one_event_four_days_ahead_is_refused_alone(tmp_path):
    world = World(tmp_path, 2)
    start = world.clock.now_us() - 5 * 24 * HOUR
    for i in range(5000):
        time = start + i * 80 * SECOND
        world.send(i % 2, edge(i % 50, i, time + (4 * 24 * HOUR if i == 700 else 0)), stamp_us=time + SECOND)
    world.source.max_records = 300
    world.run(3)
    assert [int(e[1]) for e in world.events()] == [i for i in range(5000) if i != 700]
    assert [x["reason"] for x in world.dead_letters()] == ["time_ahead"]


def test_an_event_ahead_of_all_others_of_an_import_is_a_dead_letter_with_its_own_content(tmp_path):
    world = World(tmp_path)
    for i in range(3000):
        world.send(0, edge("u", i, i * SECOND + (24 * HOUR if i == 1500 else 0)))
    world.run(3)
    (letter,) = world.dead_letters()
    assert letter["reason"] == "time_ahead" and letter["offset"] == 1500 and "further ahead" in letter["error"]
    assert len(world.events()) == 2999 and world.writer.watermark == 2999 * SECOND
    before = world.events()
    world.kill().start().run(2)
    assert world.events() == before and len(world.dead_letters()) == 1


@pytest.mark.parametrize("moment", range(2, 14, 3))
def test_a_kill_while_an_event_is_held_loses_and_doubles_nothing(tmp_path, moment):
    world = World(tmp_path, ingest__commit_interval_seconds=0.01)
    for i in range(500):
        world.send(0, edge("u", i, i * SECOND))
    world.step(3)
    world.send(0, *[edge("u", 500 + i, (500 + i) * SECOND + (24 * HOUR if i == 3 else 0)) for i in range(20)])
    world.step(moment)
    world.kill().start()
    for i in range(520, 700):
        world.send(0, edge("u", i, i * SECOND))
    world.run(3)
    assert sorted(int(e[1]) for e in world.events()) == [i for i in range(700) if i != 503]


def test_deletes_in_a_topic_of_their_own_hide_what_they_mean_and_those_that_mean_nothing_are_kept(tmp_path):
    world, start = World(tmp_path, 2), 1_600_000_000 * SECOND
    for i in range(2000):
        world.send(0, edge(f"u{i % 40}", "x", start + i * SECOND), stamp_us=start + i * SECOND + SECOND)
    world.send(1, {"type": "delete", "node": "u7"}, stamp_us=start + 1000 * SECOND)
    world.send(1, {"type": "delete", "node": "nobody"}, stamp_us=start + 1001 * SECOND)
    world.send(1, {"type": "delete", "src": "u8", "dst": "x", "time": start + 8 * SECOND}, stamp_us=start + 1002 * SECOND)
    world.send(1, {"type": "delete", "src": "u8", "dst": "x", "time": start + 9 * SECOND}, stamp_us=start + 1003 * SECOND)
    world.source.max_records = 100
    world.run(3)
    left = world.events()
    assert len(left) == 2000 - 25 - 1 and not any(u == "u7" and t < start + 1000 * SECOND for u, _, t in left)
    assert sum(u == "u7" for u, _, _ in left) == 25, "who comes back afterwards is there again"
    letters = world.dead_letters()
    assert [x["reason"] for x in letters] == ["unmatched_delete"] * 2
    late = world.writer.state.files.get("edges/default/late.rows")
    assert late is None or late.num_bytes == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_nodes_id_is_never_given_again(tmp_path, restarted):
    world = World(tmp_path)
    for i, key in enumerate(["a", "b", "c"]):
        world.send(0, edge(key, "x", i))
    world.send(0, {"type": "delete", "node": "c"})
    world.run(1)
    ids = dict(world.reader().ids)
    if restarted:
        world.kill().start()
    world.send(0, edge("new", "x", 10))
    world.send(0, edge("c", "x", 11))
    world.run(1)
    assert ids == {"a": 0, "x": 1, "b": 2} and world.reader().ids == {**ids, "new": 4, "c": 5}
    assert world.events() == [("a", "x", 0), ("b", "x", 1), ("new", "x", 10), ("c", "x", 11)]


def test_what_was_refused_is_on_the_disk_before_the_commit_that_passes_it_by(tmp_path, monkeypatch):
    disk = FaultyDisk()
    world = World(tmp_path, letters_disk=disk)
    found = []
    commit = world.writer.commit
    monkeypatch.setattr(world.writer, "commit", lambda *what: (found.append((disk.all_synced, len(world.letters_written()))), commit(*what)))
    world.send(0, edge("a", "x", 0))
    world.send(0, value=b"no json")
    world.run(1)
    assert found[-1] == (True, 1) and world.writer.progress.positions["events"][0].offset == 2


def test_keys_that_no_waiting_event_needs_are_forgotten_also_while_partitions_are_busy(tmp_path, monkeypatch):
    tables = []

    class Table(KeyTable):
        def __init__(self, max_key_bytes):
            super().__init__(max_key_bytes)
            tables.append(self)

    monkeypatch.setattr(node_ids, "MAX_KEYS", 50)
    monkeypatch.setattr(checks, "KeyTable", Table)
    world = World(tmp_path, 2, ingest__commit_interval_seconds=0.01, ingest__max_nodes=10**6)
    sent, largest = [], 0
    for i in range(1500):
        for p in range(2):
            world.send(p, edge(f"{p}:{i}", f"x:{i}", i))
            sent.append((f"{p}:{i}", f"x:{i}", i))
        world.source.stable = {0: i + 1, 1: max(0, i - 5)}
        world.step()
        largest = max(largest, len(tables[-1].keys))
    world.source.stable = {}
    world.run(1)
    assert sorted(e[:2] for e in world.events()) == sorted(s[:2] for s in sent) and largest < 300


def test_a_missing_topic_is_told_once_in_words_then_every_few_minutes_while_ingest_waits(tmp_path, monkeypatch):
    world = World(tmp_path, kafka__topics=["rides", "trips"], kafka__bootstrap_servers="broker:9092")

    class Source(FakeSource):
        waits, closed = 700, False

        def discover(self):
            self.waits -= 1
            if not self.waits:
                stop.set()
            return ("rides",) if self.waits else ()

        def close(self):
            self.closed = True

    class Stop(threading.Event):
        def wait(self, timeout=None):
            world.clock.advance(timeout)
            return self.is_set()

    source, stop = Source(world.clock, world.parts), Stop()
    monkeypatch.setattr(loop, "KafkaSource", lambda *_: source)
    with capture_logs() as said:
        world.loop.run(stop)
    told = [line["error"] for line in said if line["event"] == "waiting_for_topic"]
    assert len(told) == 3, "of 699 s"
    assert not source.waits and source.closed, "then it stops as it was told"
    assert "topic 'rides' does not exist on broker:9092" in told[0] and "--create --bootstrap-server broker:9092 --topic rides" in told[0]
    world.kill()


def test_a_stop_between_two_assignments_commits_no_position_of_the_first_one(tmp_path, monkeypatch):
    """The topic was created again meanwhile: an offset of the old one would stand for one of the new."""
    world = World(tmp_path, 2)

    class Source(FakeSource):
        turns, closed = 0, False

        def discover(self):
            self.turns += 1
            if self.turns > 1:
                self.partitions = self.partitions[:1]
                stop.set()
            return ()

        @property
        def has_changed(self):
            return self.turns == 1

        def publish(self, positions): ...

        def close(self):
            self.closed = True

    world.send(0, {"src": "a", "dst": "b", "time": 1})
    source, stop = Source(world.clock, world.parts), threading.Event()
    monkeypatch.setattr(loop, "KafkaSource", lambda *_: source)
    world.loop.run(stop)
    assert source.turns == 2 and source.closed
    assert world.writer.progress.positions == {}
    world.kill()


def test_a_dead_letter_that_cannot_be_sent_loses_no_event_of_its_poll(tmp_path):
    world = World(tmp_path)
    add, fails = world.letters.add, iter([True])

    def add_after_a_failure(letter):
        if next(fails, False):
            raise KafkaError("Topic dead did not acknowledge a dead letter.", "check it.")
        add(letter)

    world.letters.add = add_after_a_failure
    world.send(0, edge("a", "b", world.clock.now_us()))
    world.send(0, value=b"no json")
    world.send(0, edge("c", "d", world.clock.now_us()))
    # The poll's records were taken, so they must be read again.
    assert not world.loop.step(world.source) and world.loop.begin(world.source)
    world.run(1)
    world.stop()
    assert [(u, v) for u, v, _ in world.events()] == [("a", "b"), ("c", "d")] and len(world.letters_written()) == 1
