"""Means of a regime or rule over the windows of a backtest, and differences between two of them."""

from collections.abc import Sequence

import numpy as np

from streamd.evaluation.regimes import RegimeWindow
from streamd.training.measures import Measures
from streamd.windows.intervals import Difference, difference
from streamd.windows.means import ALL, KNOWN
from streamd.windows.novelty import NOVELTIES

MEASURES = (ALL, KNOWN, "hits10", "ap", "auc")
NOVELTY_MEASURES = {f"mrr_{name}": name for name in NOVELTIES}
"""Measures over parts of the events -> the part."""


def means(windows: Sequence[RegimeWindow], name: str) -> Measures:
    """Event-weighted means of one regime or rule over windows.

    A measure without events is NaN; a measure by novelty is left out instead.
    """
    averages = {}
    for measure in (*MEASURES, *NOVELTY_MEASURES):
        # Each measure is weighted by the events that it covers.
        weight = [num_of(w, name, measure) for w in windows]
        if measure in NOVELTY_MEASURES and not sum(weight):
            continue
        scores = [w.scores[name].get(measure, 0.0) for w in windows]
        averages[measure] = (
            float(np.average(scores, weights=weight)) if sum(weight) else float("nan")
        )
    return averages


def num_of(window: RegimeWindow, name: str, measure: str) -> int:
    """Number of the events that a measure of a regime or rule covers."""
    if measure in NOVELTY_MEASURES:
        of_part = getattr(window.novelty.counts, NOVELTY_MEASURES[measure])
        return int(of_part) if measure in window.scores[name] else 0
    return window.num_known if measure == KNOWN else window.num_scored


def mean_seconds(windows: Sequence[RegimeWindow], name: str) -> float | None:
    """Mean wall time in seconds in which a regime scores a window and trains on it; None for a
    rule."""
    own = [w.seconds[name] for w in windows if name in w.seconds]
    return float(np.mean(own)) if own else None


def measure_over(windows: Sequence[RegimeWindow]) -> str:
    """The measure by which models are compared over windows: MRR over the events with a known
    destination, or over all events if there are none.

    Over all events, a model gains by ranking new destinations higher, whether they come or not,
    because all negatives are known destinations.
    """
    return KNOWN if any(w.num_known for w in windows) else ALL


def mrr_difference(
    one: tuple[Sequence[RegimeWindow], str],
    other: tuple[Sequence[RegimeWindow], str],
    measure: str | None = None,
) -> Difference:
    """By how much one MRR is above another, over the windows that have it.

    one, other: the same windows, and the name of a regime or rule in each.
    measure: None for `measure_over` the windows.
    """
    measure = measure or measure_over(one[0])
    weight = np.array([float(num_of(w, one[1], measure)) for w in one[0]])
    # A window without such events has no score to compare.
    has_events = weight > 0
    one_W, other_W = (
        np.array([w.scores[name].get(measure, 0.0) for w in windows])[has_events]
        for windows, name in (one, other)
    )
    return difference(weight[has_events], one_W, other_W)
