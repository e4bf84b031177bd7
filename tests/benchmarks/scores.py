"""Scores of events: from the event's production to its score in a consumer's hands, how many events a second one core scores, and
what /v1/score takes with and without the scoring role, in turns in one run."""

import json
import multiprocessing
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer

from streamd.clock import SystemClock
from streamd.demo.broker import find_broker, free_port
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.ingest.kafka.client import make_producer
from streamd.registry import Registry
from streamd.scoring.record import decode
from streamd.scoring.scorer import Scorer
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import Settings, load_settings, schema_of
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size, wikipedia_events
from tests.benchmarks.serving import _open_loop, wait_for_status
from tests.builders import batch

BEHIND, RATES, SECONDS, TURNS = pick_size((20_000, (100, 300, 600), 10.0, 3), (12_000, (20, 30), 1.0, 1))
"""Events learned before; events a second of the live part, each for so long; turns with and without the role."""
STOP_SECONDS, RECOVER_SECONDS = pick_size((40.0, 15.0), (1.0, 1.0))
ALONE = pick_size(4_000, 100)
"""Events that the scorer scores as fast as it can."""
MODELS = pick_size(("tgn", "pair", "sage"), ("pair",))


def run() -> list[Row]:
    return [*_alone(), *_daemon()]


def _alone() -> list[Row]:
    """In this process, without Kafka: batches as a backlog has them, and single events as a quiet stream has them."""
    rows = []
    events = list(islice(wikipedia_events(), BEHIND + ALONE))
    names = {name: i for i, name in enumerate(dict.fromkeys(n for e in events for n in (e["src"], e["dst"])))}
    src, dst = (np.array([names[e[end]] for e in events]) for end in ("src", "dst"))
    time_E = np.array([e["time"] for e in events]) * 1_000_000
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            s, _ = load_settings(None, {"data_dir": Path(folder), "model.name": model, "windows.width_seconds": 86_400, "device": "cpu"}, {})
            writer = LogWriter(s.data_dir, schema_of(s), 1_000_000)
            writer.keys.update(names)

            def commit(at: int, end: int, keys: tuple = (), writer: LogWriter = writer) -> None:
                writer.commit(batch(writer.state.schema, src[at:end], dst[at:end], time_E[at:end], keys), Progress(), int(time_E[end - 1]))

            commit(0, BEHIND, tuple(names))
            log = LogReader.open(s.data_dir)
            trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(s.data_dir, "train"))
            while (window := next_window(log, trainer.edge, 86_400_000_000)) is not None:
                trainer.process(window)
            scorer = Scorer(ServingSettings.of(s, "score"), Registry.of(s), LogReader.open(s.data_dir), lambda reason, number: None, BEHIND)
            while scorer.rebuild():
                pass
            assert Registry.of(s).champion(), "no version was promoted"
            while not scorer.version:
                scorer.follow_versions()
            for what, size in (("in batches", 64), ("one by one", 1)):
                first = scorer.position
                commit(first, first + ALONE // 2)
                scorer.view.log.refresh()
                begun = time.process_time()
                while scorer.position < first + ALONE // 2:
                    scorer.step(size)
                rows.append(Row(f"events scored a second on one core, {model}, {what}", ALONE / 2 / (time.process_time() - begun), "events/s"))
            writer.close()
    return rows


def _daemon() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        broker = find_broker(None, Path(folder) / "kafka")
        try:
            broker.create_topic("events", 1)
            broker.create_topic("scores", 4)
            s, _ = load_settings(None, {
                "data_dir": Path(folder) / "data", "kafka.bootstrap_servers": broker.bootstrap_servers, "stream.time_unit": "us",
                "server.port": free_port(), "server.score_topic": "scores", "telemetry.ingest_port": 0, "telemetry.train_port": 0,
                "telemetry.score_port": 0, "bootstrap.max_events": 10_000, "windows.width_seconds": 3600}, {})
            return _measured(s)
        finally:
            broker.close()


def _measured(s: Settings) -> list[Row]:
    """Ingest, server and trainer run; the trainer has learned the backlog and has nothing to do while this measures."""
    rows, producer = [], make_producer(s.kafka, linger_ms=5)
    with Children() as roles, closing(producer):
        for role in ("ingest", "serve", "train"):
            roles.role(s, role)
        begun = int(time.time() * 1e6) - 7_200_000_000
        for number, event in enumerate(islice(wikipedia_events(), BEHIND)):
            producer.send("events", json.dumps(event | {"time": begun + number * 100_000}).encode())
        producer.flush()
        wait_for_status(s.server.port, lambda status: status["ready"] and status["version"] != "rule" and status["edges"] == BEHIND)
        scoring = roles.role(s, "score")
        _scoring(s)
        for rate in RATES:
            seconds = np.array([took for _, took in _latencies(s, rate)])
            rows += [Row(f"event produced to score consumed, {rate} events/s: p{q}", float(np.percentile(seconds, q)) * 1e3, "ms", 1000.0, "promise")
                     for q in (50, 99)]
            rows.append(Row(f"events scored of those produced, {rate} events/s", 100 * len(seconds) / (rate * SECONDS), "%"))
        rows += _after_a_stop(s, scoring)

        # Requests at 100 candidates and 100 a second, with events at the middle rate, in turns.
        found: dict[bool, list[float]] = {True: [], False: []}
        feeding = multiprocessing.get_context("spawn").Process(target=_feed, args=(s, RATES[1], 1e9))
        feeding.start()
        try:
            for _ in range(TURNS):
                found[True] += _open_loop(s.server.port, 100, 100)
                roles.end("score")
                time.sleep(3)
                found[False] += _open_loop(s.server.port, 100, 100)
                roles.role(s, "score")
                _scoring(s)
        finally:
            feeding.terminate()
        rows += [Row(f"/v1/score, 100 candidates, 100/s, {RATES[1]} events/s, with scoring: p{q}", float(np.percentile(found[True], q)), "ms",
                     float(np.percentile(found[False], q)), "without") for q in (50, 99)]
        return rows


def _scoring(s: Settings) -> None:
    deadline = time.monotonic() + 300
    while (beat := read_beat(s.data_dir, "score")) is None or not beat.alive or beat.state != "scoring" or not beat.detail["version"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(2)


def _feed(s: Settings, rate: int, seconds: float) -> None:
    """A hundred times a second, each event with the time at which it is produced."""
    events, producer = islice(wikipedia_events(), BEHIND, None), make_producer(s.kafka, linger_ms=1)
    producer.partitions_for("events")
    begun, sent = time.monotonic(), 0
    while (at := time.monotonic() - begun) < seconds:
        for event in islice(events, max(0, int(at * rate) - sent)):
            producer.send("events", json.dumps(event | {"time": int(time.time() * 1e6)}).encode())
            sent += 1
        time.sleep(0.01)
    producer.flush()


def _after_a_stop(s: Settings, role: subprocess.Popen) -> list[Row]:
    """The scoring role is stopped by a signal while events go on."""
    begun = time.time() + 2
    timers = [threading.Timer(2, role.send_signal, [signal.SIGSTOP]), threading.Timer(2 + STOP_SECONDS, role.send_signal, [signal.SIGCONT])]
    for timer in timers:
        timer.start()
    fed_seconds = 2 + STOP_SECONDS + RECOVER_SECONDS + SECONDS
    found = _latencies(s, RATES[1], fed_seconds)
    after = [took for at, took in found if at > begun + STOP_SECONDS + RECOVER_SECONDS]
    what = f"{RATES[1]} events/s, {RECOVER_SECONDS:.0f} s after the role stood still for {STOP_SECONDS:.0f} s"
    return [Row(f"event produced to score consumed, {what}: p99", float(np.percentile(after, 99)) * 1e3, "ms", 1000.0, "promise"),
            Row("events scored of those produced before, during and after it", 100 * len(found) / (RATES[1] * fed_seconds), "%")]


def _latencies(s: Settings, rate: int, fed_seconds: float = SECONDS) -> list[tuple[float, float]]:
    """When each event was produced, and seconds from then until a consumer has its score."""
    consumer = KafkaConsumer("scores", bootstrap_servers=s.kafka.bootstrap_servers, auto_offset_reset="latest", fetch_max_wait_ms=10)
    while not consumer.assignment():
        consumer.poll(100)
    for partition in consumer.assignment():
        consumer.position(partition)
    feeding = multiprocessing.get_context("spawn").Process(target=_feed, args=(s, rate, fed_seconds))
    feeding.start()
    out: list[tuple[float, float]] = []
    last = time.monotonic() + 20
    while feeding.is_alive() or time.monotonic() < last:
        for records in consumer.poll(50).values():
            now = time.time()
            last = time.monotonic() + 3
            produced = [decode(r.value).time_us / 1e6 for r in records]
            out += [(at, now - at) for at in produced]
    feeding.join()
    consumer.close()
    return out


if __name__ == "__main__":
    for row in run():
        print(row)
