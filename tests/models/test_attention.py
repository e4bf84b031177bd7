import pytest
import torch

from streamd.models.layers.attention import NeighborAttention
from streamd.models.layers.gat import GATLayer
from streamd.models.layers.tgat import TGATLayer
from streamd.models.layers.tgn import TGNLayer


def plain_attention(layer, query, entry, mask):
    """Project every neighbor, as the paper writes it, in float64."""
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
    assert torch.equal(fast[3], torch.zeros(8)), "a root without neighbors gets nothing"
    torch.testing.assert_close(fast.double(), plain_attention(layer, query, entry, mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [TGNLayer, TGATLayer, GATLayer])
def test_the_weights_that_explanations_show_are_those_that_the_layer_mixes_by(kind):
    """With one head, what a layer adds up is its entries by these weights; gat's own share is what is missing to 1."""
    torch.manual_seed(3)
    layer = kind(4, 6, 1)
    root, entry = torch.randn(5, 4), torch.randn(5, 3, 6)
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False], [False] * 3, [True] * 3])
    parts = [entry[..., :4], entry[..., 4:]]
    weight = layer.weights(root, parts, mask)
    mixed = (weight[..., None] * entry).sum(1)
    if kind is GATLayer:
        own = layer.root(root)
        want = mixed @ layer.entry.weight.T + (1 - weight.sum(1, keepdim=True)) * own
        torch.testing.assert_close(layer(root, parts, mask, True), want, atol=1e-5, rtol=1e-5)
    else:
        want = mixed @ layer.attention.value.weight.T
        torch.testing.assert_close(layer.attention(root, parts, mask), want, atol=1e-5, rtol=1e-5)
    assert (weight[~mask] == 0).all() and (weight[mask] > 0).all()


def test_gradients_of_attention_are_right():
    torch.manual_seed(1)
    layer = NeighborAttention(3, 4, 4, 2).double()
    query, entry = torch.randn(3, 3, dtype=torch.double, requires_grad=True), torch.randn(3, 2, 4, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    assert torch.autograd.gradcheck(lambda q, e: layer(q, [e], mask), (query, entry))


def test_more_roots_than_a_gpus_grid_is_high_are_attended_like_few(on):
    """A grid has at most 65,535 blocks in its second and third dimension, where kernels may have the batch."""
    torch.manual_seed(2)
    layer = NeighborAttention(2, 4, 2, 1).to(on)
    query, entry = torch.randn(70_000, 2, device=on), torch.randn(70_000, 2, 4, device=on)
    mask = torch.rand(70_000, 2, device=on) < 0.6
    many, few = layer(query, [entry], mask), layer(query[-5000:], [entry[-5000:]], mask[-5000:])
    torch.testing.assert_close(many[-5000:], few)
