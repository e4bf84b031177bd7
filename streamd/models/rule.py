"""Rules that cost nothing; the one that answers until there is a version: past partners, popular
destinations behind."""

import numpy as np

from streamd.events import Float32
from streamd.graph.facts.columns import FactColumn
from streamd.graph.facts.kernels import FLOOR_LOG_SHARE, NEVER_LOG_SECONDS

NAME = "rule"
POPULARITY_WEIGHT = 3.0
"""As in the benchmark protocol's rule."""


def edgebank_scores(facts_ECF: Float32) -> Float32:
    """EdgeBank (Poursafaei et al. 2022), unlimited: 1 for a pair that was seen before in this
    direction. float32[E, C]."""
    out: Float32 = (facts_ECF[..., FactColumn.LOG_SECONDS_SINCE_SENT] < NEVER_LOG_SECONDS).astype(
        np.float32
    )
    return out


def rule_scores(facts_ECF: Float32) -> Float32:
    """Pair weight at rate .8 plus 3 times the share of popularity at the third half-life:
    float32[E, C].

    The rule "partners + popularity" of the benchmark protocol, computed from fact columns.
    """
    # At the floor a node is hardly ever a destination, and counts nothing.
    log_share = facts_ECF[..., FactColumn.LOG_SHARE_3]
    share = np.where(log_share > FLOOR_LOG_SHARE, np.exp(log_share), 0.0)
    return (facts_ECF[..., FactColumn.PAIR_WEIGHT_80] + POPULARITY_WEIGHT * share).astype(
        np.float32
    )
