import dataclasses
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from torch.nn.functional import leaky_relu

from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.graph import NUM_FACTS
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import Draw
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import sample_neighborhood
from streamd.graph.node_features import NodeFeatures
from streamd.graph.sampler import TemporalSampler
from streamd.models import ARCHITECTURES, build_model, sampled_inputs
from streamd.models.architectures import COMMON, unused_settings
from streamd.models.inputs import joined, link_inputs
from streamd.models.layers.gat import GATLayer
from streamd.models.layers.sage import SAGELayer
from streamd.models.layers.table import LAYERS
from streamd.settings.loading import ModelName, ModelSettings
from tests.builders import settings, stream, write_log

NAMES = tuple(LAYERS)
SCHEMA = Schema(2, 0, 0)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    write_log(path, *stream(600), SCHEMA)
    log = LogReader.open(path)
    graph = LiveGraph(log, BlockGraph(directions=("both", "out")), settings(path).model)
    while graph.step(600, 1000):
        pass
    return graph


def model_of(name, **values):
    small = {"dim": 8, "time_dim": 4, "neighbors": 3, "snapshots": 3, "snapshot_seconds": 3600, "id_rows": 64}
    made = ModelSettings(**{"name": name, **small, **values})
    model = build_model(made, SCHEMA, 1)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def embedded(model, live, roots, subset=None, before=500):
    """Embeddings of roots, a wave of their ids as their memory where the model has one."""
    query = int(live.log.time_of(np.array([before - 1]))[0])
    around = sample_neighborhood(live.graph, live.log.columns, live.features, roots, before, query, model.plan)
    if subset is not None:
        around = around.subset(subset)
    none = np.zeros((0, 1), np.int64)
    inputs = link_inputs(none[:, 0], np.zeros((0, 1, NUM_FACTS), np.float32), none[:, 0], none, around)
    return model.embed(inputs, torch.sin(inputs.node_M[:, None] + torch.arange(model.settings.dim if model.has_memory else 0)))


def test_the_table_has_a_row_for_every_name_that_settings_allow():
    assert set(ARCHITECTURES) == set(get_args(ModelName))
    assert set().union(COMMON, *(row.settings for row in ARCHITECTURES.values())) == set(ModelSettings.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_uses_the_settings_that_its_row_says_and_no_others(live, name):
    changed = {"dim": 4, "time_dim": 6, "heads": 1, "neighbors": 2, "id_rows": 7, "snapshots": 2, "snapshot_seconds": 60,
               "direction": "out"}
    assert set(changed) == set(ModelSettings.model_fields) - COMMON
    plain = embedded(model_of(name), live, np.arange(30))
    for setting, value in changed.items():
        other = model_of(name, **{setting: value})
        moved = embedded(other, live, np.arange(30))
        assert (moved.shape != plain.shape or not torch.equal(moved, plain)) == (setting in ARCHITECTURES[name].settings), setting


def test_settings_that_a_model_does_not_use_are_named():
    assert unused_settings(ModelSettings(name="sage", heads=4, dim=32, snapshots=9)) == ["model.heads", "model.snapshots"]
    assert unused_settings(ModelSettings(name="pair", dim=32, max_pairs=5)) == ["model.dim"]
    assert all(unused_settings(ModelSettings(name=name)) == [] for name in ARCHITECTURES)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_is_embedded_alike_alone_in_a_batch_and_in_a_part_of_one(live, name):
    model, roots = model_of(name), np.array([-1, 0, 3, 7, 21, 30])
    all_of_them = embedded(model, live, roots)
    part = embedded(model, live, roots, np.array([1, 4]))
    torch.testing.assert_close(part, all_of_them[[1, 4]])
    for i, root in enumerate(roots):
        torch.testing.assert_close(embedded(model, live, np.array([root]))[0], all_of_them[i])
    assert all_of_them.isfinite().all() and not torch.equal(all_of_them[1], all_of_them[2])


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_of_a_model_learns(live, name):
    model = model_of(name)
    embedded(model, live, np.arange(30)).square().sum().backward()
    still = [n for n, p in model.encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_two_hops_are_the_layer_applied_to_what_it_made_of_each_neighbor(live):
    """The plain recursion: a root's neighbors are embedded by the first layer as roots of their own."""
    model, root, before = model_of("sage"), 3, 500
    encoder, query = model.encoder, int(live.log.time_of(np.array([499]))[0])

    def first(node):
        return plain(encoder.layers[0], node, lambda v: encoder.id_vectors.weight[v], False)

    def plain(layer, node, state, last):
        found = live.graph.sample(np.array([node]), 0, before, Draw(fanout=3))
        held = found.mask[0]
        edges = torch.from_numpy(live.log.features_of(found.event[0][held]))
        entry = torch.cat([torch.stack([state(int(v)) for v in found.neighbor[0][held]]), model.edge_stats(edges)], 1)
        out = layer.root(state(node)) + layer.mean(entry.mean(0))
        return out if last else out.relu()

    assert query > 0
    torch.testing.assert_close(embedded(model, live, np.array([root]))[0], plain(encoder.layers[1], root, first, True))


@pytest.mark.parametrize("edge_dim", [0, 2])
def test_gcn_equals_its_dense_form_where_all_neighbors_are_sampled(tmp_path, edge_dim):
    """
        0 --- 1 === 2      a repeated edge between 1 and 2, a self loop at 3, node 4 alone until the last edge
              |
              3 -o                  D^-1/2 (A + I) D^-1/2 X W, twice
    """
    src, dst = np.array([0, 1, 2, 1, 3, 4]), np.array([1, 2, 1, 3, 3, 0])
    schema = Schema(edge_dim, 0, 0)
    write_log(tmp_path, src, dst, np.arange(1, 7), schema)
    log = LogReader.open(tmp_path)
    graph = BlockGraph()
    graph.insert(src, dst)
    model = build_model(ModelSettings(name="gcn", dim=4, neighbors=5, id_rows=5), schema, 1).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p)
    roots = np.array([1, 3, 4])
    around = sample_neighborhood(graph, log.columns, NodeFeatures(Schema(0, 0)), roots, 5, 6, model.plan)
    none = np.zeros((0, 1), np.int64)
    inputs = link_inputs(none[:, 0], np.zeros((0, 1, NUM_FACTS), np.float32), none[:, 0], none, around)
    got = model.embed(inputs, torch.zeros(len(inputs.node_M), 0)).detach().numpy()

    links = np.eye(5)
    edges = np.zeros((5, edge_dim))
    for u, v in zip(src[:5], dst[:5], strict=True):
        links[u, v] += 1
        links[v, u] += u != v
    rate = np.diag(links.sum(1) ** -0.5)
    features = model.edge_stats(torch.from_numpy(log.features_of(np.arange(5)))).numpy()
    for i, (u, v) in enumerate(zip(src[:5], dst[:5], strict=True)):
        for a, b in {(u, v), (v, u)}:
            edges[a] += features[i] * rate[a, a] * rate[b, b]
    h = model.encoder.id_vectors.weight.detach().numpy()
    for number, layer in enumerate(model.encoder.layers):
        weight = layer.linear.weight.detach().numpy()
        h = np.concatenate([rate @ links @ rate @ h, edges], 1) @ weight.T + layer.linear.bias.detach().numpy()
        h = h if number else np.maximum(h, 0)
    np.testing.assert_allclose(got, h[roots], rtol=1e-4, atol=1e-5)


def test_dysat_looks_at_one_window_of_time_a_hop(live):
    before = 500
    query = int(live.log.time_of(np.array([before - 1]))[0])
    around = sample_neighborhood(live.graph, live.log.columns, live.features, np.arange(20), before, query,
                         model_of("dysat").plan)
    assert len(around.hops) == 3 and all((h.root_U == around.hops[0].root_U).all() for h in around.hops)
    for number, hop in enumerate(around.hops):
        ago = hop.ago_UK[hop.mask_UK]
        assert len(ago) and (ago >= number * 3_600_000_000).all() and (ago < (number + 1) * 3_600_000_000).all()


def test_the_mean_and_graph_attention_equal_their_plain_forms():
    torch.manual_seed(0)
    root, entry, mask = torch.randn(5, 6), torch.randn(5, 4, 9), torch.rand(5, 4) < 0.6
    mask[2] = False
    sage, gat = SAGELayer(6, 9, 2), GATLayer(6, 9, 2)
    for u in range(5):
        kept = entry[u][mask[u]]
        mean = kept.mean(0) if len(kept) else torch.zeros(9)
        torch.testing.assert_close(sage(root, [entry], mask, True)[u], sage.root(root[u]) + sage.mean(mean))
        own, others = gat.root(root[u]).view(2, 3), gat.entry(kept).view(-1, 2, 3)
        for h in range(2):
            asked = gat.to_root[h] @ own[h]
            score = torch.stack([leaky_relu(asked + gat.to_entry[h] @ e[h], 0.2) for e in [*others, own]])
            want = (score.softmax(0)[:, None] * torch.stack([e[h] for e in [*others, own]])).sum(0)
            torch.testing.assert_close(gat(root, [entry], mask, True)[u].view(2, 3)[h], want)


def test_a_plain_model_has_no_pair_facts_and_starts_undamped():
    model = model_of("tgn", pair_facts=False)
    assert not model.pair_logits(torch.randn(4, 3, NUM_FACTS)).any()
    assert {g["lr"] for g in model.optimizer(0.01).param_groups} == {0.01}
    z, inputs = torch.randn(4, 8), SimpleNamespace(src_E=torch.arange(2), candidate_EC=torch.tensor([[2], [3]]), event_E=torch.arange(2), facts_ECF=None)
    assert torch.equal(model.residual(z, inputs, 5), model.residual(z, inputs, None)), "nothing is dropped"


@pytest.mark.parametrize("name", [n for n, row in ARCHITECTURES.items() if n in NAMES and not row.has_memory])
def test_a_sampler_of_ones_own_gives_a_model_what_the_daemon_gives_it(live, name):
    model = model_of(name, pair_facts=False)
    plan, event, log = model.plan, np.arange(500, 520), live.log
    src, dst, _ = log.edges(500, 520)
    query = int(log.time_of(event[:1])[0])
    before = log.lower_bound(query)
    fanouts, first = [draw.fanout for draw in plan.hops], plan.hops[0]
    if plan.window_us:
        sampler = TemporalSampler(
            live.graph, fanouts[:1], "window", columns=log.columns, snapshots=len(fanouts), width_us=plan.window_us)
    else:
        sampler = TemporalSampler(live.graph, fanouts, first.strategy, columns=log.columns, seed=first.seed)

    inputs = sampled_inputs(sampler, event, src, np.stack([dst, src], 1), np.full(20, query),
                            lambda ids: torch.from_numpy(log.features_of(ids.numpy())))
    z_UD = model.embed(inputs, inputs.no_state_MD)
    nodes = np.unique(np.concatenate([src, dst]))
    around = sample_neighborhood(live.graph, log.columns, live.features, nodes, before, query, plan)
    none = np.zeros((0, 1), np.int64)
    want = link_inputs(none[:, 0], np.zeros((0, 1, NUM_FACTS), np.float32), none[:, 0], none, around)
    want_UD = model.embed(want, want.no_state_MD)
    for got, ids in ((inputs.src_E, src), (inputs.candidate_EC[:, 0], dst), (inputs.candidate_EC[:, 1], src)):
        torch.testing.assert_close(z_UD[got], want_UD[np.searchsorted(nodes, ids)])


@pytest.mark.parametrize("name", [*NAMES, "pair"])
def test_several_inputs_joined_answer_as_each_alone(live, name):
    model, rng, parts = model_of(name), np.random.default_rng(0), []
    for before, count in ((300, 4), (500, 7), (500, 1)):
        query = int(live.log.time_of(np.array([before - 1]))[0])
        roots = np.sort(rng.choice(35, 9, replace=False))
        around = sample_neighborhood(live.graph, live.log.columns, live.features, roots, before, query, model.plan)
        facts = rng.normal(size=(count, 3, NUM_FACTS)).astype(np.float32)
        inputs = link_inputs(np.arange(count), facts, rng.integers(0, 9, count), rng.integers(0, 9, (count, 3)), around)
        parts.append((inputs, torch.randn(len(inputs.node_M), 8 if model.has_memory else 0)))
    whole, state = joined(parts)
    torch.testing.assert_close(model(whole, state), torch.cat([model(*part) for part in parts]))
    assert joined(parts[:1]) is parts[0]


@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision_gives_nearly_the_same_embeddings_and_finite_gradients(live, name):
    model, roots = model_of(name), np.array([0, 3, 21, 25, 99])
    plain = embedded(model, live, roots)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = embedded(model, live, roots)
        mixed.float().square().sum().backward()
    assert 0 < (plain - mixed).abs().max() < 0.1 * plain.abs().max()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_what_padding_names_changes_no_embedding_and_no_gradient(live, name):
    model, roots = model_of(name), np.array([0, 3, 21, 25, 99])
    around = sample_neighborhood(live.graph, live.log.columns, live.features, roots, 300, int(live.log.time_of(np.array([299]))[0]), model.plan)
    inputs = link_inputs(np.arange(1), np.zeros((1, 2, NUM_FACTS), np.float32), np.zeros(1, np.int64), np.array([[1, 2]]), around)
    spread = dataclasses.replace(inputs, hops=tuple(hop.padding_spread(len(inputs.node_M)) for hop in inputs.hops))
    assert any((a.neighbor_UK != b.neighbor_UK).any() for a, b in zip(inputs.hops, spread.hops, strict=True))
    said = []
    for each in (inputs, spread):
        state = torch.ones(len(each.node_M), 8 if model.has_memory else 0).cumsum(0).requires_grad_()
        model.zero_grad()
        out = model.embed(each, state)
        out.square().sum().backward()
        said.append([out.detach(), *([state.grad] if model.has_memory else []), *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*said, strict=True):
        assert torch.equal(a, b)
