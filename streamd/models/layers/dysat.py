"""DySAT (Sankar et al. 2020): graph attention within windows of time, then attention across
them."""

import torch
from torch import Tensor, nn

from streamd.events import Schema
from streamd.models.inputs import HopInputs
from streamd.models.layers.attention import NeighborAttention
from streamd.models.layers.encoder import Encoder, LayerKind
from streamd.settings.loading import ModelSettings


class DySATEncoder(Encoder):
    """Embeds the roots in each window by one layer, then attends over the windows: structural
    attention within a window, temporal attention across, positions learned."""

    def __init__(
        self, kind: LayerKind, num_layers: int, settings: ModelSettings, schema: Schema
    ) -> None:
        super().__init__(kind, num_layers, settings, schema)
        d = settings.dim
        self.position = nn.Parameter(torch.zeros(settings.snapshots, d))
        self.across = NeighborAttention(d, d, d, settings.heads)
        self.skip = nn.Linear(d, d)

    def forward(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: nn.Module,
        gap_us: Tensor,
    ) -> Tensor:
        """float32[U, D] of the roots. hops: one for each window."""
        # The newest window is the query, all windows are keys and values.
        stacked_USD, all_US = self._by_window(h_MD, hops, edge_stats, gap_us)
        newest_UD = stacked_USD[:, 0]
        out: Tensor = self.across(newest_UD, [stacked_USD], all_US) + self.skip(newest_UD)
        return out

    def weights(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: nn.Module,
        gap_us: Tensor,
    ) -> tuple[Tensor, ...]:
        """As of `Encoder`, a tensor for each window: the weight within the window times the
        window's weight."""
        stacked_USD, all_US = self._by_window(h_MD, hops, edge_stats, gap_us)
        window_US = self.across.weights(stacked_USD[:, 0], [stacked_USD], all_US).mean(1)
        return tuple(
            self.layer_weights(h_MD, hop, edge_stats, gap_us) * window_US[:, number, None]
            for number, hop in enumerate(hops)
        )

    def _by_window(
        self, h_MD: Tensor, hops: tuple[HopInputs, ...], edge_stats: nn.Module, gap_us: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The roots' embeddings in each window, float32[U, S, D], and a mask with all windows,
        bool[U, S]."""
        # The same layer in each window; `position` identifies the window.
        per_window = [self.apply_layer(0, h_MD, hop, edge_stats, gap_us, True) for hop in hops]
        stacked_USD = torch.stack(per_window, 1) + self.position
        return stacked_USD, stacked_USD.new_ones(stacked_USD.shape[:2], dtype=torch.bool)
