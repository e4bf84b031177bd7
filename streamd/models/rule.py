"""Rules without training. The rule that answers before the first version mixes past partners and
popular destinations, weighted by the source's recurrence."""

from collections.abc import Callable, Sequence

import numpy as np

from streamd.events import Float32
from streamd.graph.facts.columns import LOG_SHARES, PAIR_WEIGHTS, FactColumn
from streamd.graph.facts.covisits import COVISIT_SCALE
from streamd.graph.facts.fact_arrays import RATES
from streamd.graph.facts.kernels import FLOOR_LOG_SHARE, NEVER_LOG_SECONDS

NAME = "rule"
POPULARITY = "popularity"
FIRST_RECURRENCE = 0.625
"""Assumed share of a source's events with a past partner before its first event: the weight of
partners against popularity in the benchmark protocol's rule."""
FIRST_EVENTS = 2.0
"""Number of events that the assumed share counts as. Values from 1 to 5 rank alike."""
COVISIT_WEIGHT = 10.0
"""Weight by which co-visits raise a destination's popularity for a source. With 3, pairs that never
repeat rank lower; with 30, pairs that do repeat."""


def edgebank_scores(facts_ECF: Float32) -> Float32:
    """EdgeBank (Poursafaei et al. 2022), unlimited: 1 for a pair that was seen before in this
    direction. float32[E, C]."""
    out: Float32 = (facts_ECF[..., FactColumn.LOG_SECONDS_SINCE_SENT] < NEVER_LOG_SECONDS).astype(
        np.float32
    )
    return out


def rule_scores(facts_ECF: Float32) -> Float32:
    """Probability, up to a factor, that a source's next event goes to each candidate: float32[E,
    C].

    It is a mean of two parts, weighted by the source's recurrence: a past partner, by the mean of
    the four pair weights (each scaled to add up to 1); and a popular destination, by the mean share
    over the five half-lives, raised by co-visits. With several edge sets, the facts are those in
    the set of the query.
    """
    events_EC, pairs_EC = (
        np.expm1(facts_ECF[..., column])
        for column in (FactColumn.LOG_SOURCE_EVENTS, FactColumn.LOG_SOURCE_PARTNERS)
    )
    repeats_EC = np.maximum(events_EC - pairs_EC, 0.0)
    recurrence_EC = (repeats_EC + FIRST_EVENTS * FIRST_RECURRENCE) / (events_EC + FIRST_EVENTS)
    weights_ECR = facts_ECF[..., PAIR_WEIGHTS]
    one_less_R = 1.0 - np.array(RATES, np.float32)
    partner_EC = _mean([weights_ECR[..., r] * one_less_R[r] for r in range(len(RATES))])

    # At the floor a node is almost never a destination; its share counts as 0.
    log_share_ECH = facts_ECF[..., LOG_SHARES]
    share_EC = _mean(
        [
            np.where(log_share_EC > FLOOR_LOG_SHARE, np.exp(log_share_EC), np.float32(0.0))
            for log_share_EC in np.moveaxis(log_share_ECH, -1, 0)
        ]
    )
    covisits_EC = np.expm1(facts_ECF[..., FactColumn.LOG_COVISITS]) / COVISIT_SCALE
    popular_EC = share_EC * (1.0 + COVISIT_WEIGHT * covisits_EC)
    out: Float32 = recurrence_EC * partner_EC + (1.0 - recurrence_EC) * popular_EC
    return out.astype(np.float32)


def popularity_scores(facts_ECF: Float32) -> Float32:
    """The logarithm of a candidate's share among destinations: float32[E, C]. It decays by the
    fourth of `model.half_lives_seconds`, 12 h by default."""
    out: Float32 = facts_ECF[..., FactColumn.LOG_SHARE_4]
    return out


RULES: dict[str, Callable[[Float32], Float32]] = {
    NAME: rule_scores,
    "edgebank": edgebank_scores,
    POPULARITY: popularity_scores,
}
"""Name -> rule, as in `windows.history.RULES`."""


def scores_of_rules(facts_ECF: Float32) -> dict[str, Float32]:
    """Scores by each rule, float32[E, C] each."""
    return {name: scores(facts_ECF) for name, scores in RULES.items()}


def _mean(columns: Sequence[Float32]) -> Float32:
    """Mean of columns, float32[E, C] each. Columns are added one after the other, since numpy takes
    several times as long to sum along a short last axis."""
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total / np.float32(len(columns))
