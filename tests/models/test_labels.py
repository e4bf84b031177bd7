import numpy as np
import pytest
import torch

from streamd.events import Schema
from streamd.graph import NUM_FACTS
from streamd.models.inference.stored_weights import HISTORY_WEIGHT
from streamd.models.labels import LabelHead, LabelHeads
from streamd.models.link import build_model
from streamd.settings.loading import ModelSettings


def test_quantities_are_told_in_their_own_unit():
    head = LabelHead(ModelSettings(labels="regression"), 2, 4, NUM_FACTS)
    targets = torch.tensor([[100.0, 3.0], [300.0, 3.0]])
    head.target_stats.update(targets)
    assert torch.equal(head.predict(torch.tensor([[1.0, 0.0]])), torch.tensor([[300.0, 3.0]]))
    assert torch.equal(head.constant(1), torch.tensor([[200.0, 3.0]])) and float(head.loss(head.target_stats(targets), targets)) == 0


@pytest.mark.parametrize(("task", "dim"), [("classification", 1), ("classification", 3), ("regression", 2)])
def test_a_head_begins_as_the_mean_of_the_last_labels(task, dim):
    head = LabelHead(ModelSettings(labels=task), dim, 4, NUM_FACTS)
    target = torch.rand(50, dim)
    head.target_stats.update(target)
    history = target[:5] / (target[:5].sum(1, keepdim=True) if dim == 3 else 1)
    torch.nn.init.zeros_(head.net[2].weight), torch.nn.init.zeros_(head.net[2].bias)
    torch.testing.assert_close(head.predict(head(torch.rand(5, 4), torch.rand(5, NUM_FACTS), history)), history, atol=1e-3, rtol=1e-3)


def test_a_head_of_an_older_release_answers_as_before_and_its_optimizer_goes_on():
    settings, schema = ModelSettings(name="tgn", labels="classification"), Schema(0, 0, 3)
    model, newer = (build_model(settings, schema, seed) for seed in (0, 1))
    older = {n: t for n, t in model.state_dict().items() if n != HISTORY_WEIGHT}
    newer.restore(older)
    z, facts, history = torch.rand(5, settings.dim), torch.rand(5, NUM_FACTS), torch.rand(5, 3)
    torch.testing.assert_close(newer.label_head(z, facts, history), newer.label_head.net(torch.cat([z, facts], 1)))
    # Stored states of an optimizer are by number, so the new weight is the last.
    params = [p for group in newer.optimizer(0.1).param_groups for p in group["params"]]
    assert params[-1] is newer.label_head.history[0] and sum(p is params[-1] for p in params) == 1
    assert {id(p) for p in params} == {id(p) for p in newer.parameters()}


@pytest.mark.parametrize(("task", "dim"), [("classification", 1), ("classification", 3), ("regression", 2)])
def test_each_node_set_has_a_head_of_its_own(task, dim):
    torch.manual_seed(0)
    heads = LabelHeads(ModelSettings(labels=task), dim, 4, NUM_FACTS, 3)
    set_L, target = np.array([2, 0, 0, 2, 0, 2]), torch.rand(6, dim)
    z, facts, history = torch.rand(6, 4), torch.rand(6, NUM_FACTS), torch.rand(6, dim)
    heads.observe(target, set_L)
    out = heads.outputs(z, facts, history, set_L)
    predicted, constant = heads.predictions(out, set_L), heads.constants(set_L)
    for number, head in ((0, heads), (2, heads.others[1])):
        own = set_L == number
        torch.testing.assert_close(out[own], head(z[own], facts[own], history[own]))
        torch.testing.assert_close(predicted[own], head.predict(out[own]))
        torch.testing.assert_close(constant[own], target[own].mean(0).expand(3, -1))
    halves = [head.loss(out[set_L == n], target[set_L == n]) for n, head in ((0, heads), (2, heads.others[1]))]
    loss = heads.losses(out, target, set_L)
    torch.testing.assert_close(loss, sum(halves) / 2)
    loss.backward()
    assert heads.net[0].weight.grad.abs().max() > 0 and heads.others[1].net[0].weight.grad.abs().max() > 0
    assert heads.others[0].net[0].weight.grad is None and float(heads.others[0].target_stats.count) == 0
