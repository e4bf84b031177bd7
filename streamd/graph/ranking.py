"""The rank of a true destination among candidates, by their scores."""

import numpy as np

from streamd.events import Float32


def ranks(score_EC: Float32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rank of the first candidate among all, float64[E]: 1 + greater + half of the equal ones.

    So a constant scorer ranks at chance. A score that is NaN ranks last: every candidate counts
    that is not known to be smaller.
    """
    true = score_EC[:, :1]
    smaller = (score_EC[:, 1:] < true).sum(1)
    equal = (score_EC[:, 1:] == true).sum(1)
    num_others = score_EC.shape[1] - 1
    out: np.ndarray[tuple[int], np.dtype[np.float64]] = 1.0 + num_others - smaller - 0.5 * equal
    return out
