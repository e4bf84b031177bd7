"""Insert, memory and sampling on the synthetic presets, facts beside the plain reference (on a part it can finish).

TGL's figures are those of its C++ sampler on a machine like the one this was written on, 1 thread, batch 600, newest or
uniform; its recent sampling returns 0.67 to 0.84 of the edges the rule asks for, ours all of them.
"""

import sys

import numpy as np

from streamd.graph import BlockGraph, PairFacts, TemporalSampler, reference
from streamd.segments.columns import EdgeColumns
from tests.benchmarks.measure import Row, best_seconds, load_synth
from tests.builders import stream

HALF_LIVES = (90, 1800, 8640, 43200, 691200)
TGL = {("reddit", "recent", 1): 15.0, ("reddit", "recent", 2): 13.1, ("reddit", "uniform", 1): 8.0, ("reddit", "uniform", 2): 9.2,
       ("gdelt", "recent", 1): 13.7, ("gdelt", "recent", 2): 13.3, ("gdelt", "uniform", 1): 9.3, ("gdelt", "uniform", 2): 9.8,
       ("netflix", "recent", 1): 8.4, ("netflix", "recent", 2): 6.0, ("netflix", "uniform", 1): 7.6, ("netflix", "uniform", 2): 6.9}
"""M sampled edges/s by preset, strategy, hops."""
TAUS = (16, 32, 64, 128, 256)


def run() -> list[Row]:
    synth = load_synth()
    if synth is None:
        return []
    rows = []
    for preset in ("reddit", "gdelt", "netflix"):
        g = synth.make(preset)
        src, dst, time = g["src"].astype(np.int64), g["dst"].astype(np.int64), (g["t"] * 1e6).astype(np.int64)
        for tau in TAUS if "taus" in sys.argv else (64,):
            rows += one(preset, src, dst, time, tau)
    return rows + facts_rows()


def one(preset: str, src, dst, time, tau: int) -> list[Row]:
    made = []

    def insert():
        made[:] = [BlockGraph(0, tau)]
        made[0].insert(src, dst)

    seconds = best_seconds(insert)
    graph = made[0]
    name = f"{preset}, tau {tau}"
    rows = [Row(f"{name}: insert, both directions, 1 thread", len(src) / seconds / 1e6, "M events/s", 0.8, "GNNFlow's paper"),
            Row(f"{name}: memory, everything counted", graph.num_bytes / graph.num_entries, "bytes/entry")]
    columns = EdgeColumns.of([(0, time, np.zeros((len(time), 0), np.float32))], len(time), 0)
    past = rate(graph, columns, src, dst, time, "recent", [10], 600, np.linspace(0.01, 0.99, 20))
    end = rate(graph, columns, src, dst, time, "recent", [10], 600, np.full(20, 0.99))
    rows.append(Row(f"{name}: recent [10], over the whole past", past[1], "M seeds/s", end[1], "at the end of the stream"))
    for strategy in ("recent", "uniform"):
        for fanouts in ([10], [10, 10]):
            for batch in (600, 4000):
                edges, seeds = rate(graph, columns, src, dst, time, strategy, fanouts, batch, np.full(20, 0.5))
                rows.append(Row(f"{name}: {strategy} {fanouts}, batch {batch}, {seeds:.2f} M seeds/s", edges, "M edges/s",
                                TGL[preset, strategy, len(fanouts)], "TGL's C++ sampler, batch 600"))
    return rows


def rate(graph, columns, src, dst, time, strategy, fanouts, batch, places) -> tuple[float, float]:
    """M sampled edges/s and M seeds/s for batches of edges with three roots each, from these shares of the stream on."""
    sampler = TemporalSampler(graph, fanouts, strategy, columns=columns)
    rng, batches = np.random.default_rng(0), []
    for number, place in enumerate(places.tolist()):
        a = min(int(place * len(src)) + (number * batch if places[0] == places[-1] else 0), len(src) - batch)
        batches.append((np.concatenate([src[a:a + batch], dst[a:a + batch], rng.choice(dst, batch)]), np.tile(time[a:a + batch], 3)))
    count = sum(int(layer.mask.sum()) for nodes, when in batches for layer in sampler.sample(nodes, when))
    seconds = best_seconds(lambda: [sampler.sample(*b) for b in batches])
    return count / seconds / 1e6, 3 * batch * len(batches) / seconds / 1e6


def facts_rows() -> list[Row]:
    src, dst, time = stream(1_000_000, 10_000, 1_000, hours=720)
    candidates = np.random.default_rng(0).integers(10_000, 11_000, (20_000, 101))

    def score():
        facts = PairFacts(HALF_LIVES, 2_000_000)
        facts.advance_scoring(src[:20_000], dst[:20_000], time[:20_000], np.arange(20_000), candidates)

    def plain():
        facts = reference.ReferenceFacts(HALF_LIVES, 2_000_000)
        for i in range(200):
            for c in candidates[i, :20].tolist():
                facts.row(int(src[i]), c, int(time[i]))
            facts.update(int(src[i]), int(dst[i]), int(time[i]))

    many = PairFacts(HALF_LIVES, 2_000_000)
    return [Row("pair facts, 101 candidates an event", 20_000 * 101 / best_seconds(score), "rows/s",
                4_000 / best_seconds(plain, 1), "plain reference over 200 events"),
            Row("facts rebuilt at start", len(src) / best_seconds(lambda: many.advance(src, dst, time), 1), "events/s")]
