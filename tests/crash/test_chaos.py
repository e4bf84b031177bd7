"""Ten minutes of everything going wrong at random: roles and daemon killed, broker restarted, the disk full once."""

import json
import math
import os
import random
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from kafka import KafkaProducer

from streamd.demo.broker import ApacheKafka
from streamd.registry import Registry
from tests.builders import HOUR
from tests.crash.daemons import Daemon, produce, wait

SECONDS = float(os.environ.get("CHAOS_SECONDS", "600"))
USERS, ITEMS = 60, 40


class Client(threading.Thread):
    """Asks all the time, and remembers what must never be taken back."""

    def __init__(self, daemon):
        super().__init__()
        self.daemon_process, self.stop = daemon, threading.Event()
        self.answered = self.refused = 0
        self.newest, self.known, self.wrong = -1, set(), []

    def run(self):
        rng = random.Random(1)
        while not self.stop.wait(0.02):
            src = f"u:{rng.randrange(USERS)}"
            dst = [f"i:{rng.randrange(ITEMS)}" for _ in range(5)]
            try:
                answer = ask(self.daemon_process, src, dst)
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    self.wrong.append(error.code)
                self.refused += 1
            except OSError:
                self.refused += 1
            else:
                self.check(src, dst, answer)

    def check(self, src, dst, answer):
        self.answered += 1
        edge = answer["as_of"]["last_edge"]
        if edge < self.newest or (src in self.known and not answer["known"]) or [s["dst"] for s in answer["scores"]] != dst \
                or not all(math.isfinite(s["score"]) for s in answer["scores"]):
            self.wrong.append((self.newest, src in self.known, answer))
        self.newest = edge
        if answer["known"]:
            self.known.add(src)


def ask(daemon, src, dst):
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.settings.server.port}/v1/score", json.dumps({"src": src, "dst": dst}).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def role_of(daemon, role):
    """The process of a role, among the daemon's children; None while it is being restarted."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == daemon.process.pid and (path / "cmdline").read_bytes().endswith(f"--role\0{role}\0".encode()):
                return int(path.name)
        except (OSError, IndexError):
            continue
    return None


def full_disk(path, seconds):
    """Fill the disk a directory is on, for some time."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 1_048_576)
        except OSError:
            time.sleep(seconds)
    filler.unlink()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own for the data directory, or None where it cannot be had."""
    path = tmp_path / "data"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(path)], capture_output=True, check=False)
    yield path
    if done.returncode == 0:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS + 600)
def test_after_chaos_the_log_is_what_was_produced_and_no_answer_was_wrong(tmp_path, small_disk, kafka_home):
    rng, sent = random.Random(0), []
    broker = ApacheKafka(kafka_home, tmp_path / "kafka")
    daemon = Daemon(small_disk, broker.bootstrap_servers, "t", ingest__segment_edges=20_000, registry__keep=3,
                    training__replay_capacity_events=2000, server__max_queue=64)
    client, done = Client(daemon), {}
    mounted = small_disk.stat().st_dev != tmp_path.stat().st_dev
    try:
        broker.create_topic("t", 4)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retries=1000, acks="all", enable_idempotence=True)
        feeding = threading.Event()

        def feed():
            number = 0
            while not feeding.wait(0.25):
                rows = [(f"u:{rng.randrange(USERS)}", f"i:{rng.randrange(ITEMS)}", HOUR + (number + i) * 20_000_000) for i in range(50)]
                produce(producer, "t", rows)
                sent.extend(rows)
                number += 50

        feeder = threading.Thread(target=feed)
        daemon.start()
        feeder.start()
        client.start()
        wait(lambda: daemon.seen() > 200, "it answers", 120)
        ends, filled = time.monotonic() + SECONDS, False
        actions = ["ingest", "train", "serve", "ingest", "train", "serve", "broker", "daemon"]
        while time.monotonic() < ends:
            action = rng.choice(actions)
            if mounted and not filled and time.monotonic() > ends - SECONDS / 2:
                action, filled = "disk", True
            done[action] = done.get(action, 0) + 1
            if action == "broker":
                broker.kill()
                time.sleep(rng.uniform(0, 4))
                broker.start()
            elif action == "daemon":
                daemon.kill()
                daemon.start()
            elif action == "disk":
                full_disk(small_disk, 8)
            elif (pid := role_of(daemon, action)) is not None:
                os.kill(pid, 9)
            time.sleep(rng.uniform(1, 8))
        feeding.set()
        feeder.join()
        producer.close()
        wait(lambda: daemon.edges() == len(sent), f"all {len(sent)} events are in the log", 180)
        wait(lambda: daemon.seen() == len(sent), "the server has seen them", 180)
        client.stop.set()
        client.join()
        assert sorted((u, v) for u, v, _ in daemon.events()) == sorted((u, v) for u, v, _ in sent)
        assert client.wrong == [] and client.answered > 10 * SECONDS / 60
        registry = Registry.of(daemon.settings)
        wait(lambda: ask(daemon, "u:1", ["i:1"])["as_of"]["version"] == registry.champion() != "rule", "the newest version serves", 180)
        assert daemon.stop() == 0
        shutil.copytree(daemon.path, tmp_path / "copy")
        again = Daemon(tmp_path / "copy", broker.bootstrap_servers, "t", ingest__segment_edges=20_000).start("serve")
        same = Daemon(small_disk, broker.bootstrap_servers, "t", ingest__segment_edges=20_000).start("serve")
        for one in (again, same):
            wait(lambda one=one: one.seen() == len(sent), "a new server has seen all", 120)
        shutil.rmtree(tmp_path / "copy/serve", ignore_errors=True)
        for src in range(0, USERS, 7):
            a, b = (ask(one, f"u:{src}", [f"i:{i}" for i in range(10)]) for one in (again, same))
            np.testing.assert_allclose([s["score"] for s in a["scores"]], [s["score"] for s in b["scores"]], atol=1e-5)
        for one in (again, same):
            one.stop()
        print(f"\n{len(sent)} events, {client.answered} answered, {client.refused} refused, {done}, disk of its own: {mounted}")
    except BaseException:
        print(daemon.output()[-6000:])
        raise
    finally:
        feeding.set()
        client.stop.set()
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        broker.close()
