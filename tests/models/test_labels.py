import torch

from streamd.models.labels import LabelHead
from streamd.settings import ModelSettings


def test_quantities_are_told_in_their_own_unit():
    head = LabelHead(ModelSettings(labels="regression"), 2, 4)
    targets = torch.tensor([[100.0, 3.0], [300.0, 3.0]])
    head.target_stats.update(targets)
    assert torch.equal(head.predict(torch.tensor([[1.0, 0.0]])), torch.tensor([[300.0, 3.0]]))
    assert torch.equal(head.constant(1), torch.tensor([[200.0, 3.0]])) and float(head.loss(head.target_stats(targets), targets)) == 0
