"""A score of destinations without any event so far by their features."""

import math

import torch
from torch import Tensor, nn

from streamd.graph.negatives import NUM_LEARNED
from streamd.models.inference.standard_values import (
    AGE_SHIFT,
    MATCH_SCALE,
    NEW_HIDDEN,
)
from streamd.models.schema_inputs import SchemaInput

LOG_NEGATIVES = math.log(NUM_LEARNED)
"""Subtracted from a score in training, so that the binary loss, with NUM_LEARNED negatives an
event, is lowest at a mean of exp(score) of 1."""


class NewScore(nn.Module):
    """A term of the logit of new destinations: the log of how much more likely a source takes one
    new destination than another.

    It is trained on events with a new destination, against uniformly drawn nodes that were new
    then. So the mean of exp(score) over new destinations is 1: the score reorders them, and their
    rate does not change. Its inputs are the rows of features of both nodes and of the source's
    neighbors, the match of features, the age of the destination's row, and the pair's facts. A
    destination without a row has the score 0, as all have before training.
    """

    def __init__(self, num_facts: int, num_columns: int) -> None:
        super().__init__()
        self.facts = nn.Linear(num_facts, NEW_HIDDEN)
        self.match = nn.Linear(1, NEW_HIDDEN, bias=False)
        self.near = nn.Linear(num_columns, NEW_HIDDEN, bias=False)
        self.src = nn.Linear(num_columns, NEW_HIDDEN, bias=False)
        self.dst = nn.Linear(num_columns, NEW_HIDDEN, bias=False)
        self.age = nn.Linear(1, NEW_HIDDEN, bias=False)
        self.hidden = nn.Linear(NEW_HIDDEN, NEW_HIDDEN)
        self.out = nn.Linear(NEW_HIDDEN, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def schema_inputs(self) -> dict[str, SchemaInput]:
        of_nodes = {f"{name}.weight": SchemaInput("node_features") for name in NODE_INPUTS}
        return {"facts.weight": SchemaInput("facts"), **of_nodes}

    def vectors(
        self, near_UD: Tensor, count_U: Tensor, own_UD: Tensor, age_U: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The vectors of the U roots as sources and as destinations, float32[U, NEW_HIDDEN + 1]
        each; the last column of a destination is 1 with a row of features, else 0.

        near_UD, count_U, own_UD: of `streamd.models.feature_match.root_features`. age_U: as of
        `Neighborhood`.
        """
        src_UH = self.near(near_UD / count_U.clamp_min(1)[:, None]) + self.src(own_UD)
        dst_UH = self.dst(own_UD) + self.age((age_U - AGE_SHIFT)[:, None])
        has_row_U = (age_U >= 0).to(dst_UH.dtype)
        return (
            torch.cat([src_UH, torch.ones_like(src_UH[:, :1])], 1),
            torch.cat([dst_UH, has_row_U[:, None]], 1),
        )

    def forward(self, facts_F: Tensor, match: Tensor, src_H: Tensor, dst_H: Tensor) -> Tensor:
        """The scores, [...]. facts_F: [..., F], standardised. match: [...]. src_H, dst_H: of
        `vectors`."""
        # bfloat16 would round the scores.
        with torch.autocast(match.device.type, enabled=False):
            hidden = self.facts(facts_F.float()) + self.match(
                MATCH_SCALE * match.float()[..., None]
            )
            hidden = (hidden + src_H[..., :-1].float() + dst_H[..., :-1].float()).relu()
            out: Tensor = self.out(self.hidden(hidden).relu())[..., 0]
        return out * (src_H[..., -1] * dst_H[..., -1])


NODE_INPUTS = ("near", "src", "dst")
"""The layers of `NewScore` that read rows of node features."""
