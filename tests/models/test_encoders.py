from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import leaky_relu

from streamd.events import Schema
from streamd.graph.blocks import BlockGraph
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import look_around
from streamd.graph.node_features import NodeFeatures
from streamd.models import build_model, sampling_of
from streamd.models.encoders import GATLayer, SAGELayer
from streamd.models.inputs import joined, link_inputs
from streamd.models.memory import EdgeRows
from streamd.models.numpy_tgn import NumpyTGN
from streamd.segments.reader import LogReader
from streamd.settings import ModelSettings
from tests.builders import settings, stream, write_log

NAMES = ("tgn", "tgat", "dysat", "sage", "gat")
SCHEMA = Schema(2, 0, 0)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    write_log(path, *stream(600), SCHEMA)
    log = LogReader.open(path)
    graph = LiveGraph(log, BlockGraph(), settings(path).model)
    while graph.step(600, 1000):
        pass
    return graph


def model_of(name, **values):
    made = ModelSettings(name=name, dim=8, time_dim=4, neighbors=3, snapshots=3, snapshot_seconds=3600, id_rows=64, **values)
    model = build_model(made, SCHEMA, 1)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def embedded(model, live, roots, subset=None, before=500):
    query = int(live.log.time_of(np.array([before - 1]))[0])
    around = look_around(live.graph, live.log.columns, live.features, roots, before, query, sampling_of(model.settings))
    if subset is not None:
        around = around.subset(subset)
    none = np.zeros((0, 1), np.int64)
    inputs = link_inputs(none[:, 0], np.zeros((0, 1, 19), np.float32), none[:, 0], none, around)
    return model.embed(inputs, torch.sin(inputs.node_M[:, None] + torch.arange(8 if model.has_memory else 0)))


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


def test_two_hops_are_the_layer_applied_to_what_it_made_of_each_neighbour(live):
    """The plain recursion: a root's neighbours are embedded by the first layer as roots of their own."""
    model, root, before = model_of("sage"), 3, 500
    encoder, query = model.encoder, int(live.log.time_of(np.array([499]))[0])

    def first(node):
        return plain(encoder.layers[0], node, lambda v: encoder.id_vectors.weight[v], False)

    def plain(layer, node, state, last):
        found = live.graph.recent(np.array([node]), before, 3)
        held = found.mask[0]
        edges = torch.from_numpy(live.log.features_of(found.eid[0][held]))
        entry = torch.cat([torch.stack([state(int(v)) for v in found.neighbor[0][held]]), model.edge_stats(edges)], 1)
        out = layer.root(state(node)) + layer.mean(entry.mean(0))
        return out if last else out.relu()

    assert query > 0
    torch.testing.assert_close(embedded(model, live, np.array([root]))[0], plain(encoder.layers[1], root, first, True))


def test_dysat_looks_at_one_window_of_time_a_hop(live):
    before = 500
    query = int(live.log.time_of(np.array([before - 1]))[0])
    around = look_around(live.graph, live.log.columns, live.features, np.arange(20), before, query,
                         sampling_of(model_of("dysat").settings))
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
    assert not model.pair_logits(torch.randn(4, 3, 19)).any()
    assert {g["lr"] for g in model.optimizer(0.01).param_groups} == {0.01}
    z, inputs = torch.randn(4, 8), SimpleNamespace(src_E=torch.arange(2), candidate_EC=torch.tensor([[2], [3]]), event_E=torch.arange(2))
    assert torch.equal(model.residual(z, inputs, 5), model.residual(z, inputs, None)), "nothing is dropped"


@pytest.mark.parametrize("name", [*NAMES, "pair"])
def test_several_inputs_joined_answer_as_each_alone(live, name):
    model, rng, parts = model_of(name), np.random.default_rng(0), []
    for before, count in ((300, 4), (500, 7), (500, 1)):
        query = int(live.log.time_of(np.array([before - 1]))[0])
        roots = np.sort(rng.choice(35, 9, replace=False))
        around = look_around(live.graph, live.log.columns, live.features, roots, before, query, sampling_of(model.settings))
        facts = rng.normal(size=(count, 3, 19)).astype(np.float32)
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


@pytest.mark.parametrize("values", [{}, {"id_rows": 0, "pair_facts": False}])
@pytest.mark.parametrize("node_dim", [0, 3])
def test_answers_in_numpy_are_those_of_the_model(live, values, node_dim):
    made = ModelSettings(**{"name": "tgn", "dim": 8, "time_dim": 4, "neighbors": 3, "id_rows": 64} | values)
    model, rng = build_model(made, Schema(2, node_dim, 0), 1).eval(), np.random.default_rng(3)
    for tensor in (*model.parameters(), *model.fact_stats.buffers(), *model.edge_stats.buffers(), *model.node_stats.buffers()):
        torch.nn.init.uniform_(tensor, -0.3, 0.3)
    memory, log = model.new_memory(), live.log
    for a in range(0, 500, 100):
        model.advance(memory, EdgeRows.of(log, a, a + 100), log.deletions.of_nodes)
    features = NodeFeatures(node_dim)
    features.advance(np.arange(20), np.zeros(20, np.int64), rng.normal(size=(20, node_dim)).astype(np.float32), 1)
    roots = np.arange(-1, 60)
    around = look_around(live.graph, log.columns, features, roots, 500, memory.now_us, sampling_of(made))
    assert len(memory.pending_node) and (memory.place < 0).any() and not around.hops[0].mask_UK.all()
    facts, src, dst = rng.normal(size=(40, 19)).astype(np.float32), rng.integers(0, 61, 40), rng.integers(0, 61, (40, 1))
    with torch.no_grad():
        updated, t = model.updated(memory), torch.from_numpy
        inputs = link_inputs(np.arange(40), facts[:, None], src, dst, around)
        state_MD = memory.rows(inputs.node_M, updated)
        z_UD = model.embed(inputs, state_MD)
        numpy = NumpyTGN(model)
        got = numpy.embed(memory, updated, around)
        for ours, its in zip(got, (z_UD, model.head_src(z_UD), model.head_dst(z_UD)), strict=True):
            torch.testing.assert_close(t(ours), its, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(t(numpy.logits(facts, got[1, src], got[2, dst[:, 0]])), model(inputs, state_MD)[:, 0], rtol=1e-4, atol=1e-5)
