"""GraphSAGE's layer (Hamilton et al. 2017)."""

from typing import ClassVar

import torch
from torch import Tensor, nn


class SAGELayer(nn.Module):
    """Mean aggregator (Hamilton et al. 2017, section 3.3)."""

    has_time: ClassVar[bool] = False
    entry_weights: ClassVar[tuple[str, ...]] = ("mean.weight",)

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.root = nn.Linear(dim, dim)
        self.mean = nn.Linear(entry_dim, dim, bias=False)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        # The mean over neighbors without padding; zeros for a root without neighbors.
        entry_UKD = torch.cat(parts, -1)
        count = mask_UK.sum(1, keepdim=True).clamp_min(1)
        mean = (entry_UKD * mask_UK[..., None]).sum(1) / count
        out: Tensor = self.root(root_UD) + self.mean(mean)
        return out if last else out.relu()
