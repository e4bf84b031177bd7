"""The first commit of a log is held while all of its times look like another unit."""

import pytest
from structlog.testing import capture_logs

from streamd.cli.doctor_checks import run_check
from streamd.events import Position
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import HELD_STATE, held_times, read_beat
from tests.ingest.world import World
from tests.readings import reading

NOW_S = 1_700_000_000


def edge(time, src="a"):
    return {"src": src, "dst": "b", "time": time}


def is_held(world):
    seen = read_beat(world.path, "ingest").state == HELD_STATE
    assert seen == bool(held_times(world.path)) == (reading(metrics.first_times_held) == 1) == (not run_check("first times", world.settings).good)
    return seen


def source(time):
    return [{"topic": "events", "time": time, "fields": {"src": "src", "dst": "dst", "time": "time"}}]


@pytest.mark.parametrize(("values", "times", "says"), [
    ({"stream__time_unit": "ms"}, [NOW_S - 9, NOW_S], "all times look like seconds, not milliseconds: 1699999991 was read as 1970-01-20T16:13:19.991Z; set stream.time_unit to s, or set ingest.accept_first_times: true"),
    ({"stream__time_unit": "s"}, [19_600, 19_601], "look like days, not seconds: 19600 was read as 1970-01-01T05:26:40Z; give the topic a source with time: days"),
    ({"sources": source("s")}, [19_600, 19_601], "set time in the source of events to days"), ({"sources": source("us")}, [NOW_S * 1000], "set time in the source of events to ms"),
    ({"sources": source("s")}, [20_150_218, 20_150_219], "look like dates in digits, not seconds: 20150218 was read as 1970-08-22T05:16:58Z; set time in the source of events to iso8601"),
    ({"sources": source("ns")}, [NOW_S * 10**6], "set time in the source of events to us")])
def test_times_that_all_look_like_another_unit_are_held_and_named(tmp_path, values, times, says):
    world = World(tmp_path, **values)
    for time in times:
        world.send(0, edge(time))
    with capture_logs() as logs:
        world.run(3)
    (log,) = [log for log in logs if log["event"] == "first_times_held"]
    assert log["log_level"] == "error" and says in f"{log['why']}; {log['action']}"
    assert is_held(world) and says in held_times(tmp_path)
    # What comes later is held too, and a stop commits nothing.
    world.send(0, edge(NOW_S * 1000))
    world.run(2)
    world.stop()
    assert world.writer.num_edges == 0 and "events" not in world.writer.progress.positions


def test_a_restart_with_the_right_unit_reads_all_of_it(tmp_path):
    world = World(tmp_path, stream__time_unit="ms")
    for i in range(30):
        world.send(0, edge(NOW_S - 30 + i, f"u{i}"))
    world.run(1)
    assert is_held(world)
    world.stop()
    world.settings = world.settings.model_copy(update={"stream": world.settings.stream.model_copy(update={"time_unit": "s"})})
    world.start().run(1)
    assert not is_held(world) and [time for _, _, time in world.events()] == [(NOW_S - 30 + i) * 10**6 for i in range(30)]
    assert world.writer.progress.positions["events"][0] == Position(30) and world.dead_letters() == []


def test_a_restart_after_right_events_takes_them_with_those_that_were_a_mistake(tmp_path):
    world = World(tmp_path, stream__time_unit="ms")
    world.send(0, edge(NOW_S))
    world.run(1)
    assert is_held(world) and "send right ones and start again" in held_times(tmp_path)
    world.send(0, edge(NOW_S * 1000))
    world.run(1)
    assert is_held(world), "what is decoded already is held until the start"
    world.stop()
    world.start().run(1)
    assert not is_held(world) and [time for _, _, time in world.events()] == [NOW_S * 1000, NOW_S * 10**6]


def test_a_setting_takes_them_as_they_are(tmp_path):
    world = World(tmp_path, stream__time_unit="ms", ingest__accept_first_times=True)
    world.send(0, edge(NOW_S))
    world.run(1)
    assert world.events() == [("a", "b", NOW_S * 1000)] and not is_held(world)


@pytest.mark.parametrize("times", [[0, 19_600], [5], [NOW_S, NOW_S - 900_000_000], [NOW_S * 1000, NOW_S], [None]])
def test_other_first_times_are_taken(tmp_path, times):
    """Also a stream that counts from zero, and one in which only some times are of another unit."""
    world = World(tmp_path, stream__time_unit="ms")
    for time in times:
        world.send(0, edge(time) if time is not None else {"src": "a", "dst": "b"})
    world.run(1)
    assert world.writer.num_edges == len(times) and not is_held(world)


def test_later_commits_are_not_held(tmp_path):
    world = World(tmp_path, stream__time_unit="ms")
    world.send(0, edge(3))
    world.run(1)
    for i in range(9):
        world.send(0, edge(NOW_S + i))
        world.run(1)
    assert world.writer.num_edges == 10 and not is_held(world)


def test_one_topic_of_the_wrong_unit_holds_the_first_commit_of_all(tmp_path):
    world = World(tmp_path, 2, topics=("own", "events"), sources=source("s"), kafka__topics=["own", "events"])
    world.send(0, edge(NOW_S * 10**6))
    world.send(1, edge(19_600))
    world.run(2)
    assert is_held(world) and world.writer.num_edges == 0


def test_a_node_is_taken_before_the_first_time_is_known(tmp_path):
    world = World(tmp_path, stream__time_unit="ms", stream__node_feature_dim=1)
    world.send(0, {"type": "node", "id": "a", "features": [1]})
    world.run(1)
    assert world.writer.num_nodes == 1 and not is_held(world)
    world.send(0, edge(NOW_S))
    world.run(1)
    assert is_held(world) and world.writer.num_edges == 0
