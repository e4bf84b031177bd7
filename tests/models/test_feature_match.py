"""The match of features: how alike a candidate's are to those of the nodes that the source met last."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.events import Schema
from streamd.models import build_model
from streamd.models.feature_match import match_vectors
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.stored_weights import MATCH, NEW_SCORE
from streamd.models.inputs import HopInputs, LinkInputs
from streamd.models.link import link_loss
from streamd.models.widening import widened_model, widened_optimizer
from streamd.settings.loading import ModelSettings
from tests.builders import SETS

SCHEMA = Schema(0, 3, 0)
NODES, ROOTS, EVENTS, CANDIDATES, NEIGHBORS = 40, 12, 6, 5, 4


def settings_of(**values):
    return ModelSettings(**{"name": "tgn", "dim": 8, "time_dim": 4, "neighbors": NEIGHBORS} | values)


def inputs_of(model, seed=0, hops=1):
    """Random inputs of a model, a third of the nodes without features."""
    rng = np.random.default_rng(seed)
    schema, made = model.schema, []
    for _ in range(hops):
        mask_UK = torch.from_numpy(rng.random((ROOTS, NEIGHBORS)) < 0.7)
        mask_UK[0] = False
        made.append(HopInputs(
            root_U=torch.arange(ROOTS), neighbor_UK=torch.from_numpy(rng.integers(0, NODES, (ROOTS, NEIGHBORS))), eid_UK=torch.zeros(ROOTS, NEIGHBORS, dtype=torch.int64),
            mask_UK=mask_UK, ago_UK=torch.zeros(ROOTS, NEIGHBORS, dtype=torch.int64), edge_UKD=torch.zeros(ROOTS, NEIGHBORS, schema.edge_feature_dim)))
    node_MD = rng.normal(size=(NODES, schema.node_feature_dim)).astype(np.float32)
    first = schema.all_node_columns[0].start
    node_MD[:, :first] = np.eye(max(first, 1))[rng.integers(0, max(first, 1), NODES)][:, :first]
    node_MD[::3, first:] = 0
    return LinkInputs(
        event_E=torch.arange(EVENTS), facts_ECF=torch.from_numpy(rng.random((EVENTS, CANDIDATES, model.num_facts)).astype(np.float32)),
        src_E=torch.from_numpy(rng.integers(0, ROOTS, EVENTS)), candidate_EC=torch.from_numpy(rng.integers(0, ROOTS, (EVENTS, CANDIDATES))),
        weight_E=torch.ones(EVENTS), log_draws_EC=torch.zeros(EVENTS, CANDIDATES), node_M=torch.arange(NODES), node_MD=torch.from_numpy(node_MD),
        age_M=torch.from_numpy(np.where(np.arange(NODES) % 5, rng.random(NODES) * 10, -1).astype(np.float32)), hops=tuple(made))


def without_match(model):
    """The weights of a release that knew neither the match nor the score of new destinations, which came later."""
    return {name: array for name, array in model.arrays().items() if not name.startswith((MATCH, NEW_SCORE))}


def test_the_match_is_the_cosine_of_the_candidates_features_with_the_sum_of_the_neighbors():
    model = build_model(settings_of(), SCHEMA, 0)
    inputs = inputs_of(model)
    raw, features = inputs.node_MD, 2 * inputs.node_MD + 1
    src_UD, dst_UD = match_vectors(raw, features, inputs.hops)

    hop = inputs.hops[0]
    has = (raw != 0).any(1)
    for u in range(ROOTS):
        near = sum((features[m] for m, counts in zip(hop.neighbor_UK[u], hop.mask_UK[u], strict=True) if counts and has[m]), torch.zeros(3))
        for v in range(ROOTS):
            want = torch.cosine_similarity(near, features[v] * has[v], 0)
            torch.testing.assert_close(src_UD[u] @ dst_UD[v], want)
    assert not src_UD[0].any(), "a source without neighbors matches nothing"
    assert not dst_UD[~has[:ROOTS]].any(), "neither does a candidate without features"


def test_windows_of_time_count_together():
    model = build_model(settings_of(name="dysat", snapshots=2), SCHEMA, 0)
    inputs = inputs_of(model, hops=2)
    one = dataclasses.replace(inputs.hops[0], neighbor_UK=torch.cat([hop.neighbor_UK for hop in inputs.hops], 1), mask_UK=torch.cat([hop.mask_UK for hop in inputs.hops], 1))
    vectors = [part[:, : SCHEMA.node_feature_dim] for part in model.feature_vectors(inputs)]
    torch.testing.assert_close(tuple(vectors), match_vectors(inputs.node_MD, model.node_stats(inputs.node_MD), [one]))


@pytest.mark.parametrize("schema", [SCHEMA, SETS], ids=["one set", "several sets"])
def test_a_new_model_and_one_of_an_older_release_answer_without_the_match_and_then_learn_it(schema):
    model = build_model(settings_of(), schema, 3).eval()
    inputs, state = inputs_of(model), torch.zeros(NODES, 8)
    parts = model.pair_logits(inputs.facts_ECF) + model.residual(model.embed(inputs, state), inputs, None)
    torch.testing.assert_close(model(inputs, state), parts, rtol=0, atol=0)

    older = build_model(settings_of(), schema, 4).eval()
    older.restore(without_match(model))
    torch.testing.assert_close(older(inputs, state), parts, rtol=0, atol=0)
    rows = inputs.facts_ECF.reshape(-1, older.num_facts).numpy()
    ends = (np.ones((len(rows), 8), np.float32),) * 2
    old, new = NumpyModel(model.settings, schema, without_match(model)), NumpyModel(model.settings, schema, model.arrays())
    assert old.widths == (8, 8, 8)
    more = new.widths[1] - 8
    np.testing.assert_array_equal(old.residual(rows, *ends), new.residual(rows, *(np.pad(end, ((0, 0), (0, more)), constant_values=1) for end in ends)))

    older.train()
    link_loss(older(inputs, state, 1), inputs.weight_E).backward()
    assert older.feature_match.out.weight.grad.any(), "the first step moves it"


def test_the_optimizer_of_an_older_release_keeps_its_states():
    model = build_model(settings_of(), SCHEMA, 0)
    plain = build_model(settings_of(), Schema(0, 0, 0), 0)
    numbers = [[len(group["params"]) for group in m.optimizer(0.01).param_groups] for m in (model, plain)]
    assert numbers[0][-2:] == [4, 11], "the parts of the match come last, then those of the score of new destinations"
    assert numbers[0][:-2] == [numbers[1][0], numbers[1][1] + 1], "and node features add one weight besides"


def test_a_log_that_gets_node_features_gets_the_match_with_them():
    model = build_model(settings_of(), Schema(0, 0, 0), 0).eval()
    assert model.feature_match is None
    wide = widened_model(model, SCHEMA).eval()
    inputs, state = inputs_of(wide), torch.zeros(NODES, 8)
    narrow = dataclasses.replace(inputs, node_MD=torch.zeros(NODES, 0))
    torch.testing.assert_close(wide(inputs, state), model(narrow, state), rtol=0, atol=0)
    assert len(widened_optimizer(model.optimizer(0.01), model, 0.01, wide).param_groups) == 4


@pytest.mark.parametrize("values", [{"name": "pair"}, {"pair_facts": False}], ids=str)
def test_models_as_their_papers_describe_them_have_none(values):
    assert build_model(settings_of(**values), SCHEMA, 0).feature_match is None
