"""By how much the live model ranks above a rule over windows, and whether chance explains the
difference."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from streamd.windows.history import WindowRecord
from streamd.windows.intervals import MIN_WINDOWS, Difference, difference
from streamd.windows.means import (
    Part,
    best_rule,
    comparable,
    compared_mrr,
    mean_mrr,
    newest_windows,
    weight_of,
)


def over_rule(parts: Sequence[Part], rule: str) -> Difference:
    """By how much the MRR of the version that served is above a rule's. Both must have scored each
    of the comparable parts; at least one part is required."""
    weight_W = np.array([weight_of(part) for part in parts], np.float64)
    live_W = np.array([compared_mrr(part, "live") for part in parts])
    rule_W = np.array([compared_mrr(part, rule) for part in parts])
    return difference(weight_W, live_W, rule_W)


def are_newest_worse(parts: Sequence[Part], num_newest: int, rule: str) -> bool:
    """Whether the newest of comparable parts rank below a rule by more than chance explains.

    A few windows alone have no interval. Instead the interval over the parts before them is widened
    by the square root of the ratio of the numbers of parts. False if too few parts came before.
    """
    before, newest = parts[:-num_newest], parts[-num_newest:]
    if len(before) < MIN_WINDOWS:
        return False
    # The standard error of a mean falls with the root of the number of windows.
    radius = over_rule(before, rule).radius * math.sqrt(len(before) / len(newest))
    return mean_mrr(newest, "live") - mean_mrr(newest, rule) < -radius


class BelowRule:
    """Tracks whether the newest windows rank below the best rule over them. Owner: the trainer."""

    def __init__(self, records: Iterable[WindowRecord] = ()) -> None:
        """records: earlier windows, oldest first."""
        self._newest = newest_windows(records)

    def add(self, record: WindowRecord) -> None:
        """Add the next window."""
        self._newest = newest_windows([*self._newest, record])

    @property
    def holds(self) -> bool:
        """Whether they rank below by more than chance explains, as on the status page; False if
        there are too few windows."""
        newest = comparable(self._newest)
        return bool(newest) and over_rule(newest, best_rule(newest)[0]).is_worse
