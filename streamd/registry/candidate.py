"""What passes between training and the registry: a candidate version, and the result of publishing
it."""

from dataclasses import dataclass

from torch import Tensor

from streamd.windows import Window

Scores = dict[str, dict[str, float]]
"""Model name -> measure -> value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How learning a window went.

    loss: mean of the last epoch. finite: whether all losses and weights are. tail_before,
    tail_after: MRR among 11 candidates on the held-out tail of `num_tail` events.
    """

    loss: float
    finite: bool
    tail_before: float
    tail_after: float
    num_tail: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A version before it is published: weights and memory, with all that a manifest says about it.

    edge: event id up to which memory has advanced. seq: the log's commit it was made at. memory_us:
    event time of memory, microseconds. parent: name of the version that learning began from. facts:
    names of the fact columns that the weights know.
    """

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
    """What the registry made of a candidate.

    version: its name, or its parent's where it was refused. promoted: whether it is champion now.
    reason: why, in words.
    """

    version: str
    promoted: bool
    reason: str
    refused: bool = False
