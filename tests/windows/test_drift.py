import numpy as np
import pytest

from streamd.windows.drift import Drift
from streamd.windows.history import WindowRecord


def record(mrr, num_scored=200, model="live"):
    return WindowRecord(start_us=0, end_us=1, first_edge=0, end_edge=num_scored, num_scored=num_scored, version="v", scored_by="v",
                        promoted=True, reason="", scores={model: {"mrr": mrr}} if num_scored else {}, loss=None, seconds={}, finished_at=0.0)


def steady(rng, count=60, events=200):
    return [record(float(m), events) for m in 0.8 + rng.normal(0, 0.03, count)]


def test_a_fall_is_told_from_the_noise_of_windows_before():
    windows = steady(np.random.default_rng(0))
    drift = Drift()
    seen = [s for w in windows if (s := drift.surprise(w))]
    assert len(seen) == 50 and max(seen) < 3
    assert drift.surprise(record(0.3)) > 8 and drift.surprise(record(0.95)) < 0


def test_a_fall_of_a_few_events_is_chance():
    windows = steady(np.random.default_rng(1))
    assert Drift(windows).surprise(record(0.3, 5)) < 3 < 6 < Drift(windows).surprise(record(0.3, 500))


def test_what_stays_low_is_no_surprise_any_more():
    drift = Drift(steady(np.random.default_rng(2)))
    falls = [drift.surprise(record(0.4)) for _ in range(100)]
    assert falls[0] > 6 and abs(falls[-1]) < 1 and falls == sorted(falls, reverse=True)


def test_the_first_windows_and_those_without_scores_say_nothing():
    drift = Drift()
    assert [drift.surprise(record(m)) for m in [0.9] * 5 + [0.1] * 5] == [0] * 10
    assert drift.surprise(record(0.5, 0)) is None and drift.surprise(record(0.5, model="shadow")) is None
    assert drift.surprise(record(0.5)) == pytest.approx(0)


def test_a_restart_compares_with_the_windows_that_history_holds():
    windows, last = steady(np.random.default_rng(3), 150), record(0.5)
    going_on = Drift(windows[:70])
    for window in windows[70:]:
        going_on.surprise(window)
    assert Drift(windows[-100:]).surprise(last) == going_on.surprise(last)
