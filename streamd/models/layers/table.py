"""The table of torch layers by `model.name`: the layer of each architecture, the number of layers,
and their encoder.

`streamd.models.architectures` is the table of everything that needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from streamd.models.architectures import ARCHITECTURES, plugin_of
from streamd.models.layers.dysat import DySATEncoder
from streamd.models.layers.encoder import Encoder, LayerKind
from streamd.models.layers.gat import GATLayer
from streamd.models.layers.gcn import GCNEncoder, GCNLayer
from streamd.models.layers.sage import SAGELayer
from streamd.models.layers.tgat import TGATLayer
from streamd.models.layers.tgn import TGNLayer
from streamd.settings.loading import ModelName


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphLayers:
    """layer: the graph layer; number: of layers; encoder: applies them to the hops."""

    layer: LayerKind
    number: int
    encoder: type[Encoder] = Encoder


LAYERS: Mapping[ModelName, GraphLayers] = {
    "tgn": GraphLayers(layer=TGNLayer, number=1),
    # Two layers reach two hops, as those of sage and gat do.
    "tgat": GraphLayers(layer=TGATLayer, number=2),
    # Each hop is a window of time here, and one layer serves all of them.
    "dysat": GraphLayers(layer=GATLayer, number=1, encoder=DySATEncoder),
    "sage": GraphLayers(layer=SAGELayer, number=2),
    "gat": GraphLayers(layer=GATLayer, number=2),
    # Two layers, and a third hop that only counts the degrees of the nodes in the second.
    "gcn": GraphLayers(layer=GCNLayer, number=2, encoder=GCNEncoder),
}
"""Of the architectures with graph layers; the others have no row."""


def layers_of(name: str) -> GraphLayers | None:
    """The layers of an architecture or of a plug-in, None if it has none. Raises: SettingsError."""
    if name in ARCHITECTURES:
        return LAYERS.get(cast(ModelName, name))
    plugin = plugin_of(name)
    return GraphLayers(layer=plugin.layer, number=plugin.number, encoder=plugin.encoder or Encoder)
