import numpy as np
import torch

from streamd.models.attention import NeighborAttention
from streamd.models.dropout import dropout_key, half_dropout
from streamd.models.link import link_loss
from streamd.models.standardize import MEMORY_ROWS, RunningStandardizer
from streamd.models.time_encoding import TimeEncoding, in_gaps


def plain_attention(layer, query, entry, mask):
    """Project every neighbour, as the paper writes it, in float64."""
    layer = layer.double()
    q = layer.query(query.double()).view(-1, 1, layer.heads, layer.width)
    k, v = (f(entry.double()).view(*entry.shape[:2], layer.heads, layer.width) for f in (layer.key, layer.value))
    score = (q * k).sum(-1) / layer.width**0.5
    weight = score.masked_fill(~mask[..., None], -1e9).softmax(1) * mask[..., None]
    return (weight[..., None] * v).sum(1).flatten(1)


def test_attention_by_associativity_equals_the_plain_form():
    torch.manual_seed(0)
    layer = NeighborAttention(6, 11, 8, 2)
    query, entry = torch.randn(7, 6), torch.randn(7, 5, 11)
    mask = torch.rand(7, 5) < 0.6
    mask[3] = False
    fast = layer(query, entry.split([5, 6], 2), mask)
    assert torch.equal(fast[3], torch.zeros(8)), "a root without neighbours gets nothing"
    torch.testing.assert_close(fast.double(), plain_attention(layer, query, entry, mask), atol=1e-5, rtol=1e-5)


def test_gradients_of_attention_are_right():
    torch.manual_seed(1)
    layer = NeighborAttention(3, 4, 4, 2).double()
    query, entry = torch.randn(3, 3, dtype=torch.double, requires_grad=True), torch.randn(3, 2, 4, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    assert torch.autograd.gradcheck(lambda q, e: layer(q, [e], mask), (query, entry))


def test_time_differences_survive_large_times():
    gap = torch.tensor(1000.0, dtype=torch.double)
    a, b = torch.tensor([2**53 + 3000]), torch.tensor([2**53 + 1000])
    assert in_gaps(a - b, gap).item() == 2.0
    assert torch.equal(TimeEncoding(4)(torch.zeros(2)), torch.ones(2, 4))


def test_running_statistics_equal_those_of_all_rows():
    rows = torch.randn(1000, 3, dtype=torch.double) * torch.tensor([1.0, 50.0, 0.0]) + torch.tensor([5.0, -3.0, 2.0])
    stats = RunningStandardizer(3)
    for part in rows.split([1, 9, 490, 500]):
        stats.update(part)
    torch.testing.assert_close(stats.mean, rows.mean(0))
    torch.testing.assert_close(stats.var, rows.var(0, unbiased=False))
    out = stats(rows.float())
    assert out.abs().max() <= 5 and torch.equal(out[:, 2], torch.zeros(1000)), "a column that never varied says nothing"


def test_the_loss_is_softmax_and_binary_cross_entropy():
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    p = np.exp([2.0, -1.0, 0.5])
    sig = 1 / (1 + np.exp(-np.array([2.0, 1.0, -0.5])))
    want = -np.log(p[0] / p.sum()) - np.log(sig).mean()
    assert abs(float(link_loss(logits, torch.tensor([1.0, 0.0]))) - want) < 1e-6


def test_statistics_outlive_wild_values_and_forget_slowly():
    """1e12 after a million good rows left a spread that erased the feature for the model's life."""
    torch.manual_seed(0)
    stats = RunningStandardizer(2)
    for _ in range(100):
        stats.update(torch.randn(10_000, 2))
    for _ in range(20):
        rows = torch.randn(500, 2)
        rows[7, 0] = 1e12
        stats.update(rows)
    assert stats.var.sqrt()[0] < 1.2 and abs(stats.mean[0]) < 0.05 and stats.count <= MEMORY_ROWS
    kept = stats(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert kept[0, 0] > 0.8 and kept[1, 0] < -0.8, "the feature still says what it said"
    poisoned = RunningStandardizer(1)
    poisoned.update(torch.tensor([[1e4]]))
    for _ in range(800):
        poisoned.update(torch.randn(10_000, 1))
    assert poisoned.var.sqrt() < 1.1, "what came in before anything was known wears off"


def test_a_flag_that_is_rarely_set_keeps_its_spread():
    torch.manual_seed(0)
    stats = RunningStandardizer(1)
    for _ in range(200):
        stats.update((torch.rand(10_000, 1) < 2e-4).float())
    assert 0.8 * 2e-4 < float(stats.var) < 1.2 * 2e-4


def kept(event, num_candidates=11, width=7, key=1):
    event = torch.as_tensor(event)
    return half_dropout(torch.ones(len(event), num_candidates, width), key, event)


def test_half_dropout_drops_half_and_keeps_the_mean():
    out = kept(range(300))
    assert set(out.unique().tolist()) == {0.0, 2.0} and abs(float(out.mean()) - 1) < 0.02
    for width in (64, 130):
        wide = kept(range(200), width=width)
        assert (wide.mean((0, 1)) - 1).abs().max() < 0.1 and (wide.mean((0, 2)) - 1).abs().max() < 0.05
        units = wide.reshape(-1, width) - 1
        correlation = units.T @ units / len(units) - torch.eye(width)
        assert correlation.abs().max() < 0.13, "units fall independently of one another"


def test_what_falls_depends_on_seed_window_epoch_event_candidate_and_unit_alone():
    whole, key = kept(range(50, 90)), dropout_key(3, 1000, 0)
    assert torch.equal(torch.cat([kept(range(50, 61)), kept(range(61, 90))]), whole), "not on how events are batched"
    assert torch.equal(kept([70, 52])[0], whole[20]) and torch.equal(kept(range(50, 90), 5), whole[:, :5])
    others = {dropout_key(3, 1000, 0), dropout_key(4, 1000, 0), dropout_key(3, 1001, 0), dropout_key(3, 1000, 1)}
    assert len(others) == 4 and key in others
    for other in others - {key}:
        assert 0.4 < (kept(range(100), key=other) == kept(range(100), key=key)).float().mean() < 0.6
