"""The line under the page's title: what is wrong, in an operator's words."""

import time

import pytest

from streamd.cli.doctor_checks import run_check
from streamd.eventlog.reader import LogReader
from streamd.server.engine.status import NextVersion
from streamd.server.page import status
from streamd.server.page.trend import RecentRefusals, Trend
from streamd.server.page.troubles import AWAY, UNLED, MachineFacts, find_troubles
from streamd.telemetry.heartbeat import Beat
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait

BROKER, NOW = "127.0.0.1:9092", 1_700_000_000.0


def beat(name="ingest", state="running", age=0.0, silent=0.0, exists=True, **detail):
    heartbeat_ns = int((NOW - silent) * 1e9)
    return Beat(name=name, role=name, state=state, pid=1, age_seconds=age, exists=exists, alive=exists and age < 60, heartbeat_ns=heartbeat_ns,
                detail=detail)


def found(beats=None, **more):
    """The troubles of a machine that is well but for what is named: (text, whether it is red)."""
    beats = {"ingest": beat(), "train": beat("train"), "serve": beat("serve")} | (beats or {})
    facts = {"now": NOW, "up_seconds": 100.0, "broker": BROKER, "version": "the rule", "next_version": None, "memory_behind": 0, "log_behind": 0,
             "no_progress_seconds": None, "refusals": None} | more
    return [(trouble.text, trouble.is_bad) for trouble in find_troubles(MachineFacts(beats=beats, **facts))]


def test_a_machine_that_is_well_has_none_though_idle_or_busy_for_a_while():
    assert found() == []
    begins = {"ingest": beat(age=1, broker_age_seconds=40.0, broker_asked=False)}
    assert found(begins) == [], "the first question to Kafka is under way"
    busy = {"ingest": beat(age=30, broker_age_seconds=-25.0), "train": beat("train", "learning", age=55)}
    assert found(busy, no_progress_seconds=170.0, memory_behind=9_999, refusals=RecentRefusals(num_records=10_000, num_dead=99, error="x")) == []


@pytest.mark.parametrize(("name", "given", "text", "is_bad"), [
    ("train", beat("train", age=100, silent=100), "train has sent no heartbeat for 2 min", True),
    ("train", beat("train", age=12, silent=12), "train has sent no heartbeat for 12 s: after 60 s it is killed and restarted", True),
    ("train", beat("train", age=80, silent=1), "train hangs: its loop has not turned for 80 s", True),
    ("train", beat("train", age=30, silent=30, exists=False), "train ended and is not back: its last heartbeat was 30 s ago", True),
    ("train", beat("train", "refused", exists=False, why="another cluster"), "train refused its data 0 s ago: another cluster", True),
    ("train", None, "train never ran", True),
    ("ingest", beat(state="connecting", unanswered_seconds=95.0, answers=False, why="No broker answers"),
     f"Kafka {BROKER} has not answered for 95 s: {AWAY}", True),
    ("ingest", beat(state="connecting", unanswered_seconds=4.0, answers=False, why="No broker answers"),
     f"Kafka {BROKER} has not answered for 4 s", False),
    ("ingest", beat(age=1, broker_age_seconds=94.0), f"Kafka {BROKER} has not answered for 95 s: {AWAY}", True),
    ("ingest", beat(state="connecting", unanswered_seconds=95.0, answers=True, why="The broker takes no user x."),
     f"Kafka {BROKER} does not serve ingest: The broker takes no user x.", True),
    ("ingest", beat(state="connecting", missing_topics=["events", "labels"], why="create it"),
     f"Kafka {BROKER} has no topic events, labels, for 0 s", True),
    ("ingest", beat(state="topic missing", age=1, missing_topics=["events"], missing_seconds=179.0, was_read=True, why="restore it"),
     f"Kafka {BROKER} has no topic events (deleted?), for 3 min", True),
    ("ingest", beat(state="first times held", held="all times are in 1970; set stream.time_unit"),
     "ingest holds the first commit: all times are in 1970; set stream.time_unit", True),
    ("ingest", beat(state="waiting for the clock"), "ingest is waiting for the clock", False),
    ("ingest", beat(cannot_lead="The disk is full."), "this machine cannot lead: The disk is full.", False),
    ("score", beat("score", "scoring", age=1, topic_away="Topic scores accepts no records.", topic_away_seconds=88.0),
     "score has waited for its topic for 89 s", True),
    ("trial", beat("trial", "waiting for the topic", topic_away="no topic", topic_away_seconds=600.0), "trial has waited for its topic for 10 min", True),
    ("follow", beat("follow", "waiting for store", why="no such bucket"), "follow is waiting for store: no such bucket", True),
    ("ingest", beat("ingest", "waiting for broker", why="no answer"), "ingest is waiting for broker: no answer", True),
    ("follow", beat("follow", "following", age=1, unheard_seconds=40.0), f"no leader has sent a commit or heartbeat for 41 s: {UNLED}", True),
])
def test_each_state_of_a_role_has_its_sentence(name, given, text, is_bad):
    assert found({name: given}) == [(text, is_bad)]


@pytest.mark.parametrize(("more", "text", "is_bad"), [
    ({"no_progress_seconds": 181.0}, "no training progress for 3 min", True),
    ({"memory_behind": 80_000}, "memory is 80,000 events behind", False),
    ({"log_behind": 12_345}, "answers are 12,345 events behind the log", False),
    ({"next_version": NextVersion("7-1", 0.129)}, "version 7-1 catches up, 12 %, the rule answers until then", False),
    ({"next_version": NextVersion(None, 0.0), "version": "version 7-1"}, "the rule catches up, 0 %, version 7-1 answers until then", False),
    ({"refusals": RecentRefusals(num_records=3000, num_dead=1204, error="user_id is missing")}, "1,204 of 3,000 records refused: user_id is missing", False),
    ({"refusals": RecentRefusals(num_records=3000, num_dead=2900, error="user_id is missing")}, "2,900 of 3,000 records refused: user_id is missing", True),
    ({"refusals": RecentRefusals(num_records=10, num_dead=40, error="x")}, "40 of 10 events and records refused: x", True),
])
def test_each_fact_has_its_sentence(more, text, is_bad):
    assert found(**more) == [(text, is_bad)]


@pytest.mark.parametrize(("role", "task", "text"), [
    ("archive", "archive", "the store gets nothing"), ("follow", "models", "versions and moves are not exchanged with the other machines"),
    ("ingest", "retention", "retention of ingest fails")])
def test_a_task_that_is_retried_in_vain_is_a_trouble_after_some_seconds(role, task, text):
    def after(seconds):
        return found({role: beat(role, "running", failing={task: {"since": NOW - seconds, "error": "no such bucket"}})})

    assert after(3) == [] and after(45) == [(f"{text}, for 45 s: no such bucket", True)]


def test_what_is_dead_comes_before_what_is_late():
    got = found({"train": None}, next_version=NextVersion("7-1", 0.5), refusals=RecentRefusals(num_records=100, num_dead=2, error="x"), memory_behind=80_000)
    assert [is_bad for _, is_bad in got] == [True, False, False, False] and got[0][0] == "train never ran"
    assert found({"train": None}, up_seconds=5.0) == [], "the roles start one after the other"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_a_window_that_waits_counts_while_the_trainer_gets_no_further(tmp_path):
    src, dst, time_us = stream(500, hours=10)
    write_log(tmp_path, src, dst, time_us, SCHEMA, watermark=100 * HOUR)
    log, clock = LogReader.open(tmp_path, keep_keys=False), Clock()
    trend = Trend(lambda: log, HOUR, clock)

    def after(seconds, **detail):
        clock.now += seconds
        trend.read_heartbeats(None, beat("train", **detail))
        return trend.no_progress_seconds

    assert after(0) is None, "it has said nothing yet"
    assert [after(0, edge=0), after(100, edge=0), after(100, edge=0)] == [0, 100, 200]
    assert [after(1, edge=0, state="learning", share=0.1), after(90, edge=0, state="learning", share=0.1)] == [0, 90]
    assert after(50, edge=0, state="learning", share=0.2) == 0, "a long window is learned part by part"
    assert after(1, edge=100) == 0 and after(1, edge=log.num_edges) is None, "all is learned"
    assert after(500, edge=log.num_edges) is None


def test_windows_that_are_over_are_counted_from_the_edge_that_is_learned(tmp_path):
    src, dst, time_us = stream(500, hours=10)
    write_log(tmp_path, src, dst, time_us, SCHEMA, watermark=100 * HOUR)
    log = LogReader.open(tmp_path, keep_keys=False)
    trend = Trend(lambda: log, HOUR)
    assert trend.num_waiting(None) == trend.num_waiting(beat("train", "preparing")) == 10
    assert trend.num_waiting(beat("train", edge=int(log.lower_bound(3 * HOUR)))) == 7
    assert trend.num_waiting(beat("train", edge=log.num_edges)) == 0
    assert Trend(lambda: log, HOUR // 20).num_waiting(None) == 100, "no further ones are counted"
    assert Trend(lambda: None, HOUR).num_waiting(None) == 0


def test_refused_records_are_those_of_the_last_ten_minutes():
    clock = Clock()
    trend = Trend(lambda: None, HOUR, clock)

    def after(seconds, records, letters, reading):
        clock.now += seconds
        trend.read_heartbeats(beat(records=records, dead_letters=letters, reading_seconds=reading, refused_mostly="user_id is missing"), None)
        return trend.refusals and (trend.refusals.num_records, trend.refusals.num_dead)

    assert after(0, 3000, 1204, 30.0) == (3000, 1204), "what ingest read before the server looked counts too"
    assert after(60, 9000, 1204, 90.0) == (9000, 1204)
    assert after(700, 20_000, 1204, 790.0) is None, "it is over"
    assert after(60, 21_000, 1214, 850.0) == (1000, 10)
    assert after(5, 50, 50, 3.0) == (50, 50), "ingest was started again"
    old = Trend(lambda: None, HOUR, clock)
    old.read_heartbeats(beat(records=10**6, dead_letters=5, reading_seconds=1e5, refused_mostly="x"), None)
    assert old.refusals is None, "when ingest refused them is not known"


def test_the_page_lists_the_troubles_of_its_machine_and_doctor_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "SAMPLE_SECONDS", 0.2)
    src, dst, time_us = stream(500, hours=2)
    write_log(tmp_path, src, dst, time_us, SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path).start()
    try:
        page = world.state.page
        page._begun = time.monotonic()
        assert page.content()["troubles"] == [], "a machine that has just started"
        page._begun -= 100
        # The server's first heartbeat may come a turn after it is ready.
        wait(lambda: [(x["text"], x["is_bad"]) for x in page.content()["troubles"]] == [("ingest never ran", True), ("train never ran", True)])
        assert world.client.get("/readyz").status_code == 200, "a server that can answer is ready"
        wait(lambda: run_check("troubles", world.settings).seen == "ingest never ran; train never ran")
        assert not run_check("troubles", world.settings).good
        assert "troubles" not in page.content()["roles"]["serve"]["detail"], "the page has newer ones"
        page._is_ready = lambda: (False, "stopping")
        page._begun += 100
        wait(lambda: run_check("troubles", world.settings).seen == "the server does not answer: stopping")
        assert run_check("troubles", world.settings).result[0] == "look"
    finally:
        world.stop()
