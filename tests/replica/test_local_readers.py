"""Each machine keeps segments for the servers that run on it, a little longer than the leader does."""

import os
import threading

import pytest

from streamd.clock import SystemClock
from streamd.eventlog.recovery import lock_directory
from streamd.eventlog.upkeep.holds import Hold, write_hold
from streamd.eventlog.writer import LogWriter
from streamd.replica import follow_loop as role
from streamd.replica.follow_loop import FollowLoop
from streamd.replica.follower import local_readers
from streamd.replica.follower.follower import Follower
from streamd.replica.follower.local_readers import readers_before
from streamd.replica.leader.leader import lead
from streamd.roles import LOCK, make_folder
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings
from tests.eventlog import test_crash as life
from tests.replica.twin import Topic


@pytest.fixture
def running(tmp_path):
    """A server that runs, by its lock, and holds the log from event 10 on."""
    write_hold(tmp_path, "serve", Hold(10, 10))
    lock = lock_directory(make_folder(tmp_path, "serve") / LOCK)
    yield lambda: os.close(lock)


def test_only_servers_that_run_and_are_not_past_an_event_are_waited_for(tmp_path, running):
    write_hold(tmp_path, "serve-2", Hold(5, 5))
    assert readers_before(tmp_path, 11) == ["serve"] and readers_before(tmp_path, 10) == []
    running()
    assert readers_before(tmp_path, 11) == []


def test_a_follower_waits_before_it_drops(tmp_path, monkeypatch):
    topic, calls = Topic(), []
    publisher = lead(tmp_path / "a", topic.producer(), topic.reader(), member="m")
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=publisher)
    life.live(log)
    first_edge = log.state.first_edge
    log.close()

    def before_drop(event):
        names = sorted(p.name for p in (tmp_path / "b/edges/default").iterdir())
        calls.append((event, int(names[0].split(".")[0])))

    follower = Follower(tmp_path / "b", topic.reader(), before_drop=before_drop)
    while follower.step(0):
        pass
    follower.close()
    # Each time the first file is still there of what is to be dropped.
    assert calls and calls[-1][0] == first_edge and all(first < event for event, first in calls)


def test_the_wait_ends_with_the_hold_or_the_time(tmp_path, running, monkeypatch):
    loop = FollowLoop(tmp_path, settings(tmp_path).log, settings(tmp_path).kafka, SystemClock(), Heartbeat(tmp_path, "follow"))
    loop._stop = threading.Event()
    threading.Timer(0.2, lambda: write_hold(tmp_path, "serve", Hold(20, 20))).start()
    loop._let_servers_pass(20)
    assert readers_before(tmp_path, 20) == []
    monkeypatch.setattr(role, "DROP_SECONDS", 0.1)
    loop._let_servers_pass(21)
    assert readers_before(tmp_path, 21) == ["serve"] and local_readers.DROP_SECONDS > 10
