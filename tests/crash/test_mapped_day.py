"""A day of two topics in shapes of their own on Apache Kafka: batched, compressed, with headers, ingest killed all the while."""

import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest
from kafka import KafkaProducer

from streamd.eventlog.layout import LATE
from streamd.eventlog.upkeep.verify import verify_log
from streamd.settings.loading import as_environment
from tests.builders import settings
from tests.crash.daemons import SMALL_FETCHES, rows_of, wait
from tests.crash.test_end_to_end import KILLED

pytestmark = pytest.mark.kafka
HEADERS = [("trace", b"\xff\xfe"), ("content-type", b"application/json; charset=utf-8"), ("region", b"eu")]


def as_click(user, item, when, kind="view"):
    moment = datetime.datetime.fromtimestamp(when / 1e6, datetime.UTC).isoformat(timespec="microseconds")
    return {"user_id": int(user.removeprefix("u:")), "item": {"id": item}, "ts": moment.replace("+00:00", "Z"), "kind": kind}


def send_clicks(producer, topic, rows):
    """Arrays of 23 clicks, every fourth of which is of a kind that is no edge."""
    for partition in range(4):
        own = [row for row in rows if int(row[0].removeprefix("u:")) % 4 == partition]
        clicks = [as_click(*row, kind=kind) for number, row in enumerate(own)
                  for kind in (("view", "scroll") if number % 4 == 0 else ("preview",))]
        for a in range(0, len(clicks), 23):
            producer.send(topic, json.dumps(clicks[a: a + 23]).encode(), headers=HEADERS, partition=partition)


def send_orders(producer, topic, rows):
    """Rows of a table as Debezium sends them, one a record, some with their schema."""
    for number, (user, item, when) in enumerate(rows):
        after = {"id": number, "customer": user, "product": item, "created_at": when}
        change = {"op": "r" if number % 5 == 0 else "c", "before": None, "after": after, "source": {"table": "orders"}}
        value = {"schema": {"type": "struct"}, "payload": change} if number % 3 == 0 else change
        producer.send(topic, json.dumps(value).encode(), key=json.dumps({"id": number}).encode(), headers=HEADERS, partition=number % 2)


@pytest.mark.parametrize("kills", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_two_topics_of_different_shapes_come_in_whole_and_once_though_ingest_is_killed(daemon_on, kafka, kills):
    topics = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("clicks", "orders")]
    rows = rows_of(2_000 * kills)
    for name, count, codec, send, own in zip(topics, (4, 2), ("gzip", "zstd"), (send_clicks, send_orders), (rows[::2], rows[1::2]), strict=True):
        kafka.create_topic(name, count)
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5, compression_type=codec)
        send(producer, name, own)
        producer.flush()
        producer.close()
    daemon = daemon_on(kafka.bootstrap_servers, topics[0])
    daemon.settings = settings(
        daemon.path, kafka__bootstrap_servers=kafka.bootstrap_servers, kafka__client=SMALL_FETCHES, ingest__idle_timeout_seconds=0,
        ingest__segment_edges=3000, ingest__commit_interval_seconds=0.002, sources=[
            {"topic": topics[0], "time": "iso8601", "where": {"kind": ["view", "preview"]},
             "fields": {"src": {"path": "user_id", "prefix": "u:"}, "dst": "item.id", "time": "ts"}},
            {"topic": topics[1], "envelope": "debezium", "time": "us", "where": {"$headers.region": "eu"},
             "fields": {"src": "customer", "dst": "product", "time": "created_at"}}])
    rng = random.Random(2)
    for _ in range(kills):
        died = subprocess.run([sys.executable, "-c", KILLED, str(rng.randint(1, 20)), rng.choice(["before", "after"])], timeout=90,
                              env=os.environ | as_environment(daemon.settings), capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    assert 0 < daemon.edges() < len(rows), "all kills fell into the middle"
    daemon.start("ingest")
    wait(lambda: daemon.edges() >= len(rows), "the rest is in")
    time.sleep(0.3)
    assert daemon.stop() == 0
    assert sorted(daemon.events_as_sent()) == sorted(rows), "what was produced, each event once"
    assert verify_log(daemon.path)[1] == [] and (daemon.path / LATE).stat().st_size == 0
    assert [x.read_text() for x in (daemon.path / "deadletter").glob("*.jsonl")] in ([], [""]), "nothing was refused"
