"""Scores of a window's labels: by the label head of each regime, and by two rules that learn
nothing."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from streamd.events import Float32
from streamd.graph.label_history import LAST_LABELS
from streamd.models.labels import LabelInputs
from streamd.training.scores import Measures, label_measures
from streamd.training.tally import LabelScores

AVERAGE = "moving_average"
"""A rule: the mean target of a node's last labels; of all labels where it has none."""
MEAN = "mean"
"""A rule: the mean target of all labels so far."""


class LabelRules:
    """Predicts labels by the two rules. Owner: the regimes that they are compared with."""

    def __init__(self) -> None:
        self._last: dict[int, deque[Float32]] = {}
        self._sum: np.ndarray[tuple[int], np.dtype[np.float64]] | float = 0.0
        self._count = 0
        self._parts: list[tuple[Float32, Float32, Float32]] = []

    def begin(self) -> None:
        """Start a window."""
        self._parts = []

    def add(self, labels: LabelInputs) -> None:
        """Predict a chunk's labels from those of earlier chunks, then take them in."""
        around = labels.around
        node_L = around.node_M[around.hops[0].root_U[labels.node_L]].tolist()
        target_LT = labels.target_LT.numpy()
        mean_T = np.zeros(target_LT.shape[1], np.float32)
        if self._count:
            mean_T = np.asarray(self._sum / self._count, np.float32)

        # As of the chunk's start, like the inputs of the head.
        own = [self._last.get(node) for node in node_L]
        average = np.array([mean_T if o is None else np.mean(o, 0) for o in own], np.float32)
        self._parts.append((average, np.broadcast_to(mean_T, target_LT.shape), target_LT))

        # Take them in, in order of time.
        for node, target_T in zip(node_L, target_LT, strict=True):
            self._last.setdefault(node, deque(maxlen=LAST_LABELS)).append(target_T)
        self._sum = self._sum + target_LT.astype(np.float64).sum(0)
        self._count += len(target_LT)

    def measured(
        self, task: str, heads: Mapping[str, Sequence[LabelScores]]
    ) -> tuple[int, dict[str, Measures]]:
        """Measures of the labels since `begin`.

        task: as `label_measures`. heads: regime -> what its head predicted of them. Returns: the
        number of labels, and regime or rule -> measures; none without labels.
        """
        if not self._parts:
            return 0, {}
        average, mean, target = map(np.concatenate, zip(*self._parts, strict=True))
        table = {}
        for name, scores in heads.items():
            predicted, _, own_target = map(np.concatenate, zip(*scores, strict=True))
            table[name] = label_measures(task, predicted, own_target)
        table[AVERAGE] = label_measures(task, average, target)
        table[MEAN] = label_measures(task, mean, target)
        return len(target), table
