"""What a window scored, gathered chunk by chunk before any of it is learned."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.fact_columns import FactColumn
from streamd.models.rule import edgebank_scores
from streamd.training.recorder import Chunk
from streamd.training.scores import Measures, label_measures, measures

LabelScores = tuple[Float32, Float32, Float32]
"""What the head said, what a constant would, and the targets, float32[L, T] each."""


class ScoredWindow(NamedTuple):
    """table: model name -> measure -> value; num_known: scored events whose destination was one
    before."""

    table: dict[str, Measures]
    num_scored: int
    num_known: int


class Tally:
    """Scores of a window's events so far, by the name of what said them. Owner: who scores the
    window."""

    def __init__(self) -> None:
        self._said: dict[str, list[Float32]] = {}
        self._events: list[Int64] = []
        self._known: list[Bools] = []

    def add(self, chunk: Chunk, live_EC: Float32, shadow_EC: Float32 | None) -> None:
        """A scored chunk: what the version that serves and the shadow said of it, float32[E, 101];
        baselines are added."""
        assert chunk.score is not None
        said = {} if shadow_EC is None else {"shadow": shadow_EC}
        for name, scores in {
            **said,
            "live": live_EC,
            **baseline_scores(chunk.scored_facts),
        }.items():
            self._said.setdefault(name, []).append(scores)
        self._events.append(chunk.score.event_E.numpy())
        self._known.append(chunk.known_E)

    def __len__(self) -> int:
        """Events scored."""
        return sum(map(len, self._events))

    @property
    def event_E(self) -> Int64:
        """Ids of the events, ascending. There must be one."""
        return np.concatenate(self._events)

    @property
    def live_EC(self) -> Float32:
        """What the version that serves said of them."""
        return np.concatenate(self._said["live"])

    def measured(
        self, incumbent_EC: Float32 | None, labels: Sequence[LabelScores], label_task: str
    ) -> ScoredWindow:
        """Measures of all that spoke. incumbent_EC: what the incumbent said of the events it scored
        meanwhile."""
        known_E = np.concatenate([np.zeros(0, np.bool_), *self._known])
        table = {
            name: measures(np.concatenate(scores), known_E) for name, scores in self._said.items()
        }
        if incumbent_EC is not None and len(incumbent_EC):
            table["incumbent"] = measures(incumbent_EC)
        if labels:
            live, constant, target = map(np.concatenate, zip(*labels, strict=True))
            table["labels"] = label_measures(label_task, live, target)
            table["labels_constant"] = label_measures(label_task, constant, target)
        return ScoredWindow(table, len(known_E), int(known_E.sum()))


def baseline_scores(facts_ECF: Float32) -> dict[str, Float32]:
    """Two baselines that cost nothing, from facts: EdgeBank (seen before) and popularity decayed
    by the fourth half-life, 12 h as `model.half_lives_seconds` has it by default."""
    popularity = facts_ECF[..., FactColumn.LOG_SHARE_4]
    return {"edgebank": edgebank_scores(facts_ECF), "popularity": popularity}
