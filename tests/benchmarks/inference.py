"""What a server answers by on a CPU, in numpy, beside the same weights in torch, each with one thread: memory carried over the demo's
month, nodes embedded, and 100 candidates scored with all that a request needs of the model."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamd.daemon.supervisor import THREAD_VARIABLES
from streamd.eventlog.reader import LogReader
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import sample_neighborhood
from streamd.models import EdgeRows, architecture_of, build_model
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.torch_model import TorchModel
from streamd.settings.loading import ModelSettings
from tests.benchmarks.measure import Row, pick_size, wikipedia_log

ROUNDS = pick_size(200, 3)
NODES = (1, 100, 1000)


def run() -> list[Row]:
    """In a process of its own, since libraries read their number of threads as they are loaded."""
    one_thread = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    told = subprocess.run([sys.executable, "-m", "tests.benchmarks.inference"], env=one_thread, check=True, stdout=subprocess.PIPE).stdout
    return [Row(**row) for row in json.loads(told.splitlines()[-1])]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = wikipedia_log(Path(folder))
        log = LogReader.open(Path(folder))
        assert log is not None
        settings = ModelSettings()
        model = build_model(settings, schema, 0).eval()
        pair = {"numpy": NumpyModel(settings, schema, model.arrays()), "torch": TorchModel(model)}
        print(json.dumps([row.__dict__ for row in [replayed(pair, model, log, settings), *answered(pair, model, log, settings)]]))


def replayed(pair: dict, model, log: LogReader, settings: ModelSettings) -> Row:
    """Events a second of the memory alone, in chunks of `model.memory_chunk`; in turn, so that both have the same neighbors."""
    rate = {}
    for _ in range(3):
        for name, one in pair.items():
            memory, seconds = model.new_memory(), 0.0
            for a in range(0, log.num_edges, settings.memory_chunk):
                rows = EdgeRows.of(log, a, min(a + settings.memory_chunk, log.num_edges))
                begun = time.perf_counter()
                one.advance(memory, rows)
                seconds += time.perf_counter() - begun
            rate[name] = max(rate.get(name, 0.0), log.num_edges / seconds)
    return Row("memory carried over the demo's month", rate["numpy"], "events/s", rate["torch"], "torch")


def answered(pair: dict, model, log: LogReader, settings: ModelSettings) -> list[Row]:
    live = LiveGraph(log, BlockGraph(directions=(settings.direction,)), settings)
    while live.edge < log.num_edges:
        live.step(log.num_edges, 250_000, 250_000)
    memory = model.new_memory()
    for a in range(0, log.num_edges, settings.memory_chunk):
        pair["numpy"].advance(memory, EdgeRows.of(log, a, min(a + settings.memory_chunk, log.num_edges)))
    plan, rng, rows = architecture_of(settings).plan(settings), np.random.default_rng(0), []
    updated = {name: one.updated(memory) for name, one in pair.items()}
    for count in NODES:
        around = [sample_neighborhood(live.graph, log.columns, live.features, np.sort(rng.choice(9000, count, replace=False)), memory.edge,
                                      memory.now_us, plan) for _ in range(8)]
        rows += beside(f"{count} nodes embedded", pair, lambda name, i, around=around: pair[name].embed(memory, updated[name], around[i % 8]))
    facts, z = rng.normal(size=(100, len(model.fact_stats.mean))).astype(np.float32), {n: pair[n].embed(memory, updated[n], around[0]) for n in pair}
    rows += beside("100 candidates scored, embeddings at hand", pair, lambda name, i: pair[name].logits(facts, z[name][1, :100], z[name][2, :100]))
    return rows


def beside(what: str, pair: dict, work: Callable[[str, int], object]) -> list[Row]:
    took: dict[str, list[float]] = {name: [] for name in pair}
    for i in range(ROUNDS):
        for name in pair:
            begun = time.perf_counter()
            work(name, i)
            took[name].append((time.perf_counter() - begun) * 1e3)
    return [Row(f"{what}: p{q}", float(np.percentile(took["numpy"], q)), "ms", float(np.percentile(took["torch"], q)), "torch") for q in (50, 99)]


if __name__ == "__main__":
    main()
