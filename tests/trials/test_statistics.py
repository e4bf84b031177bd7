"""Intervals and sample ratios against formulas written out, and on simulated trials; `make trials` runs 2,000 of each kind."""

import math

import numpy as np
import pytest

from streamd.trials.always_valid import MIN_TAKERS, MIN_UNITS, ArmSums, difference_of
from streamd.trials.sample_ratio import CONCENTRATION, is_mismatch, log_evidence
from tests.trials.simulation import LEVEL, Kind, lower_bound, one_ratio, one_trial, sums_of


def sums(values):
    values = np.asarray(values, float)
    return sums_of(values, values != 0)


def test_the_interval_is_that_of_the_written_out_formula():
    rng = np.random.default_rng(0)
    a, b = rng.exponential(2.0, 400), rng.exponential(1.0, 1600)
    first = difference_of(sums(a), sums(b), 0.05)
    separate = a.var(ddof=1) / 400 + b.var(ddof=1) / 1600
    pooled = np.concatenate([a - a.mean(), b - b.mean()]).var(ddof=1) * (1 / 400 + 1 / 1600)
    assert separate > pooled
    clock = (400 * 1600 / 2000) ** 2 * separate
    bits = -2 * math.log(0.05)
    tuning = (bits + math.log(bits + 1)) / (10 * clock)
    assert first.mean == pytest.approx(a.mean() - b.mean())
    assert first.tuning == pytest.approx(tuning)
    bound = math.sqrt((1 + 1 / (clock * tuning)) * math.log((clock * tuning + 1) / 0.05**2))
    assert first.radius == pytest.approx(math.sqrt(separate) * bound)
    later = difference_of(sums(np.tile(a, 9)), sums(np.tile(b, 9)), 0.05, first.tuning)
    assert later.tuning == first.tuning and later.radius < first.radius


def test_the_pooled_variance_counts_if_it_is_larger():
    """The smaller arm has no large value yet."""
    few, many = np.r_[np.ones(30), np.zeros(70)], np.r_[np.full(20, 100.0), np.zeros(880)]
    pooled = np.concatenate([few - few.mean(), many - many.mean()]).var(ddof=1) * (1 / 100 + 1 / 900)
    found = difference_of(sums(few), sums(many), 0.05)
    clock = (100 * 900 / 1000) ** 2 * pooled
    assert found.tuning == pytest.approx((-2 * math.log(0.05) + math.log(1 - 2 * math.log(0.05))) / (10 * clock))


@pytest.mark.parametrize(("units", "takers"), [(MIN_UNITS - 1, MIN_TAKERS), (MIN_UNITS, MIN_TAKERS - 1)])
def test_it_is_too_early_with_few_units_or_few_outcomes_in_either_arm(units, takers):
    early = ArmSums(units=units, takers=takers, total=takers, squares=takers)
    late = ArmSums(units=MIN_UNITS, takers=MIN_TAKERS, total=MIN_TAKERS, squares=MIN_TAKERS)
    assert difference_of(early, late, 0.05) is None is difference_of(late, early, 0.05)
    assert difference_of(late, late, 0.05) is not None


def test_equal_values_of_all_units_have_no_interval():
    same = ArmSums(units=200, takers=200, total=200.0, squares=200.0)
    assert difference_of(same, same, 0.05) is None


def test_the_evidence_is_the_ratio_of_two_probabilities_of_the_counts():
    """Multiplied unit by unit: the Dirichlet's prediction of each next arm, over its share."""
    shares = {"a": 0.7, "b": 0.3}
    counts = dict.fromkeys(shares, 0)
    evidence = 0.0
    for arm in "aabbbabbbb":
        predicted = (CONCENTRATION * shares[arm] + counts[arm]) / (CONCENTRATION + sum(counts.values()))
        evidence += math.log(predicted / shares[arm])
        counts[arm] += 1
        assert log_evidence(counts, shares) == pytest.approx(evidence, abs=1e-9)
    assert is_mismatch(math.log(20.01), 0.05) and not is_mismatch(math.log(19.99), 0.05)


def test_few_trials_without_a_difference_alarm():
    kinds = [Kind("yes or no", 0.5), Kind("lognormal", 0.1, 1.0), Kind("pareto 2.2", 0.1)]
    for kind in kinds:
        wrong = sum(one_trial(kind, seed)[0] for seed in range(40))
        assert lower_bound(wrong, 40) <= LEVEL, kind


def test_an_effect_is_found_and_its_size_is_in_the_interval():
    results = [one_trial(Kind("lognormal", 0.5, effect=0.6), seed) for seed in range(20)]
    assert sum(wrong for wrong, _ in results) <= 3
    assert sum(found for _, found in results) >= 17


def test_lost_units_are_a_mismatch_and_others_are_not():
    shares = {"a": 0.5, "b": 0.5}
    assert sum(one_ratio(f"trial-{i}", shares) for i in range(20)) <= 3
    assert all(one_ratio(f"trial-{i}", shares, loss=0.2) for i in range(5))


@pytest.mark.parametrize(("wrong", "trials", "bound"), [(0, 100, 0.0), (5, 100, 0.012968921), (100, 2000, 0.039314583)])
def test_the_lower_bound_of_a_share(wrong, trials, bound):
    """Figures by scipy.stats.beta.ppf(.01, wrong, trials - wrong + 1)."""
    assert lower_bound(wrong, trials) == pytest.approx(bound, abs=1e-6)
