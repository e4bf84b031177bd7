"""What nodes cost: a trainer's and a server's memory for each million, a window at three sizes, a version on disk, and the longest
time in which a server answers nobody while memory moves.

Each size runs in a process of its own: `python -m tests.benchmarks.growth.nodes FOLDER NODES`.
"""

import asyncio
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.measure import Row, pick_size, write_edges

SIZES = pick_size((20_000, 500_000, 5_000_000), (1_000, 2_000))
WINDOW_EVENTS = pick_size(2_000, 100)
WINDOWS = pick_size(9, 5)
"""Windows after the one in which all nodes appear."""
TAKEN_IN = pick_size(5_000, 200)
"""Events that the server takes in while nobody asks."""
MADE = 3
"""Windows that are not measured: the first, and those in which kernels and pools are made."""
HOUR = 3_600_000_000


def run() -> list[Row]:
    """Rows for the sizes, the smallest as the peer of the larger ones."""
    found = {size: in_child(size) for size in SIZES}
    small = found[SIZES[0]]
    rows = [Row(f"processor time of a window of 2,000 events at {size:,} nodes", found[size]["window"], "s", small["window"], f"{SIZES[0]:,} nodes")
            for size in SIZES]
    for size in SIZES[1:]:
        millions = (size - SIZES[0]) / 1e6
        for name, what in (("trainer", "trainer's memory"), ("trainer_peak", "trainer's peak"), ("server", "server's memory"),
                           ("versions", "9 versions on disk")):
            rows.append(Row(f"{what} for a million nodes, from {size:,}", (found[size][name] - small[name]) / millions / 1e6, "MB"))
    rows += [Row(f"longest stop of the server's loop at {size:,} nodes", found[size]["stop"], "ms") for size in SIZES]
    rows += [Row(f"processor time of the server for an event, at {size:,} nodes", found[size]["taken_in"], "µs") for size in SIZES]
    return rows


def in_child(size: int) -> dict[str, float]:
    """The figures at a number of nodes, measured in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out: dict[str, float] = {}
        for what in ("train", "serve"):
            command = [sys.executable, "-m", "tests.benchmarks.growth.nodes", folder, str(size), what]
            out |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout.splitlines()[-1])
        return out


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak() -> int:
    """Most bytes of this process that were in memory since `reset_peak`."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def make_log(folder: Path, nodes: int, windows: int) -> None:
    """A log in whose first hour each node takes part, and then windows of events between any of them."""
    rng = np.random.default_rng(nodes)
    half = nodes // 2
    src = [np.arange(half)]
    dst = [np.arange(half, nodes)]
    when = [np.linspace(0, HOUR - 1, half).astype(np.int64)]
    for window in range(1, windows + 1):
        src.append(rng.integers(0, half, WINDOW_EVENTS))
        dst.append(rng.integers(half, nodes, WINDOW_EVENTS))
        when.append(window * HOUR + np.sort(rng.integers(0, HOUR, WINDOW_EVENTS)))
    columns = [np.concatenate(c) for c in (src, dst, when)]
    write_edges(folder, [f"n:{i}" for i in range(nodes)], *columns, np.zeros((len(columns[0]), 0), np.float32), (windows + 1) * HOUR)


def train(folder: Path, nodes: int) -> dict[str, float]:
    """Learns windows after the first. Returns: the median's seconds of processor time, and bytes."""
    from streamd.clock import SystemClock
    from streamd.eventlog.reader import LogReader
    from streamd.registry import Registry
    from streamd.settings.paths import Paths
    from streamd.telemetry.heartbeat import Heartbeat
    from streamd.training.trainer import Trainer
    from streamd.windows import next_window
    from tests.builders import settings

    make_log(folder, nodes, WINDOWS)
    chosen = settings(folder, model__name="tgn", model__dim=64, windows__max_events=WINDOW_EVENTS, windows__merge_after=0)
    log = LogReader.open(folder, keep_keys=False)
    trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, Registry.of(chosen), SystemClock(), Heartbeat(folder, "train"))
    seconds = []
    for number in range(WINDOWS):
        window = next_window(log, trainer.edge, HOUR)
        begun = time.process_time()
        trainer.process(window)
        seconds.append(time.process_time() - begun)
        if number == MADE:
            reset_peak()
    disk = {(p.stat().st_ino, p.stat().st_size) for p in (folder / "models").rglob("*") if p.is_file()}
    return {"window": sorted(seconds[MADE:])[len(seconds[MADE:]) // 2], "trainer": resident(), "trainer_peak": peak(),
            "versions": sum(size for _, size in disk)}


def serve(folder: Path, nodes: int) -> dict[str, float]:
    """Serves the newest version while events come and queries close chunks. Returns: bytes, and the longest stop."""
    from streamd.registry import Registry
    from streamd.server.state import ServerState
    from streamd.serving.requests import Score
    from streamd.telemetry.heartbeat import Heartbeat
    from tests.builders import settings

    chosen = settings(folder, model__name="tgn", model__dim=64, windows__max_events=WINDOW_EVENTS)
    engine = ServerState(chosen, Registry.of(chosen), Heartbeat(folder, "serve")).engine
    spawn = multiprocessing.get_context("spawn")
    commits, theirs = spawn.Pipe()
    ingest = spawn.Process(target=ingest_from, args=(folder, theirs))
    ingest.start()
    rng = np.random.default_rng(1)
    stops: list[float] = []
    held = 0
    taken_in = 0.0

    async def watch() -> None:
        """Notes how late it is waked up: for so long nobody was answered."""
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            stops.append(time.perf_counter() - begun)

    async def drive() -> None:
        nonlocal held, taken_in
        running = asyncio.create_task(engine.run())
        while not engine.status.ready:
            await asyncio.sleep(0.05)
        held = resident()
        watching = asyncio.create_task(watch())
        at = (WINDOWS + 2) * HOUR
        for _ in range(pick_size(100, 5)):
            # A commit with nodes that nobody has seen, then a query whose time closes the chunk.
            src, dst = rng.integers(0, nodes, (2, 40))
            times = at + np.sort(rng.integers(0, 10**6, 40))
            commits.send((src, dst, times))
            await asyncio.to_thread(commits.recv)
            at += 2 * 10**6
            await engine.ask(Score("n:1", tuple(f"n:{i}" for i in rng.integers(0, nodes, 20)), at + HOUR))
            await asyncio.sleep(0.02)
        watching.cancel()

        # What events cost that nobody asks about, ten commits a second.
        begun, first = time.process_time(), engine.status.edge
        for _ in range(TAKEN_IN // 100):
            src, dst = rng.integers(0, nodes, (2, 100))
            at += 10**6
            commits.send((src, dst, at + np.sort(rng.integers(0, 10**6, 100))))
            await asyncio.to_thread(commits.recv)
            await asyncio.sleep(0.1)
        while engine.status.edge < first + TAKEN_IN:
            await asyncio.sleep(0.01)
        taken_in = (time.process_time() - begun) / TAKEN_IN
        engine.stop()
        await running

    asyncio.run(drive())
    commits.send(None)
    ingest.join()
    return {"server": held, "stop": 1e3 * max(stops), "taken_in": 1e6 * taken_in}


def ingest_from(folder: Path, asked: multiprocessing.connection.Connection) -> None:
    """Commits what it is sent, as ingest does: in a process of its own, so that it stops nobody's loop."""
    from streamd.eventlog.writer import LogWriter
    from streamd.events import Progress, Schema
    from tests.builders import batch

    with contextlib.closing(LogWriter(folder, Schema(), 1 << 20)) as writer:
        while (columns := asked.recv()) is not None:
            writer.commit(batch(Schema(), *columns), Progress(), int(columns[2][-1]))
            asked.send(writer.num_edges)


if __name__ == "__main__":
    path, size, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    print(json.dumps({"train": train, "serve": serve}[what](path, size)))
