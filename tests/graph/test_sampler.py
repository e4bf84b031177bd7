import bisect
import collections
import json

import numpy as np
import pytest
import torch

from streamd.demo.streams import find_stream
from streamd.eventlog.columns import EdgeColumns
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.graph import BlockGraph, TemporalSampler
from streamd.graph.blocks.gather import edge_features, edge_times, edges_before
from tests.builders import batch, stream
from tests.graph.drawing import uniform


def columns_of(time, features=None, cuts=(), first=0):
    features = np.zeros((len(time), 0), np.float32) if features is None else features
    edges = [0, *cuts, len(time)]
    parts = [(first + a, time[a:b], features[a:b]) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return EdgeColumns.of(parts, first + len(time), features.shape[1])


def star(num_edges):
    """Node 0 meets 1, 2, ...: every neighbor is an event of its own.

    0: 0 --> 1
    1: 0 --> 2
    2: 0 --> 3 ...
    """
    graph = BlockGraph(0, 4)
    graph.insert(np.zeros(num_edges, np.int64), np.arange(1, num_edges + 1))
    return graph


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("hidden", [(), (2, 9)])
def test_uniform_draws_every_edge_as_often_as_any_other(replace, hidden):
    """2,000 pairs that meet 20 times each, so that 2,000 roots draw alike; some of the meetings are hidden.

    0 --> 2000 (20 times)    1 --> 2001 (20 times)    ...    1999 --> 3999 (20 times)
    """
    stars, seeds, k = 2000, 20, 5
    graph, roots = BlockGraph(0, 4), np.arange(stars)
    for number in range(20):
        graph.insert(roots, stars + roots)
        if number in hidden:
            graph.hide(roots, stars + roots, number * stars + roots)
    found = [uniform(graph, roots, 13 * stars, k, seed, replace) for seed in range(seeds)]
    assert all(f.mask.all() and (f.event % stars == roots[:, None]).all() for f in found)
    eid = np.concatenate([f.event for f in found]) // stars
    left = 13 - len(hidden)
    counts = np.bincount(eid.ravel(), minlength=20)
    assert counts[list(hidden)].sum() == counts[13:].sum() == 0
    drawn = np.array([c for e, c in enumerate(counts[:13]) if e not in hidden])
    share = k / left
    spread = np.sqrt(len(eid) * (share if replace else share * (1 - share)))
    assert np.abs(drawn - len(eid) * share).max() < 4.5 * spread
    first, second = np.array([(a, b) for a in range(k) for b in range(a)][: 1 if replace else None]).T
    pairs = collections.Counter(map(tuple, np.sort(np.stack([eid[:, first], eid[:, second]], -1)).reshape(-1, 2).tolist()))
    expected = len(eid) * (2 / left**2 if replace else k * (k - 1) / (left * (left - 1)))
    twice = np.array([n for (a, b), n in pairs.items() if a != b])
    assert len(twice) == left * (left - 1) // 2, "every pair is drawn"
    assert np.abs(twice - expected).max() < 4.5 * np.sqrt(expected), "nor does one draw lean on another"
    assert replace == any(a == b for a, b in pairs)


def test_draws_depend_on_the_seed_and_the_root_but_not_on_threads_or_the_batch():
    src, dst, time = stream(3000, 50, 20)
    graph = BlockGraph()
    graph.insert(src, dst)
    roots = np.random.default_rng(0).integers(0, 70, 20_000)
    when = np.full(len(roots), time[-1])
    samplers = [TemporalSampler(graph, [4, 3], "uniform", columns=columns_of(time), seed=seed, threads=threads)
                for seed, threads in ((1, 1), (1, 2), (1, 3), (2, 1))]
    one, two, three, other = (s.sample(roots, when) for s in samplers)
    for a, b, c in zip(one, two, three, strict=True):
        assert (a.eid == b.eid).all() and (a.eid == c.eid).all() and (a.mask == b.mask).all()
    assert not (one[0].eid == other[0].eid).all()
    alone, _ = samplers[0].sample(roots[77:78], when[77:78])
    assert (alone.eid[0] == one[0].eid[77]).all() and (alone.mask[0] == one[0].mask[77]).all()


def test_a_window_holds_the_newest_of_each_snapshot_and_nothing_else():
    src, dst, time = stream(500)
    graph = BlockGraph()
    graph.insert(src, dst)
    width = 1_800_000_000
    sampler = TemporalSampler(graph, [3], "window", columns=columns_of(time, cuts=(100, 333)), snapshots=4, width_us=width)
    roots, times = np.arange(30), np.linspace(int(time[100]), int(time[-1]), 30).astype(np.int64)
    for number, layer in enumerate(sampler.sample(roots, times)):
        for r, (node, t) in enumerate(zip(roots.tolist(), times.tolist(), strict=True)):
            inside = [e for e in range(500) if node in (src[e], dst[e]) and t - (number + 1) * width <= time[e] < t - number * width]
            assert layer.eid[r][layer.mask[r]].tolist() == inside[::-1][:3]


def test_static_sees_all_edges_of_the_snapshot_whatever_their_time():
    graph, time = star(10), np.arange(10)
    sampler = TemporalSampler(graph, [10], "static", columns=columns_of(time))
    layer, = sampler.sample(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert sorted(layer.eid[0].tolist()) == list(range(10))
    layer, = sampler.sample(np.zeros(1, np.int64), np.zeros(1, np.int64), before_event=4)
    assert sorted(layer.eid[0][layer.mask[0]].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("prop_time", [False, True])
def test_the_compact_form_holds_the_same_edges_between_distinct_nodes(prop_time):
    src, dst, time = stream(400)
    graph = BlockGraph()
    graph.insert(src, dst)
    layer, _ = TemporalSampler(graph, [5, 2], columns=columns_of(time), prop_time=prop_time).sample(
        np.array([1, 1, 25, 99]), np.full(4, time[300]))
    got = layer.compact(prop_time)
    assert len({*zip(got.node.tolist(), got.time.tolist(), strict=True)}) == len(got.node)
    assert (got.node[got.root] == layer.root).all() and (got.time[got.root] == layer.root_time).all()
    assert (got.node[got.edge_index[0]] == layer.neighbor[layer.mask]).all() and (got.eid == layer.eid[layer.mask]).all()
    assert (got.node[got.edge_index[1]] == layer.root[np.nonzero(layer.mask)[0]]).all()


def test_the_compact_form_is_what_a_layer_of_pyg_takes():
    data, nn = pytest.importorskip("torch_geometric.data"), pytest.importorskip("torch_geometric.nn")
    src, dst, time = stream(400)
    graph = BlockGraph()
    graph.insert(src, dst)
    layer, = TemporalSampler(graph, [5], columns=columns_of(time)).sample(np.array([1, 25, 99, 1]), np.full(4, time[300]))
    got = layer.compact()
    feature = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    pyg = data.Data(x=feature[got.node], edge_index=torch.as_tensor(got.edge_index))
    pyg.validate()
    mean = nn.SimpleConv(aggr="mean")(pyg.x, pyg.edge_index)[got.root]
    mask = torch.as_tensor(layer.mask)[..., None]
    plain = (feature[layer.neighbor] * mask).sum(1) / mask.sum(1).clamp(min=1)
    assert layer.mask.any(axis=1).tolist() == [True, True, False, True]
    once = [0, 1, 2]  # node 1 is asked twice: as one root with the edges of both
    assert torch.allclose(mean[once], plain[once], atol=1e-6) and torch.equal(mean[3], mean[0])


def test_times_and_features_come_from_the_mapped_segments(tmp_path):
    src, dst, time = stream(300)
    writer = LogWriter(tmp_path, Schema(3, 0, 0), 64)
    at = 0
    while at < 300:
        end = min(at + min(50, writer.remaining_rows()), 300)
        keys = [f"n:{i}" for i in range(40)] if at == 0 else ()
        writer.commit(batch(Schema(3, 0, 0), src[at:end], dst[at:end], time[at:end], keys, at), Progress(), int(time[end - 1]))
        at = end
    writer.drop_before(64)
    writer.close()
    log = LogReader.open(tmp_path)
    assert log.first_edge == 64 and log.columns.num_segments == 4 and log.columns is log.columns
    rng = np.random.default_rng(0)
    edge, mask = rng.integers(64, 300, (20, 7)), rng.random((20, 7)) < 0.7
    assert (edge_times(log.columns, edge, mask) == np.where(mask, time[edge], 0)).all()
    want = np.where(mask[..., None], log.features_of(edge), 0)
    out = np.full((20, 7, 3), np.nan, np.float32)
    assert (edge_features(log.columns, edge, mask) == want).all() and edge_features(log.columns, edge, mask, out) is out
    assert (out == want).all()
    for wrong in (63, 300, -1):
        with pytest.raises(IndexError, match="not in the log"):
            edge_times(log.columns, np.array([wrong]), np.array([True]))
    queries = rng.integers(-5, int(time[-1]) + 5, 500)
    queries[:300] = np.sort(queries[:300])
    want = np.array([log.lower_bound(int(q)) for q in queries])
    assert (edges_before(log.columns, queries) == want).all()


def test_an_empty_log_has_no_times_and_no_neighbors():
    nothing = EdgeColumns.of([], 0, 2)
    layer, = TemporalSampler(BlockGraph(), [3], columns=nothing).sample(np.array([0, 5]), np.array([9, 9]))
    assert not layer.mask.any() and edge_features(nothing, layer.eid, layer.mask).shape == (2, 3, 2)


@pytest.mark.parametrize("wrong", [{"strategy": "newest"}, {"strategy": "window"}, {"fanouts": []}, {"fanouts": [3, 0]}])
def test_what_cannot_be_sampled_is_refused(wrong):
    with pytest.raises(ValueError, match="strategy|window|fanouts"):
        TemporalSampler(BlockGraph(), **{"fanouts": [1], "columns": columns_of(np.zeros(0, np.int64)), **wrong})


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_a_random_walk_steps_back_in_time_over_events_of_its_nodes(strategy):
    src, dst, time = stream(400)
    graph = BlockGraph()
    graph.insert(src, dst)
    sampler = TemporalSampler(graph, [1], strategy, columns=columns_of(time), seed=5)
    roots, when = np.array([-1, 1, 25, 7]), np.full(4, time[300])
    walks = sampler.walk(roots, when, 6)
    assert walks.shape == (4, 7) and (walks[:, 0] == roots).all() and (walks[0] == -1).all()
    for walk in walks[1:].tolist():
        until = int(time[300])
        reached = {(walk[0], until)}
        for node in walk[1:]:
            if node == -1:
                assert any(not any(u in (src[e], dst[e]) and time[e] < t for e in range(400)) for u, t in reached)
                break
            reached = {(node, int(time[e])) for u, t in reached for e in range(400)
                       if {u, node} == {src[e], dst[e]} and time[e] < t}
            assert reached, "each step is an event before the one that led here"
    assert (walks[:, 3] >= 0).any()
    assert (sampler.walk(roots, when, 6) == walks).all()


@pytest.mark.parametrize("name", ["wikipedia", "taxi"])
def test_two_hops_over_a_real_stream_equal_the_plain_answer_edge_for_edge(name):
    ids, rows = {}, []
    for hour in find_stream(name).windows(None):
        for event in hour:
            e = json.loads(event.value)
            if e.get("type", "edge") == "edge":
                rows.append([ids.setdefault(e["src"], len(ids)), ids.setdefault(e["dst"], len(ids)), e["time"]])
        if len(rows) > 40_000:
            break
    src, dst, time = np.ascontiguousarray(np.array(rows, np.int64).T)
    graph = BlockGraph()
    lists = collections.defaultdict(list)
    for e, (u, v) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        lists[u].append((e, v))
        if u != v:
            lists[v].append((e, u))
    for a in range(0, len(src), 7_001):
        graph.insert(src[a:a + 7_001], dst[a:a + 7_001])
    at = np.random.default_rng(0).integers(0, len(src), 400)
    nodes, times = np.concatenate([src[at], dst[at]]), np.tile(time[at], 2)
    for layer in TemporalSampler(graph, [10, 10], columns=columns_of(time, cuts=(5_000, 20_000))).sample(nodes, times):
        for r, (node, t) in enumerate(zip(layer.root.tolist(), layer.root_time.tolist(), strict=True)):
            before = bisect.bisect_left(lists[node], (int(np.searchsorted(time, t)), -1))
            want = lists[node][max(0, before - 10):before][::-1]
            held = layer.mask[r]
            assert list(zip(layer.eid[r][held].tolist(), layer.neighbor[r][held].tolist(), strict=True)) == want
