"""The whole path with Apache Kafka itself: produce, consume, kill -9 anywhere, and compare with what was produced."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource

from streamd.cli.doctor_checks import run_check
from streamd.demo.broker import ApacheKafka
from streamd.eventlog.layout import LATE
from streamd.eventlog.upkeep.verify import verify_log
from streamd.settings.loading import as_environment
from tests.builders import HOUR
from tests.crash.daemons import as_array, as_ndjson, produce, rows_of, wait

pytestmark = pytest.mark.kafka


KILLED = """
import os, signal, sys
from streamd.daemon.run_role import run_role
from streamd.ingest import loop
from streamd.eventlog.writer import LogWriter
from streamd.settings.loading import load_settings
loop.MAX_COMMIT_EVENTS = 97  # so that no life takes more than its share, however slow the machine is
left, after = int(sys.argv[1]), sys.argv[2] == "after"
commit = LogWriter.commit
def commit_and_die(log, *args, **more):
    global left
    left -= 1
    if left == 0 and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(log, *args, **more)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
LogWriter.commit = commit_and_die
run_role(load_settings()[0], "ingest")
"""


@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_kill_9_of_ingest_around_any_commit_loses_nothing_and_takes_nothing_twice(daemon_on, kafka, topic, producer, kills):
    """Batched records of three formats in four partitions that answer in turn; half of the kills come with the first commits
    after a start."""
    rows = rows_of(3_000 * kills)
    produce(producer, topic, rows, size=60)
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__segment_edges=3000, ingest__commit_interval_seconds=0.002)
    rng = random.Random(1)
    for _ in range(kills):
        commits = rng.randint(1, 2) if rng.random() < 0.5 else rng.randint(3, 30)
        died = subprocess.run([sys.executable, "-c", KILLED, str(commits), rng.choice(["before", "after"])], timeout=60,
                              env=os.environ | as_environment(daemon.settings), capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert 0 < daemon.edges() < len(rows), "all kills fell into the middle"
    daemon.start("ingest")
    wait(lambda: daemon.edges() >= len(rows), "the rest is in")
    time.sleep(0.3)
    assert daemon.stop() == 0
    assert sorted(daemon.events()) == sorted(rows)
    assert [t for _, _, t in daemon.events()] == sorted(t for _, _, t in rows)
    assert verify_log(daemon.path)[1] == [] and (daemon.path / LATE).stat().st_size == 0


BAD = [b'{"src": 1, ', b'{"src":[1],"dst":2}', b'{"src":1,"dst":2,"time":5.5}', b'{"src":1,"dst":2,"time":-4}',
       b'{"src":1,"dst":2,"time":99999999999999999}', b'{"src":1,"dst":2,"time":5,"features":[NaN]}',
       b'{"src":1,"dst":2,"time":5,"features":[1]}', b'{"type":"edgy"}', b"[]", b'{"src":"a\\nb","dst":2,"time":5}',
       b'{"src":' + b"[" * 100_000 + b"}", b'{"src": "' + b"x" * 10_000_000 + b'"}']


def test_bad_events_become_dead_letters_beside_good_ones_and_move_no_watermark(daemon_on, kafka, topic):
    big = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, max_request_size=20_000_000)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.alter_configs([ConfigResource("TOPIC", topic, {"max.message.bytes": "20000000"})])
    admin.close()
    good = {"src": "a", "dst": "b", "time": 1000}
    for raw in BAD:
        big.send(topic, json.dumps(good).encode(), partition=0).get(30)
        big.send(topic, raw, partition=0).get(30)
    big.send(topic, b"{}", partition=0, headers=[("content-type", b"text/csv")]).get(30)
    big.send(topic, None, key=b"k", partition=0).get(30)
    array = json.dumps([good, {"src": 1}, good]).encode()
    big.send(topic, array, partition=0).get(30)
    big.close()
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    wait(lambda: daemon.edges() == len(BAD) + 2, "the good events are in")
    assert daemon.stop() == 0
    assert daemon.reader.watermark == 1000
    letters = [json.loads(x) for x in (daemon.path / "deadletter/current.jsonl").read_text().splitlines()]
    assert len(letters) == len(BAD) + 3
    assert {x["reason"] for x in letters} >= {
        "bad_json", "wrong_type", "bad_time", "time_ahead", "feature_width", "unknown_type", "empty", "bad_key",
        "unknown_content_type", "tombstone", "missing_field", "record_too_large"}
    assert all(x["topic"] == topic and x["partition"] == 0 and x["offset"] >= 1 and x["error"] for x in letters)
    assert next(x for x in letters if x["reason"] == "missing_field")["index"] == 1


def test_a_topic_made_anew_and_records_deleted_unread_stop_ingest_by_name(daemon_on, kafka, topic, producer):
    produce(producer, topic, rows_of(200))
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    wait(lambda: daemon.edges() == 200, "the events are in")
    assert daemon.stop() == 0
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    produce(producer, topic, rows_of(100, seed=1))
    admin.delete_records({TopicPartition(topic, p): -1 for p in range(4)})
    daemon.start("ingest")
    assert daemon.process.wait(30) == 3 and "were deleted before they were read" in daemon.output()
    admin.delete_topics([topic])
    time.sleep(1)
    kafka.create_topic(topic, 4)
    admin.close()
    daemon.start("ingest")
    assert daemon.process.wait(30) == 3 and "created again" in daemon.output()
    assert daemon.edges() == 200
    check = run_check("positions", daemon.settings)
    assert not check.good and f"Topic {topic} was deleted and created again" in check.seen and "ingest.on_data_loss: continue" in check.seen
    skips = daemon.settings.model_copy(update={"ingest": daemon.settings.ingest.model_copy(update={"on_data_loss": "continue"})})
    assert run_check("positions", skips).result[0] == "look"
    daemon.start()
    wait(lambda: daemon.seen() == 200, "the server answers on beside an ingest that refuses")
    wait(lambda: "created again" in daemon.get("/readyz").get("ingest_refused", ""), "readiness says why")
    wait(lambda: not (check := run_check("troubles", daemon.settings)).good and "created again" in check.seen, "doctor has it")
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.settings.server.port}/metrics", timeout=5) as answer:
        assert b'streamd_role_refused{refused="ingest"} 1.0' in answer.read()
    assert daemon.process.poll() is None and daemon.stop() == 0


@pytest.mark.slow
def test_a_broker_killed_and_started_again_on_its_data_costs_nothing(tmp_path, daemon_on, kafka_home):
    broker = ApacheKafka(kafka_home, tmp_path / "kafka")
    try:
        broker.create_topic("t", 4)
        rows = rows_of(3000)
        made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        produce(made, "t", rows[:1500])
        daemon = daemon_on(broker.bootstrap_servers, "t").start("ingest")
        wait(lambda: daemon.edges() > 0, "ingest reads")
        broker.kill()
        broker.start()
        produce(made, "t", rows[1500:])
        made.close()
        wait(lambda: daemon.edges() == 3000, "all is in the log")
        assert daemon.stop() == 0
        assert sorted((u, v) for u, v, _ in daemon.events()) == sorted((u, v) for u, v, _ in rows)
    finally:
        broker.close()


def test_the_daemon_learns_serves_survives_kill_9_and_stops_cleanly(daemon_on, kafka, topic, producer):
    rows = rows_of(1500)
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__merge_wait_seconds=0.5).start()
    try:
        produce(producer, topic, rows[:1000])
        wait(lambda: daemon.is_ready() and daemon.get("/status.json")["edges"] == 1000, "the server has seen all")
        wait(lambda: daemon.get("/v1/models")["champion"], "a version is promoted")
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(daemon.process.pid)], capture_output=True, text=True,
                                  check=True).stdout.split()
        assert len(children) == 3
        daemon.kill()
        wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), "the roles die with their parent", 30)  # noqa: PTH110
        produce(producer, topic, rows[1000:])
        daemon.start()
        wait(lambda: daemon.is_ready() and daemon.get("/status.json")["edges"] == 1500, "the second run has seen all")
        wait(lambda: all(role["alive"] for role in daemon.get("/status.json")["roles"].values()), "all roles are back")
        trained = (rows[-1][2] // HOUR) * HOUR
        wait(lambda: daemon.get("/status.json")["trained_until_us"] == trained, "all closed windows are learned")
        victim = daemon.get("/status.json")["roles"]["train"]
        assert victim["alive"]
    finally:
        assert daemon.stop() == 0, daemon.output()[-3000:]
    assert sorted((u, v) for u, v, _ in daemon.events()) == sorted((u, v) for u, v, _ in rows)
    assert verify_log(daemon.path)[1] == []


def test_ingest_stays_small_and_never_imports_torch(daemon_on, kafka, topic, producer):
    produce(producer, topic, rows_of(5000), formats=[as_array, as_ndjson])
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    try:
        wait(lambda: daemon.edges() == 5000, "the events are in")
        with open(f"/proc/{daemon.process.pid}/maps") as file:  # noqa: PTH123
            maps = file.read()
        assert "libtorch" not in maps and "llvmlite" not in maps
        with open(f"/proc/{daemon.process.pid}/status") as file:  # noqa: PTH123
            resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        assert resident < 150_000, f"{resident} kB"
    finally:
        daemon.stop()


class Misnamed(str):
    """A header name that is sent as bytes that are not UTF-8."""

    def encode(self, *_):
        return b"\xff\xfename"


def test_a_header_name_that_is_not_utf_8_stops_nothing(daemon_on, kafka, topic, producer):
    for i in range(3):
        value = json.dumps({"src": "a", "dst": i, "time": i}).encode()
        producer.send(topic, value, headers=[(Misnamed("x"), b"y")] if i == 1 else [], partition=0).get(30)
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    wait(lambda: daemon.edges() == 3, "all three events are in")
    assert daemon.stop() == 0


def test_an_open_transaction_stops_neither_other_partitions_nor_idle_windows(daemon_on, kafka, topic, producer):
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"x-{topic}")
    made.init_transactions()
    made.begin_transaction()
    made.send(topic, json.dumps({"src": "open", "dst": 1, "time": HOUR + 1}).encode(), partition=1).get(30)
    daemon = daemon_on(kafka.bootstrap_servers, topic, ingest__idle_timeout_seconds=2.0).start("ingest")
    wait(lambda: "ingest_started" in daemon.output(), "ingest runs")
    begun = time.monotonic()
    for i in range(20):
        producer.send(topic, json.dumps({"src": "a", "dst": i, "time": HOUR + 2 + i}).encode(), partition=i % 4).get(30)
    wait(lambda: daemon.edges() == 15, "all that lies before no open transaction is in")
    assert time.monotonic() - begun < 4, "nobody waited for the transaction"
    wait(lambda: daemon.edges() and daemon.reader.watermark == 2 * HOUR, "the window is closed")
    made.commit_transaction()
    made.close()
    wait(lambda: daemon.edges() == 21, "what waited is in")
    assert daemon.stop() == 0


def test_offset_holes_of_aborted_transactions_are_passed(daemon_on, kafka, topic):
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"x-{topic}")
    made.init_transactions()
    want = []
    for i in range(6):
        made.begin_transaction()
        made.send(topic, json.dumps({"src": i, "dst": 99, "time": i}).encode(), partition=0).get(10)
        if i % 2:
            made.abort_transaction()
        else:
            made.commit_transaction()
            want.append((i, 99, i))
    made.close()
    daemon = daemon_on(kafka.bootstrap_servers, topic).start("ingest")
    wait(lambda: daemon.edges() == 3, "the committed events are in")
    wait(lambda: daemon.reader.refresh() or daemon.reader.state.progress.positions[topic][0].offset == 12, "the holes are passed")
    assert daemon.stop() == 0
    assert daemon.events() == want
    assert np.all(np.diff([t for _, _, t in want]) > 0)


@pytest.mark.slow
def test_three_nodes_lose_their_leader_and_dead_letters_go_to_a_topic(daemon_on, tmp_path, kafka_home):
    broker = ApacheKafka(kafka_home, tmp_path / "kafka", nodes=3)
    try:
        for name in ("t", "dead"):
            broker.create_topic(name, 4)
        rows = rows_of(2000)
        made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers.split(","))
        produce(made, "t", rows[:1000])
        daemon = daemon_on(broker.bootstrap_servers, "t", ingest__dead_letter_topic="dead").start("ingest")
        wait(lambda: daemon.edges() > 0, "ingest reads")
        made.send("t", b"{broken", partition=2).get(30)
        broker.kill(1)
        produce(made, "t", rows[1000:])
        made.close()
        wait(lambda: daemon.edges() == 2000, "all is in the log", 90)
        assert daemon.stop() == 0
        assert sorted((u, v) for u, v, _ in daemon.events()) == sorted((u, v) for u, v, _ in rows)
        reader = KafkaConsumer("dead", bootstrap_servers=broker.bootstrap_servers.split(","), auto_offset_reset="earliest",
                               consumer_timeout_ms=20_000)
        letter = next(iter(reader))
        reader.close()
        assert letter.value == b"{broken" and dict(letter.headers)["reason"] == b"bad_json"
    finally:
        broker.close()


@pytest.mark.slow
def test_an_idle_stream_has_its_last_window_closed_but_never_while_the_broker_is_away(daemon_on, tmp_path, kafka_home):
    broker = ApacheKafka(kafka_home, tmp_path / "kafka")
    try:
        broker.create_topic("t", 4)
        made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        produce(made, "t", [("a", "b", HOUR + 5)])
        daemon = daemon_on(broker.bootstrap_servers, "t", ingest__idle_timeout_seconds=2.0).start("ingest")
        wait(lambda: daemon.edges() == 1, "the event is in")
        broker.kill()
        time.sleep(7)
        daemon.edges()
        assert daemon.reader.watermark == HOUR + 5, "nobody knows what the broker holds"
        broker.start()
        wait(lambda: daemon.edges() == 1 and daemon.reader.watermark == 2 * HOUR, "the window is closed")
        produce(made, "t", [("a", "c", 2 * HOUR + 7), ("a", "d", HOUR + 9)])
        made.close()
        wait(lambda: daemon.edges() == 3, "later events are in")
        assert daemon.stop() == 0
        assert [t for _, _, t in daemon.events()] == [HOUR + 5, 2 * HOUR, 2 * HOUR + 7]
    finally:
        broker.close()
