"""The last proven version, standing still beside the champions of the moment: same events, same
candidates."""

import copy
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from streamd.events import Float32, NodeDeletes
from streamd.models import LinkModel, Memory
from streamd.training.device_transfer import DeviceTransfer
from streamd.training.learner import Learner
from streamd.training.negatives import SCORED
from streamd.training.recorder import Chunk

Said = Literal["open", "proven", "worse"]
NUM_SPREADS = 3.5
"""Standard errors below nothing at which a mean difference counts as worse: by chance once in 4,300
comparisons."""
LEAST_EFFECT = 0.02
"""Share of the shadow's score below which a difference harms nobody: equal models that were drawn
from other seeds differ by five standard errors on real streams, and by less than this."""


@dataclass
class Shadow:
    """Weights stand still; memory moves with the log. Owner: the trainer."""

    name: str
    model: LinkModel
    memory: Memory
    carrier: DeviceTransfer

    @classmethod
    def of(cls, name: str, learner: Learner) -> "Shadow":
        """What the learner is now, before it learns on."""
        return cls(
            name, copy.deepcopy(learner.model).eval(), learner.memory.copy(), learner.carrier
        )

    @torch.no_grad()
    def score(self, chunk: Chunk, deletes: NodeDeletes) -> Float32 | None:
        """Logits of all candidates, float32[E, 101], None where nothing is asked; then memory moves
        over the chunk. deletes: the log's."""
        with self.model.over(self.memory, chunk.edges, deletes) as updated_PD:
            if chunk.score is None:
                return None
            return self.carrier.logits(self.model, self.memory, chunk.score, updated_PD)[:, SCORED]


@dataclass(frozen=True)
class Comparison:
    """Champions of the moment beside the standing shadow, event by event: reciprocal ranks,
    champion's less shadow's.

    sum_shadow: of the shadow's reciprocal ranks.
    """

    num_events: int = 0
    sum: float = 0.0
    sum_squares: float = 0.0
    sum_shadow: float = 0.0

    def added(self, champion_E: NDArray[np.float64], shadow_E: NDArray[np.float64]) -> "Comparison":
        """With more events. Args: reciprocal ranks of the same events by either."""
        d = champion_E - shadow_E
        return Comparison(
            self.num_events + len(d),
            self.sum + float(d.sum()),
            self.sum_squares + float((d * d).sum()),
            self.sum_shadow + float(shadow_E.sum()),
        )

    @property
    def mean(self) -> float:
        return self.sum / self.num_events if self.num_events else 0.0


def judge(compared: Comparison, enough: int) -> tuple[Said, str]:
    """After `enough` events: worse where the mean difference is more than NUM_SPREADS standard
    errors below nothing (a one-sided paired test) and more than LEAST_EFFECT of the shadow's score,
    else proven. Before: open. Returns: the verdict and why."""
    n = compared.num_events
    mean = compared.mean
    if n < max(enough, 2):
        return "open", f"{n} of {enough} events compared"
    error = math.sqrt(max(compared.sum_squares / n - mean * mean, 0.0) / (n - 1))
    shadow = compared.sum_shadow / n
    said = (
        f"MRR {mean:+.4f} beside the shadow's {shadow:.4f} over {n} events, "
        f"standard error {error:.4f}"
    )
    worse = mean < -max(NUM_SPREADS * error, LEAST_EFFECT * shadow)
    return ("worse" if worse else "proven"), said
