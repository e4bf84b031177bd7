"""The shadow: the last proven version, with fixed weights. Champions are compared with it.

Both score the same candidates of the same events.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from streamd.events import Float32
from streamd.graph.negatives import SCORED
from streamd.graph.ranking import among_candidates
from streamd.models import LinkModel, Memory
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learner import Learner
from streamd.training.recorder import Chunk

ComparisonResult = Literal["open", "proven", "worse"]
"""The outcome of a comparison; "open" until enough events were compared."""
NUM_SPREADS = 3.5
"""A mean difference this many standard errors below 0 counts as worse. By chance that happens once
in 4,300 comparisons."""
LEAST_EFFECT = 0.02
"""A difference below this share of the shadow's score does no harm. On real streams, equal models
with different seeds differ by five standard errors, but by less than this."""


@dataclass
class Shadow:
    """A version with fixed weights; its memory advances with the log. Owner: the trainer."""

    name: str
    model: LinkModel
    memory: Memory
    transfer: DeviceTransfer

    @classmethod
    def of(cls, name: str, learner: Learner) -> "Shadow":
        """Copy the learner's model and memory as they are now."""
        return cls(
            name, copy.deepcopy(learner.model).eval(), learner.memory.copy(), learner.transfer
        )

    @torch.no_grad()
    def score(self, chunk: Chunk) -> Float32 | None:
        """Score a chunk's candidates, then update memory with the chunk.

        Returns: logits, float32[E, 101], as in `Learner.score`; None if no event is scored.
        """
        with self.model.over(self.memory, chunk.edges) as updated_PD:
            if chunk.score is None:
                return None
            logits_EC = self.transfer.logits(self.model, self.memory, chunk.score, updated_PD)
            return among_candidates(logits_EC[:, SCORED], chunk.is_candidate_EC)


@dataclass(frozen=True)
class Comparison:
    """Sums over events with a known destination that both the present champion and the shadow
    scored.

    For new destinations, the comparison would depend only on the two versions' rates of new
    destinations, which were measured at different times.

    sum, sum_squares: of the differences of reciprocal ranks, champion's minus shadow's.
    sum_shadow: of the shadow's reciprocal ranks.
    """

    num_events: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0
    sum_shadow: float = 0.0

    def with_events(
        self, champion_E: NDArray[np.float64], shadow_E: NDArray[np.float64]
    ) -> "Comparison":
        """The comparison with more events. champion_E, shadow_E: reciprocal ranks of the same
        events."""
        difference_E = champion_E - shadow_E
        return Comparison(
            self.num_events + len(difference_E),
            self.sum + float(difference_E.sum()),
            self.sum_squares + float((difference_E * difference_E).sum()),
            self.sum_shadow + float(shadow_E.sum()),
        )

    @property
    def mean(self) -> float:
        """Mean difference of reciprocal ranks, which is the difference in MRR; 0 without events."""
        return self.sum / self.num_events if self.num_events else 0.0


def judge(compared: Comparison, enough: int) -> tuple[ComparisonResult, str]:
    """Decide whether the champion is worse than the shadow, once `enough` events were compared.

    It is worse if the mean difference is more than NUM_SPREADS standard errors below 0 (a one-sided
    paired test) and more than LEAST_EFFECT of the shadow's score below 0; else it is proven.
    Returns: the decision and the reason.
    """
    n = compared.num_events
    mean = compared.mean
    if n < max(enough, 2):
        return "open", f"{n} of {enough} events with a known destination compared"
    error = math.sqrt(max(compared.sum_squares / n - mean * mean, 0.0) / (n - 1))
    shadow = compared.sum_shadow / n
    why = (
        f"MRR {mean:+.4f} against {shadow:.4f} over {n} events with a known destination, "
        f"standard error {error:.4f}"
    )
    worse = mean < -max(NUM_SPREADS * error, LEAST_EFFECT * shadow)
    return ("worse" if worse else "proven"), why
