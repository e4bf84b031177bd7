"""Layers that embed nodes from their sampled neighbours: TGN, TGAT, DySAT, GraphSAGE, GAT, each a
stack of `Layer`s.

What a layer sees of a neighbour is its state, the features of the edge to it and, where the model
knows time, how long ago.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, embedding, leaky_relu

from streamd.events import Schema
from streamd.models.attention import NeighborAttention
from streamd.models.inputs import HopInputs
from streamd.models.standardize import RunningStandardizer
from streamd.models.time_encoding import TimeEncoding, in_gaps
from streamd.settings import ModelSettings

DEPTH = {"pair": 1, "tgn": 1, "tgat": 2, "sage": 2, "gat": 2}
"""Hops by model; dysat has a window of time for each of `model.snapshots`."""


class TGNLayer(nn.Module):
    """One attention layer over recent neighbours (Rossi et al. 2020, section 3.1, as PyG's example
    has it)."""

    has_time = True

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.attention = NeighborAttention(dim, entry_dim, dim, heads)
        self.skip = nn.Linear(dim, dim)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        out: Tensor = self.attention(root_UD, parts, mask_UK) + self.skip(root_UD)
        return out


class TGATLayer(nn.Module):
    """Attention, then a feed-forward network over its result and the root (Xu et al. 2020, section
    3.2)."""

    has_time = True

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.attention = NeighborAttention(dim, entry_dim, dim, heads)
        self.merge = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        out: Tensor = self.merge(torch.cat([self.attention(root_UD, parts, mask_UK), root_UD], 1))
        return out


class SAGELayer(nn.Module):
    """Mean aggregator (Hamilton et al. 2017, section 3.3)."""

    has_time = False

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.root, self.mean = nn.Linear(dim, dim), nn.Linear(entry_dim, dim, bias=False)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        entry_UKD, count = torch.cat(parts, -1), mask_UK.sum(1, keepdim=True).clamp_min(1)
        mean = (entry_UKD * mask_UK[..., None]).sum(1) / count
        out: Tensor = self.root(root_UD) + self.mean(mean)
        return out if last else out.relu()


class GATLayer(nn.Module):
    """Additive attention over the neighbours and the root itself (Velickovic et al. 2018, equations
    1 to 5).

    By associativity a.(W e) = (W^T a).e and sum w (W e) = W (sum w e): root rows are projected, not
    neighbour rows.
    """

    has_time = False

    def __init__(self, dim: int, entry_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.root, self.entry = nn.Linear(dim, dim), nn.Linear(entry_dim, dim, bias=False)
        self.to_root = nn.Parameter(torch.empty(heads, dim // heads))
        self.to_entry = nn.Parameter(torch.empty(heads, dim // heads))
        nn.init.xavier_uniform_(self.to_root)
        nn.init.xavier_uniform_(self.to_entry)

    def forward(self, root_UD: Tensor, parts: list[Tensor], mask_UK: Tensor, last: bool) -> Tensor:
        entry_UKD = torch.cat(parts, -1)
        own_UHW = self.root(root_UD).view(len(root_UD), self.heads, -1)
        weight_HWD = self.entry.weight.view(self.heads, own_UHW.shape[2], -1)
        folded_HD = torch.einsum("hw,hwd->hd", self.to_entry, weight_HWD)
        asked_UH = (own_UHW * self.to_root).sum(-1)
        score_UKH = leaky_relu(asked_UH[:, None] + entry_UKD @ folded_HD.T, 0.2).masked_fill(
            ~mask_UK[..., None], -1e9
        )
        self_UH = leaky_relu(asked_UH + (own_UHW * self.to_entry).sum(-1), 0.2)
        share_UKH = torch.cat([score_UKH, self_UH[:, None]], 1).softmax(1)
        mixed_UHD = torch.einsum("ukh,ukd->uhd", share_UKH[:, :-1], entry_UKD)
        out = (
            torch.einsum("uhd,hwd->uhw", mixed_UHD, weight_HWD)
            + share_UKH[:, -1, :, None] * own_UHW
        )
        return out.flatten(1) if last else elu(out.flatten(1))


LAYERS: dict[str, type[TGNLayer] | type[TGATLayer] | type[SAGELayer] | type[GATLayer]] = {
    "tgn": TGNLayer, "tgat": TGATLayer, "sage": SAGELayer, "gat": GATLayer, "dysat": GATLayer}


class Encoder(nn.Module):
    """Embeds the roots of the first hop, hop after hop from the deepest; for dysat, window by
    window and then over them (Sankar et al. 2020: structural attention in each snapshot, temporal
    attention across, positions learned)."""

    def __init__(self, settings: ModelSettings, schema: Schema) -> None:
        super().__init__()
        kind, d = LAYERS[settings.name], settings.dim
        self.dim, self.windows = d, settings.name == "dysat"
        self.time = TimeEncoding(settings.time_dim) if kind.has_time else None
        entry = d + schema.edge_feature_dim + (settings.time_dim if kind.has_time else 0)
        depth = 1 if self.windows else DEPTH[settings.name]
        self.layers = nn.ModuleList(kind(d, entry, settings.heads) for _ in range(depth))
        self.node_in = (
            nn.Linear(schema.node_feature_dim, d, bias=False) if schema.node_feature_dim else None
        )
        self.id_vectors = nn.Embedding(settings.id_rows, d) if settings.id_rows else None
        if self.id_vectors is not None:
            nn.init.zeros_(self.id_vectors.weight)
        if self.windows:
            self.position = nn.Parameter(torch.zeros(settings.snapshots, d))
            self.across, self.skip = NeighborAttention(d, d, d, settings.heads), nn.Linear(d, d)

    def start(self, node_M: Tensor, state_MD: Tensor, node_MD: Tensor) -> Tensor:
        """States before the first layer: memory, node features, id vectors, as far as there are
        any. float32[M, D]."""
        h_MD = state_MD if state_MD.shape[1] else state_MD.new_zeros(len(node_M), self.dim)
        if self.node_in is not None:
            h_MD = h_MD + self.node_in(node_MD)
        if self.id_vectors is not None:
            known = (node_M >= 0)[:, None]
            h_MD = (
                h_MD + self.id_vectors(node_M.clamp_min(0) % self.id_vectors.num_embeddings) * known
            )
        return h_MD

    def forward(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: RunningStandardizer,
        gap_us: Tensor,
    ) -> Tensor:
        """float32[U, D] of the first hop's roots. h_MD: `start` of all nodes."""
        if self.windows:
            per_window = [self._layer(0, h_MD, hop, edge_stats, gap_us, True) for hop in hops]
            stacked_USD = torch.stack(per_window, 1) + self.position
            newest_UD = stacked_USD[:, 0]
            all_US = stacked_USD.new_ones(stacked_USD.shape[:2], dtype=torch.bool)
            out: Tensor = self.across(newest_UD, [stacked_USD], all_US) + self.skip(newest_UD)
            return out
        for number in reversed(range(len(hops))):
            z_UD = self._layer(
                len(hops) - 1 - number, h_MD, hops[number], edge_stats, gap_us, number == 0
            )
            if number:
                h_MD = z_UD.new_zeros(len(h_MD), z_UD.shape[1]).index_copy(
                    0, hops[number].root_U, z_UD
                )
        return z_UD

    def _layer(
        self,
        number: int,
        h_MD: Tensor,
        hop: HopInputs,
        edge_stats: RunningStandardizer,
        gap_us: Tensor,
        last: bool,
    ) -> Tensor:
        parts = [embedding(hop.neighbor_UK, h_MD), edge_stats(hop.edge_UKD)]
        if self.time is not None:
            parts.append(self.time(in_gaps(hop.ago_UK, gap_us)))
        out: Tensor = self.layers[number](embedding(hop.root_U, h_MD), parts, hop.mask_UK, last)
        return out
