"""A sequential test whether the arms get the shares of the units that the settings give them.

If not, units are lost or counted twice in one arm, and the difference between arms means nothing.
The test is the Bayes factor of Lindon and Malek (2022), "Anytime-valid inference for multinomial
count data", NeurIPS: a Dirichlet distribution around the shares against the shares themselves.
While the shares hold, it stays below 1 / level with probability 1 - level, however often it is
computed.
"""

import math
from collections.abc import Mapping

CONCENTRATION = 100.0
"""Sum of the Dirichlet distribution's parameters: shares that differ by about .05 are expected."""


def log_evidence(units: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Logarithm of the Bayes factor against the shares.

    units: arm -> number of units. shares: arm -> expected share; they add up to 1.
    """
    # The Dirichlet's probability of the numbers over that of the shares, without the factors that
    # both have.
    total = sum(units.get(arm, 0) for arm in shares)
    factor = math.lgamma(CONCENTRATION) - math.lgamma(CONCENTRATION + total)
    for arm, share in shares.items():
        number = units.get(arm, 0)
        prior = CONCENTRATION * share
        factor += math.lgamma(prior + number) - math.lgamma(prior) - number * math.log(share)
    return factor


def is_mismatch(evidence: float, level: float) -> bool:
    """Whether the units do not have the shares. evidence: the largest one so far."""
    return evidence >= -math.log(level)
