"""Insert, sample and facts beside the plain reference (on a part it can finish)."""

import numpy as np

from streamd.graph import BlockGraph, PairFacts, reference
from tests.benchmarks.measure import Row, best_seconds
from tests.builders import stream

HALF_LIVES = (90, 1800, 8640, 43200, 691200)


def run() -> list[Row]:
    src, dst, time = stream(1_000_000, 10_000, 1_000, hours=720)
    graphs = []

    def insert():
        graphs.append(BlockGraph())
        graphs[-1].insert(src, dst)

    insert_rate = len(src) / best_seconds(insert)
    graph = graphs[-1]
    few = 2_000
    lists: dict[int, list[tuple[int, int]]] = {}

    def insert_lists():
        lists.clear()
        for e, (u, v) in enumerate(zip(src[:200_000].tolist(), dst[:200_000].tolist(), strict=True)):
            lists.setdefault(u, []).append((e, v))
            lists.setdefault(v, []).append((e, u))

    rows = [Row("insert, both directions, 1 thread", insert_rate, "events/s", 200_000 / best_seconds(insert_lists, 2),
                "Python lists"),
            Row("memory", graph.num_bytes / graph.num_entries, "bytes/entry")]
    for name, before in (("newest", len(src)), ("middle of the past", len(src) // 2)):
        roots = np.concatenate([src[before - 6000:before], dst[before - 6000:before]])
        fast = len(roots) / best_seconds(lambda roots=roots, before=before: graph.recent(roots, before, 10))
        small = BlockGraph()
        small.insert(src[:few], dst[:few])
        slow = 50 / best_seconds(lambda roots=roots: reference.recent(src[:few], dst[:few], roots[:50], few, 10), 1)
        rows.append(Row(f"recent [10], 12,000 seeds, {name}", fast, "seeds/s", slow, f"numpy reference over {few:,} edges"))
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

    rows.append(Row("pair facts, 101 candidates an event", 20_000 * 101 / best_seconds(score), "rows/s",
                    4_000 / best_seconds(plain, 1), "plain reference over 200 events"))
    many = PairFacts(HALF_LIVES, 2_000_000)
    rows.append(Row("facts rebuilt at start", len(src) / best_seconds(lambda: many.advance(src, dst, time), 1), "events/s"))
    return rows
