"""Very many events of one time inside an hour of others: the trainer's window, the server's memory, ingest's merge."""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import structlog
import torch

from streamd.decode.block import ROW, Block
from streamd.eventlog.reader import LogReader
from streamd.events import EDGE, Schema
from streamd.ingest.loop import MAX_COMMIT_EVENTS
from streamd.ingest.order.merge import Merger
from streamd.models.inference.torch_model import TorchModel
from streamd.serving.loaded_version import LoadedVersion
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.windows import next_window
from tests.benchmarks.growth.journal import in_child, peak_megabytes
from tests.benchmarks.measure import Row, pick_size
from tests.builders import HOUR, learning, settings, write_log

BURSTS = pick_size((3_000, 30_000, 300_000), (100, 300))
OTHERS, BEFORE, NODES = pick_size((2_000, 20_000, 10_000), (100, 500, 200))
FEATURES = 8
MERGED, PARTITIONS, POLLED = pick_size((120_000, 1_200_000), (1_200, 12_000)), 4, pick_size(5_000, 300)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = [in_child(__name__, Path(folder) / str(n), n) for n in BURSTS]
    merged = [1e6 * merge_seconds(n) / n for n in MERGED]
    units = {"recorded and scored": "CPU s", "learned": "CPU s", "most memory more than before": "MB", "longest wait for a slice": "s",
             "server's memory moved over its log": "CPU s"}
    return [Row(f"{burst:,} events of one time, {name}", one[name], unit, found[0][name], f"{BURSTS[0]:,}")
            for burst, one in zip(BURSTS[1:], found[1:], strict=True) for name, unit in units.items()] + [
        Row(f"{MERGED[1]:,} events of one time in four partitions, merged", merged[1], "us an event", merged[0], f"{MERGED[0]:,}")]


def merge_seconds(total: int) -> float:
    """Seconds to merge partitions that hold nothing but events of one time, until each has a later one."""
    merger, when, each = Merger(PARTITIONS, 1.0, FEATURES), 10**15, total // PARTITIONS
    begun = time.perf_counter()
    for first in range(0, each, POLLED):
        for part in range(PARTITIONS):
            merger.push(part, block_of(part, first, POLLED, when), (first + POLLED, 0), False, 0.0)
        assert not len(merger.release(0.0, MAX_COMMIT_EVENTS))
    for part in range(PARTITIONS):
        merger.push(part, block_of(part, each, 1, when + 1), (each + 1, 0), False, 0.0)
    taken = 0
    while len(released := merger.release(0.0, MAX_COMMIT_EVENTS)):
        taken += len(released)
    assert taken == total
    return time.perf_counter() - begun


def block_of(part: int, first: int, count: int, when: int) -> Block:
    rows = np.zeros(count, ROW)
    rows["time"] = rows["stamp"] = when
    rows["source"], rows["offset"], rows["kind"], rows["extra"] = part, np.arange(first, first + count), EDGE, -1
    return Block(rows, np.zeros((count, FEATURES), np.float32))


def write_burst(path: Path, burst: int) -> None:
    """Ten hours of others, then an hour of others with the burst in its middle, and an hour behind it."""
    rng = np.random.default_rng(5)
    count = BEFORE + OTHERS + burst + OTHERS
    src, dst = rng.integers(0, NODES, count), NODES + (NODES * rng.random(count) ** 3).astype(np.int64)
    spread = np.sort(rng.integers(0, 10 * HOUR, BEFORE)), *(10 * HOUR + i * HOUR + np.sort(rng.integers(0, HOUR, OTHERS)) for i in (0, 1))
    when = np.sort(np.concatenate([*spread, np.full(burst, 10 * HOUR + HOUR // 2)]))
    write_log(path, src, dst, when, Schema(FEATURES), (20_000,), watermark=100 * HOUR)


def main(path: Path, burst: int) -> None:
    """The trainer's work on the hour of the burst, in this process; a line of figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    torch.set_num_threads(1)
    write_burst(path, burst)
    s = settings(path, stream__edge_feature_dim=FEATURES, model__dim=64, model__time_dim=32, model__neighbors=10,
                 model__memory_chunk=200, model__max_pairs=2_000_000, training__replay_events=200)
    log = LogReader.open(path)
    learner, recorder = Learner(learning(s), log, ReplayStore.of(learning(s))), Recorder(learning(s), log)
    while (window := next_window(log, recorder.edge, HOUR)) is not None and window.start_us <= 10 * HOUR:
        learner.begin()
        Path("/proc/self/clear_refs").write_text("5")
        before, longest = peak_megabytes(), 0.0
        begun, at = time.process_time(), time.perf_counter()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
            longest = max(longest, time.perf_counter() - at)
            at = time.perf_counter()
        scored = time.process_time()
        learner.learn(window.first_edge)
        found = {"recorded and scored": scored - begun, "learned": time.process_time() - scored, "longest wait for a slice": longest,
                 "most memory more than before": peak_megabytes() - before}

    # The server's memory, a chunk between two requests, over the whole log.
    served = LoadedVersion(SimpleNamespace(window_seconds=3600, window_end_us=0), TorchModel(learner.model.eval()), learner.model.new_memory())
    begun = time.process_time()
    while served.follow(log, log.num_edges, log.watermark, 1):
        pass
    assert served.memory.edge == log.num_edges
    print(json.dumps({**found, "server's memory moved over its log": time.process_time() - begun}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
