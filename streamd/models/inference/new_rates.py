"""The rate of new destinations, and their logit, for torch and numpy alike."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.graph.negatives import NUM_LEARNED

COUNTS = "new_destinations.counts"
"""A weight that versions of older releases lack. These score new destinations by their weights
alone, as in those releases."""
NUM_COUNTS = 3
HALF_LIFE_EVENTS = 2_000.0
"""Events of an edge set after which an event has half its weight. A rate of one in a hundred is
then known with a relative error of a fifth. At the start of a log every destination is new, which a
longer half-life would keep in the rate for too long."""
MAX_LOGIT = 50.0
"""Bound of logits in a sum of exponentials, so that it stays finite."""
UNSEEN_EVENTS = 0.5
"""Pseudo-count: events with a known destination, and events with a new one, that are added to the
counts of each edge set."""


def remaining_share(num_events: Any) -> Any:
    """The share of the counts that remains after `num_events` further events, a number or
    array."""
    return 0.5 ** (num_events / HALF_LIFE_EVENTS)


def logits_of(counts: NDArray[np.float64]) -> Float32:
    """The logit of a new destination in each edge set, float32[S]; -inf without an event.

    The logit is the log of the rate's odds plus the log of the sum of exp(logit) over the known
    destinations. With it, a softmax over the known destinations and one new one gives the new one
    the probability of the rate, that is of an event with any new destination. The number of
    possible new destinations is unknown, since any key may come.

    counts: as in `NewDestinations`.
    """
    num_events, num_new, sum_of_known = counts
    odds = (num_new + UNSEEN_EVENTS) / (num_events - num_new + UNSEEN_EVENTS)
    logit_S = np.log(odds) + sum_of_known / np.maximum(num_events, 1e-9)
    return np.where(num_events > 0, logit_S, -np.inf).astype(np.float32)


def log_sum_odds(
    logits_EC: Float32, known_E: Bools, num_others_E: Int64, has_learned: bool
) -> NDArray[np.float64]:
    """The log of the sum of exp(logit) over all destinations known before each event: float64[E].

    The sum is estimated from the negatives. logits_EC: float32[E, C], the true destination first,
    -inf in columns without a candidate. known_E: bool[E], whether the true destination was known
    before. num_others_E: int64[E], number of other known destinations, above 0. has_learned: False
    for an untrained model; after training against n negatives the sum is about num_others_E / n.
    """
    if not has_learned:
        return np.log((num_others_E + known_E) / NUM_LEARNED)

    # The exponential of extreme logits would be infinite.
    odds_EC = np.exp(np.clip(logits_EC.astype(np.float64), -MAX_LOGIT, MAX_LOGIT))
    counts_EC = ~np.isneginf(logits_EC[:, 1:])
    mean_E = (odds_EC[:, 1:] * counts_EC).sum(1) / np.maximum(counts_EC.sum(1), 1)
    others_E = mean_E * num_others_E + odds_EC[:, 0] * known_E
    out: NDArray[np.float64] = np.log(others_E)
    return out


def is_new(facts: Any) -> Any:
    """Which candidates were never a destination before, by their facts [..., F] of torch or numpy:
    bool[...]."""
    num_columns = facts.shape[-1]
    # With several edge sets, the facts over all of them come second.
    all_sets = NUM_FACTS if num_columns > NUM_FACTS else 0
    column = all_sets + FactColumn.LOG_SECONDS_SINCE_DESTINATION
    return facts[..., column] >= NEVER_LOG_SECONDS


def asked_sets(facts: Any, num_edge_sets: int) -> Any:
    """The number of the edge set of each query, by its row of facts [..., F]; 0 with one set."""
    if num_edge_sets == 1:
        return 0
    return facts[..., -num_edge_sets:].argmax(-1)


class NewRates:
    """`NewDestinations` in numpy, with the fixed counts of a version."""

    def __init__(self, counts: NDArray[np.float64]) -> None:
        """counts: float64[3, S]."""
        self._logit_S = logits_of(counts)

    def replaces(self, facts_RF: Float32) -> Any:
        """Whether each row gets the logit of new destinations: bool[R]."""
        own = self._logit_S[asked_sets(facts_RF, len(self._logit_S))]
        return is_new(facts_RF) & np.isfinite(own)

    def __call__(self, logits_R: Float32, facts_RF: Float32) -> Float32:
        """Logits, float32[R], with those of new destinations replaced."""
        own = self._logit_S[asked_sets(facts_RF, len(self._logit_S))]
        out: Float32 = np.where(self.replaces(facts_RF), own, logits_R).astype(np.float32)
        return out
