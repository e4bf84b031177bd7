"""Graph attention (Velickovic et al. 2018)."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu


class GATLayer(nn.Module):
    """Additive attention over the neighbors and the root itself (Velickovic et al. 2018, equations
    1 to 5).

    By associativity a.(W e) = (W^T a).e and sum w (W e) = W (sum w e): root rows are projected, not
    neighbor rows.
    """

    has_time: ClassVar[bool] = False
    entry_weights: ClassVar[tuple[str, ...]] = ("entry.weight",)

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.root = nn.Linear(dim, dim)
        self.entry = nn.Linear(entry_dim, dim, bias=False)
        self.to_root = nn.Parameter(torch.empty(heads, dim // heads))
        self.to_entry = nn.Parameter(torch.empty(heads, dim // heads))
        nn.init.xavier_uniform_(self.to_root)
        nn.init.xavier_uniform_(self.to_entry)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        # Project the roots; the neighbors' projection is folded into the scores.
        entry_UKD = torch.cat(parts, -1)
        own_UHW = self.root(root_UD).unflatten(1, self.to_root.shape)
        weight_HWD = self.entry.weight.view(self.heads, own_UHW.shape[2], -1)

        # The weighted sum, projected once.
        share_UKH = self._shares(own_UHW, entry_UKD, weight_HWD, mask_UK)
        mixed_UHD = torch.einsum("ukh,ukd->uhd", share_UKH[:, :-1], entry_UKD)
        out = (
            torch.einsum("uhd,hwd->uhw", mixed_UHD, weight_HWD)
            + share_UKH[:, -1, :, None] * own_UHW
        )
        return out.flatten(1) if last else elu(out.flatten(1))

    def weights(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor) -> Tensor:
        """Attention weights, averaged over heads: float32[U, K]. The remainder to 1 is the root's
        own weight."""
        own_UHW = self.root(root_UD).unflatten(1, self.to_root.shape)
        weight_HWD = self.entry.weight.view(self.heads, own_UHW.shape[2], -1)
        share_UKH = self._shares(own_UHW, torch.cat(parts, -1), weight_HWD, mask_UK)
        return share_UKH[:, :-1].mean(2)

    def _shares(
        self, own_UHW: Tensor, entry_UKD: Tensor, weight_HWD: Tensor, mask_UK: Tensor
    ) -> Tensor:
        """Weights of the neighbors and, last, of the root itself: float32[U, K + 1, heads]."""
        folded_HD = torch.einsum("hw,hwd->hd", self.to_entry, weight_HWD)

        # Scores of the neighbors and of the root itself; the slope of 0.2 is the paper's.
        asked_UH = (own_UHW * self.to_root).sum(-1)
        score_UKH = leaky_relu(asked_UH[:, None] + entry_UKD @ folded_HD.T, 0.2).masked_fill(
            ~mask_UK[..., None], -1e9
        )
        self_UH = leaky_relu(asked_UH + (own_UHW * self.to_entry).sum(-1), 0.2)

        return torch.cat([score_UKH, self_UH[:, None]], 1).softmax(1)
