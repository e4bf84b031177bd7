"""A graph divided among ranks gives the neighborhoods of one graph with all nodes, to the bit."""

import numpy as np
import pytest

from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Draw
from streamd.graph.blocks.hops import Roots, distinct_nodes, earlier_windows
from streamd.graph.node_features import NodeFeatures
from streamd.ranks.ranked_graph import RankedFeatures, RankedGraph
from streamd.schema import Schema
from tests.ranks.threads import run

NODES, EVENTS = 80, 4000
RNG = np.random.default_rng(2)
SRC, DST = (RNG.zipf(1.4, EVENTS) - 1) % NODES, RNG.integers(0, NODES, EVENTS)
ASKED = [RNG.integers(-1, NODES + 2, 30 * (rank != 1)) for rank in range(4)]


def made(ranks):
    own = BlockGraph(0, 8, ("both", "out"), owned=ranks.owned)
    graph = RankedGraph(own, ranks.recording) if ranks.size > 1 else own
    graph.insert(SRC, DST)
    graph.hide(SRC[::7], DST[::7], np.arange(0, EVENTS, 7))
    return graph


def sampled(graph, roots, plan):
    fanouts, strategy, next_roots, since = plan
    draws = [Draw(fanout=k, strategy=strategy, seed=h) for h, k in enumerate(fanouts)]
    found = graph.sample_neighborhood(Roots(roots, since, 3500), draws, next_roots)
    return [found.node_M] + [getattr(h, n) for h in found.hops for n in ("root_U", "neighbor_UK", "eid_UK", "mask_UK")]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("plan", [
    ([5], "recent", distinct_nodes, 0),
    ([4, 3], "uniform", distinct_nodes, 0),
    ([3, 3, 2], "recent", distinct_nodes, 100),
    ([4, 4], "recent", earlier_windows([3500, 2000, 500]), 2000),
], ids=["one hop", "two hops drawn", "three hops", "windows"])
def test_neighborhoods_are_those_of_one_graph(size, plan):
    whole = made(run(1, lambda ranks: ranks)[0])
    for rank, got in enumerate(run(size, lambda ranks: sampled(made(ranks), ASKED[ranks.rank], plan))):
        for a, b in zip(got, sampled(whole, ASKED[rank], plan), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("draws", [
    Draw(fanout=3, strategy="uniform", direction="out"),
    (Draw(fanout=2, direction="out"), Draw(fanout=3, strategy="uniform", seed=7), Draw(fanout=1))], ids=["one draw", "three draws"])
def test_roots_may_each_have_a_range_of_their_own(draws):
    whole = made(run(1, lambda ranks: ranks)[0])
    since, before = np.arange(30) * 10, 3000 + np.arange(30)
    roots = ASKED[0]
    expected = whole.sample(roots, since, before, draws)
    for part, first in zip(draws, (0, 2, 5), strict=True) if isinstance(draws, tuple) else ():
        alone = whole.sample(roots, since, before, part)
        np.testing.assert_array_equal(alone.event, expected.event[:, first: first + part.fanout])
    for got in run(3, lambda ranks: made(ranks).sample(roots, since, before, draws)):
        np.testing.assert_array_equal(got.event, expected.event)
        np.testing.assert_array_equal(got.neighbor, expected.neighbor)
        np.testing.assert_array_equal(got.mask, expected.mask)


@pytest.mark.parametrize("size", [2, 4])
def test_node_features_come_from_their_owners(size):
    values = np.random.default_rng(0).normal(size=(NODES, 3)).astype(np.float32)
    schema = Schema(node_feature_dim=3)
    whole = NodeFeatures(schema)
    updates = [(np.arange(0, NODES, 2), values[::2], np.arange(NODES // 2)), (np.array([4, 4]), values[[1, 2]], np.array([NODES, NODES + 1]))]

    def work(ranks):
        own = NodeFeatures(schema, owned=ranks.owned)
        for update in updates:
            own.take(*update)
        return RankedFeatures(own, ranks.recording).of(ASKED[ranks.rank])

    for update in updates:
        whole.take(*update)
    for rank, got in enumerate(run(size, work)):
        np.testing.assert_array_equal(got, whole.of(ASKED[rank]))
