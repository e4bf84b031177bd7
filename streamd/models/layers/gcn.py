"""GCN (Kipf and Welling 2017) over sampled neighbors."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from streamd.models.inputs import HopInputs
from streamd.models.layers.encoder import Encoder, deepest_first


class GCNLayer(nn.Module):
    """D^-1/2 (A + I) D^-1/2 X W (Kipf and Welling 2017, equation 2). A row of X is a node's state
    and the features of the edge to it; in a root's own row, which has no edge, the features are
    zero."""

    has_time: ClassVar[bool] = False
    entry_weights: ClassVar[tuple[str, ...]] = ("linear.weight",)

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(entry_dim, dim)

        # As in the paper, since averages of neighbors are small.
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(
        self, root_UD: Tensor, parts: list[Tensor], weight_UK: Tensor, own_U: Tensor, last: bool
    ) -> Tensor:
        """weight_UK, own_U: entries of the normalised matrix, 0 for padding; own_U is its
        diagonal."""
        entry_UKD = torch.cat(parts, -1)
        others_UD = (entry_UKD * weight_UK[..., None]).sum(1)
        # The root's own row has no edge: its edge features are zero.
        own_UD = pad(root_UD, (0, entry_UKD.shape[2] - root_UD.shape[1]))
        out: Tensor = self.linear(others_UD + own_UD * own_U[:, None])
        return out if last else out.relu()


class GCNEncoder(Encoder):
    """Layers over all hops but the deepest, which only counts the neighbors of the nodes before.

    A degree is 1 for the node itself plus 1 for each sampled edge. So the result equals Kipf and
    Welling's for nodes with at most `model.neighbors` edges; for others it is that of the sampled
    graph, since their true degree at a cut of the log is not known. Repeated edges count each time.
    """

    def forward(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: nn.Module,
        gap_us: Tensor,
    ) -> Tensor:
        """float32[U, D] of the first hop's roots. h_MD: `start` of all nodes."""

        # Degrees of all nodes that the layers see, counted by the deepest hop.
        *used, counted = hops
        degree_U = 1 + counted.mask_UK.sum(1).to(h_MD.dtype)
        rate_M = h_MD.new_ones(len(h_MD)).index_copy(0, counted.root_U, degree_U.rsqrt())

        def layer(number: int, h_MD: Tensor, hop: HopInputs, last: bool) -> Tensor:
            # Entries of D^-1/2 (A + I) D^-1/2 for this hop.
            rate_U = rate_M[hop.root_U]
            weight_UK = rate_U[:, None] * rate_M[hop.neighbor_UK] * hop.mask_UK
            parts = self.entries(h_MD, hop, edge_stats, gap_us)
            roots_UD = embedding(hop.root_U, h_MD)
            out: Tensor = self.layers[number](roots_UD, parts, weight_UK, rate_U**2, last)
            return out

        return deepest_first(h_MD, used, layer)
