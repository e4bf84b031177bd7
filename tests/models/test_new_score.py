"""The score of new destinations by their features: in torch and numpy, in training, and for versions that do not have it."""

import dataclasses

import numpy as np
import pytest
import torch

from streamd.events import Schema
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.graph.neighborhood import Hop, Neighborhood
from streamd.models import build_model
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.stored_weights import NEW_SCORE
from streamd.models.inference.torch_model import TorchModel
from streamd.models.link import link_loss
from streamd.models.new_score import LOG_NEGATIVES
from streamd.models.widening import widened_model
from tests.builders import SETS
from tests.models.test_feature_match import (
    CANDIDATES,
    EVENTS,
    NODES,
    ROOTS,
    SCHEMA,
    inputs_of,
    settings_of,
)

LATE = FactColumn.LOG_SECONDS_SINCE_DESTINATION


def drawn(schema, seed=1):
    """A model with random weights and a rate of new destinations."""
    model = build_model(settings_of(), schema, seed)
    torch.manual_seed(seed)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    counts = torch.tensor([[90.0], [20.0], [300.0]], dtype=torch.float64).repeat(1, schema.num_edge_sets)
    model.new_destinations.observe(counts[None])
    return model.eval()


def some_new(model):
    """Random inputs in which the last two candidates of each event are new, and all of the last two events."""
    inputs = inputs_of(model)
    facts, sets = inputs.facts_ECF, model.schema.num_edge_sets
    column = LATE if sets == 1 else NUM_FACTS + LATE
    facts[..., column] = 3.0
    facts[:, -2:, column] = facts[-2:, :, column] = NEVER_LOG_SECONDS
    if sets > 1:
        facts[..., -sets:] = torch.eye(sets)[torch.arange(EVENTS) % sets][:, None]
    return inputs, facts[..., column] == NEVER_LOG_SECONDS


def without_score(model):
    return {name: array for name, array in model.arrays().items() if not name.startswith(NEW_SCORE)}


def vectors_of(model, inputs):
    """The vectors of the roots as sources and destinations, by an `Inference`."""
    hop = inputs.hops[0]
    around = Neighborhood(inputs.node_M.numpy(), inputs.node_MD.numpy(), inputs.age_M.numpy(),
                          (Hop(**{f.name: getattr(hop, f.name).numpy() for f in dataclasses.fields(hop)}),))
    memory = build_model(model.settings, model.schema, 0).new_memory()
    return model.embed(memory, model.updated(memory), around)


@pytest.mark.parametrize("schema", [SCHEMA, SETS], ids=["one set", "several sets"])
def test_a_new_destination_has_its_rate_and_its_score_in_torch_numpy_and_pair_by_pair(schema):
    model = drawn(schema)
    inputs, new = some_new(model)
    state = torch.zeros(NODES, 8)
    with torch.no_grad():
        whole = model(inputs, state)
        plain = build_model(settings_of(), schema, 0).eval()
        plain.restore(without_score(model))
        of_rate = plain(inputs, state)
    assert torch.equal(whole[~new], of_rate[~new]), "known ones are as without the score"
    base = model.new_destinations.logit_S
    asked = torch.arange(EVENTS) % schema.num_edge_sets if schema.num_edge_sets > 1 else torch.zeros(EVENTS, dtype=torch.int64)
    torch.testing.assert_close(of_rate[new], base[asked][:, None].expand(-1, CANDIDATES)[new])

    # A destination without a row keeps the rate, and others differ by who asks.
    has_row = (inputs.age_M[inputs.hops[0].root_U] >= 0)[inputs.candidate_EC]
    assert torch.equal(whole[new & ~has_row], of_rate[new & ~has_row]) and bool((new & ~has_row).any())
    added = (whole - of_rate)[new & has_row]
    assert bool((added.abs() > 1e-4).all()) and float(added.std()) > 0.05

    # Pair by pair, as a server scores, with cached vectors.
    rows = inputs.facts_ECF.reshape(EVENTS * CANDIDATES, -1).numpy()
    src = inputs.src_E.repeat_interleave(CANDIDATES).numpy()
    dst = inputs.candidate_EC.flatten().numpy()
    for its in (TorchModel(model), NumpyModel(model.settings, schema, model.arrays())):
        _, src_UD, dst_UD = vectors_of(its, inputs)
        assert (src_UD.shape[1], dst_UD.shape[1]) == its.widths[1:]
        ends = src_UD[src], dst_UD[dst]
        got = its.logits(rows, *ends)
        np.testing.assert_allclose(got, whole.flatten().numpy(), rtol=2e-4, atol=2e-5)
        parts = its.residual(rows, *ends) + its.pair_logits(rows)
        np.testing.assert_allclose(parts, got, rtol=2e-4, atol=2e-5)
        its.forget_rate()
        assert not np.allclose(its.residual(rows, *ends)[new.flatten()], parts[new.flatten()] - base[asked].repeat_interleave(CANDIDATES)[new.flatten()].numpy())


def test_versions_of_older_releases_answer_by_the_rate_alone_and_then_learn_the_score():
    model = drawn(SCHEMA)
    inputs, new = some_new(model)
    older, weights = build_model(settings_of(), SCHEMA, 5).eval(), without_score(model)
    older.restore(weights)
    said = older(inputs, torch.zeros(NODES, 8))
    assert bool((said[new] == model.new_destinations.logit_S[0]).all())
    ours = NumpyModel(model.settings, SCHEMA, weights)
    assert ours.widths == (8, 11, 11)
    _, src_UD, dst_UD = vectors_of(ours, inputs)
    rows = inputs.facts_ECF.reshape(EVENTS * CANDIDATES, -1).numpy()
    got = ours.logits(rows, src_UD[inputs.src_E.repeat_interleave(CANDIDATES)], dst_UD[inputs.candidate_EC.flatten()])
    np.testing.assert_allclose(got, said.detach().flatten().numpy(), rtol=2e-4, atol=2e-5)

    older.train()
    link_loss(older(inputs, torch.zeros(NODES, 8), 1), inputs.weight_E).backward()
    assert older.new_score.out.weight.grad.any(), "the first step moves it"


def test_in_training_an_event_with_a_new_destination_teaches_the_score_alone():
    model = drawn(SCHEMA)
    inputs, _ = some_new(model)
    assert inputs.is_new_E.tolist() == [False] * (EVENTS - 2) + [True, True]
    inputs = dataclasses.replace(inputs, weight_E=inputs.is_new_E.float())
    model.train()
    logits = model(inputs, torch.zeros(NODES, 8), 1)
    link_loss(logits, inputs.weight_E).backward()
    moved = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {n for n, _ in model.named_parameters() if n.startswith(NEW_SCORE)}

    model.eval()
    with torch.no_grad():
        scored = model(inputs, torch.zeros(NODES, 8)) - model.new_destinations.logit_S[0]
    torch.testing.assert_close(logits[-2:].detach() + LOG_NEGATIVES, scored[-2:], rtol=1e-4, atol=1e-5)

    # And others teach all but the score.
    model.train()
    model.zero_grad()
    link_loss(model(inputs, torch.zeros(NODES, 8), 1), 1 - inputs.weight_E).backward()
    assert not any(p.grad is not None and p.grad.any() for p in model.new_score.parameters())


def test_a_log_with_more_features_gets_a_score_that_says_the_same():
    model, wider = drawn(SCHEMA), Schema(0, 5, 0)
    wide = widened_model(model, wider).eval()
    inputs, _ = some_new(model)
    more = dataclasses.replace(inputs, node_MD=torch.cat([inputs.node_MD, torch.zeros(NODES, 2)], 1))
    with torch.no_grad():
        torch.testing.assert_close(wide(more, torch.zeros(NODES, 8)), model(inputs, torch.zeros(NODES, 8)))


def test_roots_without_neighbors_or_features_have_finite_scores():
    model = drawn(SCHEMA)
    inputs, new = some_new(model)
    hop = dataclasses.replace(inputs.hops[0], mask_UK=torch.zeros_like(inputs.hops[0].mask_UK))
    bare = dataclasses.replace(inputs, node_MD=torch.zeros_like(inputs.node_MD), hops=(hop,))
    with torch.no_grad():
        said = model(bare, torch.zeros(NODES, 8))
    assert bool(said.isfinite().all()) and float(said[new].std()) > 0, "the age of a row that is zero still counts"
    assert len(inputs.hops[0].root_U) == ROOTS
