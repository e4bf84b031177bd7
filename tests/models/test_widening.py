"""What was learned under a narrower schema says the same under one that extends it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from streamd.graph.blocks.draws import Draw
from streamd.graph.facts.columns import NUM_FACTS, FactColumn, num_facts
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.graph.neighborhood import SamplingPlan
from streamd.models import ARCHITECTURES, build_model
from streamd.models.architectures import Architecture
from streamd.models.inputs import HopInputs, LinkInputs
from streamd.models.layers.encoder import Encoder
from streamd.models.layers.table import LAYERS, GraphLayers
from streamd.models.link import link_loss
from streamd.models.schema_inputs import SchemaInput, schema_inputs
from streamd.models.widening import (
    fits,
    widened_inputs,
    widened_memory,
    widened_model,
    widened_optimizer,
)
from streamd.schema import EdgeSet, Feature, NodeSet, Schema
from streamd.settings.loading import ModelSettings

X, Y = Feature("x", 1, '{"type":"number"}'), Feature("y", 2, '{"vector":2}')
PLAIN = Schema(1, 1, 0)
BARE = Schema(0, 0, 0)
WIDER = Schema(3, 1, 0)
TWO = Schema.declared([NodeSet("default", 1, (X,))], [EdgeSet("default", feature_dim=1, features=(X,)), EdgeSet("b")])
THREE = Schema.declared(
    [NodeSet("default", 3, (X, Y)), NodeSet("m")],
    [EdgeSet("default", feature_dim=3, features=(X, Y)), EdgeSet("b", feature_dim=1, features=(X,)), EdgeSet("c", "m", "m", 2, (Y,))])
CHANGES = {"a feature": (PLAIN, WIDER), "the first features": (BARE, TWO), "a second set": (PLAIN, TWO), "more of both": (TWO, THREE),
           "all at once": (PLAIN, THREE)}


def inputs_of(schema, model, seed=0):
    """Inputs as windows record them: rows say their set, unknown nodes and padding have none."""
    rng = np.random.default_rng(seed)
    nodes, roots, events, k = 12, 6, 5, 3
    facts = rng.normal(size=(events, 3, num_facts(schema))).astype(np.float32)
    if schema.num_edge_sets > 1:
        facts[..., -schema.num_edge_sets:] = np.eye(schema.num_edge_sets, dtype=np.float32)[rng.integers(0, schema.num_edge_sets, (events, 1))]
    # The last candidate of each event had no event before.
    late = FactColumn.LOG_SECONDS_SINCE_DESTINATION
    facts[:, -1, [late, NUM_FACTS + late] if schema.num_edge_sets > 1 else late] = NEVER_LOG_SECONDS
    node_M = np.arange(nodes) - 1

    def rows(count, make, num_sets, columns):
        out = [make(n, rng.normal(size=(1, columns[n].stop - columns[n].start)).astype(np.float32)) for n in rng.integers(0, num_sets, count)]
        return np.concatenate(out)

    node_MD = rows(nodes, schema.node_rows, schema.num_node_sets, schema.all_node_columns)
    node_MD[0] = 0
    hops = []
    for _ in model.plan.hops:
        mask = rng.random((roots, k)) < 0.7
        edge = rows(roots * k, schema.edge_rows, schema.num_edge_sets, schema.all_edge_columns).reshape(roots, k, -1)
        edge[~mask] = 0
        hops.append(HopInputs(
            root_U=torch.arange(roots), neighbor_UK=torch.from_numpy(rng.integers(0, nodes, (roots, k))), eid_UK=torch.zeros((roots, k), dtype=torch.int64),
            mask_UK=torch.from_numpy(mask), ago_UK=torch.from_numpy(rng.integers(0, 10**7, (roots, k))), edge_UKD=torch.from_numpy(edge)))
    if not hops:
        none = torch.zeros((roots, 0), dtype=torch.int64)
        hops = [HopInputs(torch.arange(roots), none, none, none.bool(), none, torch.zeros((roots, 0, schema.edge_feature_dim)))]
    return LinkInputs(
        event_E=torch.arange(events), facts_ECF=torch.from_numpy(facts), src_E=torch.from_numpy(rng.integers(0, roots, events)),
        candidate_EC=torch.from_numpy(rng.integers(0, roots, (events, 3))), weight_E=torch.ones(events),
        log_draws_EC=torch.zeros(events, 3), node_M=torch.from_numpy(node_M),
        node_MD=torch.from_numpy(node_MD), age_M=torch.from_numpy(rng.uniform(-1, 10, nodes).astype(np.float32)), hops=tuple(hops))


def trained(name, schema):
    """A model whose every weight and statistic moved, and its optimizer."""
    chosen = ModelSettings(dim=8, time_dim=4, neighbors=3, snapshots=2).model_copy(update={"name": name})
    model = build_model(chosen, schema, 1)
    torch.manual_seed(3)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    optimizer = model.optimizer(0.01)
    for seed in range(3):
        inputs = inputs_of(schema, model, seed)
        model.fact_stats.update(inputs.facts_ECF)
        model.edge_stats.update(inputs.hops[0].edge_UKD)
        model.node_stats.update(inputs.node_MD)
        optimizer.zero_grad()
        link_loss(model(inputs, state_of(inputs, model)), inputs.weight_E).backward()
        optimizer.step()
    counts = torch.tensor([[90.0], [20.0], [300.0]], dtype=torch.float64)
    model.new_destinations.observe(counts.repeat(1, schema.num_edge_sets)[None])
    return model.eval(), optimizer


def known_only(inputs, old, new):
    """Of an unknown node even the set is not known, once there are several."""
    return replace(inputs, node_M=inputs.node_M + (old.num_node_sets < new.num_node_sets))


def state_of(inputs, model):
    dim = model.settings.dim if model.has_memory else 0
    return torch.sin(inputs.node_M[:, None] + torch.arange(dim))


def check_that_a_widened_model_says_the_same(name, old, new):
    model, _ = trained(name, old)
    wide = widened_model(model, new)
    inputs = known_only(inputs_of(old, model, 9), old, new)
    assert fits(inputs, old) and not fits(inputs, new)
    there = widened_inputs(inputs, old, new)
    assert fits(there, new) and not fits(there, old)
    said = model(inputs, state_of(inputs, model))
    torch.testing.assert_close(wide(there, state_of(there, wide)), said)
    rate = model.new_destinations.logit_S[0].expand(len(said))
    assert (said[:, :-1] != rate[0]).all()
    assert torch.equal(said[:, -1], rate) or model.new_score is not None, "a new destination has the rate, and a score if it has features"
    rowless = replace(inputs, age_M=torch.full_like(inputs.age_M, -1))
    assert torch.equal(model(rowless, state_of(inputs, model))[:, -1], rate)
    # A set that had no event says nothing of new ones yet.
    old_sets = old.num_edge_sets
    assert torch.isneginf(wide.new_destinations.logit_S[old_sets:]).all()
    assert torch.isfinite(wide(inputs_of(new, wide, 4), state_of(inputs, wide))).all()
    return wide


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_widened_model_says_of_the_old_sets_what_it_said_before(name, change):
    check_that_a_widened_model_says_the_same(name, *CHANGES[change])


class FeaturesFirst(nn.Module):
    """A layer that knows time, and reads an entry in an order of its own: features, time, state."""

    has_time = True
    entry_weights = ()

    def __init__(self, dim, entry_dim, heads):
        super().__init__()
        self.mix = nn.Linear(entry_dim, dim)

    def schema_inputs(self):
        return {"mix.weight": SchemaInput("edge_features")}

    def forward(self, root_UD, parts, mask_UK, last):
        state, features, time = parts
        return root_UD + (self.mix(torch.cat([features, time, state], -1)).tanh() * mask_UK[..., None]).sum(1)


class Relations(Encoder):
    """With several edge sets each has a vector, which is added to the neighbors that its edges lead to."""

    def __init__(self, kind, num_layers, settings, schema):
        super().__init__(kind, num_layers, settings, schema)
        self.num_sets = schema.num_edge_sets
        if self.num_sets > 1:
            self.relation = nn.Embedding(self.num_sets, settings.dim)

    def schema_inputs(self):
        return super().schema_inputs() | {"relation.weight": SchemaInput("edge_sets", axis=0, optional=True)}

    def entries(self, h_MD, hop, edge_stats, gap_us):
        parts = super().entries(h_MD, hop, edge_stats, gap_us)
        if self.num_sets > 1:
            parts[0] = parts[0] + hop.edge_UKD[..., :self.num_sets] @ self.relation.weight
        return parts


@pytest.fixture
def made(monkeypatch):
    """The name of an architecture that only this test has."""
    plan = SamplingPlan(hops=(Draw(direction="both", fanout=3),) * 2)
    monkeypatch.setitem(ARCHITECTURES, "made", Architecture(plan=lambda settings: plan, settings=frozenset()))
    monkeypatch.setitem(LAYERS, "made", GraphLayers(layer=FeaturesFirst, number=2, encoder=Relations))
    return "made"


@pytest.mark.parametrize("change", CHANGES)
def test_an_architecture_is_widened_by_what_its_own_modules_declare(made, change):
    old, new = CHANGES[change]
    wide = check_that_a_widened_model_says_the_same(made, old, new)
    if new.num_edge_sets > 1:
        assert not wide.encoder.relation.weight[old.num_edge_sets if old.num_edge_sets > 1 else 0:].any()


def test_an_architecture_that_declares_no_columns_is_not_widened(made, monkeypatch):
    monkeypatch.setattr(FeaturesFirst, "schema_inputs", dict)
    model, _ = trained(made, PLAIN)
    with pytest.raises(AssertionError, match=r"encoder\.layers\.0\.mix\.weight depends on the schema"):
        widened_model(model, WIDER)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_modules_declare_tensors_that_they_have(name):
    settings = ModelSettings(name=name, dim=8, time_dim=4, labels="classification")
    model = build_model(settings, replace(THREE, label_dim=1), 1)
    assert {name for name, one in schema_inputs(model).items() if not one.optional} <= model.state_dict().keys()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["tgn", "sage", "pair"])
def test_a_widened_optimizer_takes_the_step_it_would_have_taken(name, change):
    old, new = CHANGES[change]
    model, optimizer = trained(name, old)
    wide = widened_model(model, new)
    after = widened_optimizer(optimizer, model, 0.01, wide)
    inputs = known_only(inputs_of(old, model, 9), old, new)
    for m, o, i in ((model, optimizer, inputs), (wide, after, widened_inputs(inputs, old, new))):
        o.zero_grad()
        link_loss(m(i, state_of(i, m)), i.weight_E).backward()
        o.step()
    want = dict(widened_model(model, new).named_parameters())
    for n, p in wide.named_parameters():
        kept = want[n] != 0
        torch.testing.assert_close(p[kept], want[n][kept], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("change", CHANGES)
def test_messages_of_a_widened_memory_are_those_it_had(change):
    old, new = CHANGES[change]
    model, _ = trained("tgn", old)
    wide, memory = widened_model(model, new), model.new_memory()
    rows = old.edge_rows(0, np.ones((4, old.all_edge_columns[0].stop - old.all_edge_columns[0].start), np.float32))
    pending = {"pending_node": np.arange(4), "pending_other": np.random.default_rng(0).random((4, 8), np.float32),
               "pending_features": rows, "pending_us": np.arange(4)}
    memory.take_pending(pending, 4, 4)
    torch.testing.assert_close(wide.updated(widened_memory(memory, old, new)), model.updated(memory))
    assert memory.pending_features.shape[1] == old.edge_feature_dim, "the memory it was made of did not change"


def test_new_columns_are_learned():
    model, optimizer = trained("tgn", PLAIN)
    wide = widened_model(model, THREE)
    optimizer = widened_optimizer(optimizer, model, 0.01, wide)
    wide.train()
    for seed in range(30):
        inputs = inputs_of(THREE, wide, seed)
        wide.fact_stats.update(inputs.facts_ECF)
        wide.edge_stats.update(inputs.hops[0].edge_UKD)
        wide.node_stats.update(inputs.node_MD)
        optimizer.zero_grad()
        link_loss(wide(inputs, state_of(inputs, wide)), inputs.weight_E).backward()
        optimizer.step()
    assert wide.head_set.weight.abs().max() > 0.01 and wide.encoder.node_in.weight.abs().min() > 0
    assert wide.pair[0].weight[:, num_facts(PLAIN):].abs().max() > 0.01
