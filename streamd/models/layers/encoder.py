"""The encoder that the architectures share: the first states of nodes, and layers over hops from
the deepest to the first.

What a layer sees of a neighbour is its state, the features of the edge to it and, where the layer
knows time, how long ago.
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
    """A class of layers, each made of the widths of a root's state and of a neighbour's entry.

    `Encoder` calls a layer with root_UD, the parts of the entries, each float32[U, K, D], mask_UK
    and whether it is the last; it returns float32[U, dim].
    """

    @property
    def has_time(self) -> bool:
        """Whether an entry ends with the encoding of how long ago it was."""
        ...

    @property
    def entry_weights(self) -> tuple[str, ...]:
        """Names of the layer's parameters whose last axis is an entry."""
        ...

    def __call__(self, dim: int, entry_dim: int, heads: int) -> nn.Module: ...


class Encoder(nn.Module):
    """Embeds the roots of the first hop, hop after hop from the deepest, a layer for each."""

    def __init__(
        self, kind: LayerKind, num_layers: int, settings: ModelSettings, schema: Schema
    ) -> None:
        super().__init__()
        d = settings.dim
        t = settings.time_dim
        self.dim = d
        self.time = TimeEncoding(t) if kind.has_time else None

        # An entry is a neighbour's state, the edge's features and, where the layer knows time, how
        # long ago it was.
        entry = d + schema.edge_feature_dim + (t if kind.has_time else 0)
        self.layers = nn.ModuleList(kind(d, entry, settings.heads) for _ in range(num_layers))

        # What the first states are made of; an id says nothing until it is learned.
        self.node_in = (
            nn.Linear(schema.node_feature_dim, d, bias=False) if schema.node_feature_dim else None
        )
        self.id_vectors = nn.Embedding(settings.id_rows, d) if settings.id_rows else None
        if self.id_vectors is not None:
            nn.init.zeros_(self.id_vectors.weight)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        found = {"node_in.weight": SchemaInput("node_features", optional=True)}
        for number, layer in enumerate(self.layers):
            # In an entry the edge's features come after the neighbour's state.
            for name in cast(LayerKind, layer).entry_weights:
                found[f"layers.{number}.{name}"] = SchemaInput("edge_features", self.dim)
        return found

    def start(self, node_M: Tensor, state_MD: Tensor, node_MD: Tensor) -> Tensor:
        """Return the states before the first layer, float32[M, D]: the sum of memory, projected
        node features and id vectors, where the model has them."""
        h_MD = state_MD if state_MD.shape[1] else state_MD.new_zeros(len(node_M), self.dim)
        if self.node_in is not None:
            h_MD = h_MD + self.node_in(node_MD)
        if self.id_vectors is not None:
            # Ids share rows where there are more nodes than rows; unknown nodes have none.
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
            return self.applied(number, h_MD, hop, edge_stats, gap_us, last)

        return deepest_first(h_MD, hops, layer)

    def applied(
        self,
        number: int,
        h_MD: Tensor,
        hop: HopInputs,
        edge_stats: nn.Module,
        gap_us: Tensor,
        last: bool,
    ) -> Tensor:
        """Apply a layer, by its number, to the roots of a hop. Returns: float32[U, D]."""
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
        """Return how much each neighbour of the first hop's roots counts by attention: float32[U,
        K], as the only one of a tuple; an empty tuple where the layers have no attention.

        Arguments as of `forward`.
        """
        if not hasattr(self.layers[-1], "weights"):
            return ()

        def layer(number: int, h_MD: Tensor, hop: HopInputs, last: bool) -> Tensor:
            return self.applied(number, h_MD, hop, edge_stats, gap_us, last)

        return (self.weighed(states_of_first(h_MD, hops, layer), hops[0], edge_stats, gap_us),)

    def weighed(
        self, h_MD: Tensor, hop: HopInputs, edge_stats: nn.Module, gap_us: Tensor
    ) -> Tensor:
        """How much each neighbour of a hop counts in the last layer: float32[U, K]."""
        parts = self.entries(h_MD, hop, edge_stats, gap_us)
        layer: Any = self.layers[-1]
        out: Tensor = layer.weights(embedding(hop.root_U, h_MD), parts, hop.mask_UK)
        return out

    def entries(
        self, h_MD: Tensor, hop: HopInputs, edge_stats: nn.Module, gap_us: Tensor
    ) -> list[Tensor]:
        """Return, of each neighbour of a hop, its state, the features of the edge to it and, where
        the layer knows time, how long ago it was."""
        parts = [embedding(hop.neighbor_UK, h_MD), edge_stats(hop.edge_UKD)]
        if self.time is not None:
            parts.append(self.time(in_gaps(hop.ago_UK, gap_us)))
        return parts


def deepest_first(
    h_MD: Tensor,
    hops: Sequence[HopInputs],
    layer: Callable[[int, Tensor, HopInputs, bool], Tensor],
) -> Tensor:
    """Embed the first hop's roots: what a layer makes of a hop's roots is their state in the hop
    before.

    layer: called with its number, counted from the deepest hop, the states, the hop and whether it
    is the last.
    """
    h_MD = states_of_first(h_MD, hops, layer)
    return layer(len(hops) - 1, h_MD, hops[0], True)


def states_of_first(
    h_MD: Tensor,
    hops: Sequence[HopInputs],
    layer: Callable[[int, Tensor, HopInputs, bool], Tensor],
) -> Tensor:
    """The states that the first hop's layer sees, float32[M, D]. Arguments as of
    `deepest_first`."""
    for number in reversed(range(1, len(hops))):
        z_UD = layer(len(hops) - 1 - number, h_MD, hops[number], False)
        # The hop before looks at these roots only: other nodes need no state.
        h_MD = z_UD.new_zeros(len(h_MD), z_UD.shape[1]).index_copy(0, hops[number].root_U, z_UD)
    return h_MD
