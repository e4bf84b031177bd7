"""The logit of a destination without any event so far, in training.

The model cannot be trained on such a candidate as on others: all negatives were destinations
before, so it would learn that a new destination is the true one. The logit is instead the recent
rate of new destinations in the edge set, on the scale of the logits of known ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from streamd.models.inference.new_rates import (
    NUM_COUNTS,
    asked_sets,
    is_new,
    logits_of,
    remaining_share,
)
from streamd.models.schema_inputs import SchemaInput
from streamd.ranks import ALONE, Ranks


class NewDestinations(nn.Module):
    """Counts of recently scored events, and the logits of new destinations.

    counts: float64[3, S], for each edge set: events, events with a new destination, and the sum of
    `log_sum_odds` over the events. logit_S: float32, derived from the counts; minus infinity
    before an event was counted.
    """

    counts: Tensor
    logit_S: Tensor

    def __init__(self, num_edge_sets: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(NUM_COUNTS, num_edge_sets, dtype=torch.float64))
        self._is_held = False
        self.register_buffer("logit_S", torch.zeros(num_edge_sets), persistent=False)
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, _: module._derive()
        )
        self._derive()

    def schema_inputs(self) -> dict[str, SchemaInput]:
        return {"counts": SchemaInput("edge_sets")}

    @torch.no_grad()
    def observe(self, of_chunks: Sequence[Tensor], ranks: Ranks = ALONE) -> None:
        """Count the events of chunks in their order, float64[3, S] each; each chunk decays the
        counts before it. ranks: each counted a share of every chunk."""
        if self._is_held or not len(of_chunks):
            return
        own = torch.stack(tuple(of_chunks)).flatten().tolist()
        all_N3S = torch.tensor(ranks.total(own), dtype=torch.float64)
        counts = self.counts.cpu()
        for of_chunk in all_N3S.view(len(of_chunks), *counts.shape):
            counts = counts * remaining_share(of_chunk[0]) + of_chunk
        self.counts.copy_(counts)
        self._derive()

    def hold(self) -> None:
        """Stop counting, so that the rate stays: for a frozen model."""
        self._is_held = True

    def stop(self) -> None:
        """Stop counting and replace no logits: for a model with older facts, such as those of
        midnight, which would take known destinations for new ones."""
        self.hold()
        self.counts.zero_()
        self._derive()

    def replaces(self, facts: Tensor) -> Tensor:
        """Which candidates get the logit of new destinations, by their facts [..., F]:
        bool[...]."""
        own = self.logit_S[asked_sets(facts, len(self.logit_S))]
        out: Tensor = is_new(facts) & own.isfinite()
        return out

    def forward(self, logits: Tensor, facts: Tensor) -> Tensor:
        """Logits [...] with those of new destinations replaced. facts: [..., F], raw."""
        own = self.logit_S[asked_sets(facts, len(self.logit_S))]
        return torch.where(self.replaces(facts), own.to(logits.dtype), logits)

    def _derive(self) -> None:
        logit_S = torch.from_numpy(logits_of(self.counts.cpu().numpy()))
        self.logit_S.copy_(logit_S)
