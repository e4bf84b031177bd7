"""The encoder that the architectures share: initial states of nodes, and layers over hops from the
deepest to the first.

The entry of a neighbor is its state, the features of the edge to it and, for a layer with time
encoding, the encoded time since the edge.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.events import Schema
from streamd.models.inputs import HopInputs
from streamd.models.layers.time_encoding import TimeEncoding, in_gaps
from streamd.models.schema_inputs import SchemaInput
from streamd.settings.loading import ModelSettings


class LayerKind(Protocol):
    """A class of layers, constructed from the widths of a root's state and of a neighbor's entry.

    `Encoder` calls a layer with root_UD, the parts of the entries, each float32[U, K, D], mask_UK
    and whether it is the last layer; it returns float32[U, dim].
    """

    @property
    def has_time(self) -> bool:
        """Whether an entry ends with the encoded time since the edge."""
        ...

    @property
    def entry_weights(self) -> tuple[str, ...]:
        """Names of the layer's parameters whose last axis is the entry."""
        ...

    def __call__(self, dim: int, entry_dim: int, heads: int) -> nn.Module: ...


class Encoder(nn.Module):
    """Embeds the roots of the first hop, with a layer for each hop, from the deepest to the
    first."""

    def __init__(
        self, kind: LayerKind, num_layers: int, settings: ModelSettings, schema: Schema
    ) -> None:
        super().__init__()
        d = settings.dim
        t = settings.time_dim
        self.dim = d
        self.time = TimeEncoding(t) if kind.has_time else None

        # An entry: a neighbor's state, the edge's features, and the encoded time if the layer uses
        # it.
        entry = d + schema.edge_feature_dim + (t if kind.has_time else 0)
        self.layers = nn.ModuleList(kind(d, entry, settings.heads) for _ in range(num_layers))

        # Parts of the initial states; id vectors start at zero.
        self.node_in = (
            nn.Linear(schema.node_feature_dim, d, bias=False) if schema.node_feature_dim else None
        )
        self.id_vectors = nn.Embedding(settings.id_rows, d) if settings.id_rows else None
        if self.id_vectors is not None:
            nn.init.zeros_(self.id_vectors.weight)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        found = {"node_in.weight": SchemaInput("node_features", optional=True)}
        for number, layer in enumerate(self.layers):
            # In an entry, the edge's features come after the neighbor's state.
            for name in cast(LayerKind, layer).entry_weights:
                found[f"layers.{number}.{name}"] = SchemaInput("edge_features", self.dim)
        return found

    def start(self, node_M: Tensor, state_MD: Tensor, node_MD: Tensor) -> Tensor:
        """Return the states before the first layer, float32[M, D]: the sum of memory, projected
        node features and id vectors, as far as the model has them."""
        h_MD = state_MD if state_MD.shape[1] else state_MD.new_zeros(len(node_M), self.dim)
        if self.node_in is not None:
            h_MD = h_MD + self.node_in(node_MD)
        if self.id_vectors is not None:
            # With more nodes than rows, ids share rows; unknown nodes have none.
            known = (node_M >= 0)[:, None]
            h_MD = (
                h_MD + self.id_vectors(node_M.clamp_min(0) % self.id_vectors.num_embeddings) * known
            )
        return h_MD

    def forward(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: nn.Module,
        gap_us: Tensor,
    ) -> Tensor:
        """Return the embeddings of the first hop's roots, float32[U, D]. h_MD: `start` of all
        nodes."""

        def layer(number: int, h_MD: Tensor, hop: HopInputs, last: bool) -> Tensor:
            return self.apply_layer(number, h_MD, hop, edge_stats, gap_us, last)

        return deepest_first(h_MD, hops, layer)

    def apply_layer(
        self,
        number: int,
        h_MD: Tensor,
        hop: HopInputs,
        edge_stats: nn.Module,
        gap_us: Tensor,
        last: bool,
    ) -> Tensor:
        """Apply layer `number` to the roots of a hop. Returns: float32[U, D]."""
        parts = self.entries(h_MD, hop, edge_stats, gap_us)
        out: Tensor = self.layers[number](embedding(hop.root_U, h_MD), parts, hop.mask_UK, last)
        return out

    def weights(
        self,
        h_MD: Tensor,
        hops: tuple[HopInputs, ...],
        edge_stats: nn.Module,
        gap_us: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return attention weights of the first hop's neighbors: a tuple of one tensor, float32[U,
        K], or an empty one for layers without attention.

        Arguments as in `forward`.
        """
        if not hasattr(self.layers[-1], "weights"):
            return ()

        def layer(number: int, h_MD: Tensor, hop: HopInputs, last: bool) -> Tensor:
            return self.apply_layer(number, h_MD, hop, edge_stats, gap_us, last)

        return (
            self.layer_weights(states_of_first(h_MD, hops, layer), hops[0], edge_stats, gap_us),
        )

    def layer_weights(
        self, h_MD: Tensor, hop: HopInputs, edge_stats: nn.Module, gap_us: Tensor
    ) -> Tensor:
        """Attention weights of a hop's neighbors in the last layer: float32[U, K]."""
        parts = self.entries(h_MD, hop, edge_stats, gap_us)
        layer: Any = self.layers[-1]
        out: Tensor = layer.weights(embedding(hop.root_U, h_MD), parts, hop.mask_UK)
        return out

    def entries(
        self, h_MD: Tensor, hop: HopInputs, edge_stats: nn.Module, gap_us: Tensor
    ) -> list[Tensor]:
        """Return the parts of the entries of a hop's neighbors: state, edge features and, for a
        layer with time encoding, the encoded time since the edge."""
        parts = [embedding(hop.neighbor_UK, h_MD), edge_stats(hop.edge_UKD)]
        if self.time is not None:
            parts.append(self.time(in_gaps(hop.ago_UK, gap_us)))
        return parts


def deepest_first(
    h_MD: Tensor,
    hops: Sequence[HopInputs],
    layer: Callable[[int, Tensor, HopInputs, bool], Tensor],
) -> Tensor:
    """Embed the first hop's roots. A layer's output for a hop's roots is their state in the next
    layer, over the hop before.

    layer: called with its number, counted from the deepest hop, the states, the hop and whether it
    is the last layer.
    """
    h_MD = states_of_first(h_MD, hops, layer)
    return layer(len(hops) - 1, h_MD, hops[0], True)


def states_of_first(
    h_MD: Tensor,
    hops: Sequence[HopInputs],
    layer: Callable[[int, Tensor, HopInputs, bool], Tensor],
) -> Tensor:
    """The input states of the first hop's layer, float32[M, D]. Arguments as in `deepest_first`."""
    for number in reversed(range(1, len(hops))):
        z_UD = layer(len(hops) - 1 - number, h_MD, hops[number], False)
        # The hop before reads these roots only: other nodes need no state.
        h_MD = z_UD.new_zeros(len(h_MD), z_UD.shape[1]).index_copy(0, hops[number].root_U, z_UD)
    return h_MD
