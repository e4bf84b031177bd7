"""The changelog: what it costs the leader, how fast a follower catches up, how long a new one takes."""

import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from streamd.demo.broker import ApacheKafka
from streamd.eventlog.journal.changelog_position import UNKNOWN, ChangelogPosition, PositionFile
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.replica.changelog.kafka import KafkaReader
from streamd.replica.follower.bootstrap import bootstrap, newest_manifest
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.connect import connect_leader, open_topic
from streamd.store.objects import Store
from streamd.store.upload import upload
from streamd.telemetry.heartbeat import Heartbeat
from tests.benchmarks.ingest import ingest_seconds, produce
from tests.benchmarks.measure import Row, pick_size
from tests.builders import batch, settings

TOTAL, ROUNDS, COMMITS, BOOTSTRAP_EDGES = pick_size((1_000_000, 3, 300, 10_000_000), (10_000, 1, 10, 200_000))
FORMS = (("JSON arrays of 1,000", 1000, False), ("Arrow streams of 1,000", 1000, True))


def run() -> list[Row]:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return []
    with tempfile.TemporaryDirectory() as folder:
        broker = ApacheKafka(Path(home), Path(folder) / "kafka")
        try:
            rows = [row for form in FORMS for row in rates(broker, Path(folder), *form)]
            return rows + latency(broker, Path(folder)) + bootstrap_seconds(Path(folder))
        finally:
            broker.close()


def leader_settings(broker: ApacheKafka, path: Path, name: str):
    return settings(path, kafka__bootstrap_servers=broker.bootstrap_servers, log__name=name)


def publisher_of(broker: ApacheKafka, path: Path, name: str):
    path.mkdir(parents=True, exist_ok=True)
    return connect_leader(leader_settings(broker, path, name), Heartbeat(path, "ingest"), threading.Event())


def rates(broker: ApacheKafka, folder: Path, form: str, size: int, arrow: bool) -> list[Row]:
    """Ingest without and with a changelog, and a follower from its begin to its end with the leader stopped; in turns, the best of each."""
    topic = f"events-{arrow}"
    broker.create_topic(topic, 1)
    produce(broker, topic, TOTAL, size, 2, arrow)
    plain = told = followed = 0.0
    for turn in range(ROUNDS):
        seconds, _ = ingest_seconds(broker, topic, TOTAL, folder / f"{topic}-{turn}", 2)
        plain = max(plain, TOTAL / seconds)
        path, name = folder / f"{topic}-told-{turn}", f"log-{arrow}-{turn}"
        seconds, _ = ingest_seconds(broker, topic, TOTAL, path, 2, publisher_of(broker, path, name))
        told = max(told, TOTAL / seconds)
        followed = max(followed, TOTAL / follow_seconds(broker, path, folder / f"{topic}-followed-{turn}", name))
        for used in folder.glob(f"{topic}-*"):
            shutil.rmtree(used)
    return [Row(f"ingest with a changelog, {form}, one broker", told, "events/s", plain, "without one"),
            Row(f"follower catches up, {form}", followed, "events/s", told, "the leader's ingest")]


def follow_seconds(broker: ApacheKafka, leader: Path, path: Path, name: str) -> float:
    path.mkdir()
    s = leader_settings(broker, leader, name)
    reader = KafkaReader(s.kafka, open_topic(s.kafka, s.log.name, s.data_dir).changelog)
    end = reader.bounds()[1]
    begun = time.perf_counter()
    follower = Follower(path, reader)
    while reader.position < end:
        follower.step(0.2)
    seconds = time.perf_counter() - begun
    assert follower.seq == int.from_bytes((leader / "published").read_bytes(), "little")
    follower.close()
    reader.close()
    return seconds


def latency(broker: ApacheKafka, folder: Path) -> list[Row]:
    """Milliseconds from a commit of 100 events to when readers are shown it, one after the other."""
    shown = {}
    for name in ("", "latency"):
        path = folder / f"latency-{name}"
        writer = LogWriter(path, Schema(2), publisher=publisher_of(broker, path, name) if name else None)
        shown[name] = []
        for i in range(COMMITS):
            rows = batch(Schema(2), np.arange(100), np.arange(100), np.full(100, i), [f"n{k}" for k in range(100)] if i == 0 else ())
            begun = time.perf_counter()
            writer.commit(rows, Progress(), i)
            while writer.is_waiting:
                writer.show_acknowledged()
                time.sleep(0.0002)
            shown[name].append(1e3 * (time.perf_counter() - begun))
        writer.close()
    return [Row(f"commit to readers with a changelog, p{p}", float(np.percentile(shown["latency"], p)), "ms",
                float(np.percentile(shown[""], p)), "without one") for p in (50, 99)]


def bootstrap_seconds(folder: Path) -> list[Row]:
    """Seconds per gigabyte from a manifest in a folder to a checked log, beside a plain copy."""
    path, rng = folder / "large", np.random.default_rng(0)
    writer = LogWriter(path, Schema(16), 2_000_000)
    for i in range(0, BOOTSTRAP_EDGES // 4, 20_000):
        n = np.arange(i, i + 20_000)
        writer.commit(batch(Schema(16), rng.integers(0, 5000, 20_000), n % 5000, n, [f"n{k}" for k in range(5000)] if i == 0 else (), i), Progress(), i)
    writer.close()
    store = Store(f"file://{folder}/store")
    place = PositionFile(path, UNKNOWN)
    place.write(ChangelogPosition(0, 0, 0))
    place.close()
    num_bytes = sum(n for f in upload(path, store).manifest.files for n in [f.size])
    manifest = newest_manifest(store)
    new = folder / "new"
    new.mkdir()
    begun = time.perf_counter()
    bootstrap(store, manifest, new)
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    shutil.copytree(path, folder / "copy")
    os.sync()
    copied = time.perf_counter() - begun
    return [Row(f"bootstrap from a manifest in a folder, {num_bytes / 1e9:.2f} GB", seconds / (num_bytes / 1e9), "s/GB", copied / (num_bytes / 1e9), "cp -r and sync")]
