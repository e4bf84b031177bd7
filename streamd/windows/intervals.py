"""The difference between two models' scores, with an interval by a block bootstrap over windows.

Neighboring windows are correlated, so blocks of them are drawn, not single windows: the
moving-block bootstrap (Künsch 1989, "The jackknife and the bootstrap for general stationary
observations"). Blocks continue from the last window to the first, so that every window is drawn
equally often: the circular one (Politis and Romano 1992, "A circular block-resampling procedure for
stationary data").
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
DRAWS = 2000
"""Number of bootstrap draws: the radius then varies by about 2 % between seeds."""
CONFIDENCE = 0.95
"""Share of the draws within the interval."""
SEED = 0
"""Fixed, so that the same windows give the same interval."""
MIN_WINDOWS = 12
"""With fewer windows the interval is too narrow to be shown: with 12 independent windows it
contains the true difference in 91 of 100 cases, with 8 in 87."""


@dataclass(frozen=True)
class Difference:
    """The lead of one regime over another in a score, with its interval.

    mean: of the event-weighted differences.
    radius: half the width of the 95 % interval around the mean, infinite if unknown.
    num_windows: windows on which both were scored.
    """

    mean: float
    radius: float
    num_windows: int

    @property
    def is_sure(self) -> bool:
        """Whether there are enough windows for an interval."""
        return self.num_windows >= MIN_WINDOWS

    @property
    def is_level(self) -> bool:
        """Whether the interval contains 0: then neither regime is shown to be better."""
        return abs(self.mean) <= self.radius

    @property
    def is_worse(self) -> bool:
        """Whether the first regime is worse by more than chance explains, over enough windows."""
        return self.is_sure and not self.is_level and self.mean < 0

    def opposite(self) -> "Difference":
        """The difference with the two regimes swapped."""
        return Difference(-self.mean, self.radius, self.num_windows)

    def text(self, digits: int) -> str:
        """As ".110 ± .010"; without the interval if there are too few windows for one."""
        radius = f" ± {score_text(self.radius, digits)}" if self.is_sure else ""
        return score_text(self.mean, digits) + radius

    def __str__(self) -> str:
        """With three digits, for sentences."""
        return self.text(3)


def score_text(score: float, digits: int = 3) -> str:
    """Format a score or a difference of scores, as ".906" or "-.012"."""
    # Adding 0.0 turns -0.0 into 0.0.
    text = f"{round(score, digits) + 0.0:.{digits}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def difference(weight_W: Float64, score_W: Float64, other_W: Float64) -> Difference:
    """By how much `score_W` is above `other_W`, both over the same windows.

    weight_W: float64[W], scored events of each window, above 0.
    score_W, other_W: float64[W].
    """
    gap_W = score_W - other_W
    mean = float(np.average(gap_W, weights=weight_W))
    return Difference(mean, radius(weight_W, gap_W, block_length(len(gap_W))), len(gap_W))


def block_length(num_windows: int) -> int:
    """Number of windows in a block: the cube root of the number of all windows, the order at which
    the error of the interval's width is least (Künsch 1989)."""
    return max(1, round(math.cbrt(num_windows)))


def radius(weight_W: Float64, gap_W: Float64, block: int) -> float:
    """Half the width of a 95 % interval of the weighted mean of differences.

    The interval is symmetric around the mean (Hall 1988, "On symmetric bootstrap confidence
    intervals"): 95 % of the draws are closer to the mean than the radius. Draws vary around the
    mean of the same windows from which they are drawn, so their variance is too small by the factor
    (W - block) / W; the result is corrected for that.

    weight_W, gap_W: float64[W]. block: windows in a block. Returns: infinity if there is no more
    than one block.
    """
    count = len(gap_W)
    if count <= block:
        return math.inf

    # Draw blocks with as many windows in all as there are; the last block is shortened.
    num_blocks = -(-count // block)
    length_B = np.full(num_blocks, block)
    length_B[-1] = count - (num_blocks - 1) * block
    start_DB = np.random.default_rng(SEED).integers(0, count, (DRAWS, num_blocks))

    # The sum of a block is the difference of two running sums over the windows, repeated twice.
    def draw_sums(value_W: Float64) -> Float64:
        running = np.concatenate([[0.0], np.cumsum(np.concatenate([value_W, value_W]))])
        sums: Float64 = (running[start_DB + length_B] - running[start_DB]).sum(1)
        return sums

    # Subtract the mean first, so that equal differences give a radius of 0.
    centred_W = gap_W - np.average(gap_W, weights=weight_W)
    distance_D = np.abs(draw_sums(weight_W * centred_W) / draw_sums(weight_W))
    return float(np.quantile(distance_D, CONFIDENCE)) * math.sqrt(count / (count - block))
