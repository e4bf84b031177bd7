import numpy as np
import torch

from streamd.models.link import link_loss


def test_the_loss_is_softmax_and_binary_cross_entropy():
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    p = np.exp([2.0, -1.0, 0.5])
    sig = 1 / (1 + np.exp(-np.array([2.0, 1.0, -0.5])))
    want = -np.log(p[0] / p.sum()) - np.log(sig).mean()
    assert abs(float(link_loss(logits, torch.tensor([1.0, 0.0]))) - want) < 1e-6
