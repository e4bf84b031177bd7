"""What ingest's heartbeat says of a Kafka that does not serve it, and of the records that it refused."""

import time

import pytest
from structlog.testing import capture_logs

from streamd.errors import KafkaError, SilentBrokerError
from streamd.ingest.kafka.broker_wait import BrokerWait
from streamd.telemetry.heartbeat import read_beat
from tests.builders import ManualClock
from tests.ingest.world import World

SILENT = SilentBrokerError("No broker answers at kafka:9092: timed out.", "check it.")


def newest_beat(path, condition):
    """The heartbeat, once its thread has written one of which a condition is true."""
    deadline = time.monotonic() + 10
    while not condition(beat := read_beat(path, "ingest")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return beat


def test_it_knows_since_when_no_broker_could_be_used_and_logs_that_seldom():
    clock = ManualClock()
    waiting = BrokerWait("kafka:9092", clock)
    with capture_logs() as said:
        for seconds in (10, 30):
            clock.advance(10 if seconds == 10 else 20)
            fields = waiting.for_broker(SILENT)
            assert fields == {"why": str(SILENT), "answers": False, "unanswered_seconds": seconds}
    assert [line["event"] for line in said] == ["broker_unavailable"]
    assert waiting.for_broker(KafkaError("The broker takes no user x.", "set it."))["answers"] is True
    waiting.over()
    clock.advance(3)
    with capture_logs() as said:
        assert waiting.for_broker(SILENT)["unanswered_seconds"] == 3
    assert [line["event"] for line in said] == ["broker_unavailable"], "a failure after a success is a new one"


def test_a_broker_without_the_topic_answers():
    clock = ManualClock()
    waiting = BrokerWait("kafka:9092", clock)
    clock.advance(60)
    fields = waiting.for_topics(["events", "labels"])
    assert fields["missing_topics"] == ["events", "labels"] and "--topic events" in fields["why"]
    assert waiting.for_broker(SILENT)["unanswered_seconds"] == 0
    assert waiting.for_topics([]) == {}


def test_the_heartbeat_of_a_loop_whose_broker_went_away_says_for_how_long(tmp_path, monkeypatch):
    world = World(tmp_path).step()

    def away(timeout_seconds, max_records):
        world.clock.advance(timeout_seconds)
        raise SILENT

    monkeypatch.setattr(world.source, "poll", away)
    world.run(30)
    beat = newest_beat(tmp_path, lambda beat: beat.detail.get("unanswered_seconds", 0) > 25)
    assert beat.state == "broker unavailable" and beat.detail["why"] == str(SILENT)
    assert 25 < beat.detail["unanswered_seconds"] < 32
    world.kill()


@pytest.mark.parametrize("bad", [0, 3])
def test_the_heartbeat_counts_what_was_read_and_refused(tmp_path, bad):
    world = World(tmp_path)
    for i in range(5):
        world.send(0, {"src": f"u{i}", "dst": "a", "time": 1_700_000_000_000_000 + i})
    for _ in range(bad):
        world.send(0, {"dst": "a", "time": 1_700_000_000_000_000})
    world.run(5)
    said = newest_beat(tmp_path, lambda beat: beat.detail.get("reading_seconds", 0) >= 3).detail
    assert (said["records"], said["dead_letters"]) == (5 + bad, bad) and said["reading_seconds"] >= 3
    assert said["refused_mostly"].startswith("src is missing") == bool(bad)
    world.kill()


def test_one_error_of_several_reasons_is_said_to_be_the_most_frequent(tmp_path):
    world = World(tmp_path)
    for event in ({"dst": "a", "time": 1}, {"dst": "b", "time": 1}, {"src": "u", "dst": "a", "time": "soon"}):
        world.send(0, event)
    world.run(5)
    said = newest_beat(tmp_path, lambda beat: beat.detail.get("reading_seconds", 0) >= 3).detail
    assert said["dead_letters"] == 3 and said["refused_mostly"].startswith("most often src is missing")
    world.kill()
