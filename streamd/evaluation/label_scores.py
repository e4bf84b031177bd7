"""Scores of a window's labels: by the label head of each regime, and by two rules without
training."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streamd.events import Float32
from streamd.graph.label_history import LAST_LABELS
from streamd.models.labels import LabelInputs
from streamd.training.measures import (
    LabelScores,
    Measures,
    label_measures,
    label_scores_of_sets,
)
from streamd.windows.history import SetScores

AVERAGE = "moving_average"
"""A rule: the mean target of a node's last labels; for a node without labels, of all labels of its
node set."""
MEAN = "mean"
"""A rule: the mean target of all labels of the node set so far."""


class ScoredLabels(NamedTuple):
    """Measures of a window's labels.

    table: regime or rule -> measures of all labels. node_sets: as in `label_scores_of_sets`.
    """

    num_scored: int
    table: dict[str, Measures]
    node_sets: dict[str, SetScores]


class LabelRules:
    """Predicts labels by the two rules. Owner: the regimes with which they are compared."""

    def __init__(self, node_sets: Sequence[str]) -> None:
        """node_sets: names of the log's node sets."""
        self._node_sets = node_sets
        self._last: dict[int, deque[Float32]] = {}
        # By the number of the node set.
        self._sum: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        self._count: Counter[int] = Counter()
        self._parts: list[LabelScores] = []

    def begin(self) -> None:
        """Start a window."""
        self._parts = []

    def add(self, labels: LabelInputs) -> None:
        """Predict a chunk's labels from those of earlier chunks, then add them to the rules'
        state."""
        around = labels.around
        node_L = around.node_M[around.hops[0].root_U[labels.node_L]].tolist()
        target_LT = labels.target_LT.numpy()
        set_L = labels.set_L
        mean_LT = np.zeros(target_LT.shape, np.float32)
        for number, count in self._count.items():
            mean_LT[set_L == number] = self._sum[number] / count

        # Predict as of the chunk's start, like the label head.
        average_LT = mean_LT.copy()
        for i, node in enumerate(node_L):
            if node in self._last:
                average_LT[i] = np.mean(self._last[node], 0)
        self._parts.append(LabelScores(average_LT, mean_LT, target_LT, set_L))

        # Add them, in order of time.
        for node, target_T in zip(node_L, target_LT, strict=True):
            self._last.setdefault(node, deque(maxlen=LAST_LABELS)).append(target_T)
        for number in np.unique(set_L).tolist():
            own = target_LT[set_L == number].astype(np.float64)
            self._sum[number] = self._sum.get(number, 0.0) + own.sum(0)
            self._count[number] += len(own)

    def measured(self, task: str, heads: Mapping[str, Sequence[LabelScores]]) -> ScoredLabels:
        """Measures of the labels since `begin`.

        task: as in `label_measures`. heads: regime -> its head's predictions of the same labels.
        """
        # The measures need at least one label.
        if not self._parts:
            return ScoredLabels(0, {}, {})
        average_LT, mean_LT, target_LT, set_L = LabelScores.join(self._parts)
        predicted = {name: LabelScores.join(own).predicted_LT for name, own in heads.items()}
        predicted |= {AVERAGE: average_LT, MEAN: mean_LT}
        table = {name: label_measures(task, rows, target_LT) for name, rows in predicted.items()}
        of_sets = label_scores_of_sets(task, predicted, target_LT, set_L, self._node_sets)
        return ScoredLabels(len(target_LT), table, of_sets)
