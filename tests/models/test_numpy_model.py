"""What numpy answers is what torch answers, whatever the settings and the weights: memory, embeddings, scores, labels."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.errors import VersionError
from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.facts.columns import num_facts
from streamd.graph.label_rows import label_rows
from streamd.graph.live import LiveGraph
from streamd.graph.neighborhood import sample_neighborhood
from streamd.graph.node_features import NodeFeatures
from streamd.models import EdgeRows, architecture_of, build_model
from streamd.models.inference.new_rates import COUNTS
from streamd.models.inference.numpy_layers import sigmoid
from streamd.models.inference.numpy_model import BLOCK_ROOTS, NumpyModel
from streamd.models.inference.stored_weights import HISTORY_WEIGHT
from streamd.models.inference.torch_model import TorchModel
from streamd.settings.loading import ModelSettings
from tests.builders import SETS, sets_stream, stream, write_log, write_sets_log

ONE_SET = Schema(2, 3, 2)
NODES, EDGES = 400, 1500
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SETTINGS = [
    {},
    {"heads": 1, "neighbors": 1, "id_rows": 7},
    {"heads": 4, "direction": "out", "pair_facts": False},
    {"id_rows": 0, "labels": "classification", "time_dim": 1},
    {"labels": "regression", "direction": "in"},
    {"name": "pair", "labels": "classification"},
    {"name": "pair", "labels": "regression"},
]


def settings_of(values):
    return ModelSettings(**{"name": "tgn", "dim": 8, "time_dim": 4, "neighbors": 3, "id_rows": 64, "memory_chunk": 100} | values)


def drawn(settings, schema, seed):
    """A model of weights and statistics drawn at random, large enough that each of them matters."""
    model = build_model(settings, schema, seed).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name == "gap_us":
                tensor.fill_(3e6)
            elif name == COUNTS:
                tensor.copy_(torch.tensor([[90.0], [20.0], [300.0]]).to(tensor).expand_as(tensor))
            elif name.endswith((".var", ".count")):
                # A column that never varied is scaled to zero.
                tensor.uniform_(0.1, 2.0).masked_fill_(torch.rand_like(tensor) < 0.2, 0.0)
            else:
                tensor.uniform_(-0.4, 0.4)
    model.load_state_dict(model.state_dict())
    return model


@pytest.fixture(scope="module", params=["one set", "several sets"])
def live(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    if request.param == "one set":
        schema = ONE_SET
        write_log(path, *stream(EDGES, 300, 100), schema)
    else:
        schema = dataclasses.replace(SETS, label_dim=1)
        write_sets_log(path, *sets_stream(EDGES, 300, 100), 300)
    log = LogReader.open(path)
    live = LiveGraph(log, BlockGraph(directions=("both", "out", "in")), settings_of({}))
    live.step(EDGES, EDGES, EDGES)
    rng = np.random.default_rng(0)
    live.features = NodeFeatures(schema)
    rows = rng.normal(size=(NODES, schema.node_feature_dim)).astype(np.float32)
    if schema.num_node_sets > 1:
        rows[:, : schema.num_node_sets] = np.eye(schema.num_node_sets)[(np.arange(NODES) >= 300).astype(int)]
    live.features.take(np.arange(NODES), rows, np.arange(NODES) % 400)
    return live, schema


def both(settings, schema, seed=1):
    model = drawn(settings, schema, seed)
    return TorchModel(model), NumpyModel(settings, schema, model.arrays())


def advanced(model, memory, log, until=EDGES):
    """Memory over the log's events in chunks of uneven lengths."""
    for a in range(memory.edge, until, 130):
        model.advance(memory, EdgeRows.of(log, a, min(a + 130, until)))
    return memory


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_answers_in_numpy_are_those_of_torch(live, values):
    live, schema = live
    settings = settings_of(values)
    its, ours = both(settings, schema)
    plan = architecture_of(settings).plan(settings)

    # Memory, each moved by its own model from the log's beginning.
    want, got = (advanced(model, its.model.new_memory(), live.log) for model in (its, ours))
    for name, tensor in want.tensors().items():
        torch.testing.assert_close(got.tensors()[name], tensor, **CLOSE)
    np.testing.assert_allclose(ours.updated(got), its.updated(want), **CLOSE)
    assert settings.name == "pair" or np.abs(got.tensors()["state"].numpy()).max() > 0.1

    # More roots than one block, strangers among them.
    rng = np.random.default_rng(2)
    roots = np.arange(-1, BLOCK_ROOTS + 150)
    around = sample_neighborhood(live.graph, live.log.columns, live.features, roots, got.edge, got.now_us, plan)
    facts = rng.normal(size=(600, num_facts(schema))).astype(np.float32)
    np.testing.assert_allclose(ours.pair_logits(facts), its.pair_logits(facts), **CLOSE)
    np.testing.assert_allclose(ours.mean_facts, its.mean_facts, **CLOSE)
    if settings.name == "tgn":
        assert not around.hops[0].mask_UK.all()
        z, want_z = ours.embed(got, ours.updated(got), around), its.embed(want, its.updated(want), around)
        for mine, theirs, width in zip(z, want_z, ours.widths, strict=True):
            np.testing.assert_allclose(mine, theirs, **CLOSE)
            assert mine.shape == (len(roots), width)
        assert ours.widths == its.widths
        src, dst = rng.integers(0, len(roots), (2, 600))
        scores = ours.logits(facts, z[1][src], z[2][dst])
        np.testing.assert_allclose(scores, its.logits(facts, want_z[1][src], want_z[2][dst]), **CLOSE)
        assert np.std(scores) > 0.01
        ends = z[1][src], z[2][dst]
        np.testing.assert_allclose(ours.residual(facts, *ends) + ours.pair_logits(facts), scores, **CLOSE)
        np.testing.assert_allclose(ours.residual(facts, *ends), its.residual(facts, want_z[1][src], want_z[2][dst]), **CLOSE)
        weights, = ours.neighbor_weights(got, ours.updated(got), around)
        want_weights, = its.neighbor_weights(want, its.updated(want), around)
        np.testing.assert_allclose(weights, want_weights, **CLOSE)
        assert not weights[~around.hops[0].mask_UK].any()

    # Labels by the head of each node's set.
    assert ours.has_labels == its.has_labels == ("labels" in values)
    if ours.has_labels:
        sets = (roots >= 300).astype(np.int64) if schema.num_node_sets > 1 else np.zeros(len(roots), np.int64)
        rows = label_rows(live, plan, roots, sets, got.edge, got.now_us)
        rows = dataclasses.replace(rows, history_UT=rng.uniform(-0.5, 1.5, rows.history_UT.shape).astype(np.float32))
        said = ours.labels(got, ours.updated(got), rows, sets)
        np.testing.assert_allclose(said, its.labels(want, its.updated(want), rows, sets), **CLOSE)
        assert np.std(said) > 0.01


def test_a_model_without_features_answers_alike(tmp_path):
    write_log(tmp_path, *stream(300), Schema())
    log = LogReader.open(tmp_path)
    its, ours = both(settings_of({}), Schema())
    want, got = (advanced(model, its.model.new_memory(), log, 300) for model in (its, ours))
    np.testing.assert_allclose(got.tensors()["state"], want.tensors()["state"], **CLOSE)


def test_deleted_nodes_are_forgotten_alike(tmp_path):
    from streamd.events import NodeDeletes

    write_log(tmp_path, *stream(300), Schema(2, 0, 0))
    log = LogReader.open(tmp_path)
    its, ours = both(settings_of({}), Schema(2, 0, 0))
    deletes = NodeDeletes(np.array([1, 22]), np.array([150, 200]))
    memories = []
    for model in (its, ours):
        memory = its.model.new_memory()
        for a in range(0, 300, 50):
            model.advance(memory, dataclasses.replace(EdgeRows.of(log, a, a + 50), deletes=deletes))
        memories.append(memory)
    want, got = memories
    assert want.num_forgotten == got.num_forgotten == 2
    for name, tensor in want.tensors().items():
        torch.testing.assert_close(got.tensors()[name], tensor, **CLOSE)


def test_roots_of_many_blocks_are_embedded_as_each_alone(live):
    live, schema = live
    settings = settings_of({})
    _, ours = both(settings, schema)
    memory = advanced(ours, build_model(settings, schema, 0).new_memory(), live.log)

    def embedded(roots):
        plan = architecture_of(settings).plan(settings)
        around = sample_neighborhood(live.graph, live.log.columns, live.features, roots, memory.edge, memory.now_us, plan)
        return ours.embed(memory, ours.updated(memory), around)

    many = embedded(np.arange(NODES))
    for node in (0, BLOCK_ROOTS - 1, BLOCK_ROOTS, NODES - 1):
        for one, of_many in zip(embedded(np.array([node])), many, strict=True):
            np.testing.assert_allclose(one[0], of_many[node], rtol=1e-5, atol=1e-6)


def test_weights_of_another_model_are_refused_by_name():
    settings = settings_of({"labels": "classification"})
    weights = build_model(settings, ONE_SET, 0).arrays()
    cases = [({n: a for n, a in weights.items() if n != "head_src.bias"}, "head_src.bias is missing"),
             (weights | {"more": np.zeros(3, np.float32)}, "has no more"),
             (weights | {"head_out.weight": np.zeros((1, 9), np.float32)}, r"head_out.weight has the shape \(1, 9\)")]
    for wrong, why in cases:
        with pytest.raises(VersionError, match=why):
            NumpyModel(settings, ONE_SET, wrong)
    with pytest.raises(VersionError, match="edge_stats.mean has the shape"):
        NumpyModel(settings, Schema(3, 3, 2), weights)
    with pytest.raises(VersionError, match="has no"):
        NumpyModel(settings_of({"name": "pair", "labels": "classification", "dim": 8}), ONE_SET, {
            **build_model(settings_of({"name": "pair", "labels": "classification"}), ONE_SET, 0).arrays(), "updater.time.bias": np.zeros(4)})


@pytest.mark.parametrize("known", [19, 32])
def test_weights_of_releases_with_fewer_facts_and_no_history_answer_as_in_torch(known):
    settings = settings_of({"labels": "classification"})
    model = drawn(settings, Schema(2, 0, 1), 3)
    facts = num_facts(model.schema)
    old = {n: a[..., : a.shape[-1] - facts + known].copy() if a.shape and n.startswith(("fact_stats", "pair.0.weight", "label_head.net.0.weight"))
           else a for n, a in model.arrays().items() if n != HISTORY_WEIGHT}
    model.restore(old)
    rows = np.random.default_rng(0).normal(size=(50, facts)).astype(np.float32)
    ours = NumpyModel(settings, model.schema, old)
    np.testing.assert_allclose(ours.pair_logits(rows), TorchModel(model).pair_logits(rows), **CLOSE)


def test_gates_do_not_overflow():
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0, 1e4], np.float32)).tolist() == [0.0, 0.5, 1.0]
