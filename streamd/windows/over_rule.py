"""By how much the live model ranks above a rule over windows, and whether chance explains it."""

import math
from collections.abc import Sequence

import numpy as np

from streamd.windows.intervals import MIN_WINDOWS, Difference, difference
from streamd.windows.means import Part, mean_mrr


def over_rule(parts: Sequence[Part], rule: str) -> Difference:
    """By how much the model that served is above a rule in MRR. Both scored each of the parts, of
    which there must be one."""
    weight_W = np.array([part.num_scored for part in parts], np.float64)
    live_W = np.array([part.scores["live"]["mrr"] for part in parts])
    rule_W = np.array([part.scores[rule]["mrr"] for part in parts])
    return difference(weight_W, live_W, rule_W)


def are_newest_worse(parts: Sequence[Part], num_newest: int, rule: str) -> bool:
    """Whether the newest parts rank below a rule by more than chance explains.

    Few windows have no interval of their own. The one over the parts before them is widened to so
    few windows: by the root of the ratio of their numbers. False if too few came before.
    """
    before, newest = parts[:-num_newest], parts[-num_newest:]
    if len(before) < MIN_WINDOWS:
        return False
    radius = over_rule(before, rule).radius * math.sqrt(len(before) / len(newest))
    return mean_mrr(newest, "live") - mean_mrr(newest, rule) < -radius
