"""A day on Apache Kafka in whose middle the log gets a further edge set and a further feature, with kill -9 throughout."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

import numpy as np
import pytest
import yaml
from kafka import KafkaProducer

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from streamd.windows.history import HistoryReader
from tests.builders import HOUR
from tests.crash.daemons import SMALL_FETCHES, Daemon, rows_of, wait
from tests.crash.test_chaos import role_of

pytestmark = pytest.mark.kafka
VIEWS = {"source": "user", "target": "item", "features": {"seconds": "number"}}
LONGER_VIEWS = VIEWS | {"features": {"seconds": "number", "clicks": {"type": "number", "missing": 0}}}
BUYS = {"source": "user", "target": "item", "features": {"price": "number"}}


class FiledDaemon(Daemon):
    """A daemon with its settings in a file, which a hangup makes it read again."""

    def declare(self, **edge_sets):
        fields = {"src": "user", "dst": "item", "time": "t"}
        sources = [{"topic": f"{name}-{self.id}", "edge_set": name, "time": "us",
                    "fields": fields | {"features": {f: f for f in one["features"]}}} for name, one in edge_sets.items()]
        small = {"dim": 8, "time_dim": 4, "neighbors": 3, "memory_chunk": 40, "max_pairs": 5000}
        self.file.write_text(yaml.safe_dump({
            "data_dir": str(self.path), "stream": {"time_unit": "us"}, "model": small, "sources": sources,
            "graph": {"node_sets": {"user": {}, "item": {}}, "edge_sets": edge_sets}, "server": {"port": self.settings.server.port},
            "telemetry": {"ingest_port": 0, "train_port": 0}, "registry": {"gate_events": 50},
            "ingest": {"segment_edges": 1000, "idle_timeout_seconds": 0, "merge_wait_seconds": 0.5, "commit_interval_seconds": 0.01},
            "kafka": {"bootstrap_servers": self.broker, "client": SMALL_FETCHES}}, sort_keys=False))
        return self

    def start(self, *role):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
        self.path.mkdir(exist_ok=True)
        with (self.path.parent / f"{self.path.name}.log").open("ab") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "streamd", "run", "--config", str(self.file)],
                                            env=clean, stdout=output, stderr=output)
        return self


    def edges_now(self):
        """Events in the log, whichever schema it has by now."""
        reader = LogReader.open(self.path)
        return reader.num_edges if reader else 0

    def events(self):
        """As of `Daemon`, with the plain keys of node sets."""
        return [(u, v.key, t) for u, v, t in super().events()]


class Asker(threading.Thread):
    """Asks the server without a pause, and keeps what failed."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.target, self.failed, self.answered, self.ended = daemon, [], 0, threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            try:
                ask(self.target, "views", "u:1", ["i:1"])
                self.answered += 1
            except (OSError, urllib.error.HTTPError) as error:
                self.failed.append(str(error))


def ask(daemon, edge_set, src, dst):
    body = json.dumps({"src": src, "dst": dst, "edge_set": edge_set}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.settings.server.port}/v1/score", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def send(producer, topic, rows, **features):
    """One partition for each topic, so that time goes on in order."""
    for number, (user, item, when) in enumerate(rows):
        values = {name: of(number) for name, of in features.items()}
        producer.send(topic, json.dumps({"user": user, "item": item, "t": when} | values).encode(), partition=0)
    producer.flush()


def kill_role(daemon, role):
    pid = role_of(daemon, role)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 20])
@pytest.mark.timeout(600)
def test_a_log_is_extended_in_the_middle_of_a_day_and_the_server_never_stops(tmp_path, kafka, kills):
    rng = random.Random(kills)
    daemon = FiledDaemon(tmp_path / "data", kafka.bootstrap_servers, "none")
    daemon.id, daemon.file, daemon.broker = uuid.uuid4().hex[:8], tmp_path / "settings.yaml", kafka.bootstrap_servers
    for name in ("views", "buys"):
        kafka.create_topic(f"{name}-{daemon.id}", 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5)
    rows = rows_of(2400)
    morning, noon, evening = rows[:1000], rows[1000:1700], rows[1700:]
    asker = Asker(daemon)
    try:
        daemon.declare(views=VIEWS).start()
        send(producer, f"views-{daemon.id}", morning, seconds=lambda n: n % 7)
        wait(lambda: daemon.is_ready() and daemon.get("/status.json")["edges"] == 1000, "the morning is seen")
        wait(lambda: daemon.get("/v1/models")["champion"], "a version is promoted")
        learned = len(HistoryReader(daemon.path).refresh())
        asker.start()

        # A further set and a further feature, while ingest and trainer are killed.
        daemon.declare(views=LONGER_VIEWS, buys=BUYS)
        daemon.process.send_signal(signal.SIGHUP)
        # Ingest decodes by its old settings until it has begun again.
        wait(lambda: LogReader.open(daemon.path).state.schema.num_edge_sets == 2, "the log has the further set")
        send(producer, f"views-{daemon.id}", noon[::2], seconds=lambda n: n % 7, clicks=lambda n: 1 + n % 3)
        for _ in range(kills):
            time.sleep(rng.random())
            kill_role(daemon, rng.choice(["ingest", "train"]))
        send(producer, f"buys-{daemon.id}", noon[1::2], price=lambda n: 3.5)
        wait(lambda: daemon.edges_now() == 1700, "noon is in the log", 120)
        kill_role(daemon, "train")
        send(producer, f"views-{daemon.id}", evening[::2], seconds=lambda n: n % 7)
        send(producer, f"buys-{daemon.id}", evening[1::2], price=lambda n: 4.5)
        for _ in range(kills):
            time.sleep(rng.random())
            kill_role(daemon, rng.choice(["ingest", "train"]))
        wait(lambda: daemon.edges_now() == 2400, "the evening is in the log", 120)
        wait(lambda: daemon.get("/status.json")["edges"] == 2400, "the server has seen it", 120)
        trained = rows[-1][2] // HOUR * HOUR
        wait(lambda: daemon.get("/status.json")["trained_until_us"] == trained, "all closed windows are learned", 240)
        assert ask(daemon, "buys", "u:1", ["i:1", "i:2"])["known"]
        assert [s["name"] for s in daemon.get("/v1/schema")["edge_sets"]] == ["views", "buys"]
        windows = list(HistoryReader(daemon.path).refresh())
        asker.ended.set()
        asker.join()
    finally:
        asker.ended.set()
        daemon.stop() if daemon.process.poll() is None else None
        print(daemon.output()[-8000:])

    # The server never stopped; learning went on from where it was; the log is what was produced.
    assert asker.failed == [] and asker.answered > 50
    assert "training_starts_over" not in daemon.output() and "facts_not_loaded" not in daemon.output()
    assert len(windows) > learned and len({w.first_edge for w in windows}) == len(windows)
    pairs = sorted((u, v) for u, v, _ in daemon.events())
    assert pairs == sorted((u, v) for u, v, _ in rows) and verify_log(daemon.path)[1] == []
    log = LogReader.open(daemon.path)
    ids = np.arange(log.num_edges)
    sets = log.edge_sets_of(ids)
    assert (sets == 1).sum() == len(noon[1::2]) + len(evening[1::2])
    features = log.features_of(ids)[:, 2:]
    assert (features[:1000, 1:] == 0).all() and set(features[sets == 1, 2]) == {3.5, 4.5} and features[1000:, 1].max() == 3
