"""Sampling part by part from four edge sets beside one draw from all, at the same fan-out in all: the same events, split at random.

`python -m tests.benchmarks sampling-sets`
"""

import numpy as np

from streamd.graph import BlockGraph, Draw
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, best_seconds

FANOUTS = (3, 3, 2, 2)


def run() -> list[Row]:
    rows = []
    for preset in ("reddit", "gdelt", "netflix"):
        g = synth.make(preset)
        src, dst, rng = g["src"].astype(np.int64), g["dst"].astype(np.int64), np.random.default_rng(0)
        graph = BlockGraph(of_sets=[(number, "both") for number in range(len(FANOUTS))])
        graph.insert(src, dst, rng.integers(0, len(FANOUTS), len(src)))
        batches = [(np.concatenate([src[a:a + 600], dst[a:a + 600], rng.choice(dst, 600)]), a)
                   for a in rng.integers(len(src) // 2, len(src) - 600, 20).tolist()]
        for strategy in ("recent", "uniform"):
            of_each = tuple(Draw(edge_set=n, fanout=k, strategy=strategy) for n, k in enumerate(FANOUTS))
            of_all = Draw(fanout=sum(FANOUTS), strategy=strategy)
            rates = [rate(graph, batches, draws) for draws in (of_each, of_all)]
            rows.append(Row(f"{preset}: {strategy} {list(FANOUTS)} of four sets", rates[0], "M edges/s", rates[1], "[10] of all sets"))
    return rows


def rate(graph: BlockGraph, batches, draws) -> float:
    """M sampled edges a second."""
    count = sum(int(graph.sample(roots, 0, before, draws).mask.sum()) for roots, before in batches)
    seconds = best_seconds(lambda: [graph.sample(roots, 0, before, draws) for roots, before in batches], 5)
    return count / seconds / 1e6
