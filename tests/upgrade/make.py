"""Writes the directory that the next release must open: `python -m tests.upgrade.make NAME`, with KAFKA_HOME set.

A short life of the whole daemon on Apache Kafka: batched records, labels, node features, deletes, a dead letter, several
segments and versions, a stop. Beside the directory, as JSON, what it must still say.
"""

import json
import os
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from kafka import KafkaProducer

from streamd.demo.broker import ApacheKafka
from streamd.eventlog.reader import LogReader
from streamd.registry import Registry
from tests.builders import HOUR
from tests.crash.daemons import Daemon, produce, rows_of, wait

HERE = Path(__file__).parent
TOPIC = "events"
VALUES = {"stream__label_dim": 1, "stream__node_feature_dim": 2, "ingest__segment_edges": 250, "registry__keep": 3,
          "registry__gate_events": 200, "model__labels": "classification"}
"""Settings under which the directory is made, and must be opened."""
ASKED = [("u:1", [f"i:{20 + i}" for i in range(10)]), ("u:7", ["i:21", "i:25", "never seen"])]


def ask(daemon, src, dst):
    body = json.dumps({"src": src, "dst": dst}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.settings.server.port}/v1/score", body,
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def live(daemon, producer):
    """Returns what the directory must still say after an upgrade."""
    rows = rows_of(900, seed=5)
    produce(producer, TOPIC, rows[:700], batched=True)
    others = [{"type": "node", "id": "u:1", "features": [1.5, -2]}, {"type": "node", "id": "u:2", "features": [0.5, 3]},
              *({"type": "label", "node": f"u:{i % 9}", "time": rows[699][2], "target": [i % 2]} for i in range(30))]
    for event in others:
        producer.send(TOPIC, json.dumps(event).encode(), partition=1)
    producer.send(TOPIC, b'{"src": "u:1", "dst"', partition=2)
    producer.flush()
    daemon.start()
    wait(lambda: daemon.edges() == 700, "the first events are in")
    producer.send(TOPIC, json.dumps({"type": "delete", "node": "u:3"}).encode(), partition=0)
    producer.flush()
    wait(lambda: "u:3" not in reader_of(daemon).ids, "the delete is in")
    produce(producer, TOPIC, [r for r in rows[700:] if r[0] != "u:3"], batched=True)
    producer.send(TOPIC, json.dumps({"src": "u:1", "dst": "i:22", "time": 30 * HOUR}).encode(), partition=0)
    producer.flush()
    total = 701 + sum(r[0] != "u:3" for r in rows[700:])
    wait(lambda: daemon.edges() == total, "all events are in")
    registry = Registry.of(daemon.settings)
    wait(daemon.is_ready, "it answers")
    wait(lambda: (daemon.get("/status.json")["windows"] or [{}])[-1].get("end_us", 0) >= 5 * HOUR, "all windows are learned")
    wait(lambda: ask(daemon, *ASKED[0])["as_of"]["version"] == registry.champion(), "the newest version serves")
    wait(lambda: list((daemon.path / "roles").glob("train/facts/*")) and list((daemon.path / "roles").glob("serve/facts/*")), "facts are stored")
    answers = [ask(daemon, *asked) for asked in ASKED]
    assert daemon.stop() == 0
    log = reader_of(daemon)
    events = [[str(k) for k in e[:2]] + [e[2]] for e in daemon.events()]
    positions = {t: {p: [x.offset, x.index, list(x.ahead)] for p, x in parts.items()} for t, parts in log.state.progress.positions.items()}
    return {"events": events, "keys": sorted(map(str, log.ids)), "watermark": log.watermark, "positions": positions,
            "champion": registry.champion(), "versions": registry.names(), "answers": answers,
            "labels": len(log.labels()[0]), "dead_letters": 1}


def reader_of(daemon):
    return LogReader.open(daemon.path)


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = ApacheKafka(Path(os.environ["KAFKA_HOME"]), Path(folder) / "kafka")
        try:
            broker.create_topic(TOPIC, 4)
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
            daemon = Daemon(Path(folder) / "data", broker.bootstrap_servers, TOPIC, **VALUES)
            try:
                said = live(daemon, producer)
            except BaseException:
                print(daemon.output()[-4000:])
                raise
            finally:
                if daemon.process is not None and daemon.process.poll() is None:
                    daemon.kill()
        finally:
            broker.close()
        (HERE / f"{name}.json").write_text(json.dumps(said))
        with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(Path(folder) / "data", "data")
        print(f"{name}: {len(said['events'])} events, versions {said['versions']}")


if __name__ == "__main__":
    main(sys.argv[1])
