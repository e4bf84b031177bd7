"""Prequential measures: where the true destination ranks, and how well scores tell true from false."""

import numpy as np

from streamd.events import Bools, Float32, Int64

Measures = dict[str, float]
EXTREME = 1e300
"""Beyond every float32, and twice of it is still a number."""


def ranks(score_EC: Float32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rank of the first candidate among all: 1 + greater + half of the equal ones. A constant
    scorer ranks at chance.

    What is not a number ranks last: a candidate counts unless it is known to be smaller.
    """
    true = score_EC[:, :1]
    smaller = (score_EC[:, 1:] < true).sum(1)
    equal = (score_EC[:, 1:] == true).sum(1)
    num_others = score_EC.shape[1] - 1
    out: np.ndarray[tuple[int], np.dtype[np.float64]] = 1.0 + num_others - smaller - 0.5 * equal
    return out


def measures(score_EC: Float32, known_E: Bools | None = None) -> Measures:
    """MRR and Hits@10 over all candidates; AP and AUC of the first against the second.

    known_E: whether each event's destination was one before; with it also MRR over those alone,
    where there are any.
    """
    rank = ranks(score_EC)
    ap, auc = average_precision(score_EC[:, 0], score_EC[:, 1])
    found = {
        "mrr": float((1 / rank).mean()),
        "hits10": float((rank <= 10).mean()),
        "ap": ap,
        "auc": auc,
    }
    if known_E is not None and known_E.any():
        found["mrr_known"] = float((1 / rank[known_E]).mean())
    return found


def label_measures(task: str, said_LT: Float32, target_LT: Float32) -> Measures:
    """Of a window's labels. Classification: AP and AUC of one class, where the window has both
    kinds, else NDCG@10 over classes; regression: mean absolute and root mean square error."""
    if task == "regression":
        error = said_LT.astype(np.float64) - target_LT
        return {"mae": float(np.abs(error).mean()), "rmse": float(np.sqrt((error**2).mean()))}
    if said_LT.shape[1] > 1:
        return {"ndcg10": ndcg(said_LT, target_LT, 10)}
    true = target_LT[:, 0] > 0.5
    if true.all() or not true.any():
        return {}
    ap, auc = average_precision(said_LT[true, 0], said_LT[~true, 0])
    return {"ap": ap, "auc": auc}


def ndcg(said_LT: Float32, target_LT: Float32, k: int) -> float:
    """Mean normalised discounted cumulative gain at k (Jarvelin and Kekalainen 2002) over rows with
    any gain."""
    discount = 1 / np.log2(np.arange(min(k, said_LT.shape[1])) + 2)
    order = np.argsort(-said_LT, axis=1, kind="stable")
    best = -np.sort(-target_LT, axis=1)
    gain = (np.take_along_axis(target_LT, order, 1)[:, : len(discount)] * discount).sum(1)
    ideal = (best[:, : len(discount)] * discount).sum(1)
    return float((gain[ideal > 0] / ideal[ideal > 0]).mean()) if (ideal > 0).any() else 0.0


def average_precision(true_E: Float32, false_E: Float32) -> tuple[float, float]:
    """Average precision and area under the ROC curve, ties as scikit-learn treats them. What is not
    a number counts as the worst that could be said."""
    parts = ((true_E, -EXTREME), (false_E, EXTREME))
    score = np.concatenate(
        [
            np.nan_to_num(x.astype(np.float64), nan=bad, posinf=EXTREME, neginf=-EXTREME)
            for x, bad in parts
        ]
    )
    label = np.concatenate([np.ones(len(true_E)), np.zeros(len(false_E))])
    order = np.argsort(-score, kind="stable")
    score = score[order]
    label = label[order]
    last: Int64 = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)
    hits = np.cumsum(label)[last]
    falls = np.cumsum(1 - label)[last]
    recall = hits / max(len(true_E), 1)
    ap = float(np.sum(np.diff(recall, prepend=0.0) * hits / (hits + falls)))
    fall_out = falls / max(len(false_E), 1)
    auc = float(np.trapezoid(np.append(0.0, recall), np.append(0.0, fall_out)))
    return ap, auc
