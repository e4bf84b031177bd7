"""Prequential measures: where the true destination ranks, and how well scores tell true from false."""

import numpy as np

from streamd.events import Float32, Int64

Measures = dict[str, float]


def ranks(score_EC: Float32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rank of the first candidate among all: 1 + greater + half of the equal ones. A constant scorer ranks at chance."""
    true = score_EC[:, :1]
    greater, equal = (score_EC[:, 1:] > true).sum(1), (score_EC[:, 1:] == true).sum(1)
    out: np.ndarray[tuple[int], np.dtype[np.float64]] = 1.0 + greater + 0.5 * equal
    return out


def measures(score_EC: Float32) -> Measures:
    """MRR and Hits@10 over all candidates; AP and AUC of the first against the second."""
    rank = ranks(score_EC)
    ap, auc = average_precision(score_EC[:, 0], score_EC[:, 1])
    return {"mrr": float((1 / rank).mean()), "hits10": float((rank <= 10).mean()), "ap": ap, "auc": auc}


def average_precision(true_E: Float32, false_E: Float32) -> tuple[float, float]:
    """Average precision and area under the ROC curve, ties as scikit-learn treats them."""
    score = np.concatenate([true_E, false_E]).astype(np.float64)
    label = np.concatenate([np.ones(len(true_E)), np.zeros(len(false_E))])
    order = np.argsort(-score, kind="stable")
    score, label = score[order], label[order]
    last: Int64 = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)
    hits, falls = np.cumsum(label)[last], np.cumsum(1 - label)[last]
    recall = hits / max(len(true_E), 1)
    ap = float(np.sum(np.diff(recall, prepend=0.0) * hits / (hits + falls)))
    fall_out = falls / max(len(false_E), 1)
    auc = float(np.trapezoid(np.append(0.0, recall), np.append(0.0, fall_out)))
    return ap, auc
