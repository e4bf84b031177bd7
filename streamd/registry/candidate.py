"""The types between training and registry: a candidate version, and the result of its
publication."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from streamd.registry.gate import Decision, decide, is_below_rule
from streamd.schema import Schema
from streamd.settings.tree import ModelSettings, TrainingSettings
from streamd.storage import ImmutableFile
from streamd.windows import Window

Scores = dict[str, dict[str, float]]
"""Model name -> measure -> value."""
Weights = Mapping[str, NDArray[Any]]
"""Weights and statistics of a model by name, contiguous."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """The result of learning a window.

    loss: mean of the last epoch. finite: whether all losses and weights are finite. tail_before,
    tail_after: MRR among 11 candidates on the held-out tail of `num_tail` events. tail_rule: that
    of the best rule, NaN if unknown.
    """

    loss: float
    finite: bool
    tail_before: float
    tail_after: float
    num_tail: int
    tail_rule: float = math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A version before it is published: weights, memory, and the contents of its manifest.

    edge: event id up to which memory has advanced. memory: writes the files of the memory and names
    them. seq: number of the log's last commit in it. memory_us: event time of memory, microseconds.
    parent: name of the version that learning began from. facts: names of the fact columns that the
    weights know. schema: of the log. model, training, window_seconds: the settings of its training.
    """

    window: Window
    edge: int
    seq: int
    weights: Weights
    memory: Callable[[], tuple[ImmutableFile, ...]]
    memory_us: int
    parent: str
    facts: tuple[str, ...]
    schema: Schema
    scores: Scores
    learned: TrainResult
    model: ModelSettings
    training: TrainingSettings
    window_seconds: int

    def judged(self) -> Decision:
        """The gate's decision, before any file is written."""
        went = self.learned
        return decide(went.finite, went.tail_before, went.tail_after, went.num_tail)

    def better_rule(self) -> str | None:
        """The rule that ranks better, in words. None if none does, or if a version has to answer
        labels, which no rule can."""
        went = self.learned
        if self.model.labels != "none" or not is_below_rule(
            went.tail_after, went.tail_rule, went.num_tail
        ):
            return None
        return f"the rule, which answers on: the best rule has {went.tail_rule:.3f} there"


@dataclass(frozen=True)
class PublishResult:
    """The result of publishing a candidate.

    version: its name, or its parent's if it was refused. promoted: whether it is champion now.
    reason: in words.
    """

    version: str
    promoted: bool
    reason: str
    refused: bool = False
