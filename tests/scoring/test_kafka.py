"""The role as a process of its own, and a topic of a real Apache Kafka."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer

from streamd.cli.doctor_checks import run_check
from streamd.errors import SettingsError
from streamd.graph.facts.columns import NUM_FACTS
from streamd.scoring.outbox import Outbox
from streamd.scoring.record import ScoreRecord, decode
from streamd.scoring.role import check_topic
from streamd.scoring.scorer import Scored
from streamd.scoring.topic import KafkaSink, read_end
from streamd.telemetry.heartbeat import read_beat
from tests.builders import settings, stream, write_log
from tests.crash.daemons import Daemon, wait
from tests.scoring.world import Feed
from tests.server.world import SCHEMA, World

pytestmark = pytest.mark.kafka
CONSUMER = Path(__file__).parents[2] / "docs" / "examples" / "clients" / "scores_consumer.py"


def scored(event, src="a"):
    record = ScoreRecord(event=event, src=src, dst="b", edge_set="default", time_us=event, version="v", memory_event=0, known=True,
                         score=1.0, rank=1.0, candidates=100, scored_at=0.0)
    return Scored(record, 0, 1, 0.1, np.zeros(NUM_FACTS, np.float32))


def written(kafka, topic):
    """The records of a topic by event id, with their keys, partition by partition."""
    consumer = KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=1000)
    try:
        return [(r.partition, r.key, decode(r.value)) for r in consumer]
    finally:
        consumer.close()


def test_a_role_that_is_killed_writes_each_event_at_least_once(kafka, tmp_path):
    src, dst, time_E = stream(600, hours=5)
    write_log(tmp_path / "whole", src, dst, time_E, SCHEMA)
    path, topic = tmp_path / "data", f"scores-{uuid.uuid4().hex}"
    kafka.create_topic(topic, 3)
    write_log(path, src[:260], dst[:260], time_E[:260], SCHEMA)
    World(path).train()
    daemon = Daemon(path, kafka.bootstrap_servers, "events", server__score_topic=topic, stream__edge_feature_dim=2, telemetry__score_port=0)

    def scores():
        beat = read_beat(path, "score")
        return beat is not None and beat.alive and beat.state == "scoring" and beat.detail["version"] and beat.detail["edge"]

    daemon.start("score")
    wait(scores, "it scores")
    feed = Feed(path, tmp_path / "whole", SCHEMA, 260)
    for end in range(265, 605, 5):
        feed.commit(end)
        time.sleep(0.01)
        if end == 430:
            daemon.kill()
            daemon.start("score")
    feed.close()
    wait(lambda: scores() == 600, "it has scored all")
    assert daemon.stop() == 0

    records = written(kafka, topic)
    by_event = {r.event: r for _, _, r in records}
    assert sorted(by_event) == list(range(260, 600)), daemon.output()[-2000:]
    assert all(r.rank == by_event[r.event].rank for _, _, r in records), "scored again, the rank is the same"
    parts = {}
    for partition, key, record in records:
        assert key == record.src.encode() and parts.setdefault(key, partition) == partition
    assert len(set(parts.values())) == 3

    # The consumer of the docs reads them.
    said = subprocess.run([sys.executable, CONSUMER, kafka.bootstrap_servers, topic], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines()[-1] == "340 scores"
    assert len(said.splitlines()) == 1 + sum(r.rank > 50 for r in by_event.values())


def test_the_topics_end_is_found_behind_records_of_others(kafka):
    topic = f"scores-{uuid.uuid4().hex}"
    chosen = settings(Path("unused"), kafka__bootstrap_servers=kafka.bootstrap_servers).kafka
    assert read_end(chosen, topic) == []
    kafka.create_topic(topic, 2)
    assert read_end(chosen, topic) == []
    done = []
    outbox = Outbox(lambda: KafkaSink(chosen, topic), done.append, lambda reason, number: None)
    outbox.add([scored(event, f"n:{event}") for event in range(7, 40)], [0.0] * 33)
    wait(lambda: outbox.step(time.monotonic(), -1.0) or not len(outbox), "all are written")
    outbox.add([scored(40)], [0.0])
    wait(lambda: outbox.step(time.monotonic(), -1.0) or not len(outbox), "the last one is")
    outbox.close(lambda: True)
    assert len(done) == 34 and max(r.complete_before for r in read_end(chosen, topic)) == 40
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send(topic, b"nothing of ours", partition=partition)
    assert max(r.complete_before for r in read_end(chosen, topic)) == 40


def test_what_a_stopped_broker_did_not_take_is_not_sent_once_a_delete_took_it_back(kafka):
    topic = f"scores-{uuid.uuid4().hex}"
    kafka.create_topic(topic, 1)
    chosen = settings(Path("unused"), kafka__bootstrap_servers=kafka.bootstrap_servers).kafka
    outbox = Outbox(lambda: KafkaSink(chosen, topic), lambda at: None, lambda reason, number: None)
    outbox.add([scored(0)], [0.0])
    wait(lambda: outbox.step(time.monotonic(), -1.0) or not len(outbox), "the first one is written")
    pids = [process.pid for process in kafka._processes.values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        # One request may be on its way when the broker stops; later ones wait in the client.
        outbox.add([scored(1)], [0.0])
        outbox.step(time.monotonic(), -1.0)
        wait(lambda: outbox._sink._producer._sender._in_flight_batches, "the second one is on its way")
        outbox.add([scored(event) for event in range(2, 300)], [0.0] * 298)
        outbox.step(time.monotonic(), -1.0)
        begun = time.monotonic()
        outbox.forget(lambda one: one.record.event % 2 == 0)
        assert time.monotonic() - begun < 5, "it waits for no broker"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait(lambda: outbox.step(time.monotonic(), -1.0) or not len(outbox), "the others are written")
    outbox.close(lambda: True)
    assert {r.event for _, _, r in written(kafka, topic)} == {0, *range(1, 300, 2)}


def test_an_alarm_is_in_its_own_topic_and_its_score_waits_for_it(kafka):
    scores, alarms = (f"{kind}-{uuid.uuid4().hex}" for kind in ("scores", "alarms"))
    kafka.create_topic(scores, 1)
    kafka.create_topic(alarms, 1)
    sink = KafkaSink(settings("unused", kafka__bootstrap_servers=kafka.bootstrap_servers).kafka, scores, alarms)
    receipts = [sink.send(b"a", scored(i).record.encode(0), b'{"event": 1}' if i == 1 else None) for i in range(3)]
    wait(lambda: all(r.is_written() for r in receipts), "all are written")
    sink.abandon()
    assert [r.event for _, _, r in written(kafka, scores)] == [0, 1, 2]
    consumer = KafkaConsumer(alarms, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=1000)
    assert [(r.key, r.value) for r in consumer] == [(b"a", b'{"event": 1}')]
    consumer.close()


def test_the_doctor_looks_at_the_topic(kafka, tmp_path):
    def said(**values):
        return run_check("score topic", settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers, **values))

    topic = f"scores-{uuid.uuid4().hex}"
    assert said().seen == "none is set"
    missing = said(server__score_topic=topic)
    assert missing.good == ("creates it" in missing.seen)
    kafka.create_topic(topic, 2)
    assert said(server__score_topic=topic).seen == f"{topic} has 2 partitions"
    assert not said(server__score_topic="events").good


@pytest.mark.parametrize("values", [{}, {"server__score_topic": "events"}, {"server__score_topic": "g.models", "log__name": "g"},
                                    {"server__score_topic": "odd", "ingest__dead_letter_topic": "odd"}])
def test_a_topic_that_is_used_already_is_refused(tmp_path, values):
    with pytest.raises(SettingsError, match="No events are scored|is used for something else"):
        check_topic(settings(tmp_path, **values))
