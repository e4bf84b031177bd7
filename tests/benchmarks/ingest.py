"""Events from Apache Kafka into the durable log, beside a bare kafka-python poll loop over the same topic."""

import datetime
import gc
import io
import json
import math
import os
import tempfile
import threading
import time
from pathlib import Path

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf.json_format import MessageToDict
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from streamd.clock import SystemClock
from streamd.decode.decoder import make_decoder
from streamd.decode.wire import ARROW
from streamd.demo.broker import ApacheKafka
from streamd.eventlog.journal.tail import JournalTail
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.ingest.dead_letters.sinks import LocalDeadLetters
from streamd.ingest.loop import IngestLoop
from streamd.processes import collect_garbage_rarely
from streamd.settings.loading import schema_of
from streamd.telemetry.heartbeat import Heartbeat
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size
from tests.builders import Record, settings
from tests.decode.mapped import NOW
from tests.decode.registry import CLICK, Registry, add_proto, framed, proto, proto_class
from tests.decode.registry import avro as written_avro

SINGLE, MANY, FLAT = pick_size((300_000, 1_000_000, 10_000_000), (2_000, 10_000, 20_000))
DIMS = pick_size((2, 0, 16), (2,))
FORMS = (("one JSON event a record", SINGLE, 1), ("JSON arrays of 1,000", MANY, 1000), ("Arrow streams of 1,000", MANY, 1000))


def run() -> list[Row]:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return []
    with tempfile.TemporaryDirectory() as folder:
        broker = ApacheKafka(Path(home), Path(folder) / "kafka")
        try:
            rows = [row for dim in DIMS for form in FORMS for row in one(broker, Path(folder), dim, *form)]
            rows += [mapped(broker, Path(folder), *form) for form in FORMS[:2]]
            rows += behind_ids(Path(folder))
            return rows + flat_memory(broker, Path(folder))
        finally:
            broker.close()


def one(broker: ApacheKafka, folder: Path, dim: int, form: str, total: int, size: int) -> list[Row]:
    """Ours and the peer in turns, the best of three each; and the time of a commit."""
    topic, arrow = f"{form.split()[1]}-{dim}-{size}", form.startswith("Arrow")
    broker.create_topic(topic, 1)
    produce(broker, topic, total, size, dim, arrow)
    bare, ours, commits = 0.0, 0.0, []
    for turn in range(3):
        bare = max(bare, total / poll_seconds(broker, topic, total // size, decode=arrow))
        seconds, commits = ingest_seconds(broker, topic, total, folder / f"{topic}-{turn}", dim)
        ours = max(ours, total / seconds)
    peer = "bare poll, pyarrow to Python" if arrow else "bare poll, nothing decoded"
    rows = [Row(f"ingest, {form}, {dim} features, durable", ours, "events/s", bare, peer)]
    if dim == 2:
        rows.append(Row(f"its commits, p50 of {len(commits)}", 1e3 * float(np.percentile(commits, 50)), "ms"))
        rows.append(Row("its commits, p99", 1e3 * float(np.percentile(commits, 99)), "ms"))
    return rows


def mapped(broker: ApacheKafka, folder: Path, form: str, total: int, size: int) -> Row:
    """The same events as our own and in a shape of their own, in turns, the best of three each."""
    seconds = {}
    for shape, make in (("native", events_of), ("mapped", clicks_of)):
        broker.create_topic(f"{shape}-{size}", 1)
        produce(broker, f"{shape}-{size}", total, size, 2, False, make)
    for turn in range(3):
        for shape, declared in (("native", {}), ("mapped", CLICKS | {"sources": [CLICKS["sources"][0] | {"topic": f"mapped-{size}"}]})):
            took, _ = ingest_seconds(broker, f"{shape}-{size}", total, folder / f"{shape}-{size}-{turn}", 2, **declared)
            seconds[shape] = min(took, seconds.get(shape, took))
    return Row(f"ingest, {form}, 2 features, mapped", total / seconds["mapped"], "events/s", total / seconds["native"], "our own events")


def behind_ids(folder: Path) -> list[Row]:
    """Values behind a schema's id made events in memory, beside the library that only reads them, in turns, the best of five each."""
    registry, total = Registry(), pick_size(20_000, 200)
    registry.add(7, CLICK)
    add_proto(registry, 9)
    click, known = proto_class(), fastavro.parse_schema(json.loads(json.dumps(CLICK)))
    start = NOW // 1000 - 100_000
    rows = [{"user_id": i, "item": {"id": f"b{i % 997}"}, "ts": start + i, "kind": "view", "seconds": 1.5, "price": None, "tags": ["a"], "more": {"x": 1}} for i in range(total)]
    # As message indexes the second type of the file takes two bytes.
    values = {"avro": [written_avro(7, CLICK, row) for row in rows], "json-schema": [framed(1, json.dumps(row).encode()) for row in rows],
              "protobuf": [proto(9, click(user_id=r["user_id"], item=r["item"], seconds=1.5, tags=["a"], more={"x": 1},
                                          ts={"seconds": r["ts"] // 1000, "nanos": r["ts"] % 1000 * 10**6})) for r in rows]}
    peers = {"avro": ("fastavro", lambda v: fastavro.schemaless_reader(io.BytesIO(v[5:]), known, None)), "protobuf": ("protobuf, MessageToDict", lambda v: MessageToDict(click.FromString(v[7:]))),
             "json-schema": ("msgspec", lambda v: msgspec.json.decode(v[5:]))}
    found = []
    for form, sent in values.items():
        fields = {"src": {"path": "user_id", "prefix": "user:"}, "dst": "item.id", "time": "ts", "features": {"seconds": "seconds"}}
        s = settings(folder / form, schema_registry__url=registry.url, graph__edge_sets={"default": {"features": {"seconds": {"type": "number", "missing": 0}}}},
                     sources=[{"topic": "clicks", "format": form, "time": "ms", "where": {"kind": "view"}, "fields": fields}])
        decoder, records = make_decoder(s, schema_of(s)), [Record(v, i, timestamp=NOW // 1000) for i, v in enumerate(sent)]
        name, read = peers[form]
        ours = theirs = math.inf
        for _ in range(5):
            begun = time.perf_counter()
            events, _ = decoder.decode(records, 0, NOW, "clicks")
            ours = min(ours, time.perf_counter() - begun)
            assert len(events) == total
            begun = time.perf_counter()
            for value in sent:
                read(value)
            theirs = min(theirs, time.perf_counter() - begun)
        found.append(Row(f"decode, {form} behind a schema's id, to events", total / ours, "events/s", total / theirs, name))
    registry.stop()
    return found


def flat_memory(broker: ApacheKafka, folder: Path) -> list[Row]:
    """Resident memory of an ingest process while it takes 10 M events, mapped files not counted."""
    broker.create_topic("flat", 1)
    produce(broker, "flat", FLAT, 1000, 2, False)
    s = settings(folder / "flat", kafka__bootstrap_servers=broker.bootstrap_servers, kafka__topics=["flat"],
                 stream__edge_feature_dim=2, stream__time_unit="ms")
    with Children() as roles:
        child = roles.role(s, "ingest")
        early, *later = (resident_at(child.pid, folder / "flat", n) for n in range(FLAT // 10, FLAT + 1, FLAT // 10))
    return [Row("ingest's memory, most of nine looks from 2 to 10 M events", max(later), "MB", early, "after 1 M"),
            Row("ingest's memory after 10 M events", later[-1], "MB", early, "after 1 M")]


def resident_at(pid: int, path: Path, edges: int) -> float:
    while (tail := JournalTail.open(path)) is None or tail.state.num_edges < edges:
        time.sleep(0.05)
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1e3


def events_of(first: int, size: int, dim: int) -> list[dict]:
    more = {"features": [1.5, 0.25] * (dim // 2)} if dim else {}
    return [{"src": f"user:{(7 * j) % 5003}", "dst": f"page:{(11 * j) % 997}", "time": 1_600_000_000_000 + j, **more}
            for j in range(first, first + size)]


CLICKS = {
    "graph__edge_sets": {"default": {"features": {"seconds": "number", "share": "number"}}},
    "sources": [{"topic": "", "time": "iso8601", "where": {"kind": ["view", "preview"]}, "fields": {
        "src": {"path": "user_id", "prefix": "user:"}, "dst": {"path": "item.id", "prefix": "page:"}, "time": "ts",
        "features": {"seconds": "dwell.s", "share": "share"}}}]}
"""Settings for the records of `clicks_of`."""


def clicks_of(first: int, size: int, dim: int) -> list[dict]:
    """The events of `events_of` as others may have them."""
    start = datetime.datetime.fromtimestamp(1_600_000_000, datetime.UTC)
    times = [(start + datetime.timedelta(milliseconds=j)).isoformat(timespec="milliseconds") for j in range(first, first + size)]
    return [{"kind": "view", "user_id": (7 * j) % 5003, "item": {"id": (11 * j) % 997, "shop": "north"}, "ts": f"{time[:-6]}Z", "dwell": {"s": 1.5},
             "share": 0.25} for j, time in enumerate(times, first)]


def produce(broker: ApacheKafka, topic: str, total: int, size: int, dim: int, arrow: bool, make=events_of) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=50, batch_size=500_000)
    for i in range(0, total, size):
        events = make(i, size, dim)
        if arrow:
            sink, batch = pa.BufferOutputStream(), pa.RecordBatch.from_pylist(events)
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            producer.send(topic, sink.getvalue().to_pybytes(), headers=[("content-type", ARROW.encode())])
        else:
            producer.send(topic, json.dumps(events if size > 1 else events[0]).encode())
    producer.flush()
    producer.close()


def poll_seconds(broker: ApacheKafka, topic: str, records: int, decode: bool = False) -> float:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False, fetch_max_bytes=16_777_216,
                             max_partition_fetch_bytes=4_194_304)
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek(tp, 0)
    seen, begun = 0, time.perf_counter()
    while seen < records:
        for polled in consumer.poll(500, max_records=20_000).values():
            seen += len(polled)
            for record in polled if decode else ():
                table = pa.ipc.open_stream(record.value).read_all()
                table.validate(full=True)
                table.to_pydict()
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def ingest_seconds(broker: ApacheKafka, topic: str, total: int, path: Path, dim: int, publisher=None, **declared) -> tuple[float, list[float]]:
    """Seconds for all events, and those of each commit. publisher: tells other machines. declared: further settings."""
    s = settings(path, kafka__bootstrap_servers=broker.bootstrap_servers, kafka__topics=[topic], stream__edge_feature_dim=dim,
                 stream__time_unit="ms", **declared)
    writer, commits = TimedLog(path, Schema(dim, 0, 0), publisher=publisher), []
    writer.seconds = commits
    stop, usual = threading.Event(), gc.get_threshold()
    collect_garbage_rarely()
    loop = IngestLoop(s, writer, LocalDeadLetters(path / "deadletter", 10**6), SystemClock(), Heartbeat(path, "ingest"))
    worker = threading.Thread(target=loop.run, args=(stop,))
    begun, at, started = None, 0, time.perf_counter()
    worker.start()
    while writer.num_edges < total or writer.is_waiting:
        assert worker.is_alive(), "the ingest loop ended; its error is above"
        if begun is None and writer.num_edges:
            begun, at = time.perf_counter(), writer.num_edges
        time.sleep(0.01)
    # From the first commit on, which a small run may hold as a whole.
    since, ours = (begun, total - at) if begun is not None and at < total else (started, total)
    seconds = (time.perf_counter() - since) * total / ours
    stop.set()
    worker.join()
    writer.close()
    gc.set_threshold(*usual)
    gc.unfreeze()
    return seconds, commits


class TimedLog(LogWriter):
    """A log that notes how long each commit takes."""

    seconds: list[float]

    def commit(self, *args, **more) -> None:
        begun = time.perf_counter()
        super().commit(*args, **more)
        self.seconds.append(time.perf_counter() - begun)
