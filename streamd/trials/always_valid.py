"""The difference between two arms, with an interval that holds however often it is looked at.

The interval is a confidence sequence: with probability 1 - level it contains the true difference at
all looks together. It is Robbins' normal mixture (Robbins 1970, "Statistical methods related to the
law of the iterated logarithm") in its asymptotic form for means of any distribution with a variance
(Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and
asymptotic confidence sequences", Annals of Statistics 52). Two choices are ours, and measured by
`python -m tests.trials.simulation`:

- Its clock is the accumulated variance instead of the number of units, since a unit's value grows
  as the unit returns.
- The variance of the difference is the larger one of two estimates: from the variance of each arm,
  or from the variance of all units around the mean of their arm. With unequal shares of
  heavy-tailed values the first one alone is too small until the smaller arm has large values.
"""

import math
from dataclasses import dataclass

MIN_UNITS = 100
"""With fewer units in an arm, an interval could be too narrow."""
MIN_TAKERS = 20
"""The same for units with an outcome."""
BEST_AT = 10
"""The interval is narrowest at this multiple of the clock at its first look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmSums:
    """Sums over the units of an arm.

    units: number of units. takers: number of those with an outcome. total, squares: sum of the
    units' values, and of their squares.
    """

    units: int
    takers: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        """The value a unit, 0 without units."""
        return self.total / self.units if self.units else 0.0

    @property
    def deviations(self) -> float:
        """Sum of the squared deviations from the mean."""
        return max(0.0, self.squares - self.total * self.mean)

    @property
    def is_early(self) -> bool:
        """Whether the arm has too few units, or units with an outcome, for an interval."""
        return self.units < MIN_UNITS or self.takers < MIN_TAKERS


@dataclass(frozen=True, slots=True)
class ArmDifference:
    """The value a unit of an arm minus that of another one.

    mean: the difference. radius: half the width of the interval around it. tuning: parameter of the
    mixture, which all later looks need.
    """

    mean: float
    radius: float
    tuning: float

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.mean) > self.radius


def difference_of(
    arm: ArmSums, other: ArmSums, level: float, tuning: float | None = None
) -> ArmDifference | None:
    """Compute the difference between two arms, and its interval.

    level: probability that the interval excludes the true difference at any look. tuning: of the
    first look, None at the first one: the interval would not hold if each look chose its own.
    Returns: None while it is too early.
    """
    if arm.is_early or other.is_early:
        return None
    variance = _variance(arm, other)
    if variance <= 0:
        return None

    # The clock: the variance of the difference, accumulated over the units of both arms.
    clock = (arm.units * other.units / (arm.units + other.units)) ** 2 * variance
    if tuning is None:
        # Their equation for the narrowest interval at a given time.
        bits = -2 * math.log(level)
        tuning = (bits + math.log(bits + 1)) / (BEST_AT * clock)

    # Robbins' bound, in standard deviations of the difference.
    scaled = clock * tuning
    bound = math.sqrt((1 + 1 / scaled) * math.log((scaled + 1) / level**2))
    return ArmDifference(arm.mean - other.mean, math.sqrt(variance) * bound, tuning)


def _variance(arm: ArmSums, other: ArmSums) -> float:
    """The variance of the difference of the means: the larger one of two estimates."""
    n, m = arm.units, other.units
    # From the variance of each arm, then from that of all units.
    separate = arm.deviations / (n - 1) / n + other.deviations / (m - 1) / m
    pooled = (arm.deviations + other.deviations) / (n + m - 1) * (1 / n + 1 / m)
    return max(separate, pooled)
