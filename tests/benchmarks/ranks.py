"""Learning on one and on two ranks of this machine, a thread each: wall time, what it goes to, and how evenly work is spread.

`python -m tests.benchmarks ranks`, or a part of it by name, as `ranks-gdelt-tgat`. Every figure of a model is of the same events,
learned in windows as the trainer does; the graph before them is made first and not timed. What more than two ranks take is modelled (`ranks_model`): two cores say nothing of their time.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.graph.negatives import LEARNED
from streamd.ranks import Ranks
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.benchmarks import synth
from tests.benchmarks.children import Children
from tests.benchmarks.measure import Row, pick_size, write_edges
from tests.builders import learning, settings

WARM, WINDOW = pick_size((200_000, 4_000), (1_000, 400))
"""Events of the graph before, and events of a window: as many as the largest chunk, which a window's end would cut short. The
first window is not timed: it loads kernels and caches."""
EDGES = {"tgn": pick_size(12_000, 400), "tgat": pick_size(4_000, 400)}
"""Events that are timed, by model: TGAT takes more than twice as long for one, and has no memory to fill."""
FEATURES = {"reddit": 172, "gdelt": 0}
"""Widths of edge features, as of the data sets that the presets are named after; GDELT has none here."""


class TimedGroup:
    """A group that notes when each call began and ended, and the bytes it sent to others."""

    def __init__(self, group):
        self._group, self.rank, self.size = group, group.rank, group.size
        self.calls, self.bytes = [], 0

    def all_to_all(self, rows, sent, received):
        begun = time.perf_counter()
        out = self._group.all_to_all(rows, sent, received)
        self.calls.append((begun, time.perf_counter()))
        row = rows.element_size() * (rows[0].numel() if len(rows) else 0)
        self.bytes += row * (sum(sent) - sent[self.rank])
        return out


class Learning:
    """A learner and a recorder at the first event after the graph before."""

    def __init__(self, folder: str, name: str, chunk: int, ranks, recorder=Recorder):
        log = LogReader.open(Path(folder), keep_keys=False)
        s = settings(Path(folder), stream__edge_feature_dim=log.state.schema.edge_feature_dim, model__name=name, model__dim=100,
                     model__time_dim=100, model__neighbors=10, model__memory_chunk=chunk, model__max_pairs=2_000_000, training__epochs=1,
                     training__replay_events=0, training__tail_share=0.0, windows__max_events=10**6)
        self.learner, self.recorder = Learner(learning(s), log, ReplayStore(None, 1, 0, ranks=ranks), ranks), recorder(learning(s), log, ranks)
        self.recorder.rebuild(WARM)
        self.learner.start_at(WARM)
        self._times = log.edges(0, log.num_edges)[2]

    def learn(self, first: int, end: int, ahead=prefetch, on_chunk=lambda: None) -> list:
        """Score and learn a window of events [first, end). ahead: how chunks are recorded. on_chunk: called after each chunk
        that was scored, and after each that was learned. Returns: the logits of this rank's events, chunk by chunk."""
        self.learner.begin()
        self.learner.on_progress = lambda done, total: on_chunk()
        kept = []
        window = Window(int(self._times[first]), int(self._times[end - 1]) + 1, first, end)
        for chunk in ahead(self.recorder.chunks(window)):
            kept.append(self.learner.score(chunk))
            on_chunk()
        self.learner.learn(first)
        return kept


def mrr_of(ranks, logits: list) -> float:
    from streamd.graph.ranking import ranks as rank_of

    return float((1 / rank_of(ranks.gather(np.concatenate(logits)))).mean())


def worker(folder: str, name: str, chunk: int, edges: int) -> None:
    """One rank: learn the events, and print what it took as JSON."""
    import torch

    torch.set_num_threads(1)
    ranks = Ranks.join(120)
    timed = ranks
    if ranks.size > 1:
        timed = Ranks(*(TimedGroup(group) for group in (ranks.recording, ranks.learning, ranks.rows)), ranks.owned)
    learning = Learning(folder, name, chunk, timed)

    # The first window loads kernels and caches.
    learning.learn(WARM, WARM + WINDOW)
    timed.all(True)
    groups = [group for group in (timed.recording, timed.learning, timed.rows) if isinstance(group, TimedGroup)]
    for group in groups:
        group.calls, group.bytes = [], 0
    begun, cpu = time.perf_counter(), time.process_time()
    begins = range(WARM + WINDOW, WARM + WINDOW + edges, WINDOW)
    logits = [part for first in begins for part in learning.learn(first, first + WINDOW)]
    timed.all(True)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    told = {"seconds": seconds, "cpu": cpu, "bytes": sum(group.bytes for group in groups), "graph": learning.recorder.live.graph.num_bytes,
            "memory": learning.learner.memory.rows.pool.num_bytes, "calls": [list(group.calls) for group in groups],
            "mrr": mrr_of(timed, logits)}
    print("TOLD", json.dumps(told), flush=True)


def started(size: int, *args: str, module: str = "tests.benchmarks.ranks") -> list[dict]:
    """What each of so many ranks of a module told."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with Children() as ranks:
        outputs = [ranks.run_to_end(f"rank {rank}", [sys.executable, "-m", module, *args], {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                   for rank in range(size)]
        return [json.loads(line[5:]) for output in outputs for line in output().splitlines() if line.startswith("TOLD ")]


def shares(told: list[dict]) -> dict[str, float]:
    """Mean over ranks of the share of wall time that goes to computing, waiting for another rank, and the wire, of the thread that
    learns. A call waits until the last rank calls too; the rest of it is the wire."""
    wait = wire = 0.0
    for group in (1, 2):
        for calls in zip(*(one["calls"][group] for one in told), strict=True):
            last = max(begun for begun, _ in calls)
            wait += sum(last - begun for begun, _ in calls)
            wire += sum(max(ended - last, 0.0) for _, ended in calls)
    whole = sum(one["seconds"] for one in told)
    return {"computing": 1 - (wait + wire) / whole, "waiting": wait / whole, "wire": wire / whole}


def spread(values) -> float:
    """Coefficient of variation."""
    return float(np.std(values) / np.mean(values))


@contextmanager
def log_of(preset: str) -> Iterator[str]:
    """The folder of a log from the middle of a preset's stream."""
    g = synth.make(preset)
    middle = len(g["src"]) // 2
    part = slice(middle - WARM, middle + WINDOW + max(EDGES.values()))
    src, dst = g["src"][part], g["dst"][part]
    when = np.maximum.accumulate((g["t"][part] * 1e6).astype(np.int64)) + np.arange(len(src))
    msg = np.random.default_rng(0).normal(size=(len(src), FEATURES[preset])).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_edges(Path(folder), list(range(g["num_nodes"])), src, dst, when, msg, int(when[-1]) + 10**12)
        yield folder


def measured(preset: str, name: str) -> list[Row]:
    with log_of(preset) as folder:
        return of_model(folder, preset, name)


def entries() -> list[Row]:
    return [row for preset in FEATURES for row in evenness(preset, synth.make(preset))]


def of_model(folder: str, preset: str, name: str) -> list[Row]:
    what, edges = f"{preset}, {name}", EDGES[name]
    rows, alone = [], {}
    for chunk in (600, 4000):
        one, two = (started(size, folder, name, str(chunk), str(edges)) for size in (1, 2))
        alone[chunk] = one[0]
        together = max(t["seconds"] for t in two)
        label = f"{what}, chunks of {chunk}"
        rows.append(Row(f"{label}: two ranks", edges / together, "events/s", edges / one[0]["seconds"], "one rank"))
        rows.append(Row(f"{label}: share of linear", 100 * one[0]["seconds"] / (2 * together), "%"))
        rows += [Row(f"{label}: {phase}", 100 * share, "% of wall time") for phase, share in shares(two).items()]
        rows.append(Row(f"{label}: sent per trained event", sum(t["bytes"] for t in two) / edges / 1e3, "kB"))
        rows.append(Row(f"{label}: CPU time, variation over ranks", 100 * spread([t["cpu"] for t in two]), "%"))
        # A busy machine shows here: a rank that has its core to itself has about a second of CPU time for each second.
        rows.append(Row(f"{label}: CPU time of the fuller rank", 100 * max(t["cpu"] for t in two) / together, "% of wall time",
                        100 * one[0]["cpu"] / one[0]["seconds"], "one rank"))
        rows.append(Row(f"{label}: MRR", 1000 * two[0]["mrr"], "thousandths", 1000 * one[0]["mrr"], "one rank"))
    # Weak scaling: as many events a rank as one has in its chunks.
    one, two = alone[600], started(2, folder, name, "1200", str(edges))
    rows.append(Row(f"{what}, chunks of 600 a rank: two ranks, share of linear",
                    100 * one["seconds"] / (2 * max(t["seconds"] for t in two)), "%"))
    rows.append(Row(f"{what}, chunks of 600 a rank: MRR", 1000 * two[0]["mrr"], "thousandths", 1000 * one["mrr"], "one rank"))
    rows.append(Row(f"{what}: graph of a rank of two", max(t["graph"] for t in two) / 1e6, "MB", one["graph"] / 1e6, "one rank"))
    rows.append(Row(f"{what}: memory rows of a rank of two", max(t["memory"] for t in two) / 1e6, "MB", one["memory"] / 1e6, "one rank"))
    return rows


def roots(preset: str) -> list[Row]:
    """Nodes that ranks embed for a chunk of events: each those of its own events, though others embed many of them too. What they
    would be if each node were embedded by its owner alone is the whole over the ranks, a little more for the fullest rank."""
    from streamd.graph.ownership import owner_of

    asked = []

    class Asked(Recorder):
        """Notes the nodes of events."""

        def _around(self, src, candidates, before_event, query_us):
            asked.append((src, candidates))
            return super()._around(src, candidates, before_event, query_us)

    rows = []
    with log_of(preset) as folder:
        for chunk in (600, 4000):
            learning = Learning(folder, "tgat", chunk, Ranks(), Asked)
            asked.clear()
            learning.learn(WARM, WARM + WINDOW)
            for what, columns in (("scored", slice(None)), ("learned", LEARNED)):
                for size in (2, 4, 8):
                    each = [[len(np.unique(np.concatenate([s[part], c[part][:, columns].ravel()])))
                             for part in (slice(len(s) * r // size, len(s) * (r + 1) // size) for r in range(size))] for s, c in asked]
                    all_of = [np.unique(np.concatenate([s, c[:, columns].ravel()])) for s, c in asked]
                    label = f"{preset}, chunks of {chunk}, {what}, {size} ranks"
                    whole = sum(map(len, all_of))
                    rows.append(Row(f"{label}: nodes of the fullest rank", 100 * sum(map(max, each)) / whole, "% of the chunk's",
                                    100 * sum(np.bincount(owner_of(n, size)).max() for n in all_of) / whole, "by owner"))
    return rows


PARTS = {
    "ranks-entries": entries,
    **{f"ranks-roots-{preset}": partial(roots, preset) for preset in FEATURES},
    **{f"ranks-{preset}-{name}": partial(measured, preset, name) for preset in FEATURES for name in EDGES},
}


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
    from streamd.graph.blocks.block_store import BlockGraph
    from streamd.graph.ownership import OwnedNodes
    from streamd.models.device_arrays import HOST
    from streamd.models.memory.pages import NodeRows, PagePool

    owned = OwnedNodes(rank, size)
    graph = BlockGraph(owned=owned)
    graph.insert(g["src"], g["dst"])
    rows = NodeRows(PagePool(100, HOST), owned)
    nodes = np.unique(np.concatenate([g["src"], g["dst"]]))
    own = nodes[owned.is_own(nodes)]
    rows.write(own, np.ones((len(own), 100), np.float32), np.ones(len(own), np.int64))
    return graph.num_bytes, rows.pool.num_bytes


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
