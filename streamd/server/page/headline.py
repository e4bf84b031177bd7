"""The page's first sentence in numbers: how well the live model ranks lately, beside the best rule
and the nightly twin."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamd.windows.history import WindowRecord
from streamd.windows.intervals import Difference
from streamd.windows.means import (
    KNOWN,
    best_rule,
    comparable,
    mean_mrr,
    mean_negatives,
    mean_over_all,
    measure_of,
    newest_windows,
    weight_of,
)
from streamd.windows.novelty import recurrence
from streamd.windows.over_rule import are_newest_worse, over_rule

NUM_NEWEST = 3
"""Newest of these that are judged alone too: a day's mean hides for hours that a model fell, and a
single window may be chance."""
FALLEN_SHARE = 0.5
"""Share of its mean over all of them below which a model fell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lately:
    """Mean MRR over the newest windows, by the measure of the headline.

    live: of what served. rule_name, rule: the best rule over them. is_below_rule: whether chance
    does not explain that it is above live.
    """

    num_windows: int
    live: float
    rule_name: str
    rule: float
    is_below_rule: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """Mean MRR over the newest scored windows, each weighing the events that it is over.

    num_windows: that it is over. num_events: scored in them. measure: "mrr_known", over those of
    them with a known destination, `num_compared`; in windows of older releases "mrr", over all.
    live_all: of the version that served, over all events. live: of it, by the measure. rule_name,
    rule: the best rule over all of them. over_rule: by how much live is above it. nightly: of the
    twin, and live_beside: of what served over the events that the twin scored; None where it scored
    none of these windows, and both over all events where it was scored by an older release. newest:
    the last `NUM_NEWEST` of them alone; None where there are no others. mean_negatives: that an
    event was ranked against. recurrence: share of the events whose pair was seen before, None of
    older releases.
    """

    num_windows: int
    num_events: int
    measure: str
    num_compared: int
    live_all: float
    live: float
    rule_name: str
    rule: float
    over_rule: Difference
    nightly: float | None
    live_beside: float | None
    newest: Lately | None
    mean_negatives: float | None = None
    recurrence: float | None = None

    @property
    def is_below_rule(self) -> bool:
        """Whether the windows rank below the best rule by more than chance explains."""
        return self.over_rule.is_worse

    @property
    def is_newest_below_rule(self) -> bool:
        """Whether the newest windows alone rank below the best rule over them."""
        return self.newest is not None and self.newest.is_below_rule

    @property
    def has_fallen(self) -> bool:
        """Whether the newest windows rank below half of the mean over all."""
        return self.newest is not None and self.newest.live < FALLEN_SHARE * self.live

    def content(self) -> dict[str, Any]:
        """It as the page's JSON. `over_rule` has a radius of None over too few windows."""
        over = self.over_rule
        is_sure = over.is_sure and math.isfinite(over.radius)
        return {
            **asdict(self),
            "over_rule": {"mean": over.mean, "radius": over.radius if is_sure else None},
            "below_rule": self.is_below_rule,
            "newest_below_rule": self.is_newest_below_rule,
            "fell": self.has_fallen,
        }


def headline_of(records: Sequence[WindowRecord]) -> Headline | None:
    """Sum up the newest windows. Returns: None before one was scored."""
    # Windows over which model and rules compare.
    scored = comparable(newest_windows(records))
    if not scored:
        return None

    # The twin scores some events of a window, so it is compared over those alone.
    beside = [r.scores["nightly"] for r in scored if "mrr_live" in r.scores.get("nightly", {})]
    nightly, live_beside = _beside(beside)

    # The best rule over all of them, and over the newest, where it may be another one.
    rule_name, rule = best_rule(scored)
    newest = scored[-NUM_NEWEST:]
    newest_name, newest_rule = best_rule(newest)
    return Headline(
        num_windows=len(scored),
        num_events=sum(r.num_scored for r in scored),
        measure=measure_of(scored[-1].scores),
        num_compared=sum(weight_of(r) for r in scored),
        live_all=mean_over_all(scored, "live"),
        live=mean_mrr(scored, "live"),
        rule_name=rule_name,
        rule=rule,
        over_rule=over_rule(scored, rule_name),
        nightly=nightly,
        live_beside=live_beside,
        newest=Lately(
            num_windows=len(newest),
            live=mean_mrr(newest, "live"),
            rule_name=newest_name,
            rule=newest_rule,
            is_below_rule=are_newest_worse(scored, NUM_NEWEST, newest_name),
        )
        if len(scored) > len(newest)
        else None,
        mean_negatives=mean_negatives(scored),
        recurrence=recurrence(r.novelty for r in scored),
    )


def _beside(twins: Sequence[Mapping[str, float]]) -> tuple[float | None, float | None]:
    """Mean MRR of the nightly twin, and of the version that served over the same events: those with
    a known destination, of older releases all. None without events.

    twins: the twin's scores of each window that it scored.
    """
    # Twins of older releases have figures over all events alone.
    columns = (KNOWN, "mrr_live_known", "events_known")
    known = [s for s in twins if set(columns) <= s.keys()]
    names = columns if known else ("mrr", "mrr_live", "events")

    # Each window weighs the events that its figures are over.
    scored = [[s[name] for name in names] for s in known or twins]
    num_events = sum(number for _, _, number in scored)
    if not num_events:
        return None, None
    return (
        sum(nightly * number for nightly, _, number in scored) / num_events,
        sum(live * number for _, live, number in scored) / num_events,
    )
