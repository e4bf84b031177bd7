"""Events from Apache Kafka into the durable log, beside a bare kafka-python poll loop over the same topic."""

import json
import os
import tempfile
import threading
import time
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from streamd.clock import SystemClock
from streamd.demo.broker import ApacheKafka
from streamd.events import Schema
from streamd.ingest.deadletter import LocalDeadLetters
from streamd.ingest.loop import IngestLoop
from streamd.segments.log import LogWriter
from streamd.telemetry.heartbeat import Heartbeat
from tests.benchmarks.measure import Row
from tests.builders import settings

SINGLE, ARRAYS = 300_000, 1_000_000


def run() -> list[Row]:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return []
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        broker = ApacheKafka(Path(home), Path(folder) / "kafka")
        try:
            for name, total, size in (("one JSON event a record", SINGLE, 1), ("JSON arrays of 1,000", ARRAYS, 1000)):
                topic = f"t{size}"
                broker.create_topic(topic, 1)
                produce(broker, topic, total, size)
                bare, ours = 0.0, 0.0
                for turn in range(2):
                    bare = max(bare, total / poll_seconds(broker, topic, total // size))
                    ours = max(ours, total / ingest_seconds(broker, topic, total, Path(folder) / f"{topic}-{turn}"))
                rows.append(Row(f"ingest, {name}, 2 features, durable", ours, "events/s", bare, "bare poll, nothing decoded"))
        finally:
            broker.close()
    return rows


def produce(broker: ApacheKafka, topic: str, total: int, size: int) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=50, batch_size=500_000)
    for i in range(0, total, size):
        events = [{"src": f"user:{(7 * j) % 5003}", "dst": f"page:{(11 * j) % 997}", "time": 1_600_000_000_000 + j,
                   "features": [1.5, 0.25]} for j in range(i, i + size)]
        producer.send(topic, json.dumps(events if size > 1 else events[0]).encode())
    producer.flush()
    producer.close()


def poll_seconds(broker: ApacheKafka, topic: str, records: int) -> float:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False, fetch_max_bytes=16_777_216,
                             max_partition_fetch_bytes=4_194_304)
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    seen, begun = 0, time.perf_counter()
    while seen < records:
        seen += sum(map(len, consumer.poll(500, max_records=20_000).values()))
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def ingest_seconds(broker: ApacheKafka, topic: str, total: int, path: Path) -> float:
    s = settings(path, kafka__bootstrap_servers=broker.bootstrap_servers, kafka__topics=[topic], stream__edge_feature_dim=2,
                 stream__time_unit="ms")
    writer = LogWriter(path, Schema(2, 0, 0))
    stop = threading.Event()
    loop = IngestLoop(s, writer, LocalDeadLetters(path / "deadletter", 10**6), SystemClock(), Heartbeat(path, "ingest"))
    worker = threading.Thread(target=loop.run, args=(stop,))
    begun = None
    worker.start()
    while writer.num_edges < total:
        if begun is None and writer.num_edges:
            begun, at = time.perf_counter(), writer.num_edges
        time.sleep(0.01)
    seconds = (time.perf_counter() - begun) * total / (total - at)
    stop.set()
    worker.join()
    writer.close()
    return seconds
