"""Deletes, compaction and retention in the whole daemon, and one run in which everything is killed."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from kafka import KafkaProducer

from streamd.demo.broker import ApacheKafka
from streamd.eventlog.upkeep.verify import verify_log
from streamd.settings.loading import as_environment
from tests.builders import HOUR, stream
from tests.crash.daemons import produce, rows_of, wait

pytestmark = pytest.mark.kafka
SECRET, MARK = "user:to-be-forgotten", 7.25e11


def send(producer, topic, rows):
    for src, dst, when in rows:
        features = [MARK, MARK] if SECRET in (src, dst) else [1.0, 2.0]
        event = {"src": src, "dst": dst, "time": when, "features": features}
        producer.send(topic, json.dumps(event).encode(), partition=0)
    producer.flush()


def ask(daemon, src, dst):
    with daemon.client() as client:
        return client.score(src, dst)


def files_with(path, needle):
    """Files with these bytes; one that goes while we look does not count."""
    found = []
    for p in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if p.is_file() and needle in p.read_bytes():
                found.append(str(p))
    return found


def test_a_user_is_forgotten_by_the_running_daemon_and_old_segments_go(daemon_on, kafka, topic, producer):
    src, dst, when = stream(1600, hours=9)
    names = [SECRET if u == 3 else f"u:{u}" for u in src.tolist()]
    rows = list(zip(names, [f"i:{v}" for v in dst.tolist()], when.tolist(), strict=True))
    common = {"stream__edge_feature_dim": 2, "ingest__segment_edges": 400}
    daemon = daemon_on(kafka.bootstrap_servers, topic, **common).start()
    send(producer, topic, rows[:800])
    producer.send(topic, b"{" + SECRET.encode(), partition=0)
    wait(lambda: daemon.seen() == 800, "the server has seen all")
    wait(lambda: daemon.get("/v1/models")["champion"], "a version is promoted")
    assert ask(daemon, SECRET, ["i:20"]).known is True
    mark = np.full(2, MARK, np.float32).tobytes()
    wait(lambda: {"edges", "train", "models"} <= {p[len(str(daemon.path)) + 1:].split("/")[0] for p in files_with(daemon.path, mark)},
         "the features are where they would be missed")
    producer.send(topic, json.dumps({"type": "delete", "node": SECRET}).encode(), partition=0).get(30)
    wait(lambda: ask(daemon, SECRET, ["i:20"]).known is False, "the server has forgotten")
    send(producer, topic, [r for r in rows[800:] if SECRET not in r])
    edges = sum(SECRET not in r for r in rows[800:]) + 800
    wait(lambda: daemon.get("/status.json")["trained_until_us"] == when[-1] // HOUR * HOUR, "closed windows are learned")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | as_environment(daemon.settings)
    done = subprocess.run([sys.executable, "-m", "streamd", "compact", "--wait", "60"], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + daemon.output()[-3000:]
    assert files_with(daemon.path, mark) == [] and files_with(daemon.path, SECRET.encode()) == []
    assert ask(daemon, "u:4", ["i:20", SECRET]).scores[1].known is False
    assert daemon.stop() == 0 and verify_log(daemon.path)[1] == []
    assert daemon.edges() == edges
    again = daemon_on(kafka.bootstrap_servers, topic, **common, retention__max_bytes=1).start()
    wait(lambda: again.edges() and again.reader.first_edge > 0, "the oldest segments go")
    wait(again.is_ready, "the server answers")
    again.kill()
    send(producer, topic, [("u:1", "i:20", int(when[-1]) + i) for i in range(50)])
    again.start()
    wait(lambda: again.seen() == edges + 50, "all is seen by a server that starts anew")
    answer = ask(again, "u:4", ["i:20", "i:21"])
    assert answer.known and answer.as_of.version != "rule" and again.stop() == 0
    assert verify_log(again.path)[1] == [] and "facts_incomplete" not in again.output()


@pytest.mark.slow
def test_broker_and_ingest_killed_at_random_moments_of_one_run(tmp_path, daemon_on, kafka_home):
    broker = ApacheKafka(kafka_home, tmp_path / "kafka")
    rng, rows = random.Random(5), rows_of(6_000)
    try:
        broker.create_topic("t", 4)
        made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, delivery_timeout_ms=120_000)

        def produce_slowly():
            for at in range(0, len(rows), 100):
                produce(made, "t", rows[at: at + 100])
                time.sleep(0.05)

        sender = threading.Thread(target=produce_slowly, daemon=True)
        sender.start()
        daemon = daemon_on(broker.bootstrap_servers, "t", ingest__segment_edges=1500).start("ingest")
        victims = rng.sample(["broker"] * 2 + ["ingest"] * 8, 10)
        for victim in victims:
            time.sleep(rng.uniform(0.2, 2.5))
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                daemon.kill()
                daemon.start("ingest")
        sender.join()
        made.close()
        wait(lambda: daemon.edges() == len(rows), "all is in the log", 90)
        assert daemon.stop() in (0, -signal.SIGTERM), "all may be in before the newest ingest was up"
        assert sorted((u, v) for u, v, _ in daemon.events()) == sorted((u, v) for u, v, _ in rows)
        assert verify_log(daemon.path)[1] == []
    finally:
        broker.close()
