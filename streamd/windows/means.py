"""Means of a model and of the best rule, over windows or over their events of one edge set.

Models and rules are compared by the MRR over events with a known destination, because all negatives
are known destinations: over all events, a model gains by ranking new destinations higher, whether
they come or not, and a rule cannot do that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from streamd.windows.history import RULES, SetScores, WindowRecord

NUM_NEWEST_WINDOWS = 24
"""Number of the newest windows that are judged: a day of hours."""
Part = TypeVar("Part", WindowRecord, SetScores)
"""A window, or its events of one edge set."""
KNOWN = "mrr_known"
"""MRR over the events with a known destination."""
ALL = "mrr"
"""MRR over all events."""


def rules_of(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Names of the rules in the scores: older releases had fewer."""
    return [name for name in RULES if ALL in scores.get(name, {})]


def measure_of(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The measure by which the version that served and the rules are compared: KNOWN if all of them
    have it, else ALL."""
    # KNOWN is missing in a window with new destinations only, and in some older releases.
    names = [name for name in ("live", *rules_of(scores)) if ALL in scores.get(name, {})]
    return KNOWN if names and all(KNOWN in scores[name] for name in names) else ALL


def comparable(parts: Sequence[Part]) -> list[Part]:
    """The parts over which model and rules are compared: those scored by each rule that scored the
    last part, so that a mean of a rule is over the same events as the model's, and by one measure,
    KNOWN if any part has it."""
    # After an upgrade, only later windows have the new rule.
    rules = rules_of(parts[-1].scores) if parts else []
    kept = [part for part in parts if set(rules) <= set(rules_of(part.scores))]
    # Parts with different measures have no common mean, so prefer those with KNOWN.
    known = [part for part in kept if measure_of(part.scores) == KNOWN]
    return known or kept


def weight_of(part: Part) -> int:
    """Number of a part's events that its measure covers."""
    return part.num_known if measure_of(part.scores) == KNOWN else part.num_scored


def compared_mrr(part: Part, model: str) -> float:
    """MRR of a model or rule over a part, by the part's measure."""
    return part.scores[model][measure_of(part.scores)]


def newest_windows(records: Iterable[WindowRecord]) -> list[WindowRecord]:
    """The newest windows that the version that served and a rule scored, oldest first; `comparable`
    selects among them."""
    # Windows of mostly late events have no scores.
    scored = [r for r in records if r.num_scored and "live" in r.scores and rules_of(r.scores)]
    return scored[-NUM_NEWEST_WINDOWS:]


def mean_mrr(parts: Sequence[Part], model: str) -> float:
    """Event-weighted mean MRR of a model or rule over comparable parts that it scored. There must
    be an event."""
    num_events = sum(weight_of(part) for part in parts)
    return sum(compared_mrr(part, model) * weight_of(part) for part in parts) / num_events


def mean_over_all(parts: Sequence[Part], model: str) -> float:
    """Mean MRR of a model or rule over all events of parts that it scored."""
    num_scored = sum(part.num_scored for part in parts)
    return sum(part.scores[model][ALL] * part.num_scored for part in parts) / num_scored


def best_rule(parts: Sequence[Part]) -> tuple[str, float]:
    """The rule with the highest mean MRR among those that scored all of the comparable parts, and
    that mean. There must be such a rule."""
    # In the order of RULES, so that ties are always broken alike.
    names = set(RULES).intersection(*(rules_of(part.scores) for part in parts))
    means = {name: mean_mrr(parts, name) for name in RULES if name in names}
    name = max(means, key=lambda one: means[one])
    return name, means[name]


def mean_negatives(parts: Iterable[Part]) -> float | None:
    """Mean number of negatives of a scored event; None if all parts are of older releases, which
    did not count them."""
    # Weighted by scored events.
    counted = [(p.mean_negatives, p.num_scored) for p in parts if p.mean_negatives is not None]
    if not counted:
        return None
    return sum(mean * number for mean, number in counted) / sum(number for _, number in counted)
