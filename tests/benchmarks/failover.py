"""Seconds from a leader's kill -9 until the standby shows the next event, and until it has learned the next window.

Two machines with ingest and trainer each, one broker, all on the same cores. Events come all the time, a window's worth about every
four seconds. `FAILOVER_KILLS` is the number of kills, `FAILOVER_TIMEOUT` the setting `leader.timeout_seconds`."""

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

from kafka import KafkaProducer

from streamd.demo.broker import ApacheKafka
from streamd.telemetry.heartbeat import leads_here, read_beat
from tests.benchmarks.measure import Row, pick_size
from tests.builders import HOUR, SECOND
from tests.crash.daemons import Daemon, produce, wait
from tests.replica.models_world import logged_windows

STEP = 10 * SECOND
PATIENCE = 300


def run() -> list[Row]:
    home = os.environ.get("KAFKA_HOME")
    if not home:
        return []
    kills, timeout = int(os.environ.get("FAILOVER_KILLS", pick_size(20, 1))), float(os.environ.get("FAILOVER_TIMEOUT", pick_size(10, 3)))
    with tempfile.TemporaryDirectory() as folder:
        broker = ApacheKafka(Path(home), Path(folder) / "kafka")
        try:
            broker.create_topic("events", 4)
            shown, learned = seconds_after(broker, Path(folder), kills, timeout)
        finally:
            broker.close()
    rows = []
    for what, found in (("the next event is shown", shown), ("the next window is learned", learned)):
        for name, value in (("median", statistics.median(found)), ("worst", max(found))):
            rows.append(Row(f"leader's kill -9 until {what}, {name} of {len(found)}", value, "s", timeout, "leader.timeout_seconds"))
    return rows


class Machine:
    """Ingest and trainer of one machine."""

    def __init__(self, folder: Path, broker: ApacheKafka, name: str, timeout: float):
        together = {"log__name": "failover", "log__store": f"file://{folder}/store", "log__member": "standby", "leader__timeout_seconds": timeout,
                    "log__manifest_seconds": 30, "model__name": "pair", "bootstrap__max_events": 0, "registry__keep": 1_000}
        self.roles = [Daemon(folder / name, broker.bootstrap_servers, "events", **together) for _ in range(3)]
        self.path = folder / name
        (folder / "store").mkdir(exist_ok=True)

    def start(self):
        for daemon, role in zip(self.roles, ("ingest", "train", "archive"), strict=True):
            daemon.start(role)

    def kill(self):
        for daemon in self.roles:
            daemon.process.send_signal(signal.SIGKILL)
        for daemon in self.roles:
            daemon.process.wait()

    def revive(self):
        """Start again what ended by itself, as a supervisor does."""
        for daemon, role in zip(self.roles, ("ingest", "train", "archive"), strict=True):
            if daemon.process.poll() is not None:
                daemon.start(role)

    def windows(self):
        return [line["end_us"] for line in logged_windows(self.path)] if (self.path / "published").exists() else []

    def follows(self):
        beat = read_beat(self.path, "ingest")
        return beat is not None and beat.alive and beat.state == "following" and beat.detail["lag_records"] == 0


class Feed(threading.Thread):
    """Sends 20 events five times a second. sent, clock: events so far, and the newest one's time."""

    def __init__(self, broker: ApacheKafka):
        super().__init__(daemon=True)
        self.producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        self.sent, self.clock, self.stop = 0, HOUR, threading.Event()

    def run(self):
        rng = random.Random(1)
        while not self.stop.wait(0.2):
            rows = [(f"u:{rng.randrange(40)}", f"i:{rng.randrange(30)}", self.clock + i * STEP) for i in range(20)]
            produce(self.producer, "events", rows, size=20)
            self.sent, self.clock = self.sent + 20, self.clock + 20 * STEP


def seconds_after(broker: ApacheKafka, folder: Path, kills: int, timeout: float) -> tuple[list[float], list[float]]:
    machines = [Machine(folder, broker, name, timeout) for name in ("one", "two")]
    feed = Feed(broker)
    shown, learned = [], []
    try:
        for machine in machines:
            machine.start()
        feed.start()
        wait(lambda: any(leads_here(m.path) for m in machines), "one leads", PATIENCE)
        for number in range(kills):
            leader, other = sorted(machines, key=lambda m: not leads_here(m.path))
            wait(lambda other=other: other.follows() and other.windows(), "the other one follows, with a learned window", PATIENCE)
            wait(lambda leader=leader, other=other: leader.windows()[-3:] == other.windows()[-3:], "it has the newest windows", PATIENCE)
            time.sleep(random.Random(number).uniform(0, 2))
            leader.kill()
            begun, sent, clock = time.monotonic(), feed.sent, feed.clock
            wait(lambda other=other, sent=sent: other.roles[0].edges() > sent, "an event sent since is shown", PATIENCE)
            shown.append(time.monotonic() - begun)
            wait(lambda other=other, clock=clock: other.windows()[-1] > clock, "a window that was open is learned", PATIENCE)
            learned.append(time.monotonic() - begun)
            print(f"kill {number + 1}: shown after {shown[-1]:.1f} s, learned after {learned[-1]:.1f} s, load {os.getloadavg()[0]:.0f}", flush=True)
            for machine in machines:
                machine.revive()
    finally:
        feed.stop.set()
        for machine in machines:
            for daemon in machine.roles:
                if daemon.process is not None and daemon.process.poll() is None:
                    daemon.kill()
    return shown, learned
