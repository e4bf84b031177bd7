import math

import numpy as np
import pytest

from streamd.windows.intervals import (
    MIN_WINDOWS,
    Difference,
    block_length,
    difference,
    radius,
    score_text,
)


def windows(rng, count, carried):
    """Differences of windows, each of which takes `carried` of the one before it: float64[count], of mean 0."""
    out = rng.normal(size=count + 50)
    for i in range(1, len(out)):
        out[i] += carried * out[i - 1]
    return out[50:]


def share_held(count, carried, block, repeats=250):
    """Share of the repeats in which the interval holds the true mean of 0."""
    rng = np.random.default_rng(7)
    drawn = [(rng.integers(50, 150, count).astype(float), windows(rng, count, carried)) for _ in range(repeats)]
    return np.mean([abs(np.average(gap, weights=weight)) <= radius(weight, gap, block) for weight, gap in drawn])


def test_the_interval_of_independent_windows_holds_the_true_difference_95_times_in_100():
    # 250 repeats of a true .93 to .95 lie within .04 of it in all but one case of a hundred.
    assert 0.90 <= share_held(60, 0, block_length(60)) <= 0.99
    assert share_held(MIN_WINDOWS, 0, block_length(MIN_WINDOWS)) >= 0.86


def test_blocks_hold_the_difference_of_windows_that_resemble_their_neighbors_more_often_than_single_windows():
    assert share_held(100, 0.5, block_length(100)) > share_held(100, 0.5, 1) + 0.05


def test_windows_that_resemble_their_neighbors_give_a_wider_interval_with_blocks():
    rng, weight = np.random.default_rng(1), np.ones(400)
    alike, independent = windows(rng, 400, 0.8), windows(rng, 400, 0)
    assert radius(weight, alike, block_length(400)) > 1.5 * radius(weight, alike, 1)
    assert radius(weight, independent, block_length(400)) < 1.2 * radius(weight, independent, 1)


def test_the_interval_of_single_windows_is_the_normal_one_of_a_mean():
    gap = np.random.default_rng(2).normal(0, 3, 500)
    assert math.isclose(radius(np.ones(500), gap, 1), 1.96 * gap.std(ddof=1) / math.sqrt(500), rel_tol=0.06)


def test_equal_differences_have_no_width():
    weight = np.arange(1.0, 41)
    scores = np.linspace(0.1, 0.6, 40)
    found = difference(weight, scores + 0.1, scores)
    assert math.isclose(found.mean, 0.1) and found.radius < 1e-12 and not found.is_level
    same = difference(weight, scores, scores)
    assert same.mean == same.radius == 0 and same.is_level


def test_a_window_weighs_as_much_as_it_has_events():
    weight, one = np.ones(20), np.zeros(20)
    one[3], weight[3] = 1, 10_000
    found = difference(weight, one, np.zeros(20))
    assert math.isclose(found.mean, 10_000 / 10_019) and found.radius > 0.9, "one window tells nothing of the others"


def test_the_same_windows_give_the_same_interval_and_the_reverse_has_the_same_width():
    rng = np.random.default_rng(3)
    weight, one, other = rng.integers(1, 9, 31).astype(float), rng.random(31), rng.random(31)
    found = difference(weight, one, other)
    assert found == difference(weight, one, other)
    assert math.isclose(difference(weight, other, one).radius, found.radius)
    assert found.opposite() == Difference(-found.mean, found.radius, 31)


def test_every_window_is_drawn_as_often_the_last_ones_too():
    """A lone odd window widens the interval by the same wherever it is, for blocks go on from the last to the first."""
    widths = []
    for at in (0, 1, 14, 28, 29):
        gap = np.zeros(30)
        gap[at] = 1
        widths.append(radius(np.ones(30), gap, 3))
    assert max(widths) < 1.15 * min(widths)


@pytest.mark.parametrize(("count", "block"), [(1, 1), (2, 1), (12, 2), (27, 3), (48, 4), (1000, 10)])
def test_a_block_is_the_cube_root_of_the_windows(count, block):
    assert block_length(count) == block


def test_one_window_has_no_interval():
    found = difference(np.ones(1), np.ones(1), np.zeros(1))
    assert found.radius == math.inf and found.is_level and not found.is_sure and str(found) == "1.000"


@pytest.mark.parametrize(("score", "text"), [(0.9064, ".906"), (-0.0119, "-.012"), (-0.0001, ".000"), (0, ".000"), (1, "1.000")])
def test_scores_are_written_with_three_digits(score, text):
    assert score_text(score) == text
    assert str(Difference(score, 0.0101, MIN_WINDOWS)) == f"{text} ± .010" and str(Difference(score, 0.01, MIN_WINDOWS - 1)) == text


@pytest.mark.parametrize(("score", "text"), [(0.9064, ".906"), (-0.0121, "-.012"), (-0.0001, ".000"), (1.0, "1.000"), (10.5, "10.500"), (-20.25, "-20.250")])
def test_only_a_zero_before_the_point_is_left_out(score, text):
    assert score_text(score) == text
