"""The match of features: the similarity of a candidate's features to those of the source's last
neighbors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.models.inference.standard_values import LEAST_NORM, MATCH_HIDDEN, MATCH_SCALE
from streamd.models.inputs import HopInputs, LinkInputs
from streamd.models.schema_inputs import SchemaInput


class FeatureMatch(nn.Module):
    """A term of a pair's logit, by the match of features: the cosine of the candidate's features
    with the sum of those of the source's sampled neighbors.

    A network computes it from the match and the pair's facts, since features matter more for pairs
    that never met. Its last layer starts at zero. A node without features has match 0.
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
        """The term of the logits: float32[...]. facts_F: [..., F], standardised; match: [...]."""
        hidden = (self.facts(facts_F) + self.match(MATCH_SCALE * match[..., None])).relu()
        # bfloat16 would round the logits.
        with torch.autocast(match.device.type, enabled=False):
            out: Tensor = self.out(hidden.float())[..., 0]
        return out


@torch.no_grad()
def match_vectors(
    raw_MD: Tensor, features_MD: Tensor, hops: Sequence[HopInputs]
) -> tuple[Tensor, Tensor]:
    """The vectors of the U roots as sources and as candidates, float32[U, D] each. Their lengths
    are 1 or 0, and their dot product is the match.

    raw_MD, features_MD: features of the nodes, raw and standardised; raw zeros mean no features.
    hops: of one neighborhood, with the same roots.
    """
    near_UD, own_UD, _ = root_features(features_MD, (raw_MD != 0).any(1), hops)
    return of_length_1(near_UD), of_length_1(own_UD)


@torch.no_grad()
def root_features(
    features_MD: Tensor, has_M: Tensor, hops: Sequence[HopInputs]
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of the U roots the sum of its neighbors' features, its own, float32[U, D] both, and
    the number of its neighbors that have features, float32[U].

    features_MD: standardised. has_M: bool, the nodes that have features. hops: of one
    neighborhood, with the same roots.
    """
    features_MD = features_MD * has_M[:, None]
    near = [
        (embedding(hop.neighbor_UK, features_MD) * hop.mask_UK[..., None]).sum(1) for hop in hops
    ]
    counts = [(has_M[hop.neighbor_UK] & hop.mask_UK).sum(1) for hop in hops]
    own_UD = embedding(hops[0].root_U, features_MD)
    return torch.stack(near).sum(0), own_UD, torch.stack(counts).sum(0).float()


def matches(inputs: LinkInputs, src_UD: Tensor, dst_UD: Tensor) -> Tensor:
    """The match of each event's source and candidates, float32[E, C]. src_UD, dst_UD: as of
    `match_vectors`."""
    # One product for each event, also within `torch.autocast` in float32.
    with torch.autocast(src_UD.device.type, enabled=False):
        src_ED1 = embedding(inputs.src_E, src_UD)[..., None]
        return torch.bmm(embedding(inputs.candidate_EC, dst_UD), src_ED1)[..., 0]


def of_length_1(rows: Tensor) -> Tensor:
    """Rows [U, D] divided by their lengths; zeros stay zeros."""
    out: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(LEAST_NORM)
    return out
