"""What a round of the archive costs, by what changed since the last one, and how long a restore takes."""

import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.store.archive import Archive
from streamd.store.objects import Store
from streamd.store.restore import choose, restore
from streamd.telemetry.heartbeat import Heartbeat
from tests.benchmarks.measure import Row, pick_size
from tests.builders import ManualClock, batch, stream

SEGMENTS, EDGES, DIM = pick_size(300, 5), pick_size(10_000, 1_000), 16
"""A log of 0.25 GB in many segments: rounds cost by files, not only by bytes."""
VERSION_BYTES = pick_size(100_000_000, 100_000)
SETTLED_SECONDS = 2.1
"""From this age on the index trusts a file's time of change."""


def run() -> list[Row]:
    rng = np.random.default_rng(0)
    src, dst, _ = stream(EDGES, 1000, 1000)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        data_dir = folder / "log"
        log = LogWriter(data_dir, Schema(DIM, 0, 0), EDGES)
        store = Store(f"file://{folder}/store")
        clock = ManualClock()
        archive = Archive(data_dir, store, None, manifest_seconds=600, clock=clock, beat=Heartbeat(data_dir, "archive"))

        def segment(number: int) -> None:
            times = np.arange(EDGES) * 1_000_000 + (number * EDGES) * 1_000_000
            keys = [f"n:{i}" for i in range(2000)] if number == 0 else []
            log.commit(batch(log.schema, src, dst, times, keys, number), Progress(), int(times[-1]))

        def version(number: int) -> None:
            (data_dir / "models" / f"{number}-1").mkdir(parents=True)
            (data_dir / "models" / f"{number}-1" / "model.safetensors").write_bytes(rng.bytes(VERSION_BYTES))

        def round_seconds() -> float:
            clock.advance(600)
            begun = time.perf_counter()
            archive.step()
            assert not archive.error, archive.error
            return time.perf_counter() - begun

        for number in range(SEGMENTS):
            segment(number)
        version(1)
        size = sum(p.stat().st_size for p in data_dir.rglob("*") if p.is_file()) / 1e9
        time.sleep(SETTLED_SECONDS)
        first = round_seconds()
        nothing = min(round_seconds() for _ in range(3))
        segment(SEGMENTS)
        one_segment = round_seconds()
        version(2)
        one_version = round_seconds()

        begun = time.perf_counter()
        restore(store, choose(store), folder / "back")
        restored = time.perf_counter() - begun
        log.close()
    of_all = f"first round, {size:.2f} GB"
    return [
        Row(f"archive round of {SEGMENTS} segments, nothing new", nothing * 1e3, "ms", first * 1e3, of_all),
        Row("archive round, one new segment of 0.9 MB", one_segment * 1e3, "ms", first * 1e3, of_all),
        Row("archive round, one new version of 100 MB", one_version * 1e3, "ms", first * 1e3, of_all),
        Row("first round, seconds a gigabyte", first / size, "s/GB"),
        Row("restore from file://, every checksum checked", restored / (size + 0.1), "s/GB"),
    ]
