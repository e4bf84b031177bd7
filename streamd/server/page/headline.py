"""The page's first sentence in numbers: how well the live model ranks lately, beside the best rule
and the nightly twin."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.windows.history import WindowRecord

NUM_WINDOWS = 24
"""Newest scored windows that the numbers are over: a day of hours."""
RULES = ("edgebank", "popularity")
"""Rules that each window is scored by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """Mean MRR over the newest scored windows, each weighing its scored events.

    num_windows, num_events: that it is over. live: of what served. rule_name, rule: the best rule
    over all of them. nightly: of the twin, and live_beside: of what served over the events that
    the twin scored; None where it scored none of these windows.
    """

    num_windows: int
    num_events: int
    live: float
    rule_name: str
    rule: float
    nightly: float | None
    live_beside: float | None

    @property
    def is_below_rule(self) -> bool:
        return self.live < self.rule


def headline_of(records: Sequence[WindowRecord]) -> Headline | None:
    """Sum up the newest windows. Returns: None before one was scored."""
    scored = [r for r in records if r.num_scored and "mrr" in r.scores.get("live", {})]
    scored = scored[-NUM_WINDOWS:]
    if not scored:
        return None
    num_events = sum(r.num_scored for r in scored)

    def mean(model: str) -> float:
        of_window = (r.scores.get(model, {}).get("mrr", 0.0) * r.num_scored for r in scored)
        return sum(of_window) / num_events

    # The twin scores some events of a window, so it is compared over those alone.
    beside = [r.scores["nightly"] for r in scored if "mrr_live" in r.scores.get("nightly", {})]
    num_beside = sum(s["events"] for s in beside)
    nightly = live_beside = None
    if num_beside:
        nightly = sum(s["mrr"] * s["events"] for s in beside) / num_beside
        live_beside = sum(s["mrr_live"] * s["events"] for s in beside) / num_beside
    rule_name = max(RULES, key=mean)
    return Headline(
        num_windows=len(scored),
        num_events=num_events,
        live=mean("live"),
        rule_name=rule_name,
        rule=mean(rule_name),
        nightly=nightly,
        live_beside=live_beside,
    )
