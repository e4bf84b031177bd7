"""A tally collects the scores of a window chunk by chunk, before any training on it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.ranking import among_candidates
from streamd.models.rule import NAME as RULE
from streamd.models.rule import scores_of_rules
from streamd.ranks import Ranks
from streamd.schema import Schema
from streamd.training.measures import (
    LabelScores,
    Measures,
    label_measures,
    label_scores_of_sets,
    measures,
    scores_of_sets,
)
from streamd.training.recorder import Chunk
from streamd.training.versions.nightly import NightlyScores
from streamd.windows.history import SetScores
from streamd.windows.novelty import Novelty

NO_EVENTS = np.zeros(0, np.int64)


class ScoredWindow(NamedTuple):
    """Measures of one scored window.

    table: model name -> measure -> value. novelty: of the scored events.
    edge_sets: as in `scores_of_sets`. node_sets: as in `label_scores_of_sets`.
    num_late: number of events with a time before the window.
    mean_negatives: mean number of negatives of a scored event; None without scored events.
    """

    table: dict[str, Measures]
    num_scored: int
    novelty: Novelty
    edge_sets: dict[str, SetScores]
    node_sets: dict[str, SetScores]
    num_late: int = 0
    mean_negatives: float | None = None


class Tally:
    """Scores of a window's events so far, by name of the model or baseline.

    Owner: the trainer, for the window that it scores.
    """

    def __init__(self, schema: Schema) -> None:
        """schema: of the log; measures are also computed for each of its sets."""
        self._schema = schema
        self._set_of: list[Int64] = [np.zeros(0, np.int64)]
        self._scores: dict[str, list[Float32]] = {}
        self._events: list[Int64] = []
        self._novelty: list[Novelty] = []
        self._num_negatives: list[Int64] = []

    def add(self, chunk: Chunk, live_EC: Float32 | None, shadow_EC: Float32 | None) -> None:
        """Add the scores of a chunk, and compute those of the rules.

        live_EC: of the version that serves, float32[E, 101]; None before the first: then the rule
        serves.
        shadow_EC: of the shadow, float32[E, 101]; None if there is none to compare.
        """
        assert chunk.score is not None
        baselines = scores_of_rules(chunk.scored_facts)
        shadow = {} if shadow_EC is None else {"shadow": shadow_EC}
        live = {"live": baselines[RULE] if live_EC is None else live_EC}
        for name, scores in (shadow | live | baselines).items():
            # Rules score every column; mask those that are no candidate.
            ranked = among_candidates(scores, chunk.is_candidate_EC)
            self._scores.setdefault(name, []).append(ranked)
        self._events.append(chunk.score.event_E.numpy())
        self._novelty.append(chunk.novelty)
        self._num_negatives.append(chunk.num_negatives_E)
        self._set_of.append(chunk.edge_set_E)

    def __len__(self) -> int:
        """Number of scored events."""
        return sum(map(len, self._events))

    @property
    def event_E(self) -> Int64:
        """Ids of the events, int64[E], ascending. At least one chunk is required."""
        return np.concatenate(self._events)

    @property
    def live_EC(self) -> Float32:
        """Scores by the version that serves, float32[E, 101]."""
        return np.concatenate(self._scores["live"])

    @property
    def novelty(self) -> Novelty:
        """Novelty of the events."""
        return Novelty.join(self._novelty)

    @property
    def shadow_EC(self) -> Float32 | None:
        """Scores by the shadow, float32[E, 101]; None if there is none to compare."""
        return np.concatenate(self._scores["shadow"]) if "shadow" in self._scores else None

    def gather(self, ranks: Ranks) -> "Tally":
        """Gather the scores of all ranks, by event id; each rank has its shares of the chunks."""
        if ranks.size == 1:
            return self
        whole = Tally(self._schema)
        event_E = ranks.gather(np.concatenate([NO_EVENTS, *self._events]))
        order = np.argsort(event_E)
        whole._events = [event_E[order]]
        # `gather` takes arrays, so gather each column separately.
        own = self.novelty
        columns = (own.pair_seen_E, own.known_E, own.source_known_E)
        whole._novelty = [Novelty(*(ranks.gather(column)[order] for column in columns))]
        whole._num_negatives = [
            ranks.gather(np.concatenate([NO_EVENTS, *self._num_negatives]))[order]
        ]
        whole._set_of = [ranks.gather(np.concatenate(self._set_of))[order]]
        # Every rank has the same models, as all score the same chunks.
        whole._scores = {
            name: [ranks.gather(np.concatenate(parts))[order]]
            for name, parts in self._scores.items()
        }
        return whole

    def measure(
        self,
        incumbent: tuple[Int64, Float32, Novelty] | None,
        nightly: NightlyScores | None,
        labels: Sequence[LabelScores],
        label_task: str,
    ) -> ScoredWindow:
        """Measures of all models, baselines and labels.

        incumbent: edge sets of the events that the incumbent scored meanwhile, int64[E], its scores
        of them, float32[E, 101], and their novelty. Its windows may differ from this one, so an
        edge set without events in this window gets no measures of the incumbent.
        nightly: scores of some events by the nightly baseline. The row `nightly` also has the
        measures of the version that serves over the same events: `mrr_live` and their number
        `events`, and over those with a known destination `mrr_live_known` and `events_known`.
        label_task: as in `label_measures`.
        """
        novelty = self.novelty
        all_scores = {name: np.concatenate(parts) for name, parts in self._scores.items()}
        table = {name: measures(scores, novelty) for name, scores in all_scores.items()}
        set_E = np.concatenate(self._set_of)
        num_negatives_E = np.concatenate([NO_EVENTS, *self._num_negatives])
        edge_sets = scores_of_sets(
            all_scores, novelty, set_E, num_negatives_E, self._schema.edge_set_names
        )

        # Models that scored other events than those of the window, or only some of them.
        partial = {}
        if incumbent is not None and len(incumbent[1]):
            partial["incumbent"] = incumbent
        if nightly is not None:
            of_night = novelty.rows(nightly.row_N)
            partial["nightly"] = set_E[nightly.row_N], nightly.score_NC, of_night
        for model, (own_E, score_NC, new) in partial.items():
            table[model] = measures(score_NC, new)
            for name, one in edge_sets.items():
                own = own_E == self._schema.edge_set_names.index(name)
                if own.any():
                    one.scores[model] = measures(score_NC[own], new.rows(own))
        if nightly is not None:
            table["nightly"] |= _live_measures(all_scores["live"][nightly.row_N], of_night)

        # Labels.
        node_sets = {}
        if labels:
            all_labels = LabelScores.join(labels)
            target_LT, set_L = all_labels.target_LT, all_labels.set_L
            predicted = {
                "labels": all_labels.predicted_LT,
                "labels_constant": all_labels.constant_LT,
            }
            for name, predicted_LT in predicted.items():
                table[name] = label_measures(label_task, predicted_LT, target_LT)
            node_sets = label_scores_of_sets(
                label_task, predicted, target_LT, set_L, self._schema.node_set_names
            )
        scored = ScoredWindow(table, len(set_E), novelty, edge_sets, node_sets)
        mean = float(num_negatives_E.mean()) if len(num_negatives_E) else None
        return scored._replace(mean_negatives=mean)


def _live_measures(live_NC: Float32, novelty: Novelty) -> Measures:
    """Measures of the version that serves, over the events that the nightly baseline scored."""
    live = measures(live_NC, novelty)
    out = {"mrr_live": live["mrr"], "events": float(len(live_NC))}
    if "mrr_known" in live:
        out["mrr_live_known"] = live["mrr_known"]
        out["events_known"] = float(novelty.known_E.sum())
    return out
