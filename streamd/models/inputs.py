"""The inputs of a model for some events, raw as recorded: learning from them later recomputes nothing."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from streamd.events import Float32, Int64
from streamd.graph.neighborhood import Neighborhood


@dataclass(frozen=True)
class LinkInputs:
    """E events with C candidates each, the true destination first, and the neighbourhood of the U nodes among them.

    facts_ECF: float32. src_E, candidate_EC: int64 places among the U roots. weight_E: float32, 0 leaves an event out of
    the loss. The rest is `streamd.graph.neighborhood.Neighborhood` as tensors; empty for a model without graph layers.
    """

    facts_ECF: Tensor
    src_E: Tensor
    candidate_EC: Tensor
    weight_E: Tensor
    node_M: Tensor
    root_U: Tensor
    neighbor_UK: Tensor
    mask_UK: Tensor
    ago_UK: Tensor
    edge_UKD: Tensor
    node_MD: Tensor

    @property
    def num_events(self) -> int:
        return len(self.src_E)

    def tensors(self) -> dict[str, Tensor]:
        """All fields by name, for storing."""
        return {f.name: getattr(self, f.name).contiguous() for f in fields(self)}

    def weighted(self, weight_E: Tensor) -> "LinkInputs":
        return LinkInputs(**{**{f.name: getattr(self, f.name) for f in fields(self)}, "weight_E": weight_E})


def link_inputs(facts_ECF: Float32, src_E: Int64, candidate_EC: Int64, around: Neighborhood) -> LinkInputs:
    """Numpy columns as one `LinkInputs`, every event with weight 1. Views, no copies."""
    t = torch.from_numpy
    return LinkInputs(t(facts_ECF), t(src_E), t(candidate_EC), torch.ones(len(src_E)), t(around.node_M),
                      t(around.root_U), t(around.neighbor_UK), t(around.mask_UK), t(around.ago_UK), t(around.edge_UKD),
                      t(around.node_MD))
