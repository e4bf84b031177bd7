"""What a trainer's checkpoint in the store costs a window: bytes and seconds."""

import itertools
import json
import shutil
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.models import Memory
from streamd.models.memory.files import MemoryFiles
from streamd.registry import Registry
from streamd.registry.manifest import MEMORY
from streamd.settings.paths import Paths
from streamd.storage import write_folder_durably
from streamd.store.checkpoints import download_checkpoint, upload_checkpoint
from streamd.store.file_index import FileIndex
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.handover import Handovers
from streamd.training.trainer import Trainer
from tests.benchmarks.measure import Row, pick_size
from tests.builders import HOUR, settings, stream, write_log
from tests.replica.models_world import MemoryLog, MemoryTopic, beginning_of

EVENTS, HOURS = pick_size(3_000, 500), 6
NODES, DIM, TOUCHED, WINDOWS = pick_size((1_000_000, 100, 5_000, 66), (100_000, 4, 500, 6))


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return small(Path(folder)) + large(Path(folder))


def small(folder: Path) -> list[Row]:
    """A trainer with the default model on 500 events a window: all of it, and beside what a window takes."""
    write_log(folder / "log", *stream(EVENTS, 2_000, 1_000, hours=HOURS), watermark=100 * HOUR)
    s = settings(folder / "log", training__replay_capacity_events=100_000, windows__max_events=100_000,
                 log__name="t", log__store=f"file://{folder}/store")
    log, beat, starts = MemoryLog(), Heartbeat(folder / "log", "train"), []
    session = beginning_of(s, lambda: MemoryTopic(log), beat).begin()
    sent, seconds, learned = [], [], []

    def on_step(name: str) -> None:
        if name != "rest":
            return
        if starts:
            learned.append(time.perf_counter() - starts[-1])
        before = bytes_of(folder / "store")
        begun = time.perf_counter()
        session.on_step(name)
        while session._term.handovers.is_waiting:
            time.sleep(0.001)
        seconds.append(time.perf_counter() - begun)
        sent.append(bytes_of(folder / "store") - before)
        starts.append(time.perf_counter())

    class Idle(threading.Event):
        def wait(self, timeout=None):
            self.set()
            return True

    with closing(session):
        Trainer(s, Paths(folder / "log", s.data_dir, "train"), "cpu", LogReader.open(folder / "log"), Registry.of(s), SystemClock(), beat, on_step).run(Idle())
    steady = slice(3, HOURS)
    return [Row("a window's checkpoint and version to the store, 500 events, MB", float(np.median(sent[steady])) / 1e6, "MB"),
            Row("the same, seconds in a thread beside learning", float(np.median(seconds[steady])), "s",
                float(np.median(learned[steady])), "learning the window")]


def bytes_of(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def large(folder: Path) -> list[Row]:
    """A memory of 1,000,000 nodes of width 100, of which each window touches 5,000."""
    home = folder / "large"
    (home / "models").mkdir(parents=True)
    (home / "train/checkpoints").mkdir(parents=True)
    rng = np.random.default_rng(0)
    memory, files = Memory(DIM, 1), MemoryFiles(home / "train/memory/checkpoints")
    for at in range(0, NODES, 50_000):
        touch(memory, np.arange(at, at + 50_000), rng)
    handovers, store, index, earlier = Handovers(home), Store(f"file://{folder}/large-store"), FileIndex(folder / "index"), None
    sent, seconds = [], []
    for window in range(WINDOWS):
        touch(memory, rng.choice(NODES, TOUCHED, replace=False), rng)
        named = {MEMORY.format(i): file for i, file in enumerate(files.store(memory))}
        cursor = json.dumps({"edge": window, "history_bytes": 0}).encode()
        for old in (home / "train/checkpoints").iterdir():
            shutil.rmtree(old)
        write_folder_durably(home / "train/checkpoints" / f"{window:020d}.000000", {"cursor.json": cursor, **named})
        files.sweep()
        begun = time.perf_counter()
        handovers.take()
        done = upload_checkpoint(handovers.begin().local, 2, [], store, earlier, index)
        handovers.end()
        seconds.append(time.perf_counter() - begun)
        sent.append(done.num_bytes + len(done.data))
        earlier = done.stored
    begun = time.perf_counter()
    download_checkpoint(store, earlier, folder / "taken")
    fetched = time.perf_counter() - begun
    whole = sum(file.size for file in earlier.files)
    full = [size for size in sent if size > whole / 2]
    steady = [size for size in sent if size <= whole / 2]
    gaps = [b - a for a, b in itertools.pairwise(i for i, size in enumerate(sent) if size > whole / 2)]
    return [Row("memory of 1,000,000 nodes x 100, 5,000 touched: a window, median MB", float(np.median(steady)) / 1e6, "MB", whole / 1e6, "all"),
            Row("the same, mean over 66 windows without the first, MB", sum(sent[1:]) / len(sent[1:]) / 1e6, "MB", whole / 1e6, "all"),
            Row(f"the same, most bytes of a window, once in {min(gaps, default=0)} windows, MB", max(full) / 1e6, "MB"),
            Row("the same, a window's median seconds", float(np.median([t for t, size in zip(seconds, sent, strict=True) if size in steady])), "s",
                max(seconds), "the slowest"),
            Row("taking it from the store, seconds", fetched, "s")]


def touch(memory: Memory, nodes: np.ndarray, rng: np.random.Generator) -> None:
    memory.rows.write(np.sort(nodes), rng.standard_normal((len(nodes), DIM), np.float32), np.arange(len(nodes)))
