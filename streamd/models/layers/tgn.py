"""TGN's graph layer (Rossi et al. 2020); its memory is `streamd.models.memory.memory`."""

from typing import ClassVar

from torch import Tensor, nn

from streamd.models.layers.attention import NeighborAttention


class TGNLayer(nn.Module):
    """One attention layer over recent neighbors (Rossi et al. 2020, section 3.1, in the form of
    PyG's example)."""

    has_time: ClassVar[bool] = True
    entry_weights: ClassVar[tuple[str, ...]] = ("attention.key.weight", "attention.value.weight")

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.attention = NeighborAttention(dim, entry_dim, dim, heads)
        self.skip = nn.Linear(dim, dim)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        out: Tensor = self.attention(root_UD, parts, mask_UK) + self.skip(root_UD)
        return out

    def weights(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor) -> Tensor:
        """Attention weights, averaged over heads: float32[U, K]."""
        return self.attention.weights(root_UD, parts, mask_UK).mean(1)
