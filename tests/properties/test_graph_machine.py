"""The live graph as a state machine: insert, delete, offload, drop, query, against a list of events."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streamd.eventlog.columns import EdgeColumns
from streamd.graph import BlockGraph, Draw, TemporalSampler
from streamd.graph.blocks.draws import ALL_SETS
from streamd.graph.blocks.strategies import STRATEGIES
from tests.graph.drawing import rows, wanted
from tests.graph.reference_draws import entries

NODES = 9
ROOTS = np.array([-1, *range(NODES), 40])


class GraphMachine(RuleBasedStateMachine):
    """Events live in plain columns; what is hidden in a set of ids."""

    num_sets = 1

    @initialize(tau=st.sampled_from([1, 2, 4, 8, 64]), first=st.sampled_from([0, 1000]),
                directions=st.sampled_from([("both",), ("out", "in"), ("in", "both", "out")]))
    def begin(self, tau, first, directions):
        self.first = self.dropped = first
        self.directions = directions
        self.src = self.dst = self.time = self.sets = np.zeros(0, np.int64)
        self.hidden, self.gone = set(), set()
        each = [(number, d) for number in range(self.num_sets) for d in directions] if self.num_sets > 1 else []
        self.graph = self.make(BlockGraph(first, tau, directions, self.read_back, each, lambda a, b: self.sets[a - first:b - first]))

    def make(self, host):
        return host

    def teardown(self):
        # The graph calls the machine and the machine holds the graph: thousands of their mappings would await the garbage collector.
        self.graph = None

    def read_back(self, first, end):
        assert self.dropped <= first <= end <= self.first + len(self.src), "the log has it"
        a, b = first - self.first, end - self.first
        return self.src[a:b], self.dst[a:b], np.array([e in self.hidden for e in range(first, end)], bool)

    @rule(count=st.integers(0, 40), seed=st.integers(0, 2**20), scale=st.sampled_from([1, 4]))
    def insert(self, count, seed, scale):
        rng = np.random.default_rng(seed)
        alive = np.array([n for n in range(NODES) if n not in self.gone])
        src, dst = alive[(rng.random(count) ** 2 * len(alive)).astype(int)], rng.choice(alive, count)
        last = int(self.time[-1]) if len(self.time) else 0
        sets = rng.integers(0, self.num_sets, count)
        self.graph.insert(src, dst, sets)
        self.sets = np.concatenate([self.sets, sets])
        self.src, self.dst = np.concatenate([self.src, src]), np.concatenate([self.dst, dst])
        self.time = np.concatenate([self.time, last + np.sort(rng.integers(0, 1 + count // scale, count))])

    @rule(data=st.data())
    @precondition(lambda self: len(self.src))
    def delete_edges(self, data):
        edges = np.array(data.draw(st.lists(st.integers(0, len(self.src) - 1), max_size=3)), np.int64)
        self.hidden |= set((self.first + edges).tolist())
        self.graph.hide(self.src[edges], self.dst[edges], self.first + edges)

    @rule(node=st.integers(0, NODES + 3))
    def delete_node(self, node):
        if len(self.gone) >= NODES - 2:
            return
        events = np.flatnonzero((self.src == node) | (self.dst == node))
        self.hidden |= set((self.first + events).tolist())
        self.gone |= {node} if node < NODES else set()
        self.graph.hide_nodes(np.array([node]))

    @rule(share=st.floats(0, 1))
    def offload(self, share):
        self.graph.offload(self.first + int(share * len(self.src)))

    @rule(share=st.floats(0, 0.3))
    def drop(self, share):
        self.dropped = max(self.dropped, self.first + int(share * len(self.src)))
        self.graph.drop_before(self.dropped)

    @rule(share=st.floats(0, 1.2), since_share=st.sampled_from([0, 0, 0.3, 0.8]), k=st.integers(1, 12),
          strategy=st.sampled_from(sorted(STRATEGIES)), replace=st.booleans(), seed=st.integers(0, 99), data=st.data())
    def ask(self, share, since_share, k, strategy, replace, seed, data):
        before, since = (self.first + int(s * len(self.src)) for s in (share, since_share))
        number = data.draw(st.integers(ALL_SETS, self.num_sets - 1)) if self.num_sets > 1 else ALL_SETS
        draw = Draw(direction=data.draw(st.sampled_from(self.directions)), edge_set=number, fanout=k, strategy=strategy,
                    replace=replace, seed=seed)
        want = wanted(self.src, self.dst, ROOTS, max(since, self.dropped), before, draw, self.hidden | self.others(number), self.first)
        assert rows(self.graph.sample(ROOTS, since, before, draw)) == want

    def others(self, number):
        """Ids of the events of other sets."""
        return set() if number == ALL_SETS else set((self.first + np.flatnonzero(self.sets != number)).tolist())

    @rule(k=st.integers(1, 12), data=st.data())
    def ask_all_sets_part_by_part(self, k, data):
        """The newest of all sets are the newest of the newest of each."""
        if self.num_sets == 1:
            return
        direction, before = data.draw(st.sampled_from(self.directions)), self.first + len(self.src)
        draws = tuple(Draw(direction=direction, edge_set=n, fanout=k) for n in range(self.num_sets))
        found = self.graph.sample(ROOTS, 0, before, draws)
        whole = rows(self.graph.sample(ROOTS, 0, before, Draw(direction=direction, fanout=k)))
        for r, want in enumerate(whole):
            mask = found.mask[r]
            got = sorted(zip(found.event[r][mask].tolist(), found.neighbor[r][mask].tolist(), strict=True), reverse=True)
            assert got[:k] == want

    @rule(k=st.integers(1, 5), prop=st.booleans(), seed=st.integers(0, 99))
    @precondition(lambda self: len(self.src))
    def ask_two_hops(self, k, prop, seed):
        direction = self.directions[0]
        columns = EdgeColumns.of([(self.first, self.time, np.zeros((len(self.time), 0), np.float32))],
                                 self.first + len(self.time), 0)
        sampler = TemporalSampler(self.graph, [k, 2], columns=columns, prop_time=prop, direction=direction)
        times = np.random.default_rng(seed).integers(-1, int(self.time[-1]) + 3, len(ROOTS))
        nodes = ROOTS
        for k_hop, layer in zip((k, 2), sampler.sample(ROOTS, times), strict=True):
            assert (layer.root == nodes).all() and (layer.root_time == times).all()
            for r, (node, when) in enumerate(zip(nodes.tolist(), times.tolist(), strict=True)):
                before = self.first + int(np.searchsorted(self.time, when))
                want = entries(self.src, self.dst, self.first, node, self.dropped, before, self.hidden, direction)
                got = list(zip(layer.eid[r][layer.mask[r]].tolist(), layer.neighbor[r][layer.mask[r]].tolist(), strict=True))
                assert got == want[::-1][:k_hop]
            assert (layer.time[layer.mask] == self.time[layer.eid[layer.mask] - self.first]).all()
            row = np.nonzero(layer.mask)[0]
            times = np.concatenate([times, layer.time[layer.mask] if prop else times[row]])
            nodes = np.concatenate([nodes, layer.neighbor[layer.mask]])


class SetsMachine(GraphMachine):
    """The same with three edge sets, each with stores of its own."""

    num_sets = 3


TestSetsMachine = SetsMachine.TestCase
TestSetsMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestGraphMachine = GraphMachine.TestCase
TestGraphMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [GraphMachine, SetsMachine])
def test_the_graph_machine_for_a_long_time(machine):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(TestGraphMachine.settings, max_examples=3000, stateful_step_count=50))
