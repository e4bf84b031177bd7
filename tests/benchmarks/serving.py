"""/v1/score with 100 candidates on the demo's month, alone and while the trainer learns on the same cores."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.daemon import role_environment
from streamd.demo.broker import free_port
from streamd.settings import load_settings
from tests.benchmarks.measure import Row, wikipedia_log

SECONDS, RATES, CANDIDATES = 6.0, (50, 200), 100


def run() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        wikipedia_log(path)
        s, _ = load_settings(None, {"data_dir": path, "stream.time_unit": "s", "server.port": free_port(),
                                    "telemetry.ingest_port": 0, "telemetry.train_port": 0}, {})
        serve, train = start(s, "serve"), None
        try:
            train = start(s, "train")
            wait_for_version(s.server.port)
            busy = {rate: ask(s.server.port, rate) for rate in RATES}
            train.terminate()
            train.wait()
            alone = {rate: ask(s.server.port, rate) for rate in RATES}
        finally:
            for child in (serve, train):
                if child is not None and child.poll() is None:
                    child.terminate()
                    child.wait()
    for name, measured in (("alone", alone), ("while training", busy)):
        for rate, ms in measured.items():
            p50, p99 = np.percentile(ms, [50, 99])
            rows += [Row(f"/v1/score, {CANDIDATES} candidates, {rate}/s, {name}: p50", p50, "ms"),
                     Row(f"/v1/score, {CANDIDATES} candidates, {rate}/s, {name}: p99", p99, "ms", 15.0, "promise")]
    return rows


def start(s, role: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "streamd", "run", "--role", role], env=role_environment(s, role, os.environ),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_version(port: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            link.request("GET", "/status.json")
            status = json.load(link.getresponse())
            if status["ready"] and status["num_windows"] > 20:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the server has no version")


def ask(port: int, rate: int) -> list[float]:
    """Milliseconds from when each request was due to its answer, at a fixed rate on one connection."""
    rng = np.random.default_rng(0)
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    bodies = [json.dumps({"src": f"user:{rng.integers(8227)}", "dst": [f"page:{p}" for p in rng.integers(8227, 9227, CANDIDATES)]})
              for _ in range(500)]
    out, begun = [], time.perf_counter()
    for i in range(int(SECONDS * rate)):
        due = begun + i / rate
        if (pause := due - time.perf_counter()) > 0:
            time.sleep(pause)
        link.request("POST", "/v1/score", bodies[i % len(bodies)], {"content-type": "application/json"})
        answer = link.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        out.append((time.perf_counter() - due) * 1e3)
    return out
