"""The likeness of a candidate's features to those of the source's last neighbours."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.models.inference.standard_values import LEAST_NORM, MATCH_HIDDEN, MATCH_SCALE
from streamd.models.inputs import HopInputs
from streamd.models.schema_inputs import SchemaInput


class FeatureMatch(nn.Module):
    """Adds to a pair's logit by the match of features: the cosine of the candidate's features with
    the sum of those of the source's sampled neighbours.

    A network reads the match together with the pair's facts, since features matter more for pairs
    that never met. Its last layer starts at zero. Nodes without features match nothing.
    """

    def __init__(self, num_facts: int) -> None:
        super().__init__()
        self.facts = nn.Linear(num_facts, MATCH_HIDDEN)
        self.match = nn.Linear(1, MATCH_HIDDEN, bias=False)
        self.out = nn.Linear(MATCH_HIDDEN, 1, bias=False)
        nn.init.zeros_(self.out.weight)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        return {"facts.weight": SchemaInput("facts")}

    def forward(self, facts_F: Tensor, match: Tensor) -> Tensor:
        """The addition to logits, [...]. facts_F: [..., F], standardised; match: [...]."""
        hidden = (self.facts(facts_F) + self.match(MATCH_SCALE * match[..., None])).relu()
        # bfloat16 would round the logits.
        with torch.autocast(match.device.type, enabled=False):
            out: Tensor = self.out(hidden.float())[..., 0]
        return out


@torch.no_grad()
def match_vectors(
    raw_MD: Tensor, features_MD: Tensor, hops: Sequence[HopInputs]
) -> tuple[Tensor, Tensor]:
    """The vectors of the U roots as sources and as candidates, float32[U, D] each, of length 1 or
    0: their dot product is the match.

    raw_MD, features_MD: features of the nodes, raw and standardised; a node with zeros
    alone has none. hops: of one neighbourhood, with the same roots.
    """
    features_MD = features_MD * (raw_MD != 0).any(1, keepdim=True)
    near = [
        (embedding(hop.neighbor_UK, features_MD) * hop.mask_UK[..., None]).sum(1) for hop in hops
    ]
    own_UD = embedding(hops[0].root_U, features_MD)
    return _of_length_1(torch.stack(near).sum(0)), _of_length_1(own_UD)


def _of_length_1(rows: Tensor) -> Tensor:
    out: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
    return out
