"""Insert, memory and sampling on the synthetic presets, facts beside the plain reference (on a part it can finish).

TGL's figures are those of its C++ sampler on a machine like the one this was written on, batch 600, newest or
uniform; its recent sampling returns 0.67 to 0.84 of the edges the rule asks for, ours all of them. `graph-taus` compares
layouts.
"""

import numpy as np

from streamd.eventlog.columns import EdgeColumns
from streamd.graph import BlockGraph, PairFacts, TemporalSampler
from streamd.settings.loading import ModelSettings
from tests.benchmarks import synth
from tests.benchmarks.measure import Row, best_seconds
from tests.builders import stream
from tests.graph.reference_facts import ReferenceFacts

HALF_LIVES = ModelSettings().half_lives_seconds
TGL = {("reddit", "recent", 1): (15.0, 16.7), ("reddit", "recent", 2): (13.1, 16.1), ("reddit", "uniform", 1): (8.0, 13.3),
       ("reddit", "uniform", 2): (9.2, 10.5), ("gdelt", "recent", 1): (13.7, 16.6), ("gdelt", "recent", 2): (13.3, 18.7),
       ("gdelt", "uniform", 1): (9.3, 8.4), ("gdelt", "uniform", 2): (9.8, 14.8), ("netflix", "recent", 1): (8.4, 12.3),
       ("netflix", "recent", 2): (6.0, 10.4), ("netflix", "uniform", 1): (7.6, 12.1), ("netflix", "uniform", 2): (6.9, 9.9)}
"""M sampled edges/s on 1 and 2 threads by preset, strategy, hops."""
TGL_SEEDS = {("reddit", 1): (1.80, 2.00), ("reddit", 2): (0.25, 0.30), ("gdelt", 1): (1.63, 1.97), ("gdelt", 2): (0.20, 0.29),
             ("netflix", 1): (1.27, 1.87), ("netflix", 2): (0.17, 0.29)}
"""M seeds/s of recent sampling on 1 and 2 threads by preset and hops."""
TAUS = (1, 16, 32, 64, 128, 256)
"""1 is an adjacency list: a block for each entry."""


def run() -> list[Row]:
    rows = of_presets(one)
    ratios = [row.ours / row.peer for row in rows if row.peer_name.startswith("TGL") and row.unit == "M edges/s"]
    rows.append(Row("sampling, geometric mean over TGL's rows", float(np.exp(np.mean(np.log(ratios)))), "x TGL", 2.0, "promise"))
    return rows + facts_rows()


def layouts_of_presets() -> list[Row]:
    return of_presets(layouts)


def of_presets(measure) -> list[Row]:
    rows = []
    for preset in ("reddit", "gdelt", "netflix"):
        g = synth.make(preset)
        rows += measure(preset, g["src"].astype(np.int64), g["dst"].astype(np.int64), (g["t"] * 1e6).astype(np.int64))
    return rows


def filled(src, dst, tau: int) -> tuple[BlockGraph, float]:
    """A graph of the stream, and how many M events/s went in."""
    made = []

    def insert():
        made[:] = [BlockGraph(0, tau)]
        made[0].insert(src, dst)

    seconds = best_seconds(insert)
    return made[0], len(src) / seconds / 1e6


def columns_of(time) -> EdgeColumns:
    return EdgeColumns.of([(0, time, np.zeros((len(time), 0), np.float32))], len(time), 0)


def layouts(preset: str, src, dst, time) -> list[Row]:
    """What tau buys: fill of the blocks, blocks a node, memory, rates; and blocks of a fixed size, by arithmetic."""
    rows, columns = [], columns_of(time)
    degree = np.bincount(np.concatenate([src, dst[dst != src]]))
    degree = degree[degree > 0]
    for tau in TAUS:
        graph, inserted = filled(src, dst, tau)
        step = np.maximum(np.ceil(np.log2(degree)), 0) + 1
        blocks = np.where(degree > tau, np.log2(tau) + np.ceil(degree / tau), step)
        name = f"{preset}, tau {tau}" if tau > 1 else f"{preset}, adjacency list"
        recent, uniform = (rate(graph, columns, src, dst, time, s, [10], 600, np.full(20, 0.5))[0] for s in ("recent", "uniform"))
        rows += [Row(f"{name}: blocks a node, mean (most {int(blocks.max())})", blocks.mean(), "blocks"),
                 Row(f"{name}: fill", 100 * graph.num_entries / int(graph.any_store.arrays.used[0]), "% of entries"),
                 Row(f"{name}: memory", graph.num_bytes / graph.num_entries, "bytes/entry"),
                 Row(f"{name}: insert", inserted, "M events/s"),
                 Row(f"{name}: recent [10]", recent, "M edges/s"), Row(f"{name}: uniform [10]", uniform, "M edges/s")]
        if tau > 1:
            fixed = np.ceil(degree / tau)
            size = (fixed.sum() * (8 * tau + 8) + len(degree) * 33) / degree.sum()
            rows.append(Row(f"{preset}, blocks of {tau}: memory, by arithmetic, fill {degree.sum() / fixed.sum() / tau:.2f}", size, "bytes/entry"))
    return rows


def one(preset: str, src, dst, time) -> list[Row]:
    graph, inserted = filled(src, dst, 64)
    rows = [Row(f"{preset}: insert, both directions, 1 thread", inserted, "M events/s", 5.0, "promise"),
            Row(f"{preset}: memory, everything counted", graph.num_bytes / graph.num_entries, "bytes/entry",
                16 if preset == "netflix" else 12, "promise")]
    columns = columns_of(time)
    past = rate(graph, columns, src, dst, time, "recent", [10], 600, np.linspace(0.01, 0.99, 20))
    end = rate(graph, columns, src, dst, time, "recent", [10], 600, np.full(20, 0.99))
    rows.append(Row(f"{preset}: recent [10], over the whole past", past[1], "M seeds/s", end[1], "at the end of the stream"))
    for strategy in ("recent", "uniform"):
        for fanouts in ([10], [10, 10]):
            for batch in (600, 4000):
                for threads in (1, 2):
                    edges, seeds = rate(graph, columns, src, dst, time, strategy, fanouts, batch, np.full(20, 0.5), threads)
                    name = f"{preset}: {strategy} {fanouts}, batch {batch}, {threads} thread{'s' * (threads > 1)}"
                    tgl = TGL[preset, strategy, len(fanouts)][threads - 1] if batch == 600 else None
                    rows.append(Row(name, edges, "M edges/s", tgl, "TGL's C++ sampler" if tgl else ""))
                    if strategy == "recent" and batch == 600:
                        rows.append(Row(name, seeds, "M seeds/s", TGL_SEEDS[preset, len(fanouts)][threads - 1], "TGL's C++ sampler"))
    return rows


def rate(graph, columns, src, dst, time, strategy, fanouts, batch, places, threads=1) -> tuple[float, float]:
    """M sampled edges/s and M seeds/s for batches of edges with three roots each, from these shares of the stream on."""
    sampler = TemporalSampler(graph, fanouts, strategy, columns=columns, threads=threads)
    rng, batches = np.random.default_rng(0), []
    for number, place in enumerate(places.tolist()):
        a = min(int(place * len(src)) + (number * batch if places[0] == places[-1] else 0), len(src) - batch)
        batches.append((np.concatenate([src[a:a + batch], dst[a:a + batch], rng.choice(dst, batch)]), np.tile(time[a:a + batch], 3)))
    count = sum(int(layer.mask.sum()) for nodes, when in batches for layer in sampler.sample(nodes, when))

    def work():
        for nodes, when in batches:
            sampler.sample(nodes, when)

    seconds = best_seconds(work, 5)
    return count / seconds / 1e6, 3 * batch * len(batches) / seconds / 1e6


def facts_rows() -> list[Row]:
    src, dst, time = stream(1_000_000, 10_000, 1_000, hours=720)
    candidates = np.random.default_rng(0).integers(10_000, 11_000, (20_000, 101))

    def score():
        facts = PairFacts(HALF_LIVES, 2_000_000)
        facts.advance_scoring(src[:20_000], dst[:20_000], time[:20_000], np.arange(20_000), candidates)

    def plain():
        facts = ReferenceFacts(HALF_LIVES, 2_000_000)
        for i in range(200):
            for c in candidates[i, :20].tolist():
                facts.row(int(src[i]), c, int(time[i]))
            facts.update(int(src[i]), int(dst[i]), int(time[i]))

    many = PairFacts(HALF_LIVES, 2_000_000)
    return [Row("pair facts, 101 candidates an event", 20_000 * 101 / best_seconds(score), "rows/s",
                4_000 / best_seconds(plain, 1), "plain reference over 200 events"),
            Row("facts rebuilt at start", len(src) / best_seconds(lambda: many.advance(src, dst, time), 1), "events/s")]
