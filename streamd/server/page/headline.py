"""The headline figures of the status page: the live model's MRR over the newest windows, compared
with the best rule and the nightly baseline."""

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
"""Number of newest windows that are also judged alone. A mean over a day hides a model that got
worse within hours; the figure of one window may be chance."""
FALLEN_SHARE = 0.5
"""The model has fallen if its MRR over the newest windows is below this share of its mean over all
windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lately:
    """Mean MRR over the newest windows, by the measure of the headline.

    live: of the versions that served. rule_name, rule: name and MRR of the best rule over these
    windows. is_below_rule: whether live is below the rule by more than chance explains.
    """

    num_windows: int
    live: float
    rule_name: str
    rule: float
    is_below_rule: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """Mean MRR over the newest scored windows, each weighted by its number of compared events.

    num_windows: number of these windows. num_events: scored events in them. measure: "mrr_known",
    the MRR over the num_compared events with a known destination; in windows of older releases
    "mrr", over all events. live, live_all: of the versions that served, by the measure and over all
    events. rule_name, rule: name and MRR of the best rule over these windows. over_rule: live minus
    rule, with its interval. nightly: of the nightly baseline. live_beside: of the versions that
    served, over the events that the baseline scored. Both are None if the baseline scored none of
    these windows, and over all events if an older release scored them. newest: the last
    `NUM_NEWEST` windows alone; None if there are no others. mean_negatives: per event. recurrence:
    share of the events with a pair that had an event before, None in windows of older releases.
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
        """Whether live is below the best rule by more than chance explains."""
        return self.over_rule.is_worse

    @property
    def is_newest_below_rule(self) -> bool:
        """Whether live is below the best rule over the newest windows alone."""
        return self.newest is not None and self.newest.is_below_rule

    @property
    def has_fallen(self) -> bool:
        """Whether the newest windows' MRR is below half of the mean over all windows."""
        return self.newest is not None and self.newest.live < FALLEN_SHARE * self.live

    def notice(self) -> str:
        """A sentence about a model that is below the rule or fell; empty for any other."""
        if self.is_below_rule:
            rule = f"the rule {self.rule_name}"
            return f"the model ranks below {rule} over the last {self.num_windows} windows"
        if self.newest is not None and (self.is_newest_below_rule or self.has_fallen):
            num = self.newest.num_windows
            fall = f"the model fell: MRR {self.newest.live:.3f} over the last {num} windows"
            return f"{fall}, {self.live:.3f} over the last {self.num_windows}"
        return ""

    def content(self) -> dict[str, Any]:
        """The headline as the page's JSON. `over_rule` has a radius of None if there are too few
        windows for an interval."""
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
    """Compute the headline of the newest windows. Returns: None if none was scored yet."""
    # Use only windows in which the model and all rules have the same measure.
    scored = comparable(newest_windows(records))
    if not scored:
        return None

    # The baseline scores a sample of a window's events; the model's figure is over that sample too.
    beside = [r.scores["nightly"] for r in scored if "mrr_live" in r.scores.get("nightly", {})]
    nightly, live_beside = _means_with_live(beside)

    # The newest windows may have another best rule than all windows.
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


def _means_with_live(
    nightly_scores: Sequence[Mapping[str, float]],
) -> tuple[float | None, float | None]:
    """Mean MRR of the nightly baseline, and of the versions that served over the same events: those
    with a known destination, or all events in windows of older releases. None without events.

    nightly_scores: the baseline's scores of each window that it scored.
    """
    # Older releases wrote the baseline's figures over all events only.
    columns = (KNOWN, "mrr_live_known", "events_known")
    known = [s for s in nightly_scores if set(columns) <= s.keys()]
    names = columns if known else ("mrr", "mrr_live", "events")

    # Weight each window by its number of compared events.
    scored = [[s[name] for name in names] for s in known or nightly_scores]
    num_events = sum(number for _, _, number in scored)
    if not num_events:
        return None, None
    return (
        sum(nightly * number for nightly, _, number in scored) / num_events,
        sum(live * number for _, live, number in scored) / num_events,
    )
