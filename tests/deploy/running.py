"""A daemon that reads, learns, answers and leads, a follower of it, and what their roles then export.

`KAFKA_HOME=... python -m tests.deploy.running` writes that to `scrapes/`, a file a role; the tests of alerts and dashboard take
their series from there.
"""

import contextlib
import json
import os
import tempfile
import urllib.request
from pathlib import Path

from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from streamd.demo.broker import ApacheKafka, free_port
from streamd.server.engine.search import MEASURE_EVERY
from streamd.telemetry.metrics import OWNED
from tests.crash.daemons import Daemon, as_array, produce, rows_of, wait

SCRAPES = Path(__file__).parent / "scrapes"
EXPORTED = ("streamd_", "process_")


@contextlib.contextmanager
def running(path):
    """A daemon on Apache Kafka whose log others follow, which has learned five windows and answers.
    Yields: it, a function that sends it more events and asks it, and the broker."""
    broker = ApacheKafka(Path(os.environ["KAFKA_HOME"]), path / "kafka")
    broker.create_topic("events", 4)
    daemon = Daemon(
        path / "data", broker.bootstrap_servers, "events", log__name="graph", log__store=f"file://{path}/store",
        ingest__idle_timeout_seconds=1.0, telemetry__ingest_port=free_port(), telemetry__train_port=free_port(),
        telemetry__archive_port=free_port(), telemetry__score_port=free_port(), telemetry__trial_port=free_port(),
        trials__name="ranking", trials__arms={"champion": 0.5, "rule": 0.5}, trials__topic="impressions", trials__edge_set="default",
        server__score_topic="scores", bootstrap__max_events=0, server__max_candidates=10)
    rows, sent = rows_of(3000), 0
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    def live(num):
        nonlocal sent
        produce(producer, "events", rows[sent: sent + num], formats=[as_array])
        sent += num
        wait(lambda: daemon.seen() == sent, "the server has seen all")
        ask(daemon, "/v1/score", {"src": "u:1", "dst": ["i:20", "i:21"]})
        for _ in range(MEASURE_EVERY + 1):
            ask(daemon, "/v1/recommend", {"src": "u:1", "k": 3})

    daemon.start()
    try:
        wait(daemon.is_ready, "it answers", 120)
        live(1000)
        yield daemon, live, broker
        assert daemon.stop() == 0, daemon.output()[-3000:]
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
        producer.close()
        broker.close()


def ports(daemon):
    """Where each role exports."""
    telemetry = daemon.settings.telemetry
    return {"serve": daemon.settings.server.port, "ingest": telemetry.ingest_port,
            "train": telemetry.train_port, "archive": telemetry.archive_port, "score": telemetry.score_port,
            "trial": telemetry.trial_port, "follow": telemetry.ingest_port}


@contextlib.contextmanager
def following(path, broker):
    """A follower of the daemon's log. Yields: it."""
    follower = Daemon(path / "follower", broker.bootstrap_servers, "events", log__name="graph", log__store=f"file://{path}/store",
                      log__member="replica", telemetry__ingest_port=free_port())
    follower.start("follow")
    try:
        wait(lambda: "\nstreamd_follow_caught_up" in scrape(follower, "follow"), "it has all of the changelog")
        yield follower
    finally:
        assert follower.stop() == 0, follower.output()[-3000:]


def scraped(text):
    """{(name, labels as a sorted tuple of pairs): value} of an exposition."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(text) for s in family.samples
            if s.name.startswith(EXPORTED) and not s.name.endswith("_created")}


def ask(daemon, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    address = f"http://127.0.0.1:{daemon.settings.server.port}{path}"
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


def scrape(daemon, role):
    """What a role exports, nothing while it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports(daemon)[role]}/metrics") as answer:
            return answer.read().decode()
    except OSError:
        return ""


def main():
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (daemon, live, broker):
        live(2000)
        wait(lambda: "\nstreamd_gate_mrr_difference" in scrape(daemon, "train"),
             "champions are compared with the last proven version", 240)
        wait(lambda: "recommend_recall_count 0.0" not in scrape(daemon, "serve"), "recall was measured", 60)
        wait(lambda: "\nstreamd_changelog_records" in scrape(daemon, "archive"), "a manifest is in the store")
        wait(lambda: "\nstreamd_models_waiting 0.0" in scrape(daemon, "train"), "the models topic has all versions", 60)
        with following(daemon.path.parent, broker) as follower:
            for role in OWNED:
                keep(role, scrape(follower if role == "follow" else daemon, role))


def keep(role, text):
    """Write what a role exports, as far as tests look at it."""
    kept = [x for x in text.splitlines() if x.startswith((*EXPORTED, "# TYPE streamd_")) and "_created" not in x]
    (SCRAPES / f"{role}.prom").write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    main()
