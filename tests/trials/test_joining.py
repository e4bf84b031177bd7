"""Impressions and outcomes become figures: once each, by event time, whatever comes first, again or late."""

import sqlite3
import threading

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.errors import KafkaError, SettingsError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.telemetry.heartbeat import Heartbeat
from streamd.trials.impressions import Impression
from streamd.trials.joining import HOLD_SECONDS, TrialLoop
from streamd.trials.trial_state import GRACE_US, Definition, hash_key, hash_text, read_sums
from streamd.trials.trial_topic import TopicBatch
from tests.builders import SECOND, batch, write_sets_log
from tests.eventlog.test_housekeeper import delete_node

SCHEMA = Schema()
HORIZON = 100
ARMS = {"champion": 0.5, "rule": 0.5}
USERS, ITEMS = 4, 6
KEYS = [*(f"u{i}" for i in range(USERS)), *(f"i{i}" for i in range(ITEMS))]
STOP = threading.Event()


class Topic:
    """A topic of two partitions in memory."""

    def __init__(self):
        self.parts, self.down, self.lost = ([], []), False, 0

    def send(self, record, part=0):
        self.parts[part].append(record if isinstance(record, bytes) else msgspec.json.encode(record))

    def open(self):
        if self.down:
            raise KafkaError("No broker.")
        return self

    def read_to_end(self, offsets):
        for number, part in enumerate(self.parts):
            at = offsets.get(number, 0)
            while at < len(part):
                end = min(at + 3, len(part))
                yield TopicBatch(part[at:end], {number: end}, 0)
                at = end


class World:
    """A log that tests write, a topic, and the loop that joins them. Times are seconds."""

    def __init__(self, path, **changed):
        self.path, self.topic, self.now = path, Topic(), 0.0
        self.writer = LogWriter(path, SCHEMA, 1000)
        self.writer.keys.update({key: i for i, key in enumerate(KEYS)})
        self.num_events = 0
        self.definition = Definition(**{"name": "t", "shares": ARMS, "horizon_seconds": HORIZON, "edge_set": "default"} | changed)
        self.event("u0", "i0", 1)
        self.open()

    def open(self):
        self.loop = TrialLoop(
            self.path, self.path / "t.sqlite", self.definition, SECOND, Heartbeat(self.path, "trial"), lambda: True, self.topic.open)
        self.log = LogReader.open(self.path)

    def restart(self):
        self.loop._state.close()
        self.open()

    def event(self, src, dst, time):
        ids = [np.array([self.writer.keys[key]]) for key in (src, dst)]
        self.writer.commit(batch(SCHEMA, *ids, np.array([time * SECOND]), KEYS if not self.num_events else ()), Progress(), time * SECOND)
        self.num_events += 1

    def show(self, answer, src, dst, time, arm="rule", unit=None, part=0, **changed):
        """An answer with the graph of now."""
        values = {"answer": answer, "trial": "t", "arm": arm, "unit": unit or src, "version": "v", "src": src, "dst": dst,
                  "edge_set": "default", "edge": self.num_events, "time_us": time * SECOND} | changed
        self.topic.send(Impression(**values), part)

    def outcome(self, answer, time, value=1.0, part=0):
        self.topic.send({"type": "outcome", "answer": answer, "time": time, "value": value}, part)

    def step(self):
        """A pass after the hold of all that there is."""
        self.loop.step(self.log, self.now, STOP)
        self.now += HOLD_SECONDS
        self.loop.step(self.log, self.now, STOP)

    def end(self, time=100_000):
        """Close all impressions by a late event. Returns: the sums."""
        self.step()
        self.event("u3", "i5", time)
        self.step()
        return self.sums

    @property
    def sums(self):
        return read_sums(self.path / "t.sqlite")


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.loop._state.close()
    made.writer.close()


def of_arm(sums, arm="rule"):
    own = sums.sums[arm]
    return {"impressions": sums.impressions[arm], "outcomes": sums.outcomes[arm], "units": own.units, "takers": own.takers, "total": own.total,
            "squares": own.squares}


def test_an_edge_to_a_shown_node_within_the_horizon_is_an_outcome_once(world):
    world.event("u1", "i1", 5)
    world.show("a", "u1", ["i1", "i2"], 10)
    for dst, time in (("i1", 10), ("i3", 11), ("i2", 20), ("i2", 21), ("i1", 110), ("i1", 111)):
        world.event("u1", dst, time)
    world.event("u2", "i1", 112)
    world.show("b", "u2", ["i1"], 113, arm="champion")
    sums = world.end()
    # Of u1's edges those at 20 and 110 count: 10 is not after, i3 was not shown, 21 is double, 111 is beyond the horizon.
    assert of_arm(sums) == {"impressions": 1, "outcomes": 2, "units": 1, "takers": 1, "total": 2.0, "squares": 4.0}
    assert of_arm(sums, "champion") == {"impressions": 1, "outcomes": 0, "units": 1, "takers": 0, "total": 0.0, "squares": 0.0}
    assert sums.reasons == {"double": 1}


def test_of_several_answers_that_showed_a_node_the_newest_before_the_edge_has_the_outcome(world):
    world.show("a", "u1", ["i1"], 10, unit="x")
    world.event("u0", "i0", 11)
    world.show("b", "u1", ["i1", "i2"], 12, arm="champion", unit="y")
    world.event("u1", "i1", 13)
    world.show("c", "u1", ["i1"], 14, unit="z")
    sums = world.end()
    assert (of_arm(sums)["outcomes"], of_arm(sums, "champion")["outcomes"]) == (0, 1)


def test_the_value_of_a_unit_grows_over_its_answers(world):
    for i, time in enumerate((10, 20, 30)):
        world.show(f"a{i}", "u1", ["i1"], time, unit="x")
        world.outcome(f"a{i}", time + 5, [2.5, -1.0, 4.0][i])
        world.event("u2", "i0", time + 6)
    world.show("b", "u2", ["i1"], 40, unit="y")
    sums = world.end()
    assert of_arm(sums) == {"impressions": 4, "outcomes": 3, "units": 2, "takers": 1, "total": 5.5, "squares": pytest.approx(5.5**2)}


@pytest.mark.parametrize("restarts", [False, True])
def test_records_come_in_any_order_and_again(world, restarts):
    world.outcome("a", 15, 3.0)
    world.step()
    if restarts:
        world.restart()
    world.show("a", "u1", ["i1"], 10, part=1)
    world.show("a", "u1", ["i1"], 10, part=0)
    world.outcome("a", 15, 3.0)
    world.outcome("a", 16, 1.0)
    world.outcome("nobody", 16)
    world.outcome("a", 10)
    world.outcome("a", 111)
    for bad in (b"", b"{}", b'{"type": "outcome", "answer": "a", "time": 1, "value": 1e300}', b'{"type": "outcome", "answer": "a", "time": -1}',
                b'{"type": "outcome", "answer": "a", "time": 99999999999999999999}', b"\xff"):
        world.topic.send(bad)
    sums = world.end()
    assert of_arm(sums)["total"] == 4.0 and of_arm(sums)["impressions"] == 1
    assert sums.reasons == {"double": 2, "unknown": 1, "before": 1, "after": 1, "malformed": 6}


def test_impressions_that_cannot_count_are_counted_by_reason(world):
    world.show("a", "u1", ["i1"], 10, trial="earlier")
    world.show("b", "u1", ["i1"], 10, arm="popularity")
    world.show("c", "u1", ["i1"], 8 * 86_400)
    world.show("d", "u1", ["i1"], 10, edge=2**63 - 1)
    world.show("e", "u1", ["i1"], 10)
    world.step()
    world.event("u0", "i0", 11)
    world.step()
    world.show("f", "u1", ["i1"], 10, edge=1)
    world.show("e", "u1", ["i1"], 10, edge=1)
    sums = world.end()
    assert sums.reasons == {"other_trial": 1, "other_arm": 1, "ahead": 1, "malformed": 1, "late": 1, "double": 1}
    assert of_arm(sums)["impressions"] == 1


def test_an_answer_counts_although_the_log_lags_it_by_more_than_its_horizon(world):
    """As while ingest is down: another machine, which reads the topic later, would count it too."""
    world.show("a", "u1", ["i1"], 50_000)
    world.step()
    world.event("u1", "i1", 50_001)
    sums = world.end()
    assert of_arm(sums)["outcomes"] == 1 and not sums.reasons


def test_a_unit_in_two_arms_counts_in_the_first(world):
    world.show("a", "u1", ["i1"], 10, unit="x")
    world.event("u0", "i0", 11)
    world.show("b", "u1", ["i1"], 12, unit="x", arm="champion")
    sums = world.end()
    assert sums.reasons == {"moved": 1} and sums.sums["champion"].units == 0


def test_only_answers_older_than_the_horizon_count(world):
    world.show("a", "u1", ["i1"], 10)
    world.event("u1", "i1", 20)
    edge_us = (10 + HORIZON) * SECOND + GRACE_US
    world.event("u0", "i0", edge_us // SECOND)
    world.step()
    assert of_arm(world.sums)["units"] == 0 and world.sums.opened["rule"] == 1
    world.event("u0", "i0", edge_us // SECOND + 1)
    world.step()
    assert of_arm(world.sums)["outcomes"] == 1


def test_an_event_waits_for_impressions_that_may_still_come(world):
    """An impression comes up to HOLD_SECONDS after the event that it led to."""
    world.show("a", "u2", ["i1"], 2)
    world.step()
    edge = world.num_events
    world.event("u1", "i1", 20)
    world.loop.step(world.log, world.now + 1, STOP)
    world.loop.step(world.log, world.now + HOLD_SECONDS, STOP)
    world.show("b", "u1", ["i1"], 10, edge=edge)
    world.loop.step(world.log, world.now + HOLD_SECONDS + 1, STOP)
    world.now += 2 * HOLD_SECONDS
    assert of_arm(world.end())["outcomes"] == 1


def test_while_the_topic_is_away_no_event_is_joined(world):
    world.show("a", "u1", ["i1"], 10)
    world.step()
    position = world.loop._state.position
    world.topic.down, world.loop._topic = True, None
    world.event("u2", "i1", 20)
    with capture_logs() as said:
        world.step()
        assert world.loop._state.position == position
        world.topic.down = False
        world.show("b", "u2", ["i1"], 15, edge=position)
        assert of_arm(world.end())["outcomes"] == 1
    assert [line["event"] for line in said if "trial_topic" in line["event"]] == ["trial_topic_not_read", "trial_topic_read_again"]


def test_another_machine_computes_the_same_from_topic_and_log(world, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(120):
        user, item = f"u{rng.integers(USERS)}", f"i{rng.integers(ITEMS)}"
        world.event(user, item, 10 + i)
        arm = "rule" if user in ("u0", "u1") else "champion"
        world.show(f"a{i}", user, [f"i{j}" for j in rng.permutation(ITEMS)[:3]], 10 + i, arm=arm, part=i % 2)
        if i % 7 == 0:
            world.outcome(f"a{i - i % 2}", 12 + i, float(i), part=1 - i % 2)
        if i % 10 == 0:
            world.step()
    first = world.end()
    world.loop._state.close()
    (tmp_path / "t.sqlite").unlink()
    (tmp_path / "t.sqlite-wal").unlink(missing_ok=True)
    world.open()
    world.step()
    assert world.sums == first and first.outcomes["rule"] > 10


@pytest.mark.parametrize("changed", [{"shares": {"champion": 0.6, "rule": 0.4}}, {"horizon_seconds": 5}, {"edge_set": None}])
def test_a_running_trial_cannot_change(world, changed):
    world.loop._state.close()
    fields = {name: getattr(world.definition, name) for name in ("name", "shares", "horizon_seconds", "edge_set")}
    before = world.definition
    world.definition = Definition(**fields | changed)
    with pytest.raises(SettingsError, match="another name"):
        world.open()
    world.definition = before
    world.open()


def test_a_deleted_node_leaves_no_open_impression_and_no_unit_of_its_name(world, tmp_path):
    """Neither its hash: whoever has the key could compute it."""
    world.event("u2", "i1", 2)
    world.show("a", "u1", ["i1"], 10, arm="champion")
    world.show("b", "u2", ["i1"], 10, unit="another name")
    world.event("u1", "i1", 11)
    world.event("u3", "i5", 100_000)
    world.step()
    world.show("c", "u1", ["i2"], 100_010, arm="champion")
    world.outcome("c", 100_011)
    world.show("d", "u2", ["i2"], 100_010)
    world.step()
    before = world.sums
    assert (before.opened, before.impressions) == ({"champion": 2, "rule": 2}, {"champion": 1, "rule": 1})

    for restarts in (False, True):
        # While the role runs, then while it does not.
        if restarts:
            world.loop._state.close()
        delete_node(world.writer, world.writer.keys[("u1", "u2")[restarts]])
        world.event("u3", "i5", 100_020 + restarts)
        if restarts:
            world.open()
        world.step()
    sums = world.end(300_000)
    assert sums.opened == sums.impressions == {"champion": 1, "rule": 1} and sums.reasons["deleted"] == 2
    assert of_arm(sums, "champion")["outcomes"] == 1, "the sums stay"
    world.loop._state.close()
    db = sqlite3.connect(tmp_path / "t.sqlite")
    numbers = {value for table in ("open", "units", "taken", "nodes", "early") for row in db.execute(f"SELECT * FROM {table}") for value in row}
    assert not numbers & {hash_key("u1"), hash_key("u2"), hash_text("u1"), hash_text("c"), hash_text("d")}
    assert hash_text("another name") in numbers, "it is no key of the log"
    db.close()


def test_the_state_has_no_text_of_users(world, tmp_path):
    world.show("answer-of-someone", "u1", ["i1"], 10, unit="someone@example.org")
    world.outcome("answer-of-nobody", 5)
    world.end()
    world.loop._state.close()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("t.sqlite*"))
    assert b"champion" in content and not any(text in content for text in (b"someone", b"nobody", b"u1", b"i1"))
    world.open()


def test_edges_of_other_sets_are_no_outcomes_and_answers_about_other_nodes_are_not_joined(tmp_path):
    folder = tmp_path / "log"
    src, dst, sets = np.array([0, 1, 0, 0, 1]), np.array([20, 21, 20, 21, 2]), np.array([0, 0, 0, 1, 2])
    write_sets_log(folder, src, dst, np.array([1, 2, 30, 40, 50_000]) * SECOND, sets, 20)
    topic = Topic()
    definition = Definition(name="t", shares=ARMS, horizon_seconds=HORIZON, edge_set="buys")
    loop = TrialLoop(folder, folder / "t.sqlite", definition, SECOND, Heartbeat(folder, "trial"), lambda: True, topic.open)
    for answer, edge_set, shown in (("a", "views", [0, 1]), ("b", "follows", [0, 1])):
        topic.send(Impression(answer=answer, trial="t", arm="rule", unit="x", version="v", src=0, dst=shown, edge_set=edge_set, edge=2,
                              time_us=10 * SECOND))
    log = LogReader.open(folder)
    loop.step(log, 0.0, STOP)
    loop.step(log, HOLD_SECONDS, STOP)
    sums = read_sums(folder / "t.sqlite")
    # 0 -> 20 is a view again, 0 -> 21 is bought; both were shown.
    assert of_arm(sums)["outcomes"] == 1 and sums.reasons == {"other_nodes": 1}
    loop._state.close()
