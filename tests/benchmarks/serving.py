"""/v1/score beside a bare FastAPI route in the same run: alone, and while ingest and trainer run on the same cores; and how
soon an event is seen in answers. Events come from the demo's month, moved so that the backlog ends now, and what comes live bears the
time at which it is produced. Windows are days, so that the trainer is never idle while it catches up."""

import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from streamd.daemon.supervisor import role_environment
from streamd.demo.broker import find_broker, free_port
from streamd.demo.standin import PARTITIONS
from streamd.ingest.kafka.client import make_producer
from streamd.settings.loading import Settings, load_settings
from tests.benchmarks.measure import Row, wikipedia_events

SECONDS, RATE, LINKS, OPEN_LINKS, PROBES, EVENTS_A_SECOND = 10.0, 200, 4, 16, 60, 500
BEHIND = 60_000
"""Events that are there before the rest comes, so that the trainer has to catch up all the while."""
CANDIDATES = (1, 10, 100)
BARE = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.post("/v1/score")
async def score(body: dict) -> dict:
    return {"scores": []}
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        broker = find_broker(None, Path(folder) / "kafka")
        try:
            broker.create_topic("events", PARTITIONS)
            s, _ = load_settings(None, {
                "data_dir": Path(folder) / "data", "kafka.bootstrap_servers": broker.bootstrap_servers, "stream.time_unit": "s",
                "server.port": free_port(), "telemetry.ingest_port": 0, "telemetry.train_port": 0, "bootstrap.max_events": 0,
                "windows.merge_after": 0, "windows.width_seconds": 86_400}, {})
            return _measured(s)
        finally:
            broker.close()


def _measured(s: Settings) -> list[Row]:
    events, rows = _ending_now(BEHIND), []
    producer = make_producer(s.kafka, linger_ms=5)
    roles = {role: _start(s, role) for role in ("ingest", "serve", "train")}
    feeding = multiprocessing.get_context("spawn").Process(target=_feed, args=(s,))
    bare_port = free_port()
    bare = subprocess.Popen([sys.executable, "-c", BARE, str(bare_port)])
    try:
        for _ in range(BEHIND):
            producer.send("events", json.dumps(next(events)).encode())
        _wait(s.server.port, lambda status: status["ready"] and status["num_windows"] >= 3)
        feeding.start()
        busy = {n: _open_loop(s.server.port, n, RATE) for n in CANDIDATES}
        seen = _freshness(s.server.port, producer)
        feeding.terminate()
        for role in ("train", "ingest"):
            roles.pop(role).terminate()
        time.sleep(2)
        for n in CANDIDATES:
            alone, closed, peer = _open_loop(s.server.port, n, RATE), _closed_loop(s.server.port, n), _closed_loop(bare_port, n)
            rows += [Row(f"/v1/score, {n} candidates, {LINKS} clients at once", closed[0], "requests/s", peer[0], "a bare FastAPI route"),
                     Row(f"/v1/score, {n} candidates, {LINKS} clients at once: p99", closed[1], "ms", peer[1], "a bare FastAPI route")]
            rows += [Row(f"/v1/score, {n} candidates, {RATE}/s, {name}: p{q}", float(np.percentile(ms, q)), "ms", 15.0 if q == 99 else None,
                         "promise") for name, ms in (("alone", alone), ("while ingesting and training", busy[n])) for q in (50, 99)]
        rows += [Row(f"event produced to seen in answers, while all this runs: p{q}", float(np.percentile(seen, q)), "ms", promise, "promise")
                 for q, promise in ((50, 20.0), (99, 30.0))]
        return rows + _shares(s.server.port)
    finally:
        if feeding.is_alive():
            feeding.terminate()
        producer.close()
        for child in (bare, *roles.values()):
            child.terminate()
            child.wait()


def _ending_now(count: int) -> Iterator[dict]:
    """The first events of the month, their times moved so that the last of them happens now."""
    moved = int(time.time()) - list(islice(wikipedia_events(), count))[-1]["time"]
    return (event | {"time": event["time"] + moved} for event in wikipedia_events())


def _start(s: Settings, role: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "streamd", "run", "--role", role], env=role_environment(s, role, os.environ),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait(port: int, condition) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if condition(_get(port, "/status.json")):
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise TimeoutError("the server has no version")


def _get(port: int, path: str):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    link.request("GET", path)
    body = link.getresponse().read()
    link.close()
    return json.loads(body) if path.endswith("json") else body.decode()


def _feed(s: Settings) -> None:
    """Ten times a second, from a process of its own: a producer in the client's would hold up its clock."""
    events, producer = islice(wikipedia_events(), BEHIND, None), make_producer(s.kafka, linger_ms=5)
    while True:
        for event in islice(events, EVENTS_A_SECOND // 10):
            producer.send("events", json.dumps(event | {"time": int(time.time())}).encode())
        time.sleep(0.1)


def _bodies(candidates: int) -> list[str]:
    rng = np.random.default_rng(candidates)
    return [json.dumps({"src": f"user:{rng.integers(8227)}", "dst": [f"page:{p}" for p in rng.integers(8227, 9227, candidates)]})
            for _ in range(500)]


def _one(link: http.client.HTTPConnection, body: str) -> dict:
    link.request("POST", "/v1/score", body, {"content-type": "application/json"})
    answer = link.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    return json.loads(content)


def _open_loop(port: int, candidates: int, rate: int) -> list[float]:
    """Milliseconds from when each request was due to its answer, at a fixed rate over OPEN_LINKS connections."""
    bodies, begun = _bodies(candidates), time.perf_counter() + 0.1

    def client(number: int) -> list[float]:
        link, out = http.client.HTTPConnection("127.0.0.1", port, timeout=20), []
        for i in range(number, int(SECONDS * rate), OPEN_LINKS):
            due = begun + i / rate
            if (pause := due - time.perf_counter()) > 0:
                time.sleep(pause)
            _one(link, bodies[i % len(bodies)])
            out.append((time.perf_counter() - due) * 1e3)
        return out

    with ThreadPoolExecutor(OPEN_LINKS) as pool:
        return [x for part in pool.map(client, range(OPEN_LINKS)) for x in part]


def _closed_loop(port: int, candidates: int) -> tuple[float, float]:
    """Requests a second and p99 in milliseconds, each client asking again as soon as it was answered."""
    bodies, until = _bodies(candidates), time.perf_counter() + SECONDS / 3

    def client(number: int) -> list[float]:
        link, out = http.client.HTTPConnection("127.0.0.1", port, timeout=20), []
        while (begun := time.perf_counter()) < until:
            _one(link, bodies[(number + LINKS * len(out)) % len(bodies)])
            out.append((time.perf_counter() - begun) * 1e3)
        return out

    with ThreadPoolExecutor(LINKS) as pool:
        took = [x for part in pool.map(client, range(LINKS)) for x in part]
    return len(took) / (SECONDS / 3), float(np.percentile(took, 99))


def _freshness(port: int, producer) -> list[float]:
    """Milliseconds from producing an event of a source never seen to the first answer that knows it."""
    link, out = http.client.HTTPConnection("127.0.0.1", port, timeout=20), []
    for i in range(PROBES):
        known = json.dumps({"src": f"probe:{i}", "dst": ["page:8300"]})
        begun = time.perf_counter()
        producer.send("events", json.dumps({"src": f"probe:{i}", "dst": "page:8300", "time": int(time.time())}).encode())
        while not _one(link, known)["known"]:
            time.sleep(0.005)
        out.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.05)
    return out


def _shares(port: int) -> list[Row]:
    """Of a request's time: waiting for the engine, the engine's answer, the rest (HTTP, JSON, validation); over the whole run."""
    told = dict(line.rsplit(" ", 1) for line in _get(port, "/metrics").splitlines() if not line.startswith("#"))
    count = float(told['streamd_request_seconds_count{route="/v1/score"}'])
    whole = float(told['streamd_request_seconds_sum{route="/v1/score"}']) / count
    parts = {phase: float(told[f'streamd_engine_seconds_sum{{phase="{phase}"}}']) / float(told[f'streamd_engine_seconds_count{{phase="{phase}"}}'])
             for phase in ("wait", "answer")}
    parts["http"] = whole - sum(parts.values())
    return [Row(f"mean of all requests: {name}", seconds * 1e3, "ms", whole * 1e3, "the whole request") for name, seconds in parts.items()]
