"""`/v1/recommend` without a list at several numbers of nodes: how long a request takes, for how long it keeps the server's loop from
anything else, and which share of the exact best ten it finds.

Each size runs in a process of its own: `python -m tests.benchmarks.growth.recommend FOLDER NODES answers|quality`.
"""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2 as httpx
import numpy as np

from streamd.eventlog.writer import MAX_COMMIT_ROWS, LogWriter
from streamd.events import Progress, Schema
from streamd.registry import Registry
from streamd.server.app import create_app
from streamd.server.state import ServerState
from streamd.settings.loading import Settings
from streamd.telemetry.heartbeat import Heartbeat
from tests.benchmarks.growth.nodes import HOUR, ingest_from
from tests.benchmarks.measure import Row, pick_size
from tests.benchmarks.server_memory import publish
from tests.builders import batch, settings

SIZES = pick_size((50_000, 500_000, 5_000_000), (2_000, 4_000))
QUALITY_SIZES = pick_size((5_000, 100_000), (1_500,))
REQUESTS = pick_size(300, 5)
QUALITY_REQUESTS = pick_size(50, 5)
LATE_EVENTS = pick_size(200_000, 2_000)
"""Events after the first of each node, of which few nodes have most."""
TASTES = 50
PROMISE = 5.0
"""Milliseconds, of a request's median and of the longest stop."""


def run() -> list[Row]:
    rows = []
    for size in SIZES:
        found = in_child(size, "answers")
        rows += [Row(f"/v1/recommend at {size:,} nodes, {what}", found[what], "ms", PROMISE, "goal") for what in found]
    for size in QUALITY_SIZES:
        rows += [Row(f"share of the exact best ten found at {size:,} nodes, {what}", share, "of 1") for what, share in in_child(size, "quality").items()]
    return rows


def in_child(size: int, what: str) -> dict[str, float]:
    """The figures at a number of nodes, measured in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.growth.recommend", folder, str(size), what]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return json.loads(done.stdout.splitlines()[-1])


def write(folder: Path, nodes: int) -> tuple[int, int]:
    """A log of users and items: each item has one event, then users go to items of their tastes, to popular ones more often. Returns: the
    number of users, and the time of the last event."""
    rng = np.random.default_rng(nodes)
    users = max(100, nodes // 10)
    items = nodes - users
    src = rng.integers(0, users, items + LATE_EVENTS)
    rank = (items // TASTES * rng.random(LATE_EVENTS) ** 4).astype(np.int64)
    late = (rank * TASTES + src[items:] % TASTES) % items
    dst = users + np.concatenate([np.arange(items), late])
    order = rng.permutation(len(src))
    src, dst = src[order], dst[order]
    when = np.sort(rng.integers(0, 24 * HOUR, len(src)))
    writer = LogWriter(folder, Schema(), 1 << 20)
    keys = [*(f"user:{i}" for i in range(users)), *(f"item:{i}" for i in range(items))]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    at = 0
    while at < len(src):
        end = min(at + min(MAX_COMMIT_ROWS, writer.remaining_rows()), len(src))
        writer.commit(batch(Schema(), src[at:end], dst[at:end], when[at:end], keys if at == 0 else ()), Progress(), int(when[end - 1]))
        at = end
    writer.close()
    return users, int(when[-1])


def answers(folder: Path, nodes: int) -> dict[str, float]:
    """Medians and longest stops, milliseconds: of the log as it is, then while events come."""
    users, last_us = write(folder, nodes)
    chosen = settings(folder, model__name="tgn", model__dim=64, model__max_pairs=2_000_000)
    publish(chosen, at_end=True)
    spawn = multiprocessing.get_context("spawn")
    commits, theirs = spawn.Pipe()
    ingest = spawn.Process(target=ingest_from, args=(folder, theirs))
    ingest.start()
    rng = np.random.default_rng(1)

    async def drive(client: httpx.AsyncClient) -> dict[str, float]:
        alone = await timed(client, rng, users)

        # Ten commits a second beside the requests.
        async def commit() -> None:
            at = last_us
            while True:
                src, dst = rng.integers(0, users, 100), rng.integers(users, nodes, 100)
                at += 10**5
                commits.send((src, dst, np.full(100, at)))
                await asyncio.to_thread(commits.recv)
                await asyncio.sleep(0.1)

        committing = asyncio.create_task(commit())
        beside = await timed(client, rng, users)
        committing.cancel()
        return alone | {f"{what} while events come": ms for what, ms in beside.items()}

    found = asyncio.run(served(chosen, drive))
    commits.close()
    ingest.terminate()
    ingest.join()
    return found


async def timed(client: httpx.AsyncClient, rng: np.random.Generator, users: int) -> dict[str, float]:
    """The median of requests one after the other, the processor time of one, and the longest time for which nothing else was done
    meanwhile: milliseconds."""
    stops, seconds = [0.0], []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.0005)
            stops.append(time.perf_counter() - begun)

    watching = asyncio.create_task(watch())
    worked = time.process_time()
    for _ in range(REQUESTS):
        begun = time.perf_counter()
        await asked(client, f"user:{rng.integers(users)}")
        seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(0.005)
    watching.cancel()
    return {"p50": 1e3 * float(np.median(seconds)), "processor time": 1e3 * (time.process_time() - worked) / REQUESTS,
            "longest stop of the loop": 1e3 * max(stops)}


async def asked(client: httpx.AsyncClient, src: str, **more) -> list[str]:
    answer = await client.post("/v1/recommend", json={"src": src, **more})
    assert answer.status_code == 200, answer.text
    found = [one["dst"] for one in answer.json()["scores"]]
    assert len(found) == 10
    return found


async def served(chosen: Settings, drive) -> dict[str, float]:
    """Runs a server in this loop, and beside it what asks it."""
    state = ServerState(chosen, Registry.of(chosen), Heartbeat(chosen.data_dir, "serve"))
    running = asyncio.create_task(state.engine.run())
    async with asyncio.timeout(600):
        while not (state.engine.status.ready and state.engine.status.version != "rule"):
            assert not running.done()
            await asyncio.sleep(0.05)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://localhost", timeout=100) as client:
        for i in range(20):
            await asked(client, f"user:{i}")
        found = await drive(client)
    state.engine.stop()
    await running
    return found


def quality(folder: Path, nodes: int) -> dict[str, float]:
    """The share of the exact best ten that is found, for users with events, and for some who are new."""
    from tests.server.world import World

    users, _ = write(folder, nodes)
    chosen = settings(folder, model__name="tgn", model__dim=64, model__max_pairs=2_000_000, bootstrap__max_events=0,
                      server__deadline_seconds=100)
    registry = Registry.of(chosen)
    while not registry.names():
        World.of(folder, chosen).train(2)
    registry.promote(registry.names()[-1], "benchmark", "so young a version is below the rule")
    rng = np.random.default_rng(2)

    async def drive(client: httpx.AsyncClient) -> dict[str, float]:
        found = {}
        for what, names in (("users with events", [f"user:{i}" for i in rng.integers(0, users, QUALITY_REQUESTS)]),
                            ("new users", [f"new:{i}" for i in range(3)])):
            shares = []
            for name in names:
                best = await asked(client, name, exact=True)
                shares.append(len({*best} & {*await asked(client, name)}) / 10)
            found[what] = float(np.mean(shares))
        return found

    return asyncio.run(served(chosen, drive))


if __name__ == "__main__":
    path, size, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    print(json.dumps({"answers": answers, "quality": quality}[what](path, size)))
