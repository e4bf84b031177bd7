import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import OffloadedError
from streamd.eventlog.columns import EdgeColumns
from streamd.graph import BlockGraph, Draw, Neighbors
from streamd.graph.blocks import block_store as blocks
from streamd.graph.blocks.kernels import SPAN
from streamd.graph.blocks.strategies import STRATEGIES
from streamd.graph.neighborhood import SamplingPlan, sample_neighborhood
from streamd.graph.node_features import NodeFeatures
from streamd.schema import Schema
from tests.builders import stream
from tests.graph.drawing import recent, rows, same, wanted


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tau=st.sampled_from([1, 2, 8, 64]), k=st.integers(1, 7),
       direction=st.sampled_from(["both", "out", "in"]), strategy=st.sampled_from(sorted(STRATEGIES)),
       replace=st.booleans(), first=st.sampled_from([0, 1_000, 2**33 + 5]))
def test_every_strategy_equals_its_reference_after_every_batch(seed, tau, k, direction, strategy, replace, first):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 120))
    src, dst = rng.integers(0, 9, n), rng.integers(0, 9, n)
    graph = BlockGraph(first, tau, ("both", "out", "in"))
    draw = Draw(fanout=k, direction=direction, strategy=strategy, replace=replace, seed=seed % 100)
    at = 0
    while at < n:
        end = min(n, at + int(rng.integers(1, 40)))
        graph.insert(src[at:end], dst[at:end])
        at = end
        for before in {0, at // 2, at, at + 5}:
            for since in (0, first + before // 3):
                roots = np.array([-1, 0, 3, 8, 11])
                got = rows(graph.sample(roots, since, first + before, draw))
                assert got == wanted(src[:at], dst[:at], roots, since, first + before, draw, first=first)


@pytest.mark.parametrize("direction", ["both", "out", "in"])
@pytest.mark.parametrize("nodes", [9, 9_000])
def test_many_events_at_once_are_answered_as_in_small_batches(direction, nodes, monkeypatch):
    monkeypatch.setattr(blocks, "MANY_EVENTS", 500)
    rng = np.random.default_rng(nodes)
    src, dst = rng.integers(0, nodes, (2, 6_000)) ** 2 // nodes
    few, many = (BlockGraph(7, 8, (direction,)) for _ in range(2))
    for at in range(0, 6_000, 100):
        few.insert(src[at:at + 100], dst[at:at + 100])
    for at, end in ((0, 2_000), (2_000, 2_300), (2_300, 6_000)):
        many.insert(src[at:end], dst[at:end])
    deleted = np.arange(0, 6_000, 13)
    for graph in (few, many):
        graph.hide(src[deleted], dst[deleted], 7 + deleted)
    roots = np.arange(-1, nodes + 1, max(1, nodes // 300))
    for strategy in STRATEGIES:
        for since, before in ((0, 6_100), (900, 5_000), (3_000, 3_001)):
            same(*(g.sample(roots, since, before, Draw(fanout=9, direction=direction, strategy=strategy)) for g in (few, many)))
    assert (few.num_entries, few.num_bytes) == (many.num_entries, many.num_bytes)


@pytest.mark.parametrize("tau", [1, 4, 64])
@pytest.mark.parametrize("many_events", [blocks.MANY_EVENTS, 1])
def test_event_ids_far_above_two_to_the_33_and_far_apart_are_answered(tau, many_events, monkeypatch):
    """A node that waits for more than 2^31 events gets its next entry in a block of its own.

    1 --> 2, 1 --> 3, 1 --> 1, 2 --> 3: these four events again and again, far apart
    """
    monkeypatch.setattr(blocks, "MANY_EVENTS", many_events)
    src, dst = np.array([1, 1, 1, 2]), np.array([2, 3, 1, 3])
    starts = [2**33, 2**33 + SPAN - 2, 2**33 + SPAN + 7, 2**35, 2**35 + 10]
    graph = BlockGraph(starts[0], tau)
    edges = []
    for start in starts:
        for store in graph.stores.values():
            store.next_event = start  # as if the events between were of other nodes
        graph.insert(src, dst)
        edges += [(start + i, int(u), int(v)) for i, (u, v) in enumerate(zip(src, dst, strict=True))]
    for strategy in STRATEGIES:
        for before in [s + extra for s in starts for extra in (0, 2, 4)]:
            for since in (0, starts[1] + 1, starts[3]):
                draw = Draw(fanout=40, strategy=strategy)
                for node, got in zip((1, 2, 3), rows(graph.sample(np.array([1, 2, 3]), since, before, draw)), strict=True):
                    want = [(e, v if u == node else u) for e, u, v in edges if node in (u, v) and since <= e < before]
                    assert got == want[::-1]
    graph.hide(src[:1], dst[:1], np.array([starts[0]]))
    assert (starts[0], 1) not in rows(recent(graph, np.array([2]), 2**36, 40))[0]


def test_a_self_loop_is_stored_once_and_repeated_edges_are_kept():
    """
    0: 1 --> 1
    1: 1 --> 2
    2: 1 --> 2
    """
    graph = BlockGraph()
    graph.insert(np.array([1, 1, 1]), np.array([1, 2, 2]))
    found = recent(graph, np.array([1, 2]), 3, 5)
    assert found.neighbor[0, :3].tolist() == [2, 2, 1] and found.mask.sum(1).tolist() == [3, 2]
    assert graph.num_entries == 5


def test_event_ids_go_on_from_where_the_log_starts():
    """
    1000: 0 --> 1
    1001: 0 --> 2
    """
    graph = BlockGraph(first_event=1_000)
    graph.insert(np.array([0, 0]), np.array([1, 2]))
    assert recent(graph, np.array([0]), 1_001, 2).event[0, 0] == 1_000
    assert graph.next_event == 1_002


def test_a_neighborhood_says_for_each_root_who_and_how_long_ago():
    src, dst, time = stream(200)
    features = np.arange(400, dtype=np.float32).reshape(200, 2)
    graph = BlockGraph()
    graph.insert(src, dst)
    node_features = NodeFeatures(Schema(0, 1))
    node_features.take(np.array([3]), np.array([[1.0]], np.float32), np.array([7]))
    roots = np.array([-1, 3, 25, 99])
    query = int(time[99]) + 5
    around = sample_neighborhood(graph, EdgeColumns.of([(0, time, features)], 200, 2), node_features, roots, 100, query,
                         SamplingPlan(hops=(Draw(fanout=4),)))
    hop, = around.hops
    held = hop.mask_UK
    assert (around.node_M[hop.root_U] == roots).all()
    neighbor_UK = np.where(held, around.node_M[hop.neighbor_UK], 0)
    assert rows(Neighbors(neighbor_UK, hop.eid_UK, held)) == wanted(src, dst, roots, 0, 100, Draw(fanout=4))
    assert (hop.ago_UK[held] == query - time[hop.eid_UK[held]]).all() and (hop.ago_UK >= 0).all()
    assert (hop.edge_UKD[held] == features[hop.eid_UK[held]]).all()
    assert around.node_MD[hop.root_U[1]] == 1.0
    some = around.subset(np.array([1, 3]))
    assert (some.node_M[some.hops[0].root_U] == roots[[1, 3]]).all()
    assert (some.node_M[some.hops[0].neighbor_UK] == around.node_M[hop.neighbor_UK[[1, 3]]]).all()


def test_more_nodes_than_fit_are_refused():
    from streamd.errors import CapacityError

    with pytest.raises(CapacityError):
        BlockGraph().insert(np.array([2**40]), np.array([1]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tau=st.sampled_from([1, 2, 8, 64]), k=st.integers(1, 5))
def test_what_was_deleted_or_dropped_is_never_answered_at_either_end(seed, tau, k):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 80))
    src, dst = rng.integers(0, 9, n), rng.integers(0, 9, n)
    graph = BlockGraph(0, tau)
    graph.insert(src[: n // 2], dst[: n // 2])
    edges = rng.choice(n // 2, min(3, n // 2), replace=False)
    graph.hide(src[edges], dst[edges], edges)
    gone = int(rng.integers(0, 12))
    graph.hide_nodes(np.array([gone]))
    graph.insert(src[n // 2:], dst[n // 2:])
    hidden = set(edges.tolist()) | {e for e in range(n // 2) if gone in (src[e], dst[e])}
    graph.drop_before(int(rng.integers(0, n)))
    roots = np.array([-1, 0, 3, 8, 11])
    for before in (n // 2, n):
        for strategy in STRATEGIES:
            draw = Draw(fanout=k, strategy=strategy, seed=seed % 100)
            want = wanted(src, dst, roots, graph.since_event, before, draw, hidden)
            assert rows(graph.sample(roots, 0, before, draw)) == want


def resident_bytes():
    with open("/proc/self/smaps_rollup") as file:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


def test_what_is_offloaded_leaves_memory_and_is_read_back_for_who_asks():
    src, dst, _ = stream(800_000, 500, 300)
    reads = []

    def read_back(first, end):
        reads.append((first, end))
        return src[first:end], dst[first:end], np.zeros(end - first, bool)

    graph = BlockGraph(read_back=read_back)
    graph.insert(src[:9], dst[:9])
    graph.offload(5)
    graph.insert(src[9:], dst[9:])
    roots = np.arange(800)
    want, before = recent(graph, roots, 400_000, 5), resident_bytes()
    size = graph.num_bytes
    graph.offload(700_000)
    freed = size - graph.num_bytes
    assert freed > 8_000_000 and before - resident_bytes() > freed * 0.8
    assert recent(graph, roots, 800_000, 5, since=700_000).mask.any() and not reads, "the newest events are there"

    few = np.array([7, 510])
    assert rows(recent(graph, few, 400_000, 5)) == [rows(want)[node] for node in few]
    assert reads and graph.num_bytes < size - freed / 2, "only what these two nodes need is back"
    reads.clear()
    recent(graph, few, 300_000, 5)
    assert not reads, "and stays until the next pass"
    same(recent(graph, roots, 400_000, 5), want)
    graph.offload(700_000)
    assert size - graph.num_bytes == freed
    graph.restore_all()
    assert graph.num_bytes == size
    same(recent(graph, roots, 400_000, 5), want)


def test_what_cannot_be_read_back_is_said():
    src, dst, _ = stream(5_000, 20, 10)
    graph = BlockGraph()
    graph.insert(src, dst)
    graph.offload(4_000)
    with pytest.raises(OffloadedError, match="not in memory"):
        recent(graph, np.arange(20), 2_000, 5)


def test_offloading_and_the_end_of_what_the_log_keeps_go_together():
    src, dst, _ = stream(20_000, 20, 10)
    kept_from = 9_000

    def read_back(first, end):
        assert first >= kept_from, "older events are not in the log"
        return src[first:end], dst[first:end], np.zeros(end - first, bool)

    plain, graph = BlockGraph(max_block_entries=8), BlockGraph(max_block_entries=8, read_back=read_back)
    for g in (plain, graph):
        g.insert(src, dst)
        g.drop_before(kept_from)
    graph.offload(15_000)
    for draw in (Draw(fanout=30), Draw(fanout=5, strategy="uniform", seed=3)):
        for before in (12_000, 9_500, 20_000):
            same(graph.sample(np.arange(30), 0, before, draw), plain.sample(np.arange(30), 0, before, draw))


@pytest.mark.parametrize("directions", [("both",), ("out",), ("in", "out")])
def test_a_deleted_node_vanishes_from_neighbors_though_its_own_events_were_offloaded_and_read_back(directions):
    """1 meets 0 long ago, then 2 again and again: the entry at 0 is offloaded, the one at 1 may not be.

    0 <-- 1 --> 2 --> 2 ... and when the log is read back it already hides what is of 0
    """
    src = np.array([1, *[1] * 7, 0])
    dst = np.array([0, *[2] * 7, 2])
    deleted = (src == 0) | (dst == 0)
    graph = BlockGraph(0, 2, directions, lambda a, b: (src[a:b], dst[a:b], deleted[a:b]))
    graph.insert(src, dst)
    everyone = np.arange(3)
    graph.offload(len(src))
    for direction in directions:
        recent(graph, everyone, 4, 9, direction=direction)
    graph.hide_nodes(np.array([0]))
    for direction in directions:
        draw = Draw(fanout=9, direction=direction)
        assert rows(graph.sample(everyone, 0, 9, draw)) == wanted(src, dst, everyone, 0, 9, draw, {0, 8})
