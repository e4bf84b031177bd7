"""A p-value of .001 is one event in a thousand, whatever the model, and a source's usual events are not rare."""


import numpy as np
import pytest

from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.scoring import rarity
from streamd.scoring.rarity import (
    MIN_EVENTS,
    NewestValues,
    RarityCalibration,
    StoredRarity,
    counted_surprises,
    surprise,
)


def rate(calibration, event, edge_set, src, value, counts=None):
    """counts: as rare as the surprise by default."""
    return calibration.rate(event, edge_set, src, value, (value, value) if counts is None else counts)


@pytest.fixture(scope="module")
def rated():
    """Surprises of 30 sources, of which each has its own mean, and their p-values."""
    rng = np.random.default_rng(1)
    calibration = RarityCalibration()
    src = rng.integers(0, 30, 12_000)
    values = rng.gamma(2, 1 + src / 10)
    return [rate(calibration, i, "default", int(s), float(v)) for i, (s, v) in enumerate(zip(src, values, strict=True))]


def test_surprise_is_the_negative_log_of_the_softmax_share():
    scores = np.array([2.0, 1.0, -np.inf, 500.0], np.float32)
    assert surprise(scores) == pytest.approx(498) and surprise(np.zeros(4, np.float32)) == pytest.approx(np.log(4))


@pytest.mark.parametrize("seed", range(3))
def test_newest_values_count_as_a_plain_list_does(seed):
    rng = np.random.default_rng(seed)
    ours, plain = NewestValues(20), []
    for value in rng.integers(0, 6, 200).astype(float).tolist():
        tie = rng.random()
        want = (sum(v > value for v in plain) + tie * (1 + sum(v == value for v in plain))) / (len(plain) + 1)
        assert ours.p_value(value, tie) == pytest.approx(want)
        dropped = ours.add(value)
        plain.append(value)
        assert dropped == (plain.pop(0) if len(plain) > 20 else 0)
        assert ours.values == plain and ours._sorted == sorted(plain)


def test_there_is_no_p_value_before_enough_events_are_compared(rated):
    assert all(r.p_value is None for r in rated[:MIN_EVENTS]) and all(r.p_value is not None for r in rated[MIN_EVENTS:])


@pytest.mark.parametrize("bound", [0.5, 0.1, 0.01, 0.001])
def test_p_values_below_a_bound_are_as_frequent_as_it_says(rated, bound):
    """Within four standard deviations of a binomial count."""
    values = np.array([r.p_value for r in rated[MIN_EVENTS:]])
    want = len(values) * bound
    assert abs((values <= bound).sum() - want) < 4 * np.sqrt(want * (1 - bound))


def test_after_a_drift_they_are_again_once_the_events_before_it_are_dropped(monkeypatch):
    monkeypatch.setattr(rarity, "MAX_KEPT", 2_000)
    rng = np.random.default_rng(2)
    calibration = RarityCalibration()
    values = np.concatenate([rng.gamma(2, 1, 4_000), rng.gamma(2, 1, 6_000) + 3])
    p = np.array([rate(calibration, i, "default", i % 9, float(v)).p_value or 1 for i, v in enumerate(values)])
    assert (p[4_000:4_200] <= 0.2).mean() > 0.6, "most of them are rare at first"
    assert abs((p[7_000:] <= 0.05).sum() - 150) < 4 * np.sqrt(150 * 0.95)


def test_an_event_that_is_usual_for_others_is_rare_for_a_source_of_habit():
    rng = np.random.default_rng(3)
    calibration = RarityCalibration()
    for i in range(6_000):
        rate(calibration, i, "default", i % 20, 0.01 * rng.random() if i % 20 else 3 + rng.random())
    often, seldom = (rate(calibration, 6_001, "default", src, 3.5).p_value for src in (0, 7))
    assert seldom < 0.8 * often


def test_edge_sets_are_rated_apart_and_an_event_that_comes_again_is_not_counted_twice():
    rng = np.random.default_rng(4)
    calibration = RarityCalibration()
    for i in range(2 * MIN_EVENTS + 200):
        rate(calibration, i, ("calm", "wild")[i % 2], i % 7, float(rng.exponential((0.1, 10)[i % 2])))
    calm, wild = (rate(calibration, 5_000, name, 1, 20.0) for name in ("calm", "wild"))
    assert calm.p_value < 0.005 < wild.p_value
    assert rate(calibration, 17, "calm", 1, 20.0).p_value < 0.005 and len(calibration.state().sets["calm"][0]) == MIN_EVENTS + 101


def test_the_oldest_source_is_forgotten_and_deleted_ones_at_once(monkeypatch):
    monkeypatch.setattr(rarity, "MAX_SOURCES", 3)
    calibration = RarityCalibration()
    for i, src in enumerate((1, 2, 1, 3, 4)):
        rate(calibration, i, "default", src, 1.0)
    assert [node for node, *_ in calibration.state().sources] == [1, 3, 4]
    calibration.forget(np.array([3, 99]))
    assert [node for node, *_ in calibration.state().sources] == [1, 4]


def test_of_equal_surprises_the_one_with_the_rarer_destination_or_pair_is_rarer():
    rng = np.random.default_rng(6)
    calibration = RarityCalibration()
    for i in range(4_000):
        calibration.rate(i, "default", i % 20, float(rng.exponential()), tuple(rng.exponential(size=2)))
    usual, rare, pair = (calibration.rate(5_000, "default", 3, 2.0, counts).p_value for counts in [(0.5, 0.5), (9.0, 9.0), (0.5, 3.0)])
    assert rare < pair < usual and rare < 0.001 < usual


@pytest.mark.parametrize("met", [False, True])
def test_counts_are_shares_of_the_destination_and_of_the_pair(met):
    facts = np.zeros(NUM_FACTS, np.float32)
    facts[[FactColumn.LOG_SHARE_5, FactColumn.LOG_SOURCE_EVENTS]] = np.log(0.2), np.log(1 + 9)
    facts[FactColumn.LOG_PAIR_SHARE] = np.log(0.3)
    facts[FactColumn.MET] = met
    assert counted_surprises(facts) == pytest.approx((-np.log(0.2), -np.log((0.3 if met else 0) + 0.2 / 10)))


def test_a_file_without_counts_keeps_the_surprises_and_compares_anew():
    rng = np.random.default_rng(7)
    before = RarityCalibration()
    for i in range(2 * MIN_EVENTS):
        rate(before, i, "default", i % 20, float(rng.exponential()))
    state = before.state()
    after = RarityCalibration(StoredRarity(next_event=state.next_event, sets={"default": state.sets["default"][:3]}, sources=state.sources))
    rated = [rate(after, 2 * MIN_EVENTS + i, "default", i % 20, float(rng.exponential())) for i in range(MIN_EVENTS + 1)]
    assert [one.p_value is None for one in rated] == [True] * MIN_EVENTS + [False]
    assert after.state().sets["default"][0][:2 * MIN_EVENTS] == state.sets["default"][0]
