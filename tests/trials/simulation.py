"""Simulated trials, looked at after each hundredth of their units: how often the interval and the sample ratio are wrong.

`python -m tests.trials.simulation 2000` (`make trials`) prints, for each kind of values, the share of trials with a wrong alarm at any
look and the lower 99 % bound of that share (Clopper and Pearson), and fails if a bound is above the level. With an effect it prints the
share of trials whose interval excluded the effect at any look, and the share that found it: excluded 0 at the last look.
"""

import math
import sys
from dataclasses import dataclass

import numpy as np

from streamd.trials.always_valid import ArmSums, difference_of
from streamd.trials.arms import Arms
from streamd.trials.sample_ratio import is_mismatch, log_evidence

LEVEL = 0.05
LOOKS = 100
UNITS = 4000
TAKERS = 0.2
"""Share of the units with an outcome, of values that are no yes or no."""


@dataclass(frozen=True)
class Kind:
    """values: distribution. share: of the first arm. returns: None if all of a unit's value comes at once, else the spread of the tastes
    of units that return: at each look a random twentieth of the units that came so far adds a value. effect: added to each unit's value
    in the first arm."""

    values: str
    share: float
    returns: float | None = None
    effect: float = 0.0


NULL = [Kind(values, share, returns) for values in ("yes or no", "lognormal", "pareto 2.2", "pareto 1.5") for share in (0.5, 0.1)
        for returns in (None, 0.0, 1.0)]
EFFECT = [Kind("yes or no", 0.5, effect=0.03), Kind("lognormal", 0.5, effect=0.4), Kind("lognormal", 0.1, effect=0.8)]


def draw(rng: np.random.Generator, values: str, count: int) -> np.ndarray:
    """Values of outcomes, float64, 0 for none."""
    if values == "yes or no":
        return (rng.random(count) < 0.05).astype(float)
    takes = rng.random(count) < TAKERS
    if values == "lognormal":
        return takes * np.exp(1.5 * rng.standard_normal(count))
    return takes * (rng.pareto(float(values.split()[1]), count) + 1)


def sums_of(values: np.ndarray, took: np.ndarray) -> ArmSums:
    return ArmSums(units=len(values), takers=int(took.sum()), total=float(values.sum()), squares=float((values**2).sum()))


def one_trial(kind: Kind, seed: int) -> tuple[bool, bool]:
    """Returns: whether the interval excluded the true difference at any look, and whether it excluded 0 at the last one."""
    rng = np.random.default_rng(seed)
    is_first = rng.random(UNITS) < kind.share
    if kind.returns is None:
        enters = np.arange(UNITS) * LOOKS // UNITS
    else:
        enters = (rng.random(UNITS) ** 2 * LOOKS).astype(int)
    taste = np.exp(rng.standard_normal(UNITS) * (kind.returns or 0) - (kind.returns or 0) ** 2 / 2)
    values = np.zeros(UNITS) if kind.returns is not None else draw(rng, kind.values, UNITS)
    tuning, wrong, found = None, False, False
    for look in range(LOOKS):
        seen = enters <= look
        if kind.returns is not None:
            active = seen & (rng.random(UNITS) < 0.05)
            values[active] += draw(rng, kind.values, int(active.sum())) * taste[active]
        took = values != 0
        a, b = seen & is_first, seen & ~is_first
        difference = difference_of(sums_of(values[a] + kind.effect, took[a]), sums_of(values[b], took[b]), LEVEL, tuning)
        if difference is not None:
            tuning = difference.tuning
            wrong |= abs(difference.mean - kind.effect) > difference.radius
            found = difference.is_sure
    return wrong, found


def one_ratio(trial: str, shares: dict[str, float], loss: float = 0.0) -> bool:
    """Whether the sample ratio alarms at any look. loss: share of the second arm's units that are lost."""
    arms = Arms(trial, shares)
    units = dict.fromkeys(shares, 0)
    lost = list(shares)[1]
    for i in range(UNITS):
        arm = arms.arm_of(f"user:{i}")
        if not (arm == lost and i % 1000 < 1000 * loss):
            units[arm] += 1
        if (i + 1) % (UNITS // LOOKS) == 0 and is_mismatch(log_evidence(units, shares), LEVEL):
            return True
    return False


def lower_bound(wrong: int, trials: int, confidence: float = 0.99) -> float:
    """Lower bound of a probability by Clopper and Pearson: the one at which so many or more have probability 1 - confidence."""
    if not wrong:
        return 0.0
    numbers = np.arange(wrong, trials + 1)
    choose = np.array([math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in numbers])
    low, high = 0.0, wrong / trials
    for _ in range(60):
        p = (low + high) / 2
        chance = np.exp(choose + numbers * math.log(p) + (trials - numbers) * math.log1p(-p)).sum() if 0 < p < 1 else 1.0
        low, high = (low, p) if chance > 1 - confidence else (p, high)
    return low


def main(trials: int) -> int:
    is_bad = False
    for kind in NULL:
        wrong = sum(one_trial(kind, seed)[0] for seed in range(trials))
        bound = lower_bound(wrong, trials)
        is_bad |= bound > LEVEL
        returns = "at once" if kind.returns is None else f"returns, spread {kind.returns:g}"
        print(f"{kind.values:11} share {kind.share:.1f} {returns:18} wrong {wrong / trials:.4f} bound {bound:.4f}", flush=True)
    for kind in EFFECT:
        results = [one_trial(kind, seed) for seed in range(trials)]
        wrong, found = (sum(column) for column in zip(*results, strict=True))
        is_bad |= lower_bound(wrong, trials) > LEVEL
        print(f"{kind.values:11} share {kind.share:.1f} effect {kind.effect:g}: excluded {wrong / trials:.4f} found {found / trials:.3f}", flush=True)
    for shares in ({"a": 0.5, "b": 0.5}, {"a": 0.1, "b": 0.9}, {"a": 0.6, "b": 0.3, "c": 0.1}):
        wrong = sum(one_ratio(f"trial-{seed}", shares) for seed in range(trials))
        bound = lower_bound(wrong, trials)
        is_bad |= bound > LEVEL
        found = sum(one_ratio(f"trial-{seed}", shares, 0.2) for seed in range(trials // 10))
        print(f"sample ratio {shares}: wrong {wrong / trials:.4f} bound {bound:.4f}; a fifth of b lost: found {found / (trials // 10):.3f}", flush=True)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
