"""Mapped topics of a real broker: compressed, with headers and tombstones; a sample leaves no trace."""

import json
import threading
import time

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import CoordinatorLoadInProgressError

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress
from streamd.exchange.sample import judge, read_sample
from streamd.ingest.dead_letters.sinks import LocalDeadLetters
from streamd.ingest.kafka.consumer import KafkaSource
from streamd.ingest.loop import IngestLoop
from streamd.settings.loading import schema_of
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings

pytestmark = pytest.mark.kafka
CODECS = (None, "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def topic(kafka):
    """Changed rows of a table, compressed in each way, then a delete with its tombstone."""
    kafka.create_topic("orders", 1)
    now_ms = int(time.time() * 1000) - 60_000
    rows = [{"id": i, "who": i % 5, "what": f"p{i % 3}", "at": now_ms + i} for i in range(100)]
    for number, codec in enumerate(CODECS):
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec)
        for row in rows[20 * number: 20 * number + 20]:
            change = {"op": "c", "before": None, "after": row, "source": {"table": "orders"}}
            value = {"schema": {"type": "struct"}, "payload": change} if number % 2 else change
            producer.send("orders", key=json.dumps({"id": row["id"]}).encode(), value=json.dumps(value).encode(), headers=[("region", b"eu")])
        producer.flush()
        producer.close()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    key = json.dumps({"id": 3}).encode()
    producer.send("orders", key=key, value=json.dumps({"op": "d", "before": rows[3], "after": None}).encode(), headers=[("region", b"eu")])
    producer.send("orders", key=key, value=None)
    producer.send("orders", value=b"no JSON", headers=[("region", b"us")])
    producer.flush()
    producer.close()
    return kafka


def test_the_record_before_an_offset_is_read_again(topic, tmp_path):
    s = mapped(tmp_path, topic)
    source = KafkaSource(s.kafka, s.ingest)
    try:
        source.discover()
        assert [r.offset for r in source.records_before(0, 101)][-2:] == [99, 100], "the delete before its tombstone"
        assert [r.offset for r in source.records_before(0, 1)] == [0] and not source.records_before(0, 0)
    finally:
        source.close()


def test_a_broker_that_answers_fetches_counts_as_answering_before_the_watch_asked(topic, tmp_path):
    s = mapped(tmp_path, topic)
    source = KafkaSource(s.kafka, s.ingest)
    try:
        source.discover()
        source.begin(Progress("", {}, {}))
        discovered, read = source.answered_at, 0
        while source.position(0) < source.end(0) or read == 0:
            read += sum(map(len, source.poll(1, 1000).values()))
        at_end = source.answered_at
        # At the topic's end the broker answers each fetch, after half a second, with nothing.
        assert source.poll(2, 1000) == {}
        assert source.answered_at > at_end > discovered and not source.has_asked
    finally:
        source.close()


def mapped(path, kafka):
    fields = {"src": {"path": "who", "prefix": "user:"}, "dst": "what", "time": "at"}
    return settings(path, kafka__bootstrap_servers=kafka.bootstrap_servers, sources=[
        {"topic": "orders", "envelope": "debezium", "time": "ms", "where": {"$headers.region": "eu"}, "fields": fields}])


def test_compressed_rows_their_delete_and_its_tombstone(topic, tmp_path):
    s = mapped(tmp_path, topic)
    writer = LogWriter(tmp_path, schema_of(s), 4096)
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    loop = IngestLoop(s, writer, letters, SystemClock(), Heartbeat(tmp_path, "ingest"))
    stop = threading.Event()
    worker = threading.Thread(target=loop.run, args=(stop,))
    worker.start()
    try:
        until = time.monotonic() + 60
        while writer.progress.positions.get("orders", {}).get(0, Position(0)).offset < 103:
            time.sleep(0.05)
            assert time.monotonic() < until
    finally:
        stop.set()
        worker.join()
        writer.close()
    log = LogReader.open(tmp_path)
    src, dst, _ = log.edges(0, 100)
    assert [(log.keys[u], log.keys[v]) for u, v in zip(src, dst, strict=True)] == [(f"user:{i % 5}", f"p{i % 3}") for i in range(100)]
    assert [i for i, gone in enumerate(log.hidden(0, 100)) if gone] == [3]
    told = [json.loads(line) for line in (tmp_path / "deadletter/current.jsonl").read_text().splitlines()]
    assert [(x["offset"], x["reason"]) for x in told] == [(102, "bad_json")]


def groups(admin):
    """The groups that the broker knows, once it has loaded them."""
    until = time.monotonic() + 30
    while True:
        try:
            return sorted(str(group) for group in admin.list_groups())
        except CoordinatorLoadInProgressError:
            assert time.monotonic() < until
            time.sleep(0.2)


def test_a_sample_joins_no_group_and_shows_what_becomes_of_the_newest(topic, tmp_path):
    s = mapped(tmp_path, topic)
    admin = KafkaAdminClient(bootstrap_servers=topic.bootstrap_servers)
    try:
        before = groups(admin)
        sample = read_sample(s, "orders", 10, SystemClock())
        after = groups(admin)
    finally:
        admin.close()
    verdict = judge(s, sample, SystemClock())
    assert len(sample) == 10 and before == after and list(tmp_path.iterdir()) == []
    assert verdict.words == "10 records: 7 edges, 1 delete; 1 skipped; 1 refused (bad_json 1)"
    assert len(read_sample(s, "orders", 1000, SystemClock())) == 103
