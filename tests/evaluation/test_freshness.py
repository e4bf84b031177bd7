import numpy as np
import pytest
import torch

from streamd.evaluation.freshness import NightlyView, StaleView
from streamd.evaluation.regimes import Regimes
from streamd.eventlog.reader import LogReader
from streamd.training.event_view import FreshView
from streamd.training.recorder import Recorder
from streamd.windows import recorded_windows
from tests.builders import HOUR, learning, settings, stream, write_log, write_sets_log
from tests.training.test_learner import windows, world


def test_a_standing_record_knows_nothing_of_the_day(tmp_path):
    s, log = world(tmp_path)
    third, fourth = list(windows(log))[2:4]
    moving, standing = Recorder(learning(s), log), Recorder(learning(s), log)
    for recorder in (moving, standing):
        recorder.rebuild(third.first_edge)
    pool = moving.view.pool_of(third)

    def recorded(window):
        standing.view = NightlyView(standing.live, pool)
        return [c for c in standing.chunks(window) if c.score is not None]

    first = [c.score.facts_ECF.numpy() for c in recorded(third)]
    assert recorded(fourth)
    again = [c.score.facts_ECF.numpy() for c in recorded(third)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert standing.edge == third.first_edge
    fresh = [c.score for c in moving.chunks(third) if c.score is not None]
    assert all(np.array_equal(a.event_E, c.score.event_E) for a, c in zip(fresh, recorded(third), strict=True))
    assert not all(np.array_equal(a.facts_ECF, b) for a, b in zip(fresh, first, strict=True))


@pytest.mark.parametrize("several_sets", [False, True])
@pytest.mark.parametrize("age", ["night", 5, None])
def test_events_whose_destination_old_facts_do_not_know_are_not_learned(tmp_path, age, several_sets):
    rng = np.random.default_rng(0)
    src, _, time = stream(900)
    dst = 20 + rng.integers(0, 10 + np.arange(900) // 10)
    if several_sets:
        write_sets_log(tmp_path / "log", src, dst, time, rng.integers(0, 2, 900))
    else:
        write_log(tmp_path / "log", src, dst, time)
    log, s = LogReader.open(tmp_path / "log"), settings(tmp_path / "log")
    first, second = list(recorded_windows(log, HOUR))[:2]
    recorder = Recorder(learning(s), log)
    recorder.rebuild(first.end_edge)
    fresh = FreshView(recorder.live)
    pool = fresh.pool_of(second)
    recorder.view = NightlyView(recorder.live, pool) if age == "night" else StaleView(fresh, recorder.live, age)
    known_then = set(log.edges(log.first_edge, first.end_edge)[1].tolist())
    chunks = [c for c in recorder.chunks(second) if c.learn is not None]
    event, weight, known = (np.concatenate(x) for x in zip(*(
        (c.learn.event_E.numpy(), c.learn.weight_E.numpy(), c.known_E) for c in chunks), strict=True))
    then = np.array([int(v) in known_then for v in log.gather("dst", event)])
    assert (weight[then] == 1).all()
    if age == 5:
        assert not weight[~known].any()
    else:
        np.testing.assert_array_equal(weight, then)
        assert (known & ~then).any(), "some came between midnight and the event"


def test_nightly_does_not_find_new_destinations_by_their_being_new(tmp_path):
    """Each day has destinations of its own; a model that knows nothing of them cannot rank them first."""
    rng = np.random.default_rng(0)
    days, a_day = 4, 300
    day = np.repeat(np.arange(days), a_day)
    src = rng.integers(0, 30, days * a_day)
    # Half of a day's events go to ten destinations that no day before had.
    own = rng.random(len(day)) < 0.5
    dst = 30 + np.where(own, 40 + 10 * day + rng.integers(0, 10, len(day)), rng.integers(0, 40, len(day)))
    time = np.sort(day * 24 * HOUR + rng.integers(0, 24 * HOUR, len(day)))
    write_log(tmp_path / "log", src, dst, time, watermark=days * 24 * HOUR)
    s = settings(tmp_path / "log", model__name="pair", training__learning_rate=0.01, training__epochs=4)
    log = LogReader.open(tmp_path / "log")
    run = Regimes(learning(s), log, ("live", "nightly"), 0)
    last = [w for w in map(run.window, recorded_windows(log, HOUR)) if w is not None][-20:]
    mean = {name: np.average([w.scores[name]["mrr_known"] for w in last], weights=[w.num_known for w in last]) for name in ("live", "nightly")}
    assert mean["nightly"] < 0.6 * mean["live"]


def growing_log(path):
    """One event in five goes to a destination that is new, and others to one of the last 20."""
    rng = np.random.default_rng(0)
    newest, dst = 100, []
    for is_new in rng.random(900) < 0.2:
        newest += is_new
        dst.append(newest if is_new else newest - rng.integers(0, min(20, newest - 99)))
    write_log(path, rng.integers(0, 30, 900), np.array(dst), stream(900)[2])
    return settings(path, model__name="pair"), LogReader.open(path)


@pytest.mark.parametrize(("age", "initial_epochs"), [(0, 2), (5, 0), (5, 2), (None, 2)])
def test_a_rate_of_new_destinations_is_learned_from_fresh_facts_alone(tmp_path, age, initial_epochs):
    """To older facts those are new too that had a first event since: the logit of new ones is not theirs."""
    s, log = growing_log(tmp_path / "log")
    run = Regimes(learning(s), log, ("live", "frozen"), 300, initial_epochs, age)
    scored = [w for w in map(run.window, recorded_windows(log, HOUR)) if w is not None]
    assert sum(w.num_scored for w in scored) > 400
    for learner in run.learners.values():
        assert learner.num_learned and bool(learner.model.new_destinations.logit_S.isfinite()) == (age == 0)


@pytest.mark.parametrize("initial_epochs", [0, 2])
def test_frozen_weights_keep_the_rate_of_new_destinations_of_the_cut(tmp_path, initial_epochs):
    s, log = growing_log(tmp_path / "log")
    run = Regimes(learning(s), log, ("live", "frozen"), 300, initial_epochs)
    counts, statistics = [], []
    for window in recorded_windows(log, HOUR):
        run.window(window)
        model = run.learners["frozen"].model
        if window.first_edge >= 300:
            counts.append(model.new_destinations.counts.clone())
            statistics.append(model.fact_stats.shift.clone())
    assert len(counts) >= 3 and counts[0][1] > 0
    assert all(torch.equal(one, counts[0]) for one in counts)
    assert not torch.equal(run.learners["live"].model.new_destinations.counts, counts[0])
    assert not torch.equal(statistics[-1], statistics[0]), "statistics of inputs move on"
