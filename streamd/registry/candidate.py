"""A version to be, as training hands it to the registry, and what the registry made of it."""

from dataclasses import dataclass

from torch import Tensor

from streamd.windows import Window

Scores = dict[str, dict[str, float]]
"""Model name -> measure -> value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How learning a window went. tail_before, tail_after: MRR among 11 on the held-out tail of
    `num_tail` events."""

    loss: float
    finite: bool
    tail_before: float
    tail_after: float
    num_tail: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A version to be: weights and memory at `edge`, with all that a manifest says about it. facts:
    names of the fact columns that the weights know."""

    window: Window
    edge: int
    seq: int
    weights: dict[str, Tensor]
    memory: dict[str, Tensor]
    memory_us: int
    parent: str
    facts: tuple[str, ...]
    scores: Scores
    learned: TrainResult


@dataclass(frozen=True)
class PublishResult:
    """What the registry made of a candidate. version: its name, or its parent's where it was
    refused. promoted: it serves."""

    version: str
    promoted: bool
    reason: str
    refused: bool = False
