"""The pair network: what the facts about a pair say of it. Every model holds one, and `pair` is
nothing else."""

from torch import nn

from streamd.graph.draws import Draw
from streamd.graph.neighborhood import SamplingPlan
from streamd.settings import ModelSettings

HIDDEN = 64
"""Units of each of the two hidden layers."""


def no_neighbors(settings: ModelSettings) -> SamplingPlan:
    """The roots alone."""
    return SamplingPlan(hops=(Draw(direction=settings.direction, fanout=0),))


def pair_network(num_facts: int) -> nn.Sequential:
    """float32[..., num_facts], standardised, to a logit float32[..., 1]."""
    return nn.Sequential(
        nn.Linear(num_facts, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )
