"""A daemon as a child process, and what is sent to it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import zlib

import numpy as np
import pyarrow as pa

from streamd.client import Client
from streamd.decode.wire import ARROW, NDJSON
from streamd.demo.broker import free_port
from streamd.eventlog.layout import LATE, LATE_ROW
from streamd.eventlog.reader import LogReader
from streamd.settings.loading import as_environment
from tests.builders import settings, stream

SMALL_FETCHES = {"fetch_max_bytes": 2_000, "max_partition_fetch_bytes": 2_000}
"""So that a poll brings a few records of one partition, and partitions answer in turn."""


def wait(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s it is not so that {what}"
        time.sleep(0.02)


class Daemon:
    """`streamd run` (or one role of it) on a data directory, started, killed and started again."""

    def __init__(self, path, broker, topic, **values):
        values = {"ingest__idle_timeout_seconds": 0, "stream__time_unit": "us", "kafka__client": SMALL_FETCHES, **values}
        self.settings = settings(path, kafka__bootstrap_servers=broker, kafka__topics=[topic], server__port=free_port(), **values)
        self.path, self.process = path, None
        self.reader = None

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
        if self.reader is None:
            self.reader = LogReader.open(self.path)
            return self.reader.num_edges if self.reader else 0
        self.reader.refresh()
        return self.reader.num_edges

    def events(self):
        """What the log holds, as (src key, dst key, time)."""
        reader = LogReader.open(self.path)
        src, dst, when = reader.edges(0, reader.num_edges)
        return [(reader.keys[u], reader.keys[v], t) for u, v, t in zip(src.tolist(), dst.tolist(), when.tolist(), strict=True)]

    def events_as_sent(self):
        """As `events`, with the time that a late one came with in place of the watermark: on a busy machine any event may be late."""
        late = np.frombuffer((self.path / LATE).read_bytes(), LATE_ROW)
        came_at = dict(zip(late["edge"].tolist(), late["time"].tolist(), strict=True))
        return [(u, v, came_at.get(at, t)) for at, (u, v, t) in enumerate(self.events())]

    def client(self, **chosen):
        """A client of its server."""
        return Client(f"http://127.0.0.1:{self.settings.server.port}", **chosen)

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


def as_array(events):
    return json.dumps(events).encode(), []


def as_ndjson(events):
    return "\n".join(map(json.dumps, events)).encode(), [("content-type", NDJSON.encode())]


def as_arrow(events):
    table, sink = pa.Table.from_pylist(events), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes(), [("content-type", ARROW.encode())]


FORMATS = (as_array, as_ndjson, as_arrow)


def produce(producer, topic, rows, size=17, formats=FORMATS):
    """rows: (src, dst, time). size: events a record, of the formats in turn; each source has a partition of its own."""
    parts, futures = {}, []
    for src, dst, when in rows:
        parts.setdefault(zlib.crc32(str(src).encode()) % 4, []).append({"src": src, "dst": dst, "time": when})
    for partition, events in parts.items():
        for number, a in enumerate(range(0, len(events), size)):
            value, headers = formats[number % len(formats)](events[a: a + size])
            futures.append(producer.send(topic, value, headers=headers, partition=partition))
    producer.flush()
    for f in futures:
        f.get(90)


def rows_of(num, seed=0):
    src, dst, when = stream(num, seed=seed, hours=5)
    return [(f"u:{u}", f"i:{v}", int(t)) for u, v, t in zip(src.tolist(), dst.tolist(), when.tolist(), strict=True)]
