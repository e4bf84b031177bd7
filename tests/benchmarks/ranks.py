"""Learning on one and on two ranks of this machine, a thread each: wall time, what it goes to, and how evenly work is spread.

`python -m tests.benchmarks ranks`. Every figure is of the same events, learned in windows as the trainer does; the graph before
them is made first and not timed. Beyond two ranks only counts are given: two cores say nothing of their time.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.segments.reader import LogReader
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, write_edges
from tests.builders import settings

WARM, EDGES, WINDOW = 200_000, 12_000, 2_000
"""Events of the graph before, events that are learned, and events of a window."""
FEATURES = {"reddit": 172, "gdelt": 0}
"""Widths of edge features, as of the data sets that the presets are named after; GDELT has none here."""


class TimedLane:
    """A lane that notes when each call began and ended, and the bytes it sent to others."""

    def __init__(self, lane):
        self._lane, self.rank, self.size = lane, lane.rank, lane.size
        self.calls, self.bytes = [], 0

    def all_to_all(self, rows, sent, received):
        begun = time.perf_counter()
        out = self._lane.all_to_all(rows, sent, received)
        self.calls.append((begun, time.perf_counter()))
        row = rows.element_size() * (rows[0].numel() if len(rows) else 0)
        self.bytes += row * (sum(sent) - sent[self.rank])
        return out


def worker(folder: str, name: str, chunk: int) -> None:
    """One rank: learn the windows, and print what it took as JSON."""
    import torch

    from streamd.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks.join(120)
    timed = ranks
    if ranks.size > 1:
        timed = Ranks(*(TimedLane(lane) for lane in (ranks.recording, ranks.learning, ranks.rows)), ranks.owned)
    log = LogReader.open(Path(folder), keep_keys=False)
    s = settings(Path(folder), stream__edge_feature_dim=log.state.schema.edge_feature_dim, model__name=name, model__dim=100,
                 model__time_dim=100, model__neighbors=10, model__memory_chunk=chunk, model__max_pairs=2_000_000, training__epochs=1,
                 training__replay_events=0, training__tail_share=0.0, windows__max_events=10**6)
    learner, recorder = Learner(s, log, ReplayStore(None, 1, 0, ranks=timed), timed), Recorder(s, log, timed)
    recorder.rebuild(WARM)
    learner.start_at(WARM)
    times = log.edges(0, log.num_edges)[2]

    def learn(first, end):
        window = Window(int(times[first]), int(times[end - 1]) + 1, first, end)
        learner.begin()
        kept = [learner.score(chunk) for chunk in prefetch(recorder.chunks(window))]
        learner.learn(first)
        return kept

    from streamd.training.scores import ranks as rank_of

    # The first window loads kernels and caches.
    learn(WARM, WARM + WINDOW)
    timed.all(True)
    lanes = [lane for lane in (timed.recording, timed.learning, timed.rows) if isinstance(lane, TimedLane)]
    for lane in lanes:
        lane.calls, lane.bytes = [], 0
    begun, cpu = time.perf_counter(), time.process_time()
    logits = [learn(a, a + WINDOW) for a in range(WARM + WINDOW, WARM + WINDOW + EDGES, WINDOW)]
    timed.all(True)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    scores = timed.gather(np.concatenate([x for window in logits for x in window]))
    told = {"seconds": seconds, "cpu": cpu, "mrr": float((1 / rank_of(scores)).mean()), "bytes": sum(lane.bytes for lane in lanes),
            "graph": recorder.live.graph.num_bytes, "memory": learner.memory.rows.pool.num_bytes,
            "calls": [lane.calls for lane in lanes]}
    print("TOLD", json.dumps(told), flush=True)


def started(size: int, *args: str) -> list[dict]:
    """What each of so many ranks told."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, "-m", "tests.benchmarks.ranks", *args], env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                              stdout=subprocess.PIPE, text=True) for rank in range(size)]
    outputs = [rank.communicate(timeout=1200)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    return [json.loads(line[5:]) for output in outputs for line in output.splitlines() if line.startswith("TOLD ")]


def shares(told: list[dict]) -> dict[str, float]:
    """Mean over ranks of the share of wall time that goes to computing, waiting for another rank, and the wire, of the thread that
    learns. A call waits until the last rank calls too; the rest of it is the wire."""
    wait = wire = 0.0
    for lane in (1, 2):
        for calls in zip(*(one["calls"][lane] for one in told), strict=True):
            last = max(begun for begun, _ in calls)
            wait += sum(last - begun for begun, _ in calls)
            wire += sum(max(ended - last, 0.0) for _, ended in calls)
    whole = sum(one["seconds"] for one in told)
    return {"computing": 1 - (wait + wire) / whole, "waiting": wait / whole, "wire": wire / whole}


def spread(values) -> float:
    """Coefficient of variation."""
    return float(np.std(values) / np.mean(values))


def run() -> list[Row]:
    rows = []
    for preset, width in FEATURES.items():
        g = synth.make(preset)
        middle = len(g["src"]) // 2
        part = slice(middle - WARM, middle + EDGES + WINDOW)
        src, dst = g["src"][part], g["dst"][part]
        when = np.maximum.accumulate((g["t"][part] * 1e6).astype(np.int64)) + np.arange(len(src))
        msg = np.random.default_rng(0).normal(size=(len(src), width)).astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            write_edges(Path(folder), list(range(g["num_nodes"])), src, dst, when, msg, int(when[-1]) + 10**12)
            for name in ("tgn", "tgat"):
                rows += of_model(folder, preset, name)
        rows += evenness(preset, g)
    return rows


def of_model(folder: str, preset: str, name: str) -> list[Row]:
    what = f"{preset}, {name}"
    rows = []
    for chunk in (600, 4000):
        one, two = started(1, folder, name, str(chunk)), started(2, folder, name, str(chunk))
        alone, together = one[0]["seconds"], max(t["seconds"] for t in two)
        label = f"{what}, chunks of {chunk}"
        rows.append(Row(f"{label}: two ranks", EDGES / together, "events/s", EDGES / alone, "one rank"))
        rows.append(Row(f"{label}: share of linear", 100 * alone / (2 * together), "%"))
        rows += [Row(f"{label}: {phase}", 100 * share, "% of wall time") for phase, share in shares(two).items()]
        rows.append(Row(f"{label}: sent per trained event", sum(t["bytes"] for t in two) / EDGES / 1e3, "kB"))
        rows.append(Row(f"{label}: CPU time, variation over ranks", 100 * spread([t["cpu"] for t in two]), "%"))
        rows.append(Row(f"{label}: MRR", 1000 * two[0]["mrr"], "thousandths", 1000 * one[0]["mrr"], "one rank"))
    # Weak scaling: as many events a rank as one has in its chunks.
    one, two = started(1, folder, name, "600"), started(2, folder, name, "1200")
    rows.append(Row(f"{what}, chunks of 600 a rank: two ranks, share of linear",
                    100 * one[0]["seconds"] / (2 * max(t["seconds"] for t in two)), "%"))
    rows.append(Row(f"{what}, chunks of 600 a rank: MRR", 1000 * two[0]["mrr"], "thousandths", 1000 * one[0]["mrr"], "one rank"))
    rows.append(Row(f"{what}: graph of a rank of two", max(t["graph"] for t in two) / 1e6, "MB", one[0]["graph"] / 1e6, "one rank"))
    rows.append(Row(f"{what}: memory rows of a rank of two", max(t["memory"] for t in two) / 1e6, "MB", one[0]["memory"] / 1e6, "one rank"))
    return rows


def evenness(preset: str, g: dict) -> list[Row]:
    """Entries of the whole preset by owner: GNNFlow reports a variation of .06 at most on GDELT and Netflix."""
    from streamd.graph.ownership import owner_of

    nodes, counts = np.unique(np.concatenate([g["src"], g["dst"]]), return_counts=True)
    rows = []
    for size in (2, 4, 16, 64):
        held = np.bincount(owner_of(nodes, size), counts, size)
        rows.append(Row(f"{preset}: entries, variation over {size} ranks", 100 * spread(held), "%"))

    # What the busiest of some ranks holds.
    whole = None
    for size in (1, 2, 4):
        sizes = [held_by(rank, size, g) for rank in range(size)]
        graph, memory = (max(parts) / 1e6 for parts in zip(*sizes, strict=True))
        whole = whole or (graph, memory)
        for what, most, alone in (("graph", graph, whole[0]), ("memory rows of width 100", memory, whole[1])):
            rows.append(Row(f"{preset}: {what}, the fullest of {size} ranks", most, "MB", alone, "one rank"))
    return rows


def held_by(rank: int, size: int, g: dict) -> tuple[int, int]:
    """Bytes of a rank's graph of a preset and of its memory rows."""
    import torch

    from streamd.graph.blocks import BlockGraph
    from streamd.graph.ownership import OwnedNodes
    from streamd.models.memory_pages import NodeRows, PagePool

    owned = OwnedNodes(rank, size)
    graph = BlockGraph(owned=owned)
    graph.insert(g["src"], g["dst"])
    rows = NodeRows(PagePool(100, torch.device("cpu")), owned)
    nodes = np.unique(np.concatenate([g["src"], g["dst"]]))
    own = nodes[owned.is_own(nodes)]
    rows.write(own, torch.ones(len(own), 100), torch.ones(len(own), dtype=torch.int64))
    return graph.num_bytes, rows.pool.num_bytes


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2], int(sys.argv[3]))
