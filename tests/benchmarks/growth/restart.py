"""Restart of trainer and server on 10 M and 20 M events, with and without stored facts, and what storing facts stops.

`python -m tests.benchmarks.growth.restart CHILD FOLDER` is one measured process.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import MAX_COMMIT_ROWS, LogWriter
from streamd.events import Progress, Schema
from streamd.graph.restart_point import RestartPoint
from streamd.registry import Registry
from streamd.server.state import ServerState
from streamd.serving.following_graph import ServerGraph
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import load_settings
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.recorder import Recorder
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, pick_size
from tests.builders import batch, learning

SIZES = pick_size((10_000_000, 20_000_000), (20_000, 40_000))
GOAL_EVENTS_PER_SECOND = 100e6 / 30
STORED_NODES = pick_size(1_000_000, 2_000)
SEGMENT_EDGES = pick_size(1_000_000, 5_000)
TICK_SECONDS = 0.001
UNITS = {"ready": "s", "log": "s", "facts": "s", "graph": "s", "CPU": "s", "longest stop": "ms", "peak": "MB"}


def run() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="streamd-growth-") as folder:
        small: dict[str, dict[str, float]] = {}
        for size in SIZES:
            path = Path(folder) / str(size)
            write(path, size, {})
            for what in ("unstored", "trainer", "server"):
                got = child(what, path)
                first = small.get(what)
                small.setdefault(what, got)
                name = f"{what}, {size / 1e6:.0f} M events"
                rows += [Row(f"{name}: {key}", got[key], unit, *((first[key], "half the events") if first else ()))
                         for key, unit in UNITS.items() if key in got]
                if what == "trainer":
                    rows.append(Row(f"{name}: graph", size / got["graph"], "events/s", GOAL_EVENTS_PER_SECOND, "100 M in 30 s"))
            rows.append(Row(f"facts stored, {size / 1e6:.0f} M events", sum(f.stat().st_size for f in path.glob("roles/*/facts/*")) / 1e6, "MB"))

        # Many nodes, most of them known since long.
        path = Path(folder) / "nodes"
        write(path, pick_size(3_000_000, 10_000), {"n_src": STORED_NODES * 9 // 10, "n_dst": STORED_NODES // 10})
        got = child("storing", path)
        rows += [Row(f"facts of {STORED_NODES / 1e6:.0f} M nodes: {what}", got[what], unit, goal, "goal" if goal else "")
                 for what, unit, goal in (("longest stop while stored", "ms", 10.0), ("longest stop beside", "ms", None), ("stored in", "s", None), ("peak", "MB", None))]
    return rows


def write(path: Path, num_events: int, over: dict) -> None:
    """A log of Netflix's shape."""
    g = synth.make("netflix", num_events / synth.PRESETS["netflix"]["n_edges"], **over)
    writer = LogWriter(path, Schema(), SEGMENT_EDGES)
    keys = [f"n:{i}" for i in range(g["num_nodes"])]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    src, dst, when = g["src"], g["dst"], (g["t"] * 1e6).astype(np.int64)
    at = 0
    while at < num_events:
        end = min(at + min(MAX_COMMIT_ROWS, writer.remaining_rows()), num_events)
        writer.commit(batch(Schema(), src[at:end], dst[at:end], when[at:end], keys if at == 0 else ()), Progress(), int(when[end - 1]))
        at = end
    writer.close()


def child(what: str, path: Path) -> dict[str, float]:
    out = subprocess.run([sys.executable, "-m", "tests.benchmarks.growth.restart", what, str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def settings_of(path: Path):
    return load_settings(None, {"data_dir": path}, environ={})[0]


def used() -> dict[str, float]:
    """What this process has taken so far. The kernel's ru_maxrss would count what the parent held when it forked."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    peak, = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"peak": int(peak) / 1024, "CPU": now.ru_utime + now.ru_stime}


def trainer(path: Path) -> dict[str, float]:
    """The trainer's way from its start to its place: log, facts where they are stored, graph."""
    began = time.perf_counter()
    settings = settings_of(path)
    reader = LogReader.open(path)
    recorder = Recorder(learning(settings), reader)
    opened = time.perf_counter()
    point = RestartPoint(path, "train", recorder.live)
    point.resume(reader.num_edges)
    restored = time.perf_counter()
    recorder.rebuild(reader.num_edges)
    end = time.perf_counter()
    assert recorder.edge == recorder.live.graph.next_event == reader.num_edges
    got = {"ready": end - began, "log": opened - began, "facts": restored - opened, "graph": end - restored} | used()
    point.store(recorder.live.facts)
    return got


def unstored(path: Path) -> dict[str, float]:
    """The same where no facts are stored: they are made with the graph. They are stored at the end."""
    got = trainer(path)
    return {key: got[key] for key in ("ready", "CPU", "peak")}


def server(path: Path) -> dict[str, float]:
    """The server's way until it is ready, without a version, from the facts that the trainer stored."""
    (path / "roles" / "serve").mkdir(parents=True, exist_ok=True)
    facts = path / "roles" / "serve" / "facts"
    if not facts.exists():
        facts.symlink_to(path / "roles" / "train" / "facts")
    settings = settings_of(path)
    began = time.perf_counter()
    longest = 0.0

    async def until_ready() -> None:
        nonlocal longest
        engine = ServerState(settings, Registry.of(settings), Heartbeat(path, "serve", "serve")).engine
        running = asyncio.create_task(engine.run())
        while not engine.status.ready:
            before = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.perf_counter() - before)
        engine.stop()
        await running

    asyncio.run(until_ready())
    return {"ready": time.perf_counter() - began, "longest stop": longest * 1e3} | used()


def storing(path: Path) -> dict[str, float]:
    """The server's loop beside the storing of its facts: the longest time between two of its turns."""
    settings = settings_of(path)
    reader = LogReader.open(path)
    view = ServerGraph(ServingSettings.of(settings, "serve"), reader, settings.model)
    while not view.caught_up:
        view.live.step(reader.num_edges, 100_000)

    def longest(busy) -> float:
        most, last, until = 0.0, time.perf_counter(), time.perf_counter() + 1
        while busy() or time.perf_counter() < until:
            time.sleep(TICK_SECONDS)
            now = time.perf_counter()
            most, last = max(most, now - last), now
        return (most - TICK_SECONDS) * 1e3

    beside = longest(lambda: False)
    began = time.perf_counter()
    folder = path / "roles" / "serve" / "facts"

    def storing_now() -> bool:
        view.retention.keep(None)
        return not list(folder.glob("[0-9]*.safetensors"))

    most = longest(storing_now)
    return {"longest stop while stored": most, "longest stop beside": beside, "stored in": time.perf_counter() - began} | used()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
