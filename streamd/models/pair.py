"""The pair network: a logit from pair facts. Every model has one; the model `pair` is only this."""

from torch import nn

from streamd.models.inference.standard_values import PAIR_HIDDEN as HIDDEN


def pair_network(num_facts: int) -> nn.Sequential:
    """A network from standardised facts, float32[..., num_facts], to a logit, float32[..., 1]."""
    return nn.Sequential(
        nn.Linear(num_facts, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )
