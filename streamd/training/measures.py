"""Prequential measures: the rank of the true destination, and how well scores separate true from
false."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.ranking import ranks
from streamd.ranks import Ranks
from streamd.windows.history import SetScores
from streamd.windows.novelty import Novelty

Measures = dict[str, float]
EXTREME = 1e300
"""Replaces infinity: larger than every float32, and twice as much is still a finite float64."""


class LabelScores(NamedTuple):
    """Predictions and targets of a chunk's labels, made before the model was trained on them.

    predicted_LT, constant_LT, target_LT: float32[L, T], of the label heads, of a constant, and the
    truth.
    set_L: int64[L], node set of each label's node.
    """

    predicted_LT: Float32
    constant_LT: Float32
    target_LT: Float32
    set_L: Int64

    @classmethod
    def join(cls, parts: Sequence["LabelScores"]) -> "LabelScores":
        """The labels of several chunks; at least one chunk is required."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def gather(self, ranks: Ranks) -> "LabelScores":
        """The labels of all ranks."""
        return LabelScores(*(ranks.gather(column) for column in self))


def measures(score_EC: Float32, novelty: Novelty | None = None) -> Measures:
    """MRR and Hits@10 of the first candidate among all; AP and AUC of the first against the second.

    score_EC: float32[E, 101], the true destination first.
    novelty: of the events. With it, the result also has `mrr_known`, the MRR over events with a
    known destination, and `mrr_pair_seen` and so on, the MRR over each part of NOVELTIES that has
    events.
    """
    rank = ranks(score_EC)
    ap, auc = average_precision(score_EC[:, 0], score_EC[:, 1])
    scores = {
        "mrr": float((1 / rank).mean()),
        "hits10": float((rank <= 10).mean()),
        "ap": ap,
        "auc": auc,
    }
    if novelty is not None:
        # A part without events has no mean.
        if novelty.known_E.any():
            scores["mrr_known"] = float((1 / rank[novelty.known_E]).mean())
        scores |= {f"mrr_{name}": mean for name, mean in novelty.means(1 / rank).items()}
    return scores


def scores_of_sets(
    scores: Mapping[str, Float32],
    novelty: Novelty,
    set_E: Int64,
    num_negatives_E: Int64,
    edge_sets: Sequence[str],
) -> dict[str, SetScores]:
    """Measures by edge set, for each set that has events. Key: name of the set.

    scores: name of a model -> its scores, float32[E, 101]. novelty: of the events.
    set_E: int64[E], number of each event's set. num_negatives_E: int64[E], how many negatives each
    event was ranked against.

    Returns: empty if the log has only one edge set.
    """
    out = {}
    for number, name in enumerate(edge_sets if len(edge_sets) > 1 else ()):
        own = set_E == number
        if own.any():
            new = novelty.rows(own)
            out[name] = SetScores(
                num_scored=int(own.sum()),
                scores={model: measures(rows[own], new) for model, rows in scores.items()},
                num_known=int(new.known_E.sum()),
                novelty=new.counts,
                mean_negatives=float(num_negatives_E[own].mean()),
            )
    return out


def label_measures(task: str, predicted_LT: Float32, target_LT: Float32) -> Measures:
    """Measures of a window's labels, float32[L, T] predicted and true.

    Regression: mean absolute error and root mean square error. Classification: NDCG@10 over several
    classes; for a single class AP and AUC, or nothing if all labels of the window are of one kind.
    """
    if task == "regression":
        error = predicted_LT.astype(np.float64) - target_LT
        return {"mae": float(np.abs(error).mean()), "rmse": float(np.sqrt((error**2).mean()))}
    if predicted_LT.shape[1] > 1:
        return {"ndcg10": ndcg(predicted_LT, target_LT, 10)}
    true = target_LT[:, 0] > 0.5
    if true.all() or not true.any():
        return {}
    ap, auc = average_precision(predicted_LT[true, 0], predicted_LT[~true, 0])
    return {"ap": ap, "auc": auc}


def label_scores_of_sets(
    task: str,
    predicted: Mapping[str, Float32],
    target_LT: Float32,
    set_L: Int64,
    node_sets: Sequence[str],
) -> dict[str, SetScores]:
    """`label_measures` by node set, for each set that has labels. Key: name of the set.

    predicted: name of a model -> its predictions, float32[L, T]. set_L: int64[L], number of each
    label's set.

    Returns: empty if the log has only one node set.
    """
    out = {}
    for number, name in enumerate(node_sets if len(node_sets) > 1 else ()):
        own = set_L == number
        if own.any():
            table = {
                model: label_measures(task, rows[own], target_LT[own])
                for model, rows in predicted.items()
            }
            out[name] = SetScores(num_scored=int(own.sum()), scores=table)
    return out


def ndcg(predicted_LT: Float32, target_LT: Float32, k: int) -> float:
    """Mean normalised discounted cumulative gain at k (Jarvelin and Kekalainen 2002).

    Rows without any gain are left out of the mean; it is 0 if no row has gain.
    """
    discount = 1 / np.log2(np.arange(min(k, predicted_LT.shape[1])) + 2)
    order = np.argsort(-predicted_LT, axis=1, kind="stable")
    best = -np.sort(-target_LT, axis=1)
    gain = (np.take_along_axis(target_LT, order, 1)[:, : len(discount)] * discount).sum(1)
    ideal = (best[:, : len(discount)] * discount).sum(1)
    return float((gain[ideal > 0] / ideal[ideal > 0]).mean()) if (ideal > 0).any() else 0.0


def average_precision(true_E: Float32, false_E: Float32) -> tuple[float, float]:
    """Average precision and area under the ROC curve, with ties as in scikit-learn.

    A NaN counts as the worst possible score: lowest for a true event, highest for a false one.
    """
    # Sort the scores of both kinds together, highest first.
    parts = ((true_E, -EXTREME), (false_E, EXTREME))
    score = np.concatenate(
        [
            np.nan_to_num(x.astype(np.float64), nan=worst, posinf=EXTREME, neginf=-EXTREME)
            for x, worst in parts
        ]
    )
    label = np.concatenate([np.ones(len(true_E)), np.zeros(len(false_E))])
    order = np.argsort(-score, kind="stable")
    score = score[order]
    label = label[order]

    # Equal scores are one threshold: take counts at the last of each group of ties.
    last: Int64 = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)
    hits = np.cumsum(label)[last]
    falls = np.cumsum(1 - label)[last]

    # Average precision sums over steps of recall; AUC is a trapezoid over the false positive rate.
    recall = hits / max(len(true_E), 1)
    ap = float(np.sum(np.diff(recall, prepend=0.0) * hits / (hits + falls)))
    fall_out = falls / max(len(false_E), 1)
    auc = float(np.trapezoid(np.append(0.0, recall), np.append(0.0, fall_out)))
    return ap, auc
