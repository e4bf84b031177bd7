"""The scores of each version over the windows that it scored as champion. All of them came after
it; the window that it learned last was scored by the version before it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from streamd.windows.history import WindowRecord
from streamd.windows.means import (
    best_rule,
    comparable,
    mean_mrr,
    measure_of,
    rules_of,
    weight_of,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionScores:
    """Means over windows, weighted by their events.

    measure: "mrr_known" or "mrr", of mrr and rule. rule_name: the best rule over the windows, None
    in records without rules.
    """

    num_windows: int
    measure: str
    mrr: float
    rule_name: str | None
    rule: float | None
    hits10: float | None


def version_scores(
    records: Iterable[WindowRecord], versions: Collection[str]
) -> dict[str, VersionScores]:
    """Version -> its scores, for those of `versions` that scored a window."""
    # A history has years of windows, the registry few versions. Windows of mostly late events have
    # no scores.
    windows: dict[str, list[WindowRecord]] = {}
    for record in records:
        if record.scored_by in versions and record.num_scored and "live" in record.scores:
            windows.setdefault(record.scored_by, []).append(record)
    # A window of new destinations only has no event that model and rule share.
    kept = {
        name: [r for r in comparable(of_one) if weight_of(r)] for name, of_one in windows.items()
    }
    return {name: _mean(of_one) for name, of_one in kept.items() if of_one}


def _mean(kept: Sequence[WindowRecord]) -> VersionScores:
    """Means over comparable windows; there is at least one."""
    measure = measure_of(kept[-1].scores)
    rule_name, rule = best_rule(kept) if rules_of(kept[-1].scores) else (None, None)
    hits = [
        (r.scores["live"]["hits10"], r.num_scored) for r in kept if "hits10" in r.scores["live"]
    ]
    return VersionScores(
        num_windows=len(kept),
        measure=measure,
        mrr=mean_mrr(kept, "live"),
        rule_name=rule_name,
        rule=rule,
        hits10=sum(h * n for h, n in hits) / sum(n for _, n in hits) if hits else None,
    )
