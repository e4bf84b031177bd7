"""How much of what a window asks for the feature cache holds: the same on every device, so measured without one.

`python -m tests.benchmarks cache`: two windows scored and learned for three epochs, ids only, per policy and capacity.
"""

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streamd.eventlog.reader import LogReader
from streamd.gpu.cache import FeatureCache
from streamd.training.recorder import Recorder
from streamd.windows import Window
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, pick_size, wikipedia_edges, write_edges
from tests.builders import learning, settings

WARM, EPOCHS, WINDOWS = pick_size(70_000, 1_000), 3, 2
STREAMS = pick_size({"wikipedia": (500, (3000, 10_000)), "reddit": (24_000, (30_000, 100_000)), "gdelt": (96_000, (30_000, 100_000))},
                {"reddit": (200, (300, 1_000))})
"""By stream: events of a window, and capacities."""


def run() -> list[Row]:
    rows = []
    for name, (edges, capacities) in STREAMS.items():
        rows += hits(name, wikipedia_edges() if name == "wikipedia" else synth.make(name), WARM, edges, capacities)
    return rows


def hits(name: str, g: dict, warm: int, edges: int, capacities: tuple[int, ...]) -> list[Row]:
    """Share of the last window's rows that are held while scoring and in the last epoch; and that if each epoch begins with
    what the first began with, as in GNNFlow, where what is brought back is asked for too."""
    with tempfile.TemporaryDirectory() as folder:
        windows = list(asked(Path(folder), g, warm, edges))
    needed = len(torch.unique(torch.cat(windows[-1][1])))
    rows = []
    for capacity in capacities:
        for policy in ("lru", "lfu", "fifo"):
            cache = FeatureCache(capacity, 1, policy, "cpu")
            for scored, learned in windows:
                scoring = share(cache, scored)
                began = copy.deepcopy(cache)
                last = [share(cache, learned) for _ in range(EPOCHS)][-1]
            share(again := copy.deepcopy(began), learned)
            lost = int((~torch.isin(began.ids, again.ids)).sum())
            restored = share(began, learned, lost)
            label = f"{name}, a window of {needed:,} rows, {policy} of {capacity:,}"
            rows += [Row(f"{label}: while scoring", scoring, "% held"),
                     Row(f"{label}: epoch {EPOCHS}", last, "% held", restored, "each epoch's start restored")]
    return rows


def share(cache: FeatureCache, batches: list[Tensor], more: int = 0) -> float:
    """Percent of the batches' distinct ids that the cache holds as they are asked for. more: rows asked for besides."""
    missed = wanted = 0

    def source(at: Tensor) -> Tensor:
        nonlocal missed
        missed += len(at)
        return torch.zeros(len(at), 1)

    for ids in batches:
        wanted += len(torch.unique(ids))
        cache.fetch(ids, source)
    return 100 * (1 - (missed + more) / wanted)


def asked(path: Path, g: dict, warm: int, edges: int) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Of each window the edge ids that each chunk's scoring and learning ask for."""
    middle = len(g["src"]) // 2
    span = slice(middle - warm, middle + WINDOWS * edges)
    src, dst = g["src"][span], g["dst"][span]
    when = np.maximum.accumulate((g["t"][span] * 1e6).astype(np.int64)) + np.arange(len(src))
    write_edges(path, list(range(g["num_nodes"])), src, dst, when, np.zeros((len(src), 1), np.float32), int(when[-1]) + 10**12)
    log = LogReader.open(path)
    recorder = Recorder(learning(settings(path, stream__edge_feature_dim=1, model__neighbors=10, model__memory_chunk=min(600, edges),
                                 windows__max_events=10**6)), log)
    recorder.rebuild(warm)
    for first in range(warm, len(src), edges):
        chunks = recorder.chunks(Window(int(when[first]), int(when[first + edges - 1]) + 1, first, first + edges))
        both = [(c.score.hops[0], c.learn.hops[0]) for c in chunks if c.score is not None and c.learn is not None]
        scored, learned = ([hop.eid_UK[hop.mask_UK] for hop in side] for side in zip(*both, strict=True))
        yield scored, learned
