import torch

from streamd.models.layers.time_encoding import TimeEncoding, in_gaps


def test_time_differences_survive_large_times():
    gap = torch.tensor(1000.0, dtype=torch.double)
    a, b = torch.tensor([2**53 + 3000]), torch.tensor([2**53 + 1000])
    assert in_gaps(a - b, gap).item() == 2.0
    assert torch.equal(TimeEncoding(4)(torch.zeros(2)), torch.ones(2, 4))
