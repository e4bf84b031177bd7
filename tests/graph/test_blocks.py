import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import OffloadedError
from streamd.graph import BlockGraph, reference
from streamd.graph.neighborhood import Sampling, look_around
from streamd.graph.node_features import NodeFeatures
from streamd.segments.columns import EdgeColumns
from tests.builders import stream


def same(a, b):
    assert (a.mask == b.mask).all()
    assert (a.neighbor[a.mask] == b.neighbor[b.mask]).all() and (a.eid[a.mask] == b.eid[b.mask]).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tau=st.sampled_from([1, 2, 8, 64]), k=st.integers(1, 7))
def test_recent_sampling_equals_the_reference_after_every_batch(seed, tau, k):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 120))
    src, dst = rng.integers(0, 9, n), rng.integers(0, 9, n)
    graph = BlockGraph(0, tau)
    at = 0
    while at < n:
        end = min(n, at + int(rng.integers(1, 40)))
        graph.insert(src[at:end], dst[at:end])
        at = end
        for before in {0, at // 2, at, at + 5}:
            roots = np.array([-1, 0, 3, 8, 11])
            same(graph.recent(roots, before, k), reference.recent(src[:at], dst[:at], roots, before, k))


def test_a_self_loop_is_stored_once_and_repeated_edges_are_kept():
    graph = BlockGraph()
    graph.insert(np.array([1, 1, 1]), np.array([1, 2, 2]))
    found = graph.recent(np.array([1, 2]), 3, 5)
    assert found.neighbor[0, :3].tolist() == [2, 2, 1] and found.mask.sum(1).tolist() == [3, 2]
    assert graph.num_entries == 5


def test_edge_ids_go_on_from_where_the_log_starts():
    graph = BlockGraph(first_edge=1_000)
    graph.insert(np.array([0, 0]), np.array([1, 2]))
    assert graph.recent(np.array([0]), 1_001, 2).eid[0, 0] == 1_000
    assert graph.num_edges == 1_002


def test_a_neighbourhood_says_for_each_root_who_and_how_long_ago():
    src, dst, time = stream(200)
    features = np.arange(400, dtype=np.float32).reshape(200, 2)
    graph = BlockGraph()
    graph.insert(src, dst)
    node_features = NodeFeatures(1)
    node_features.advance(np.array([3, 3]), np.array([0, 150]), np.array([[1.0], [2.0]], np.float32), 100)
    roots = np.array([-1, 3, 25, 99])
    query = int(time[99]) + 5
    around = look_around(graph, EdgeColumns.of([(0, time, features)], 200, 2), node_features, roots, 100, query,
                         Sampling("recent", 4))
    hop, = around.hops
    want = reference.recent(src, dst, roots, 100, 4)
    assert (around.node_M[hop.root_U] == roots).all() and (hop.mask_UK == want.mask).all()
    assert (around.node_M[hop.neighbor_UK][want.mask] == want.neighbor[want.mask]).all()
    assert (hop.ago_UK[want.mask] == query - time[want.eid[want.mask]]).all() and (hop.ago_UK >= 0).all()
    assert (hop.edge_UKD[want.mask] == features[want.eid[want.mask]]).all()
    assert around.node_MD[hop.root_U[1]] == 1.0, "the update at edge 150 is not in force at edge 100"
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
    graph.since_edge = int(rng.integers(0, n))
    for before in (n // 2, n):
        roots = np.array([-1, 0, 3, 8, 11])
        want = reference.recent(src, dst, roots, before, k, hidden, graph.since_edge)
        same(graph.recent(roots, before, k), want)


def resident_bytes():
    with open("/proc/self/smaps_rollup") as file:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


def test_what_is_offloaded_leaves_memory_and_comes_back_the_same():
    src, dst, _ = stream(800_000, 500, 300)
    compiled = BlockGraph()
    compiled.insert(src[:9], dst[:9])
    compiled.offload(5)
    graph = BlockGraph()
    graph.insert(src, dst)
    roots = np.arange(800)
    want, before = graph.recent(roots, 400_000, 5), resident_bytes()
    size = graph.num_bytes
    freed = graph.offload(700_000)
    assert freed > 8_000_000 and before - resident_bytes() > freed * 0.8 and graph.num_bytes == size - freed
    assert graph.recent(roots, 800_000, 5, since_edge=700_000).mask.any(), "the newest edges are still there"
    with pytest.raises(OffloadedError, match="before 700000"):
        graph.recent(roots, 400_000, 5)
    assert graph.offload(600_000) == 0
    graph.restore(0, lambda a, b: (src[a:b], dst[a:b], np.zeros(b - a, bool)))
    same(graph.recent(roots, 400_000, 5), want)
    assert graph.num_bytes == size
