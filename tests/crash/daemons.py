"""A daemon as a child process, and what is sent to it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

from streamd.demo.broker import free_port
from streamd.segments.reader import LogReader
from streamd.settings import as_environment
from tests.builders import settings, stream


def wait(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s it is not so that {what}"
        time.sleep(0.02)


class Daemon:
    """`streamd run` (or one role of it) on a data directory, started, killed and started again."""

    def __init__(self, path, broker, topic, **values):
        values = {"ingest__idle_timeout_seconds": 0, "stream__time_unit": "us", **values}
        self.settings = settings(path, kafka__bootstrap_servers=broker, kafka__topics=[topic], server__port=free_port(), **values)
        self.path, self.process = path, None
        self.reader = LogReader(path)

    def start(self, *role):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
        self.path.mkdir(exist_ok=True)
        with (self.path.parent / f"{self.path.name}.log").open("ab") as output:
            command = [sys.executable, "-m", "streamd", "run", *(("--role", *role) if role else ())]
            self.process = subprocess.Popen(command, env=clean | as_environment(self.settings), stdout=output, stderr=output)
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(40)

    def output(self):
        return (self.path.parent / f"{self.path.name}.log").read_text()

    def edges(self):
        self.reader.refresh()
        return self.reader.num_edges

    def events(self):
        """What the log holds, as (src key, dst key, time)."""
        reader = LogReader(self.path)
        reader.refresh()
        src, dst, when = reader.edges(0, reader.num_edges)
        return [(reader.keys[u], reader.keys[v], t) for u, v, t in zip(src.tolist(), dst.tolist(), when.tolist(), strict=True)]

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.settings.server.port}{path}", timeout=5) as answer:
            return json.load(answer)

    def seen(self):
        """Edges the server has seen, -1 while none answers: that of a killed daemon may answer once more before it goes."""
        try:
            return self.get("/status.json")["edges"] if self.get("/readyz")["ready"] else -1
        except OSError:
            return -1

    def is_ready(self):
        try:
            return self.get("/readyz")["ready"]
        except OSError:
            return False


def produce(producer, topic, rows, batched=False):
    """rows: (src, dst, time). batched: several events in one record, so that positions count within records."""
    futures = []
    if batched:
        parts = {}
        for src, dst, when in rows:
            parts.setdefault(hash(src) % 4, []).append({"src": src, "dst": dst, "time": when})
        for partition, events in parts.items():
            for a in range(0, len(events), 17):
                futures.append(producer.send(topic, json.dumps(events[a:a + 17]).encode(), partition=partition))
    else:
        for src, dst, when in rows:
            value = json.dumps({"src": src, "dst": dst, "time": when}).encode()
            futures.append(producer.send(topic, value, key=str(src).encode()))
    producer.flush()
    for f in futures:
        f.get(90)


def rows_of(num, seed=0):
    src, dst, when = stream(num, seed=seed, hours=5)
    return [(f"u:{u}", f"i:{v}", int(t)) for u, v, t in zip(src.tolist(), dst.tolist(), when.tolist(), strict=True)]
