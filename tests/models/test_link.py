import numpy as np
import pytest
import torch

from streamd.errors import VersionError
from streamd.events import Schema
from streamd.graph import NUM_FACTS
from streamd.models.inference.stored_weights import OLD_NUM_FACTS
from streamd.models.link import build_model, link_loss
from streamd.schema import EdgeSet
from streamd.settings.loading import ModelSettings


def test_the_loss_is_softmax_and_binary_cross_entropy():
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    p = np.exp([2.0, -1.0, 0.5])
    sig = 1 / (1 + np.exp(-np.array([2.0, 1.0, -0.5])))
    want = -np.log(p[0] / p.sum()) - np.log(sig).mean()
    assert abs(float(link_loss(logits, torch.tensor([1.0, 0.0]))) - want) < 1e-6


def test_the_loss_takes_off_how_often_candidates_are_drawn():
    logits, draws = torch.randn(5, 11), torch.randn(5, 11)
    weight, few = torch.rand(5), torch.arange(11) < torch.tensor([[11], [4], [2], [9], [11]])
    torch.testing.assert_close(link_loss(logits, weight, few, draws), link_loss(logits - draws, weight, few))
    assert link_loss(logits, weight, few, torch.zeros(5, 11)).item() == link_loss(logits, weight, few).item(), "to the bit"


def test_the_loss_of_fewer_candidates_is_that_of_those_alone_and_of_all_the_same_bits():
    torch.manual_seed(0)
    logits = torch.randn(40, 11).requires_grad_()
    weight = torch.rand(40)
    all_count = torch.ones(40, 11, dtype=torch.bool)
    whole, same = link_loss(logits, weight), link_loss(logits, weight, all_count)
    assert whole.item() == same.item()
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (whole, same)))

    few = torch.arange(11) < torch.randint(2, 12, (40, 1))
    loss = link_loss(logits, weight, few)
    alone = sum(link_loss(logits[i: i + 1, few[i]], weight[i: i + 1]) for i in range(40))
    torch.testing.assert_close(loss, alone)
    (grad,) = torch.autograd.grad(loss, logits, retain_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(alone, logits)[0])
    assert (grad[~few] == 0).all()


@pytest.mark.parametrize("label_dim", [0, 2])
@pytest.mark.parametrize("known", OLD_NUM_FACTS)
def test_a_version_that_knows_fewer_facts_answers_as_before_whatever_the_new_ones_are(known, label_dim):
    settings = ModelSettings(name="pair", labels="classification" if label_dim else "none")
    old, new = (build_model(settings, Schema(0, 0, label_dim), seed) for seed in (0, 1))
    facts = torch.randn(50, 4, NUM_FACTS)
    old.fact_stats.update(3 * facts + 1)
    weights = old.state_dict()
    fewer = {name: t[..., :known] if t.shape[-1:] == (NUM_FACTS,) else t for name, t in weights.items()}
    assert sum(t.shape != weights[name].shape for name, t in fewer.items()) == 3 + bool(label_dim)
    new.restore(fewer)
    for name, t in weights.items():
        if t.shape[-1:] == (NUM_FACTS,) and name.endswith("weight"):
            t[..., known:] = 0
    old.restore(weights)
    torch.testing.assert_close(new.pair_logits(facts), old.pair_logits(facts))
    others = torch.cat([facts[..., :known], torch.randn(50, 4, NUM_FACTS - known)], -1)
    torch.testing.assert_close(new.pair_logits(others), new.pair_logits(facts))
    assert new.fact_stats.var[-1] == 1 and new.fact_stats.mean[-1] == 0


def test_a_version_of_several_sets_that_knows_fewer_facts_answers_as_before():
    """A row has the facts of the asked set, those of all and the set itself: new ones come into the middle."""
    schema = Schema.declared((), [EdgeSet("views"), EdgeSet("buys"), EdgeSet("likes")])
    settings, known = ModelSettings(name="pair"), OLD_NUM_FACTS[-1]
    old, new = (build_model(settings, schema, seed) for seed in (0, 1))
    facts = torch.randn(50, 4, old.num_facts)
    old.fact_stats.update(3 * facts + 1)
    kept = np.r_[0:known, NUM_FACTS : NUM_FACTS + known, 2 * NUM_FACTS : 2 * NUM_FACTS + 3]
    weights = old.state_dict()
    fewer = {name: t[..., kept] if t.shape[-1:] == (old.num_facts,) else t for name, t in weights.items()}
    new.restore(fewer)
    dropped = np.setdiff1d(np.arange(old.num_facts), kept)
    weights["pair.0.weight"][:, dropped] = 0
    old.restore(weights)
    torch.testing.assert_close(new.pair_logits(facts), old.pair_logits(facts))
    changed = facts.clone()
    changed[..., dropped] = torch.randn(50, 4, len(dropped))
    torch.testing.assert_close(new.pair_logits(changed), new.pair_logits(facts))
    assert (new.fact_stats.var[dropped] == 1).all() and (new.fact_stats.mean[dropped] == 0).all()
    torch.testing.assert_close(new.fact_stats.mean[kept], old.fact_stats.mean[kept])


def test_weights_of_another_width_are_refused():
    model = build_model(ModelSettings(name="pair"), Schema(), 0)
    weights = model.state_dict()
    weights["pair.0.weight"] = weights["pair.0.weight"][:, :-4]
    with pytest.raises(VersionError, match=r"pair\.0\.weight"):
        model.restore(weights)


def test_logits_are_not_rounded_to_eight_bits_where_products_are_in_bfloat16():
    model = build_model(ModelSettings(name="pair"), Schema(0, 0, 0), 0)
    facts = torch.randn(2000, 1, NUM_FACTS, generator=torch.Generator().manual_seed(0)) * 1e-3
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model.pair_logits(facts)
    assert mixed.dtype == torch.float32
    assert len(mixed.unique()) > 5 * len(mixed.bfloat16().unique()), "candidates nearly alike still rank"
    torch.testing.assert_close(mixed, model.pair_logits(facts), rtol=0.02, atol=0.02)
