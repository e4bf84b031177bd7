"""Means over windows, or over their events of one edge set: of a model, and of the best rule."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from streamd.windows.history import RULES, SetScores, WindowRecord

NUM_NEWEST_WINDOWS = 24
"""Windows that the newest are judged over: a day of hours."""
Part = TypeVar("Part", WindowRecord, SetScores)
"""A window, or its part of one edge set."""


def rules_of(scores: dict[str, dict[str, float]]) -> list[str]:
    """Names of the rules that scores hold: releases before had fewer."""
    return [name for name in RULES if "mrr" in scores.get(name, {})]


def with_rules_of_newest(parts: Sequence[Part]) -> list[Part]:
    """Those parts that were scored by each rule that scored the last one, so that a mean of a rule
    is over the same events as the model's."""
    # An upgrade adds a rule from one window on.
    rules = rules_of(parts[-1].scores) if parts else []
    return [part for part in parts if set(rules) <= set(rules_of(part.scores))]


def newest_windows(records: Iterable[WindowRecord]) -> list[WindowRecord]:
    """The newest windows that a model and each rule of the last of them scored, oldest first."""
    # Windows of mostly late events were scored by nothing.
    scored = [r for r in records if r.num_scored and "live" in r.scores and rules_of(r.scores)]
    return with_rules_of_newest(scored[-NUM_NEWEST_WINDOWS:])


def mean_mrr(parts: Sequence[Part], model: str) -> float:
    """Mean MRR of a model or rule that scored all parts, each weighing its scored events, of which
    there must be one."""
    num_scored = sum(part.num_scored for part in parts)
    return sum(part.scores[model]["mrr"] * part.num_scored for part in parts) / num_scored


def best_rule(parts: Sequence[Part]) -> tuple[str, float]:
    """The rule with the highest mean MRR among those that scored all parts, and that mean. There
    must be such a rule."""
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
