"""Attention of each root over its neighbors (Vaswani et al. 2017), one query per root."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class NeighborAttention(nn.Module):
    """Multi-head attention by associativity: q.(W_k e) = (W_k^T q).e and sum a (W_v e) = W_v (sum a
    e).

    Root rows are projected instead of U x K neighbor rows; the result is that of the plain form.
    """

    def __init__(self, query_dim: int, entry_dim: int, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = dim // heads
        self.query = nn.Linear(query_dim, dim)
        self.key = nn.Linear(entry_dim, dim, bias=False)
        # Without a bias a root without neighbors gets zeros.
        self.value = nn.Linear(entry_dim, dim, bias=False)

    def forward(self, query_UD: Tensor, parts: Sequence[Tensor], mask_UK: Tensor) -> Tensor:
        """Attend. query_UD: states of the roots. parts: float32[U, K, D] each, blocks of columns of
        the neighbors' entries; as separate tensors, those without gradients, such as edge features,
        are not copied. mask_UK: bool, False for padding. Returns: float32[U, dim]; zeros for a root
        without neighbors."""
        weight_UHK = self.weights(query_UD, parts, mask_UK)
        mixed_UHD = torch.cat([torch.bmm(weight_UHK, part) for part in parts], 2)

        # Project the weighted sum instead of each neighbor.
        value_HWD = self.value.weight.view(self.heads, self.width, -1)
        return torch.einsum("uhd,hwd->uhw", mixed_UHD, value_HWD).flatten(1)

    def weights(self, query_UD: Tensor, parts: Sequence[Tensor], mask_UK: Tensor) -> Tensor:
        """Attention weights, float32[U, heads, K]: they add up to 1 over a root's neighbors and
        are 0 for padding. Arguments as in `forward`."""

        # Fold the key projection into the query of each root.
        q_UHW = self.query(query_UD).view(-1, self.heads, self.width)
        key_HWD = self.key.weight.view(self.heads, self.width, -1)
        folded_UHD = torch.einsum("uhw,hwd->uhd", q_UHW, key_HWD)

        # Score the parts of the entries separately, so that none of them is copied.
        asked = torch.split(folded_UHD, [part.shape[2] for part in parts], 2)
        scores = [
            torch.bmm(f_UHD, part.transpose(1, 2)) for part, f_UHD in zip(parts, asked, strict=True)
        ]
        score_UHK = torch.stack(scores).sum(0) / self.width**0.5

        # Padding has weight 0; a root with padding alone gets zeros.
        mask_U1K = mask_UK[:, None]
        weight_UHK: Tensor = score_UHK.masked_fill(~mask_U1K, -1e9).softmax(-1) * mask_U1K
        return weight_UHK
