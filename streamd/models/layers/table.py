"""What each architecture learns, by `model.name`: its layer and how layers are put together, in
torch.

`streamd.models.architectures` is the table of all else, which is read without torch.
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
    """layer: the graph layer; number: how many; encoder: how they are put together."""

    layer: LayerKind
    number: int
    encoder: type[Encoder] = Encoder


LAYERS: Mapping[ModelName, GraphLayers] = {
    "tgn": GraphLayers(layer=TGNLayer, number=1),
    # Two layers look two hops far, and so do those of sage and gat.
    "tgat": GraphLayers(layer=TGATLayer, number=2),
    # A hop is a window of time here: one layer serves all of them.
    "dysat": GraphLayers(layer=GATLayer, number=1, encoder=DySATEncoder),
    "sage": GraphLayers(layer=SAGELayer, number=2),
    "gat": GraphLayers(layer=GATLayer, number=2),
    # Two layers, and a third hop that only counts the degrees of what the second reached.
    "gcn": GraphLayers(layer=GCNLayer, number=2, encoder=GCNEncoder),
}
"""Of the architectures that look at the graph; others have none."""


def layers_of(name: str) -> GraphLayers | None:
    """The layers of an architecture or of a plug-in, None if it has none. Raises: SettingsError."""
    if name in ARCHITECTURES:
        return LAYERS.get(cast(ModelName, name))
    plugin = plugin_of(name)
    return GraphLayers(layer=plugin.layer, number=plugin.number, encoder=plugin.encoder or Encoder)
