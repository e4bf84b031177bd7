"""What a Kafka of real life does: gaps, new partitions, other content types and codecs, lag tools."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from streamd.decode.wire import ARROW, NDJSON
from streamd.demo.broker import ApacheKafka
from streamd.eventlog.journal.journal import journal_files, read_lines
from streamd.settings.loading import as_environment
from tests.crash.daemons import produce, rows_of, wait

pytestmark = pytest.mark.kafka


@pytest.fixture
def admin(kafka):
    made = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    yield made
    made.close()


def gaps(daemon):
    return [gap for path in journal_files(daemon.path / "journal") for _, line in read_lines(path)
            for gap in line.get("gaps", ())]


def test_told_to_continue_ingest_passes_over_what_kafka_lost_and_notes_the_gap(daemon_on, kafka, topic, producer, admin):
    produce(producer, topic, rows_of(200))
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__on_data_loss="continue").start("ingest")
    wait(lambda: daemon.edges() == 200, "the events are in")
    assert daemon.stop() == 0
    produce(producer, topic, rows_of(100, seed=1), size=1)
    admin.delete_records({TopicPartition(topic, p): -1 for p in range(4)})
    produce(producer, topic, rows_of(50, seed=2))
    daemon.start("ingest")
    wait(lambda: daemon.edges() == 250, "what came behind the gap is in")
    lost = gaps(daemon)
    assert sum(end - first for _, _, first, end in lost) == 100 and {t for t, *_ in lost} == {topic}
    assert daemon.stop() == 0
    admin.delete_topics([topic])
    time.sleep(1)
    kafka.create_topic(topic, 4)
    produce(producer, topic, rows_of(30, seed=3))
    daemon.start("ingest")
    wait(lambda: daemon.edges() == 280, "the new topic is read from its beginning")
    assert [end for *_, end in gaps(daemon)[len(lost):]].count(-1) == 4
    assert daemon.stop() == 0


def test_a_topic_deleted_under_a_daemon_is_named_by_the_server_until_it_exists_again(daemon_on, kafka, topic, producer, admin):
    produce(producer, topic, rows_of(40))
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__on_data_loss="continue").start()
    wait(lambda: daemon.seen() == 40, "the server has the events", 120)
    admin.delete_topics([topic])
    wait(lambda: f"has no topic {topic} (deleted?)" in daemon.get("/readyz").get("kafka", ""), "readiness names it")
    assert daemon.get("/readyz")["ready"], "answers continue"
    [trouble] = [one for one in daemon.get("/status.json")["troubles"] if one["is_bad"]]
    assert f"Kafka {kafka.bootstrap_servers} has no topic {topic} (deleted?)" in trouble["text"] and "--create" in trouble["detail"]
    kafka.create_topic(topic, 4)
    produce(producer, topic, rows_of(30, seed=3))
    wait(lambda: daemon.seen() == 70, "the new topic is read from its beginning", 40)
    assert "kafka" not in daemon.get("/readyz")
    assert daemon.stop() == 0 and "topic_exists_again" in daemon.output()


def test_partitions_added_while_running_are_found_and_nothing_is_taken_twice(daemon_on, kafka, topic, producer, admin):
    produce(producer, topic, rows_of(300))
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    wait(lambda: daemon.edges() == 300, "the events are in")
    admin.create_partitions({topic: 6})
    late = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    newest = max(t for *_, t in daemon.events())
    for i in range(20):
        late.send(topic, json.dumps({"src": "new", "dst": i, "time": newest + i}).encode(), partition=5).get(30)
    late.close()
    wait(lambda: daemon.edges() == 320, "the new partition is read", 40)
    assert len(set(daemon.events())) == len({*rows_of(300)}) + 20
    assert daemon.stop() == 0


def test_a_topic_that_is_made_anew_and_filled_at_once_is_read_from_its_beginning(daemon_on, kafka, topic, producer, admin):
    """Ingest stands still meanwhile, as a paused machine does; then the new topic's offsets are beyond those of the old one."""
    produce(producer, topic, rows_of(40))
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__on_data_loss="continue").start("ingest")
    wait(lambda: daemon.edges() == 40, "the events are in")
    newest = max(t for *_, t in daemon.events())
    daemon.process.send_signal(signal.SIGSTOP)
    admin.delete_topics([topic])
    admin.create_topics({topic: {"num_partitions": 4}})
    late = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for i in range(400):
        late.send(topic, json.dumps({"src": "new", "dst": i, "time": newest + i}).encode(), partition=i % 4)
    late.flush(30)
    daemon.process.send_signal(signal.SIGCONT)
    wait(lambda: daemon.edges() >= 440, "the new topic is read", 40)
    time.sleep(6)
    assert daemon.edges() == 440 == len(set(daemon.events())) and [end for *_, end in gaps(daemon)] == [-1] * 4
    assert daemon.stop() == 0


def test_every_codec_and_content_type_is_read_and_a_bomb_is_one_dead_letter(daemon_on, kafka, topic):
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__max_batch_bytes=1_000_000).start("ingest")
    sent = 0
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec, linger_ms=50,
                                 max_request_size=10_000_000)
        lines = [json.dumps({"src": f"{codec}", "dst": f"x{i}", "time": 1000 + i}).encode() for i in range(40)]
        for line in lines[:20]:
            producer.send(topic, line, partition=0)
        producer.send(topic, b"\n".join(lines[20:30]), partition=0, headers=[("content-type", NDJSON.encode())])
        table = pa.table({"src": [f"{codec}"] * 10, "dst": [f"x{i}" for i in range(30, 40)], "time": range(1030, 1040)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        producer.send(topic, sink.getvalue().to_pybytes(), partition=0, headers=[("content-type", ARROW.encode())])
        producer.flush()
        if codec:
            producer.send(topic, bytes(2_000_000), partition=0)
            producer.flush()
        producer.send(topic, json.dumps({"src": f"{codec}", "dst": "behind", "time": 2000}).encode(), partition=0)
        producer.flush()
        producer.close()
        sent += 41
    wait(lambda: daemon.edges() == sent, "all good events are in")
    letters = [json.loads(x) for x in (daemon.path / "deadletter/current.jsonl").read_text().splitlines()]
    assert [x["reason"] for x in letters] == ["bad_batch"] * 4
    assert daemon.stop() == 0


def test_lag_tools_see_how_far_the_log_is(daemon_on, kafka, topic, producer, admin):
    produce(producer, topic, rows_of(100), size=1)
    daemon = daemon_on(kafka.bootstrap_servers, topic, kafka__group_id=f"group-{topic}").start("ingest")
    wait(lambda: daemon.edges() == 100, "the events are in")
    assert daemon.stop() == 0
    said = admin.list_group_offsets(f"group-{topic}")
    assert sum(o.offset for o in said.get(f"group-{topic}", said).values()) == 100


@pytest.mark.parametrize("to_topic", [False, True])
def test_dead_letters_are_sent_again_once_and_then_go_in(daemon_on, kafka, topic, producer, to_topic):
    from streamd.ingest.dead_letters.replay import plan, read_letters, send

    def replay(settings, reasons, again):
        """Numbers of letters sent, sent before, and that cannot be sent."""
        chosen = plan(settings, reasons, (), again)
        send(settings, chosen)
        return len(chosen.letters), chosen.before, chosen.broken, chosen.foreign

    letters = f"{topic}-letters" if to_topic else None
    if to_topic:
        kafka.create_topic(letters, 1)
    bad = json.dumps({"src": "a", "dst": "b", "time": 10, "features": [1.5]}).encode()
    producer.send(topic, value=bad, partition=0, key=b"k1", timestamp_ms=1_600_000_000_000)
    producer.send(topic, value=bad + b"\n" + b"{", partition=0, headers=[("content-type", NDJSON.encode())])
    producer.send(topic, value=None, key=b"k", partition=0)
    producer.flush()
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__dead_letter_topic=letters).start("ingest")
    wait(lambda: len(list(read_letters(daemon.settings))) == 4, "all three records are dead letters, one of two events")
    assert daemon.stop() == 0
    found = [f.letter for f in read_letters(daemon.settings)]
    assert sorted((x.offset, x.index, x.reason) for x in found) == [
        (0, 0, "feature_width"), (1, 0, "feature_width"), (1, 1, "bad_json"), (2, -1, "tombstone")]
    wide = daemon_on(kafka.bootstrap_servers, topic, "wide", ingest__dead_letter_topic=letters,
                     stream__edge_feature_dim=1).start("ingest")
    wait(lambda: wide.edges() == 2, "under the right width the first letter's events go in")
    assert replay(daemon.settings, ["feature_width"], False) == (2, 0, 0, 0)
    wait(lambda: wide.edges() == 4, "so do they when they are sent again")
    assert replay(daemon.settings, ["feature_width"], False) == (0, 2, 0, 0), "each once"
    reader = KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=3000)
    assert [(r.key, r.timestamp) for r in reader if r.value == bad and r.key] == [(b"k1", 1_600_000_000_000)] * 2
    reader.close()
    assert replay(daemon.settings, ["tombstone"], False) == (0, 0, 1, 0) and replay(daemon.settings, [], True)[0] == 3


def test_partitions_of_very_different_speed_are_merged_without_a_storm_of_clamping(daemon_on, kafka, topic, producer):
    """One partition has most events, one a hundredth; each is sent in time order, all at their own pace.

    What living through it gave is what reading it all from the beginning gives.
    """
    shares, rng = (900, 240, 50, 10), random.Random(3)
    events = sorted((rng.randrange(10**7), p, i) for p, n in enumerate(shares) for i in range(n))
    lived = daemon_on(kafka.bootstrap_servers, topic, "lived", ingest__merge_wait_seconds=1.0).start("ingest")
    wait(lambda: "ingest_started" in lived.output(), "ingest runs")
    for n, (when, partition, i) in enumerate(events):
        value = json.dumps({"src": f"p{partition}", "dst": i, "time": when}).encode()
        producer.send(topic, value, partition=partition)
        if n % 40 == 39:
            producer.flush()
            time.sleep(0.05)
    producer.flush()
    wait(lambda: lived.edges() == len(events), "all that was lived through is in")
    again = daemon_on(kafka.bootstrap_servers, topic, "again", ingest__merge_wait_seconds=1.0).start("ingest")
    wait(lambda: again.edges() == len(events), "all that was read again is in")
    assert lived.stop() == again.stop() == 0
    want = [(f"p{p}", i, when) for when, p, i in events]
    assert lived.events() == want, "nothing was clamped live"
    assert again.events() == want, "the backlog gives the same order"


def test_a_compacted_topics_holes_and_tombstones_are_read_as_what_they_are(daemon_on, kafka, topic, producer, admin):
    from kafka.admin import ConfigResource

    admin.alter_configs([ConfigResource("TOPIC", topic, {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100",
        "delete.retention.ms": "600000"})])
    for i in range(200):
        value = json.dumps({"src": f"u:{i % 5}", "dst": i, "time": 1000 + i}).encode()
        producer.send(topic, value, key=b"u:%d" % (i % 5), partition=0)
        if i % 50 == 49:
            producer.flush()
            time.sleep(0.3)
    producer.send(topic, None, key=b"u:3", partition=0)
    producer.send(topic, json.dumps({"src": "last", "dst": 0, "time": 5000}).encode(), key=b"last", partition=0)
    producer.flush()
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None, auto_offset_reset="earliest")
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])

    def held():
        consumer.seek_to_beginning(tp)
        records = []
        while consumer.position(tp) < consumer.end_offsets([tp])[tp]:
            for batch in consumer.poll(timeout_ms=500).values():
                records += batch
        return records

    wait(lambda: len(held()) < 150, "the broker has compacted", 90)
    left = held()
    consumer.close()
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__tombstones="delete").start("ingest")
    want = sum(r.value is not None for r in left)
    # The broker may compact further before ingest reads.
    wait(lambda: 5 <= daemon.edges() <= want and daemon.reader.state.progress.positions[topic][0].offset == 202, "the remaining records are in")
    wait(lambda: daemon.edges() and "u:3" not in daemon.reader.ids, "the tombstone deleted its node")
    assert daemon.stop() == 0
    assert daemon.reader.state.progress.positions[topic][0].offset == 202 and {"u:1", "last"} <= set(daemon.reader.ids)


def test_secrets_are_in_no_log_line_and_no_output(daemon_on, kafka, topic):
    secret = "hunter2-do-not-print"
    daemon = daemon_on(kafka.bootstrap_servers, topic, server__api_keys=[secret], telemetry__log_level="debug").start()
    wait(lambda: "server_listening" in daemon.output() and "ingest_started" in daemon.output(), "all roles run")
    client = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": secret,
              "security_protocol": "SASL_PLAINTEXT"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | as_environment(daemon.settings)
    environment["STREAMD_KAFKA__CLIENT"] = json.dumps(client)
    shown = [subprocess.run([sys.executable, "-m", "streamd", *command], env=environment, capture_output=True, text=True,
                            check=False) for command in (["config"], ["doctor"])]
    assert "***" in shown[0].stdout
    broken = environment | {"STREAMD_KAFKA__CLIENT": json.dumps({"sasl_plain_password": secret, "sasl_mechanism": "NO"})}
    shown.append(subprocess.run([sys.executable, "-m", "streamd", "doctor"], env=broken, capture_output=True, text=True,
                                check=False))
    assert daemon.stop() == 0
    assert secret not in daemon.output() + "".join(x.stdout + x.stderr for x in shown)


def test_a_leader_that_lost_what_was_read_is_told_from_one_that_has_it(tmp_path, daemon_on, kafka_home):
    """An unclean election, as the consumer sees it: the log is shorter than it was, and has grown again under a new leader epoch."""
    broker = ApacheKafka(kafka_home, tmp_path / "kafka")
    try:
        broker.create_topic("events", 4)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        produce(producer, "events", rows_of(200), size=1)
        careful = daemon_on(broker.bootstrap_servers, "events").start("ingest")
        wait(lambda: careful.edges() == 200, "the events are in")
        assert careful.stop() == 0
        producer.close()
        broker.kill()
        for part in (tmp_path / "kafka").glob("0/log/events-*"):
            data = part / "00000000000000000000.log"
            os.truncate(data, data.stat().st_size // 2)
        broker.start()
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        produce(producer, "events", rows_of(400, seed=1), size=1)
        producer.close()
        assert careful.start("ingest").process.wait(60) == 3 and "lacks records that ingest has read" in careful.output()
        assert careful.edges() == 200
        daemon = daemon_on(broker.bootstrap_servers, "events", ingest__on_data_loss="continue").start("ingest")
        wait(lambda: daemon.edges() == 600, "what came behind the election is in, all of it and once")
        assert {end > first for _, _, first, end in gaps(daemon)} == {True}
        assert daemon.stop() == 0
    finally:
        broker.close()
