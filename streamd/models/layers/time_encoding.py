"""Time differences as cosines of learned frequencies (TGAT, Xu et al. 2020, section 3.1)."""

import torch
from torch import Tensor, nn


class TimeEncoding(nn.Module):
    """cos(w dt + b); w starts as a geometric sequence from 1 to 1e-7 per median gap of the
    stream."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.logspace(0, -7, dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, gaps: Tensor) -> Tensor:
        """gaps: float32[...] in median gaps. Returns: float32[..., dim]."""
        return torch.cos(gaps[..., None] * self.weight + self.bias)


def in_gaps(microseconds: Tensor, gap_us: Tensor) -> Tensor:
    """int64 microseconds to float32 median gaps: divided in float64, so that small differences of
    large times keep their precision."""
    return (microseconds.double() / gap_us).float()
