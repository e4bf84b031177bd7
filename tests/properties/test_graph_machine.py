"""The live graph as a state machine: insert, delete, offload, restore, query, against a list of edges."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streamd.errors import OffloadedError
from streamd.graph import BlockGraph, TemporalSampler, reference
from streamd.segments.columns import EdgeColumns

NODES = 9
ROOTS = np.array([-1, *range(NODES), 40])


class GraphMachine(RuleBasedStateMachine):
    """Edges live in plain columns; what is hidden in a set of ids."""

    @initialize(tau=st.sampled_from([1, 2, 4, 8, 64]), first=st.sampled_from([0, 1000]), directed=st.booleans())
    def begin(self, tau, first, directed):
        self.first, self.directed = first, directed
        self.graph = self.make(first, tau, directed)
        self.src = self.dst = self.time = np.zeros(0, np.int64)
        self.hidden, self.gone, self.offloaded = set(), set(), first

    def make(self, first, tau, directed):
        return BlockGraph(first, tau, directed)

    @rule(count=st.integers(0, 40), seed=st.integers(0, 2**20), scale=st.sampled_from([1, 4]))
    def insert(self, count, seed, scale):
        rng = np.random.default_rng(seed)
        alive = np.array([n for n in range(NODES) if n not in self.gone])
        src, dst = alive[(rng.random(count) ** 2 * len(alive)).astype(int)], rng.choice(alive, count)
        last = int(self.time[-1]) if len(self.time) else 0
        self.graph.insert(src, dst)
        self.src, self.dst = np.concatenate([self.src, src]), np.concatenate([self.dst, dst])
        self.time = np.concatenate([self.time, last + np.sort(rng.integers(0, 1 + count // scale, count))])

    @rule(data=st.data())
    @precondition(lambda self: len(self.src))
    def delete_edges(self, data):
        edges = np.array(data.draw(st.lists(st.integers(0, len(self.src) - 1), max_size=3)), np.int64)
        self.graph.hide(self.src[edges], self.dst[edges], self.first + edges)
        self.hidden |= set((self.first + edges).tolist())

    @rule(node=st.integers(0, NODES + 3))
    def delete_node(self, node):
        if len(self.gone) < NODES - 2 and not self.directed and self.offloaded == self.first:
            self.graph.hide_nodes(np.array([node]))
            self.hidden |= {self.first + e for e in range(len(self.src)) if node in (self.src[e], self.dst[e])}
            self.gone |= {node} if node < NODES else set()

    @rule(share=st.floats(0, 1))
    def offload(self, share):
        edge = self.first + int(share * len(self.src))
        self.graph.offload(edge)
        self.offloaded = max(self.offloaded, edge)

    @rule()
    def restore(self):
        def read(first, end):
            a, b = first - self.first, end - self.first
            return self.src[a:b], self.dst[a:b], np.array([e in self.hidden for e in range(first, end)], bool)

        self.graph.restore(self.first, read)
        self.offloaded = self.first

    @rule(share=st.floats(0, 1.2), since_share=st.sampled_from([0, 0, 0.3, 0.8]), k=st.integers(1, 12))
    def ask_recent(self, share, since_share, k):
        before, since = (self.first + int(s * len(self.src)) for s in (share, since_share))
        want = [reference.entries(self.src, self.dst, self.first, int(n), since, before, self.hidden, self.directed) for n in ROOTS]
        try:
            got = self.graph.recent(ROOTS, before, k, since)
        except OffloadedError:
            assert since < self.offloaded
            assert any(reference.entries(self.src, self.dst, self.first, int(n), self.first, self.offloaded, (), self.directed)
                       for n in ROOTS), "nothing old exists at all"
            return
        for r, entries in enumerate(want):
            newest = entries[::-1][:k]
            if since >= self.offloaded or len(newest) == k or self.offloaded == self.first:
                assert list(zip(got.eid[r][got.mask[r]].tolist(), got.neighbor[r][got.mask[r]].tolist(), strict=True)) == newest

    @rule(share=st.floats(0, 1.2), k=st.integers(1, 6), replace=st.booleans(), seed=st.integers(0, 99))
    def ask_uniform(self, share, k, replace, seed):
        before = self.first + int(share * len(self.src))
        try:
            got = self.graph.uniform(ROOTS, before, k, seed, replace)
        except OffloadedError:
            assert self.offloaded > self.first
            return
        for r, node in enumerate(ROOTS.tolist()):
            entries = reference.entries(self.src, self.dst, self.first, node, self.first, before, self.hidden, self.directed)
            drawn = list(zip(got.eid[r][got.mask[r]].tolist(), got.neighbor[r][got.mask[r]].tolist(), strict=True))
            assert set(drawn) <= set(entries)
            assert len(drawn) == (k * bool(entries) if replace else min(k, len(entries)))
            assert replace or len(set(drawn)) == len(drawn)

    @rule(k=st.integers(1, 5), prop=st.booleans(), seed=st.integers(0, 99))
    @precondition(lambda self: len(self.src) and self.offloaded == self.first)
    def ask_two_hops(self, k, prop, seed):
        columns = EdgeColumns.of([(self.first, self.time, np.zeros((len(self.time), 0), np.float32))],
                                 self.first + len(self.time), 0)
        sampler = TemporalSampler(self.graph, [k, 2], columns=columns, prop_time=prop)
        times = np.random.default_rng(seed).integers(-1, int(self.time[-1]) + 3, len(ROOTS))
        nodes = ROOTS
        for k_hop, layer in zip((k, 2), sampler.sample(ROOTS, times), strict=True):
            assert (layer.root == nodes).all() and (layer.root_time == times).all()
            for r, (node, when) in enumerate(zip(nodes.tolist(), times.tolist(), strict=True)):
                before = self.first + int(np.searchsorted(self.time, when))
                want = reference.entries(self.src, self.dst, self.first, node, self.first, before, self.hidden, self.directed)
                got = list(zip(layer.eid[r][layer.mask[r]].tolist(), layer.neighbor[r][layer.mask[r]].tolist(), strict=True))
                assert got == want[::-1][:k_hop]
            assert (layer.time[layer.mask] == self.time[layer.eid[layer.mask] - self.first]).all()
            row = np.nonzero(layer.mask)[0]
            times = np.concatenate([times, layer.time[layer.mask] if prop else times[row]])
            nodes = np.concatenate([nodes, layer.neighbor[layer.mask]])


TestGraphMachine = GraphMachine.TestCase
TestGraphMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.slow
def test_the_graph_machine_for_a_long_time():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(GraphMachine, settings=settings(TestGraphMachine.settings, max_examples=3000, stateful_step_count=50))
