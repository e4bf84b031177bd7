"""What ingest's heartbeat says of a Kafka that does not serve it, and of the records that it refused."""

import time

import pytest
from structlog.testing import capture_logs

from streamd.errors import KafkaError, SilentBrokerError
from streamd.ingest.kafka.broker_wait import BrokerWait
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import read_beat
from tests.builders import ManualClock, settings
from tests.ingest.world import World

SILENT = SilentBrokerError("No broker answers at kafka:9092: timed out.", "check it.")


def edge(src, dst, time_us):
    return {"src": src, "dst": dst, "time": time_us}


def value_of(gauge, topic, partition="0"):
    """The value of a metric for a topic, or for one of its partitions. Raises: KeyError if it has none."""
    rows = {sample.labels["topic"]: sample.value for metric in gauge.collect() for sample in metric.samples if sample.labels.get("partition", "0") == partition}
    return rows[topic]


def newest_beat(path, condition):
    """The heartbeat, once its thread has written one of which a condition is true."""
    deadline = time.monotonic() + 10
    while not condition(beat := read_beat(path, "ingest")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return beat


def test_it_knows_since_when_no_broker_could_be_used_and_logs_that_seldom(tmp_path):
    clock = ManualClock()
    waiting = BrokerWait(settings(tmp_path, kafka__bootstrap_servers="kafka:9092").kafka, clock)
    with capture_logs() as said:
        for seconds in (10, 30):
            clock.advance(10 if seconds == 10 else 20)
            fields = waiting.for_broker(SILENT)
            assert fields == {"why": str(SILENT), "answers": False, "unanswered_seconds": seconds}
    assert [line["event"] for line in said] == ["broker_unavailable"]
    assert waiting.for_broker(KafkaError("The broker takes no user x.", "set it."))["answers"] is True
    clock.advance(5)
    with capture_logs() as said:
        waiting.over()
    assert [(line["event"], line["away_seconds"]) for line in said] == [("broker_answers_again", 35)]
    clock.advance(3)
    with capture_logs() as said:
        assert waiting.for_broker(SILENT)["unanswered_seconds"] == 3
    assert [line["event"] for line in said] == ["broker_unavailable"], "a failure after a success is a new one"


def test_a_broker_without_the_topic_answers(tmp_path):
    clock = ManualClock()
    waiting = BrokerWait(settings(tmp_path, kafka__bootstrap_servers="kafka:9092", kafka__topics=("events", "labels")).kafka, clock)
    clock.advance(60)
    fields = waiting.for_topics(["events", "labels"])
    assert fields["missing_topics"] == ["events", "labels"] and "--topic events" in fields["why"]
    assert (fields["missing_seconds"], fields["was_read"]) == (0, False)
    assert waiting.for_broker(SILENT)["unanswered_seconds"] == 0
    clock.advance(40)
    fields = waiting.for_topics(["labels"], {"labels"})
    assert (fields["missing_seconds"], fields["was_read"]) == (40, True) and "no longer exists" in fields["why"]
    with capture_logs() as said:
        assert waiting.for_topics([]) == {}
    assert [(line["event"], line["topic"], line["missing_seconds"]) for line in said] == [("topic_exists_again", "labels", 40)]


def test_a_topic_deleted_while_others_are_read_is_reported_and_its_lag_is_unknown(tmp_path):
    world = World(tmp_path, 2, topics=("events", "trips"), kafka__topics=("events", "trips"))
    for p in (0, 1):
        world.send(p, edge(f"u{p}", "a", 1 + p))
    world.run(3)
    assert newest_beat(tmp_path, lambda beat: beat.state == "running").detail["behind"] == {}
    world.source.missing_topics = ("events",)
    with capture_logs() as said:
        world.send(1, edge("u2", "a", 3))
        world.run(5)
    beat = newest_beat(tmp_path, lambda beat: beat.detail.get("missing_seconds", 0) > 2)
    assert beat.state == "topic missing" and beat.detail["missing_topics"] == ["events"] and beat.detail["was_read"]
    assert "behind" not in beat.detail, "records of the topic may be lost"
    assert len(world.events()) == 3, "the other topic is read"
    assert [line["event"] for line in said if line["log_level"] == "warning"] == ["waiting_for_topic"]
    with pytest.raises(KeyError):
        value_of(metrics.lag, "events")
    assert value_of(metrics.lag, "trips", "1") == 0 and value_of(metrics.topic_missing, "events") == 1

    # It is back, and the heartbeat is as before.
    world.source.missing_topics = ()
    world.run(3)
    assert "missing_topics" not in newest_beat(tmp_path, lambda beat: beat.state == "running").detail
    assert value_of(metrics.topic_missing, "events") == 0 == value_of(metrics.lag, "events")
    world.kill()


def test_a_broker_that_is_silent_while_ingest_reads_is_logged_with_the_time_until_it_answers(tmp_path):
    world = World(tmp_path).step()
    answered = world.clock.monotonic()
    with capture_logs() as said:
        world.source.answers = False
        world.run(30)
        world.source.answers = True
        world.run(3)
    away = [line for line in said if line["event"] in ("broker_unavailable", "broker_answers_again")]
    assert [line["event"] for line in away] == ["broker_unavailable", "broker_answers_again"]
    assert abs(away[1]["away_seconds"] - (world.clock.monotonic() - 3 - answered)) <= 3
    world.kill()


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
    # Of one reason the newest error need not be the most frequent one.
    for event in ({"src": "u", "time": 1}, {"dst": "a", "time": 1}):
        world.send(0, event)
    world.run(5)
    said = newest_beat(tmp_path, lambda beat: beat.detail.get("dead_letters") == 2).detail
    assert said["refused_mostly"].startswith("for example "), "none is more frequent than the others"
    world.send(0, {"dst": "b", "time": 1})
    world.run(5)
    said = newest_beat(tmp_path, lambda beat: beat.detail.get("dead_letters") == 3).detail
    assert said["refused_mostly"].startswith("most often src is missing")
    world.kill()
