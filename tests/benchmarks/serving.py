"""/v1/score beside a bare FastAPI route in the same run: alone, and while ingest and trainer run on the same cores; and how
soon an event is seen in answers. Events come from the demo's month, moved so that the backlog ends now, and what comes live bears the
time at which it is produced. Windows are days, so that the trainer is never idle while it catches up."""

import http.client
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
from kafka import KafkaProducer

from streamd.demo.broker import find_broker, free_port
from streamd.demo.standin import PARTITIONS
from streamd.ingest.kafka.client import make_producer
from streamd.settings.loading import Settings, load_settings
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size, wikipedia_events

SECONDS, RATE, LINKS, OPEN_LINKS, PROBES, EVENTS_A_SECOND = pick_size(10.0, 0.5), pick_size(200, 20), 4, 16, pick_size(60, 3), pick_size(500, 50)
WINDOWS = pick_size(3, 1)
BEHIND = pick_size(60_000, 15_000)
"""Windows learned, and events that are there, before the rest comes: the trainer has to catch up all the while."""
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
    with _roles_with_backlog(PARTITIONS) as (s, roles, producer):
        with _events_coming(s):
            busy = {n: _open_loop(s.server.port, n, RATE) for n in CANDIDATES}
            seen = _freshness(s.server.port, producer)
        return _rows_without_others(s, roles, busy) + _freshness_rows(seen, f"{PARTITIONS} partitions") + _shares(s.server.port)


def freshness_of_one_partition() -> list[Row]:
    """How soon an event is seen where its topic has one partition, so that it waits for no other."""
    with _roles_with_backlog(1) as (s, _, producer), _events_coming(s):
        return _freshness_rows(_freshness(s.server.port, producer), "one partition")


@contextmanager
def _roles_with_backlog(partitions: int) -> Iterator[tuple[Settings, Children, KafkaProducer]]:
    """All roles while they learn a backlog. The producer is of their topic."""
    with tempfile.TemporaryDirectory() as folder, closing(find_broker(None, Path(folder) / "kafka")) as broker, Children() as roles:
        broker.create_topic("events", partitions)
        s, _ = load_settings(None, {
            "data_dir": Path(folder) / "data", "kafka.bootstrap_servers": broker.bootstrap_servers, "stream.time_unit": "s",
            "server.port": free_port(), "telemetry.ingest_port": 0, "telemetry.train_port": 0, "bootstrap.max_events": 0,
            "windows.merge_after": 0, "windows.width_seconds": 86_400}, {})
        for role in ("ingest", "serve", "train"):
            roles.role(s, role)
        with closing(make_producer(s.kafka, linger_ms=5)) as producer:
            for event in islice(_ending_now(BEHIND), BEHIND):
                producer.send("events", json.dumps(event).encode())
            wait_for_status(s.server.port, lambda status: status["ready"] and status["num_windows"] >= WINDOWS)
            yield s, roles, producer


@contextmanager
def _events_coming(s: Settings) -> Iterator[None]:
    """Events come all the time."""
    feeding = multiprocessing.get_context("spawn").Process(target=_feed, args=(s,))
    feeding.start()
    try:
        yield
    finally:
        feeding.terminate()
        feeding.join()


def _rows_without_others(s: Settings, roles: Children, busy: dict[int, list[float]]) -> list[Row]:
    """Rates and times of the server with nothing beside it, and of the bare route."""
    rows, bare_port = [], free_port()
    for role in ("train", "ingest"):
        roles.end(role)
    roles.start("bare", [sys.executable, "-c", BARE, str(bare_port)])
    wait_until(lambda: _get(bare_port, "/openapi.json"), "the bare route does not answer")
    for n in CANDIDATES:
        alone, closed, peer = _open_loop(s.server.port, n, RATE), _closed_loop(s.server.port, n), _closed_loop(bare_port, n)
        rows += [Row(f"/v1/score, {n} candidates, {LINKS} clients at once", closed[0], "requests/s", peer[0], "a bare FastAPI route"),
                 Row(f"/v1/score, {n} candidates, {LINKS} clients at once: p99", closed[1], "ms", peer[1], "a bare FastAPI route")]
        rows += [Row(f"/v1/score, {n} candidates, {RATE}/s, {name}: p{q}", float(np.percentile(ms, q)), "ms", 15.0 if q == 99 else None,
                     "promise") for name, ms in (("alone", alone), ("while ingesting and training", busy[n])) for q in (50, 99)]
    return rows


def _freshness_rows(milliseconds: list[float], topic: str) -> list[Row]:
    return [Row(f"event produced to seen in answers, while all this runs, {topic}: p{q}", float(np.percentile(milliseconds, q)), "ms", promise,
                "promise") for q, promise in ((50, 20.0), (99, 30.0))]


def _ending_now(count: int) -> Iterator[dict]:
    """The first events of the month, their times moved so that the last of them happens now."""
    moved = int(time.time()) - list(islice(wikipedia_events(), count))[-1]["time"]
    return (event | {"time": event["time"] + moved} for event in wikipedia_events())


def wait_for_status(port: int, condition: Callable[[dict], bool]) -> None:
    wait_until(lambda: condition(_get(port, "/status.json")), "the server has no version")


def wait_until(holds: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with suppress(OSError):
            if holds():
                return
        time.sleep(0.2)
    raise TimeoutError(otherwise)


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
