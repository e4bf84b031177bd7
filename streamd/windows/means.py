"""Means over windows, or over their events of one edge set: of a model, and of the best rule.

Models and rules compare by the MRR over events with a known destination. All negatives are known
destinations. So over all events a model gains by ranking new ones higher, whether they come or not,
and a rule cannot.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from streamd.windows.history import RULES, SetScores, WindowRecord

NUM_NEWEST_WINDOWS = 24
"""Windows that the newest are judged over: a day of hours."""
Part = TypeVar("Part", WindowRecord, SetScores)
"""A window, or its part of one edge set."""
KNOWN = "mrr_known"
"""MRR over the events with a known destination."""
ALL = "mrr"
"""MRR over all events."""


def rules_of(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Names of the rules that scores hold: releases before had fewer."""
    return [name for name in RULES if ALL in scores.get(name, {})]


def measure_of(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The measure by which the model that served and the rules compare: KNOWN if all that are in
    the scores have it, else ALL."""
    # None has it of a window in which all destinations were new, nor of some older releases.
    names = [name for name in ("live", *rules_of(scores)) if ALL in scores.get(name, {})]
    return KNOWN if names and all(KNOWN in scores[name] for name in names) else ALL


def comparable(parts: Sequence[Part]) -> list[Part]:
    """Those parts over which model and rules compare: scored by each rule that scored the last one,
    so that a mean of a rule is over the same events as the model's, and by one measure. That is
    KNOWN if any of them has it."""
    # An upgrade adds a rule from one window on.
    rules = rules_of(parts[-1].scores) if parts else []
    kept = [part for part in parts if set(rules) <= set(rules_of(part.scores))]
    known = [part for part in kept if measure_of(part.scores) == KNOWN]
    return known or kept


def weight_of(part: Part) -> int:
    """Number of a part's events that its measure is over."""
    return part.num_known if measure_of(part.scores) == KNOWN else part.num_scored


def compared_mrr(part: Part, model: str) -> float:
    """MRR of a model or rule over a part by its measure."""
    return part.scores[model][measure_of(part.scores)]


def newest_windows(records: Iterable[WindowRecord]) -> list[WindowRecord]:
    """The newest windows that a model and a rule scored, oldest first; `comparable` chooses among
    them."""
    # Windows of mostly late events were scored by nothing.
    scored = [r for r in records if r.num_scored and "live" in r.scores and rules_of(r.scores)]
    return scored[-NUM_NEWEST_WINDOWS:]


def mean_mrr(parts: Sequence[Part], model: str) -> float:
    """Mean MRR of a model or rule over comparable parts that it scored, each weighing the events
    that it is over, of which there must be one."""
    num_events = sum(weight_of(part) for part in parts)
    return sum(compared_mrr(part, model) * weight_of(part) for part in parts) / num_events


def mean_over_all(parts: Sequence[Part], model: str) -> float:
    """Mean MRR of a model or rule over all events of parts that it scored."""
    num_scored = sum(part.num_scored for part in parts)
    return sum(part.scores[model][ALL] * part.num_scored for part in parts) / num_scored


def best_rule(parts: Sequence[Part]) -> tuple[str, float]:
    """The rule with the highest mean MRR among those that scored all of some comparable parts, and
    that mean. There must be such a rule."""
    # In the order of RULES, so that the first of two equals is always the same.
    names = set(RULES).intersection(*(rules_of(part.scores) for part in parts))
    means = {name: mean_mrr(parts, name) for name in RULES if name in names}
    name = max(means, key=lambda one: means[one])
    return name, means[name]


def mean_negatives(parts: Iterable[Part]) -> float | None:
    """Destinations that a scored event was ranked against, on average; None if older releases alone
    scored the parts, which did not count them."""
    # Each part weighs its scored events.
    counted = [(p.mean_negatives, p.num_scored) for p in parts if p.mean_negatives is not None]
    if not counted:
        return None
    return sum(mean * number for mean, number in counted) / sum(number for _, number in counted)
