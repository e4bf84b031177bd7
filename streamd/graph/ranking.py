"""The rank of a true destination among candidates, by their scores."""

import numpy as np

from streamd.events import Bools, Float32, Int64


def is_candidate(candidate_EC: Int64) -> Bools:
    """Whether each column is a candidate of its event: bool[E, C]. An event with fewer negatives
    than columns has the true destination again in the remaining columns, which are no candidates.

    candidate_EC: int64 nodes, or their indices, the true destination first.
    """
    out: Bools = candidate_EC != candidate_EC[:, :1]
    out[:, 0] = True
    return out


def among_candidates(score_EC: Float32, is_candidate_EC: Bools) -> Float32:
    """The scores with -inf in columns that are no candidate, so that `ranks` ignores them."""
    if is_candidate_EC.all():
        return score_EC
    return np.where(is_candidate_EC, score_EC, np.float32(-np.inf))


def ranks(score_EC: Float32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rank of the first candidate among all, float64[E]: 1 + number of greater scores + half the
    number of equal ones.

    So a constant scorer ranks at chance. A true destination with a NaN score ranks last, and
    another candidate's NaN counts as greater. Columns with -inf are no candidates; if the true
    destination has -inf, it ranks after all columns.
    """
    true = score_EC[:, :1]
    others = score_EC[:, 1:]
    counts = ~np.isneginf(others) | np.isneginf(true)
    smaller = (counts & (others < true)).sum(1)
    equal = ((others == true) & ~np.isneginf(true)).sum(1)
    num_others = counts.sum(1)
    out: np.ndarray[tuple[int], np.dtype[np.float64]] = 1.0 + num_others - smaller - 0.5 * equal
    return out
