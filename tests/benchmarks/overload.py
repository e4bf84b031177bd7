"""A server that was stopped for a while under load, and one that is asked for more than it can answer: how soon it answers in time again, how
much of what it can answer it still answers, and how long its health check takes. A process of its own commits events to the log."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

from streamd.clock import SystemClock
from streamd.demo.broker import free_port
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.registry import Registry
from streamd.settings.loading import Settings, load_settings
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size, write_edges
from tests.builders import HOUR, batch, stream

USERS, ITEMS, HISTORY = 8_000, 1_000, pick_size(40_000, 3_000)
EVENTS_A_SECOND, COMMITS_A_SECOND = 2_000, 20
ASKED_A_SECOND, CANDIDATES, LINKS = 20, 100, 200
STOP_SECONDS = float(os.environ.get("STALL_SECONDS", pick_size(40, 1)))
RECOVER_SECONDS, LEVEL_SECONDS = pick_size((15.0, 10.0), (2.0, 2.0))
TIMES_TOO_MUCH = 3
WAIT_SECONDS = 10.0
DIM = 2


class Asked(NamedTuple):
    """One request. due: seconds since the load began. took: from then to its answer, seconds. status: 0 where the connection failed."""

    due: float
    took: float
    status: int


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        s, _ = load_settings(None, {"data_dir": Path(folder), "stream.time_unit": "us", "stream.edge_feature_dim": DIM, "server.port": free_port(),
                                    "bootstrap.max_events": 0}, {})
        _learn_two_windows(s)
        with _served(s) as server, _written(s):
            return _after_a_stop(s, server) + _too_much(s)


def _learn_two_windows(s: Settings) -> None:
    src, dst, at = stream(HISTORY, USERS, ITEMS, hours=3)
    at = at + int(time.time() * 1e6) // HOUR * HOUR - 3 * HOUR
    keys = [f"n:{i}" for i in range(USERS + ITEMS)]
    write_edges(s.data_dir, keys, src, dst, at, np.ones((len(src), DIM), np.float32), int(at[-1]))
    log = LogReader.open(s.data_dir, keep_keys=False)
    trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(s.data_dir, "train"))
    while (window := next_window(log, trainer.edge, HOUR)) is not None:
        trainer.process(window)


@contextmanager
def _served(s: Settings):
    with Children() as roles:
        server = roles.role(s, "serve")
        deadline = time.monotonic() + 120
        while uvloop.run(_load(s.server.port, 5, 0.4))[-1].status != 200:
            assert time.monotonic() < deadline, "the server does not answer"
        yield server


@contextmanager
def _written(s: Settings):
    """Events go into the log as they happen, by a process of its own: in the client's it would hold up its clock."""
    writing = multiprocessing.get_context("spawn").Process(target=_write, args=(s.data_dir,))
    writing.start()
    try:
        yield
    finally:
        writing.terminate()
        writing.join()


def _write(data_dir: Path) -> None:
    reader = LogReader.open(data_dir)
    log = LogWriter(data_dir, reader.state.schema, 1_000_000)
    size = EVENTS_A_SECOND // COMMITS_A_SECOND
    src, dst, _ = stream(2_000_000, USERS, ITEMS, seed=1)
    begun = time.monotonic()
    for number, at in enumerate(range(0, len(src), size)):
        time.sleep(max(0.0, begun + number / COMMITS_A_SECOND - time.monotonic()))
        now = int(time.time() * 1e6) + np.arange(size)
        rows = batch(reader.state.schema, src[at : at + size], dst[at : at + size], now)
        log.commit(replace(rows, msg_ED=np.ones((size, DIM), np.float32)), Progress(), int(now[-1]))


def _after_a_stop(s: Settings, server: subprocess.Popen) -> list[Row]:
    before = uvloop.run(_load(s.server.port, ASKED_A_SECOND, 10.0))

    async def stopped() -> tuple[list[Asked], list[tuple[float, int]]]:
        load = asyncio.create_task(_load(s.server.port, ASKED_A_SECOND, STOP_SECONDS + RECOVER_SECONDS + LEVEL_SECONDS))
        server.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOP_SECONDS)
        server.send_signal(signal.SIGCONT)
        begun, lags = time.monotonic(), []
        while not load.done():
            with suppress(OSError, asyncio.TimeoutError, ValueError, KeyError):
                lags.append((time.monotonic() - begun, await asyncio.wait_for(_memory_lag(s.server.port), 5)))
            await asyncio.sleep(0.25)
        return await load, lags

    asked, lags = uvloop.run(stopped())
    after = [a for a in asked if a.due >= STOP_SECONDS + RECOVER_SECONDS]
    # The first look may be answered before the server takes in anything.
    behind = [at for at, lag in lags if lag >= 1_000]
    level = next((at for at, _ in lags if at > max(behind, default=0.5)), float("inf"))
    for second in range(int(RECOVER_SECONDS + LEVEL_SECONDS)):
        part = [a for a in asked if second <= a.due - STOP_SECONDS < second + 1]
        lag = [x for at, x in lags if second <= at < second + 1]
        print(f"  {second:3} s after: {sum(a.status == 200 for a in part)} of {len(part)} answered, p50 {_ms(part, 50):.0f} ms, lag {lag[-1:] or ''}")
    return [Row(f"{ASKED_A_SECOND} requests/s, {EVENTS_A_SECOND} events/s: p{q}", _ms(before, q), "ms") for q in (50, 99)] + [
        Row(f"the same {RECOVER_SECONDS:.0f} s after a stop of {STOP_SECONDS:.0f} s: p99", _ms(after, 99), "ms", 100.0, "promise"),
        Row("share of them that were answered", sum(a.status == 200 for a in after) / len(after), "", 1.0, "all"),
        Row("memory level with the log again after", level, "s", RECOVER_SECONDS, "promise")]


def _too_much(s: Settings) -> list[Row]:
    """Goodput: answers within 1 s. The best is looked for by asking for more and more."""
    best, rate = 0.0, 50
    while True:
        asked = uvloop.run(_load(s.server.port, rate, 4.0))
        good = sum(a.status == 200 and a.took < 1 for a in asked) / 4.0
        print(f"  asked {rate}/s: {good:.0f}/s good, p99 {_ms(asked, 99):.0f} ms, refused {sum(a.status == 429 for a in asked)}")
        if good < 0.8 * rate or rate > 2_000:
            break
        best, rate = max(best, good), int(rate * 1.5)
    best = max(best, good)
    assert best, "nothing is answered"
    seconds = 20.0

    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as probe:
        probing = probe.submit(_probed, s.server.port, seconds + 3)  # a process starts for a second or two
        asked = uvloop.run(_load(s.server.port, int(TIMES_TOO_MUCH * best), seconds))
        alive = probing.result()
    good = sum(a.status == 200 and a.took < 1 for a in asked) / seconds
    counts = {status: sum(a.status == status for a in asked) for status in {a.status for a in asked}}
    print(f"  /livez p50 {np.median(alive) * 1e3:.0f} ms")
    print(f"  {len(asked) / seconds:.0f}/s asked: {counts}, p99 of answers {_ms([a for a in asked if a.status == 200], 99):.0f} ms")
    return [Row(f"answered within 1 s, of {TIMES_TOO_MUCH} x as many as can be", good, "requests/s", best, "best"),
            Row("/livez meanwhile: p99", float(np.percentile(alive, 99)) * 1e3, "ms", 100.0, "promise"),
            Row("/livez meanwhile: longest", max(alive) * 1e3, "ms", 100.0, "promise"),
            Row("refused otherwise than by 429", float(sum(n for status, n in counts.items() if status not in (200, 429))), "requests")]


def _probed(port: int, seconds: float) -> list[float]:
    """Times of health checks, ten a second, in seconds. In a process of its own, like a kubelet: the client of the load has no time."""
    async def probe() -> list[float]:
        took, ends = [], time.monotonic() + seconds
        while (begun := time.monotonic()) < ends:
            await asyncio.wait_for(_get(port, "/livez"), 30)
            took.append(time.monotonic() - begun)
            await asyncio.sleep(0.1)
        return took

    return asyncio.run(probe())


def _ms(asked: list[Asked], q: float) -> float:
    return float(np.percentile([a.took for a in asked], q)) * 1e3 if asked else float("nan")


class _Link(asyncio.Protocol):
    """One connection of the load. It calls back with the status of each answer, 0 once it is closed: streams and tasks would take more time
    than the server has left on two cores."""

    def __init__(self, answered) -> None:
        self.answered = answered
        self.said = b""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.said += data
        head, end, body = self.said.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self.said = b""
            self.answered(self, int(head[9:12]))

    def connection_lost(self, error) -> None:
        self.answered(self, 0)


async def _load(port: int, rate: float, seconds: float) -> list[Asked]:
    """Ask at a fixed rate over at most LINKS connections, and wait 10 s for each answer."""
    rng = np.random.default_rng(0)
    bodies = [_post({"src": f"n:{rng.integers(USERS)}", "dst": [f"n:{d}" for d in USERS + rng.integers(0, ITEMS, CANDIDATES)]}) for _ in range(200)]
    asked, waiting, under_way, idle, links = [], deque(), {}, [], set()

    def answered(link: _Link, status: int) -> None:
        if link in under_way:
            due = under_way.pop(link)
            asked.append(Asked(due, time.monotonic() - begun - due, status))
        if status:
            idle.append(link)
        else:
            links.discard(link)
        send()

    def send() -> None:
        while waiting and time.monotonic() - begun - waiting[0] > WAIT_SECONDS:
            asked.append(Asked(waiting.popleft(), WAIT_SECONDS, 0))
        while waiting and idle:
            link = idle.pop()
            if not link.transport.is_closing():
                under_way[link] = waiting.popleft()
                link.transport.write(bodies[len(asked) % len(bodies)])
        if waiting and len(links) < LINKS:
            links.add(link := _Link(answered))
            opening.create_task(connect(link))

    async def connect(link: _Link) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, "127.0.0.1", port)
            idle.append(link)
        except OSError:
            links.discard(link)
        send()

    async with asyncio.TaskGroup() as opening:
        begun = time.monotonic()
        for number in range(max(1, int(rate * seconds))):
            if (early := begun + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(early)
            waiting.append(number / rate)
            send()
        while (waiting or under_way) and time.monotonic() - begun < seconds + WAIT_SECONDS:
            await asyncio.sleep(0.05)
        asked += [Asked(due, WAIT_SECONDS, 0) for due in [*waiting, *under_way.values()]]
        waiting.clear()
        under_way.clear()
        for link in idle:
            link.transport.abort()
    return asked


def _post(question: dict) -> bytes:
    body = json.dumps(question).encode()
    return b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def _exchange(link, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    reader, writer = link
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(next(line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")))
    return int(head.split()[1]), await reader.readexactly(length)


async def _get(port: int, path: str) -> bytes:
    link = await asyncio.open_connection("127.0.0.1", port)
    _, content = await _exchange(link, "GET", path)
    link[1].close()
    return content


async def _memory_lag(port: int) -> int:
    content = (await _get(port, "/metrics")).decode()
    return int(float(next(line for line in content.splitlines() if line.startswith("streamd_memory_lag_")).split()[1]))
