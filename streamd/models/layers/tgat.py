"""TGAT's layer (Xu et al. 2020)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from streamd.models.layers.attention import NeighborAttention


class TGATLayer(nn.Module):
    """Attention, then a feed-forward network over its result and the root (Xu et al. 2020, section
    3.2)."""

    has_time: ClassVar[bool] = True
    entry_weights: ClassVar[tuple[str, ...]] = ("attention.key.weight", "attention.value.weight")

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.attention = NeighborAttention(dim, entry_dim, dim, heads)
        self.merge = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        out: Tensor = self.merge(torch.cat([self.attention(root_UD, parts, mask_UK), root_UD], 1))
        return out

    def weights(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor) -> Tensor:
        """Attention weights, averaged over heads: float32[U, K]."""
        return self.attention.weights(root_UD, parts, mask_UK).mean(1)
