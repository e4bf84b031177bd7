"""The pair network: what the facts about a pair say of it. Every model holds one, and `pair` is
nothing else."""

from torch import nn

from streamd.models.inference.standard_values import PAIR_HIDDEN as HIDDEN


def pair_network(num_facts: int) -> nn.Sequential:
    """float32[..., num_facts], standardised, to a logit float32[..., 1]."""
    return nn.Sequential(
        nn.Linear(num_facts, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )
