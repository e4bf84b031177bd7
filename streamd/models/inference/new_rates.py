"""The rate of new destinations and their logit, the same for torch and numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.graph.negatives import NUM_LEARNED

COUNTS = "new_destinations.counts"
"""A weight that older releases did not have. Their versions rank new destinations as they did."""
NUM_COUNTS = 3
HALF_LIFE_EVENTS = 2_000.0
"""Events of an edge set after which an event counts half: a rate of one in a hundred is then known
to a fifth of itself. At a log's first events all is new, which should not count for long."""
MAX_LOGIT = 50.0
"""Logits count no more than this in a sum of exponentials: others are infinitely sure."""
UNSEEN_EVENTS = 0.5
"""Events of either kind that each edge set is taken to have had more."""


def kept_share(num_events: Any) -> Any:
    """The share of the counts that is left after so many further events, number or array."""
    return 0.5 ** (num_events / HALF_LIFE_EVENTS)


def logits_of(counts: NDArray[np.float64]) -> Float32:
    """The logit of a new destination in each edge set, float32[S]; -inf without an event.

    counts: as of `NewDestinations`. By softmax all new ones together have the chance of the rate if
    each has the log of the rate's odds plus the log of the mean over the known ones, and as many
    new ones could come as are known. How many could is not known: any key may. One of them must
    not have the chance of all, or a mistyped key would rank above most destinations.
    """
    num_events, num_new, sum_of_known = counts
    odds = (num_new + UNSEEN_EVENTS) / (num_events - num_new + UNSEEN_EVENTS)
    logit_S = np.log(odds) + sum_of_known / np.maximum(num_events, 1e-9)
    return np.where(num_events > 0, logit_S, -np.inf).astype(np.float32)


def log_mean_odds(
    logits_EC: Float32, known_E: Bools, num_others_E: Int64, has_learned: bool
) -> NDArray[np.float64]:
    """The log of the mean of exp(logit) over all destinations known before each event: float64[E].

    The negatives are a sample of them. logits_EC: float32[E, C], the true destination first, -inf
    in columns without a candidate. known_E: whether that was one of them. num_others_E: the number
    of the others, above 0. has_learned: False for a model that has learned nothing yet; once it has
    learned against n negatives the mean is about 1 / n.
    """
    if not has_learned:
        return np.full(len(known_E), -np.log(NUM_LEARNED))

    # Of extreme logits the exponential would be infinite.
    odds_EC = np.exp(np.clip(logits_EC.astype(np.float64), -MAX_LOGIT, MAX_LOGIT))
    counts_EC = ~np.isneginf(logits_EC[:, 1:])
    mean_E = (odds_EC[:, 1:] * counts_EC).sum(1) / np.maximum(counts_EC.sum(1), 1)
    others_E = mean_E * num_others_E + odds_EC[:, 0] * known_E
    out: NDArray[np.float64] = np.log(others_E / (num_others_E + known_E))
    return out


def is_new(facts: Any) -> Any:
    """Which candidates were no destination before, by their facts [..., F] of torch or numpy:
    bool[...]."""
    num_columns = facts.shape[-1]
    # Of several edge sets the facts of all of them come second.
    all_sets = NUM_FACTS if num_columns > NUM_FACTS else 0
    column = all_sets + FactColumn.LOG_SECONDS_SINCE_DESTINATION
    return facts[..., column] >= NEVER_LOG_SECONDS


def asked_sets(facts: Any, num_edge_sets: int) -> Any:
    """The number of the asked edge set of each row of facts [..., F]: of one set 0 for all."""
    if num_edge_sets == 1:
        return 0
    return facts[..., -num_edge_sets:].argmax(-1)


class NewRates:
    """`NewDestinations` in numpy, of a version's counts, which do not change any more."""

    def __init__(self, counts: NDArray[np.float64]) -> None:
        """counts: float64[3, S]."""
        self._logit_S = logits_of(counts)

    def replaces(self, facts_RF: Float32) -> Any:
        """Which rows have the logit of new destinations: bool[R]."""
        own = self._logit_S[asked_sets(facts_RF, len(self._logit_S))]
        return is_new(facts_RF) & np.isfinite(own)

    def __call__(self, logits_R: Float32, facts_RF: Float32) -> Float32:
        """Logits, float32[R], those of new destinations replaced."""
        own = self._logit_S[asked_sets(facts_RF, len(self._logit_S))]
        out: Float32 = np.where(self.replaces(facts_RF), own, logits_R).astype(np.float32)
        return out
