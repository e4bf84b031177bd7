"""The graph, the features and the training on a GPU, beside the CPU and the device's memory bandwidth in the same run.

`python -m tests.benchmarks gpu`, or one part of it, as `gpu-window`: each is a table of its own, so that a session of minutes may
run one; nothing where there is no GPU. tests/gpu runs the same functions, small, on a CPU.
"""

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from streamd.eventlog.reader import LogReader
from streamd.gpu import make_torch_deterministic
from streamd.gpu.cache import FeatureCache
from streamd.gpu.graph import DeviceGraph
from streamd.graph import BlockGraph, Draw, neighborhood
from streamd.graph.blocks.hops import Roots, distinct_nodes
from streamd.graph.blocks.strategies import STRATEGIES
from streamd.graph.live import CATCH_UP_EDGES
from streamd.settings.loading import Settings
from streamd.telemetry import metrics
from streamd.training.learner import Learner
from streamd.training.recorder import Recorder, prefetch
from streamd.training.replay import ReplayStore
from streamd.windows import Window
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, write_edges
from tests.builders import learning, settings
from tests.readings import reading

DAY_EDGES, EPOCHS, FEATURES, LARGE_EDGES, LARGE_NODES = 96_000, 3, 172, 200_000_000, 10_000_000
Make = Callable[[str], DeviceGraph]


def presets() -> list[Row]:
    """Inserting a day's events at a time, and sampling."""
    rows = [Row("memory bandwidth, copy", bandwidth("cuda"), "GB/s")]
    for preset in synth.PRESETS:
        g = synth.make(preset)
        rows += sampling(preset, on_gpu(), g["src"], g["dst"], rows[0].ours, "cuda")
    return rows


def large() -> list[Row]:
    """The same on more events than a preset has, inserted as after a restart."""
    rng = np.random.default_rng(0)
    src, dst = ((rng.random(LARGE_EDGES) ** 3 * LARGE_NODES).astype(np.int64) for _ in range(2))
    rows = [Row("memory bandwidth, copy", bandwidth("cuda"), "GB/s")]
    return rows + sampling("200 M edges", on_gpu(), src, dst, rows[0].ours, "cuda", slice_edges=CATCH_UP_EDGES)


def window() -> list[Row]:
    return turnaround(synth.make("gdelt"), "cuda")


def features() -> list[Row]:
    return fetching("cuda")


def part(measure: Callable[[], list[Row]]) -> Callable[[], list[Row]]:
    """A part of the benchmark: torch is set up as in the trainer, whose deterministic mode has kernels of its own."""

    def run() -> list[Row]:
        if not torch.cuda.is_available():
            return []
        make_torch_deterministic(Settings().training.threads)
        return measure()

    return run


PARTS = {f"gpu-{measure.__name__}": part(measure) for measure in (presets, window, features, large)}


def on_gpu() -> Make:
    from streamd.gpu.launch import CudaLauncher, PageLock

    launch, pages = CudaLauncher(), PageLock()
    return lambda placement: DeviceGraph(BlockGraph(), launch, pages, "cuda", placement)


def seconds_of(work: Callable[[], object], device: str, rounds: int = 5) -> float:
    """Least wall time, the device waited for."""
    out = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        wait(device)
        out.append(time.perf_counter() - begun)
    return min(out)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bandwidth(device: str, size: int = 2**28) -> float:
    """GB/s read and written by one large copy."""
    a, b = (torch.zeros(size, dtype=torch.float32, device=device) for _ in range(2))
    return 2 * 4 * size / seconds_of(lambda: b.copy_(a), device) / 1e9


def sampling(
    name: str, make: Make, src, dst, gb_a_second: float, device: str, batches: tuple[int, ...] = (600, 4000),
    placements: tuple[str, ...] = ("resident", "hybrid"), slice_edges: int = DAY_EDGES
) -> list[Row]:
    """Insert and sampling in the middle of a stream, three roots an event, beside our CPU sampler; and the share of the
    bandwidth's limit: a sample must touch node row, directory line and entries of a root, and write its answer."""
    rows, cpu = [], BlockGraph()
    for a in range(0, len(src), 2_000_000):
        cpu.insert(src[a: a + 2_000_000], dst[a: a + 2_000_000])
    middle, rng = len(src) // 2, np.random.default_rng(0)
    for placement in placements:
        graph = make(placement)
        begun = time.perf_counter()
        for a in range(0, len(src), slice_edges):
            graph.insert(src[a: a + slice_edges], dst[a: a + slice_edges])
        wait(device)
        rows.append(Row(f"{name}, {placement}: insert, {slice_edges} at a time", len(src) / (time.perf_counter() - begun) / 1e6, "M events/s"))
        rows.append(Row(f"{name}, {placement}: device memory", graph.device_bytes / 1e9, "GB"))
        for batch in batches:
            roots = np.unique(np.concatenate([src[middle: middle + batch], dst[middle: middle + batch], rng.choice(dst, batch)]))
            there = torch.from_numpy(roots).to(device)
            for strategy in STRATEGIES:
                for hops in (1, 2):
                    draws = [Draw(fanout=10, strategy=strategy, seed=hop) for hop in range(hops)]
                    asked_there, asked_here = Roots(there, 0, middle), Roots(roots, 0, middle)
                    answer = graph.sample_neighborhood_on_device(asked_there, draws, distinct_nodes).hops
                    count = sum(int(hop.mask_UK.sum()) for hop in answer)
                    asked = sum(len(hop.root_U) for hop in answer)
                    ours = seconds_of(lambda d=draws, r=asked_there, g=graph: g.sample_neighborhood_on_device(r, d, distinct_nodes), device)
                    theirs = seconds_of(lambda d=draws, r=asked_here: cpu.sample_neighborhood(r, d, distinct_nodes), "cpu", 3)
                    floor = (asked * (32 + 64 + 10 * 17) + 8 * count) / gb_a_second / 1e9
                    label = f"{name}, {placement}: {strategy} {[10] * hops}, batch {batch}"
                    rows += [Row(label, count / ours / 1e6, "M edges/s", count / theirs / 1e6, "our CPU sampler"),
                             Row(f"{label}: of the bandwidth's limit", 100 * floor / ours, "%")]
        del graph
    return rows


def turnaround(g: dict, device: str, edges: int = DAY_EDGES, features: int = FEATURES, dim: int = 100) -> list[Row]:
    """A day of events recorded and learned for three epochs, where the time goes; TGN and TGAT."""
    rows = []
    middle = len(g["src"]) // 2
    span = slice(middle, middle + 2 * edges)
    src, dst = g["src"][span], g["dst"][span]
    when = np.maximum.accumulate((g["t"][span] * 1e6).astype(np.int64)) + np.arange(len(src))
    msg = np.random.default_rng(0).normal(size=(len(src), features)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_edges(Path(folder), list(range(g["num_nodes"])), src, dst, when, msg, int(when[-1]) + 10**12)
        log = LogReader.open(Path(folder))
        for model in ("tgn", "tgat"):
            s = settings(Path(folder), stream__edge_feature_dim=features, model__name=model, model__dim=dim, model__time_dim=dim,
                         model__neighbors=10, model__memory_chunk=600, training__epochs=EPOCHS, training__replay_events=0,
                         windows__max_events=10**6, device=device)
            recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 1, 0))
            learner.start_at(edges)
            recorder.rebuild(edges)
            window = Window(int(when[edges]), int(when[-1]) + 1, edges, 2 * edges)
            kernels = _kernel_seconds()
            begun = time.perf_counter()
            for chunk in prefetch(recorder.chunks(window)):
                learner.score(chunk)
            scored = time.perf_counter()
            learner.learn(edges)
            learned = time.perf_counter()
            rows += [Row(f"{model}, a day of {edges} events: recorded and scored", scored - begun, "s"),
                     Row(f"{model}: of which sampling kernels", _kernel_seconds() - kernels, "s"),
                     Row(f"{model}: learned, {EPOCHS} epochs", learned - scored, "s"),
                     Row(f"{model}: training", EPOCHS * edges / (learned - scored), "edges/s"),
                     Row(f"{model}: in all", learned - begun, "s", 30.0, "GNNFlow, 8 T4, about")]
            rows += shares(model, s, log, window, device)
    return rows


def shares(name: str, s: Settings, log: LogReader, window: Window, device: str) -> list[Row]:
    """Where a window's time goes when nothing overlaps, each part waited for: the paper's Figure 9, and the pair facts."""
    recorder, learner = Recorder(learning(s), log), Learner(learning(s), log, ReplayStore(None, 1, 0))
    learner.start_at(window.first_edge)
    recorder.rebuild(window.first_edge)
    spent: Counter[str] = Counter()

    def timed(part: str, owner: object, name: str) -> AbstractContextManager[object]:
        work = getattr(owner, name)

        def measured(*args, **kwargs):
            begun = time.perf_counter()
            out = work(*args, **kwargs)
            wait(device)
            spent[part] += time.perf_counter() - begun
            return out

        return patch.object(owner, name, measured)

    with (timed("sampling", recorder.live.graph, "sample_neighborhood"), timed("gathering features from the log", neighborhood, "edge_features"),
          timed("gathering on the device", learner.transfer, "inputs"), timed("pair facts", recorder.live, "advance_scoring"),
          patch.object(learner.transfer, "ahead", lambda steps, prepare: map(prepare, steps))):
        begun = time.perf_counter()
        for chunk in recorder.chunks(window):
            learner.score(chunk)
        learner.learn(window.first_edge)
        wait(device)
        whole = time.perf_counter() - begun
    spent["compute and the rest"] = whole - spent.total()
    return [Row(f"{name}, one after the other: {part}", 100 * seconds / whole, "%") for part, seconds in spent.items()]


def fetching(device: str, num_ids: int = 2_000_000, batch: int = 6_000, dim: int = FEATURES, batches: int = 200) -> list[Row]:
    """Seconds to have the features of skewed ids on the device: sent each time, cached, an epoch again, and restored."""
    log = np.random.default_rng(0).normal(size=(num_ids, dim)).astype(np.float32)
    rng = np.random.default_rng(1)
    asked = [torch.from_numpy((num_ids * (1 - rng.random(batch) ** 4)).astype(np.int64).clip(0, num_ids - 1)).to(device)
             for _ in range(batches)]

    def source(ids):
        rows = torch.from_numpy(log[ids.cpu().numpy()])
        return (rows.pin_memory() if device == "cuda" else rows).to(device, non_blocking=True)

    def epoch(fetch):
        return 1e3 * seconds_of(lambda: [fetch(ids) for ids in asked], device, 1)

    def through(cache):
        return epoch(lambda ids: cache.fetch(ids, lambda at: source(ids[at])))

    plain = epoch(source)
    rows = []
    for policy in ("lru", "lfu", "fifo"):
        cache = FeatureCache(max(1, num_ids // 20), dim, policy, device)
        first = through(cache)
        began = copy.deepcopy(cache)
        again, restored = through(cache), through(began)
        for what, ms in (("empty", first), ("reused", again), ("reused and restored", restored)):
            rows.append(Row(f"features of {batches} batches, {policy} of 5%, {what}", ms, "ms", plain, "without a cache"))
    return rows


def _kernel_seconds() -> float:
    return sum(reading(metrics.gpu_kernel_seconds.labels(k)) for k in ("sample_recent", "sample_uniform"))
