"""The popular nodes that are kept as events come, beside a plain count of all events."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.graph.facts.pair_facts import PairFacts
from streamd.serving import node_pools
from streamd.serving.node_pools import KEPT_LIMITS, LEAST_LIMITS, NodePool
from tests.builders import SECOND

HALF_LIVES = (2, 8, 30, 100, 1000)
LIMIT = 2
NODES = 40
STEPS = st.one_of(
    st.tuples(st.just("events"), st.lists(st.integers(0, NODES - 1), min_size=1, max_size=12), st.integers(0, 40)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, NODES - 1), min_size=1, max_size=6), st.just(0)))


class Plain:
    """The reference: the events of each node, each weighing half at each half-life."""

    def __init__(self):
        self.times: dict[int, list[int]] = {}

    def weight(self, node, half_life, now):
        return sum(0.5 ** ((now - t) / half_life) for t in self.times[node])

    def best(self, half_life, now, count, allows):
        weights = [self.weight(node, half_life, now) for node in self.times if allows(node)]
        return sorted(weights, reverse=True)[:count]


class Stream:
    """A pool over facts, and the reference, both of which take in the same."""

    def __init__(self, residue=None):
        self.facts, self.plain, self.gone, self.now = PairFacts(HALF_LIVES, 1000), Plain(), set(), 0
        self.residue = residue
        self.pool = NodePool(lambda: self.facts.destination_order, lambda nodes: np.array([self.allows(n) for n in nodes.tolist()], bool),
                             self.facts.popularity, LIMIT)

    def allows(self, node):
        return node not in self.gone and (self.residue is None or node % 3 == self.residue)

    def take(self, what, nodes, seconds):
        if what == "delete":
            self.gone |= set(nodes)
            for node in nodes:
                self.plain.times.pop(node, None)
            self.pool.popular.drop(lambda members: np.isin(members, list(self.gone)))
        else:
            # Nobody sends to a deleted node any more.
            dst = np.array([n for n in nodes if n not in self.gone], np.int64)
            self.now += seconds
            self.facts.advance(np.full(len(dst), NODES), dst, np.full(len(dst), self.now * SECOND))
            for node in dst.tolist():
                self.plain.times.setdefault(node, []).append(self.now)
            self.pool.offer(np.unique(dst))
        self.pool.restart_if_short()

    def check(self):
        for h, nodes in enumerate(self.pool.popular.best(LEAST_LIMITS * LIMIT)):
            got = [self.plain.weight(node, HALF_LIVES[h], self.now) for node in nodes.tolist()]
            want = self.plain.best(HALF_LIVES[h], self.now, LEAST_LIMITS * LIMIT, self.allows)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-300)
            assert len(set(nodes.tolist())) == len(nodes)
            assert self.pool.popular.most_members <= 2 * KEPT_LIMITS * LIMIT


@pytest.mark.parametrize("residue", [None, 1])
@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEPS, max_size=40), began_at=st.integers(0, 40))
def test_they_are_those_of_all_nodes_whatever_comes_and_goes(residue, steps, began_at):
    stream = Stream(residue)
    for i, step in enumerate(steps):
        stream.take(*step)
        if i >= began_at:
            stream.pool.cover(math.inf)
            stream.check()
    stream.pool.cover(math.inf)
    stream.check()


def test_a_pool_that_is_looked_through_in_slices_takes_in_events_meanwhile(monkeypatch):
    monkeypatch.setattr(node_pools, "SLICE_NODES", 5)
    stream, slices = Stream(), 1
    stream.take("events", list(range(NODES)), 1)
    while not stream.pool.cover(0):
        stream.take("events", [slices % NODES, (7 * slices) % NODES], 3)
        slices += 1
    stream.check()
    assert slices == NODES // 5 and not stream.pool.is_whole


def test_a_pool_of_few_nodes_is_whole_until_it_grows_and_again_after_deletes():
    stream = Stream()
    stream.take("events", list(range(5)), 1)
    assert not stream.pool.is_whole, "nobody looked through it"
    stream.pool.cover(math.inf)
    assert stream.pool.is_whole and [len(nodes) for nodes in stream.pool.popular.best(99)] == [5] * 5
    stream.take("events", list(range(NODES)), 1)
    stream.pool.cover(math.inf)
    assert not stream.pool.is_whole
    stream.take("delete", list(range(3, NODES)), 0)
    assert not stream.pool.covers_all, "those that were left out are looked for"
    stream.pool.cover(math.inf)
    assert stream.pool.is_whole and all(sorted(nodes.tolist()) == [0, 1, 2] for nodes in stream.pool.popular.best(99))


def test_nodes_without_events_in_the_set_fill_a_pool_that_has_too_few_others():
    facts = PairFacts(HALF_LIVES, 1000)
    facts.advance(np.array([9]), np.array([30]), np.array([SECOND]))
    pool = NodePool(lambda: np.arange(NODES), lambda nodes: np.ones(len(nodes), bool), facts.popularity, LIMIT)
    pool.cover(math.inf)
    for nodes in pool.popular.best(LEAST_LIMITS * LIMIT):
        assert nodes[0] == 30 and len(nodes) == LEAST_LIMITS * LIMIT
