"""A share of the negatives for learning are destinations of recent events, and how often each is drawn is known exactly."""

import dataclasses

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph.negatives import LEARNED_SEED, NUM_LEARNED, NUM_SCORED
from streamd.graph.recent_negatives import (
    RECENT_EVENTS,
    RECENT_SEED,
    RecentDestinations,
    draw_for_learning,
)
from streamd.training.recorder import Recorder
from streamd.windows import Window
from tests.builders import HOUR, learning, sets_stream, settings, stream, write_log, write_sets_log
from tests.graph.test_negatives import hash_of

PLAIN = Schema(2, 0, 0)


def world(path, num_items=40):
    """A log of popular and rare destinations, and the pools and recent destinations at its end."""
    src, dst, time = stream(3000, num_items=num_items)
    popular = np.random.default_rng(1).random(3000) < 0.4
    dst = np.where(popular, dst.min() + 1, dst)
    write_log(path, src, dst, time, PLAIN, watermark=100 * HOUR)
    return pools_of(path, LogReader.open(path)), dst


def pools_of(path, log, **more):
    recorder = Recorder(learning(settings(path, **more)), log)
    window = Window(0, 10 * HOUR, 0, log.num_edges)
    return log, recorder.view.pool_of(window), recorder


def plain_draws(event, true, others, recent, num_drawn):
    """The words of `draw_for_learning` in Python integers. others: in order of first sight."""
    uniform = [others[hash_of(event, j, LEARNED_SEED) % len(others)] for j in range(NUM_LEARNED)]
    hard = [recent[hash_of(event, j, RECENT_SEED) % len(recent)] for j in range(num_drawn)]
    return [uniform[j] if h == true else h for j, h in enumerate(hard)] + uniform[num_drawn:]


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_draws_are_those_of_a_plain_reference(tmp_path, share):
    (log, pools, _), dst = world(tmp_path)
    recent = RecentDestinations.until(log, log.num_edges, share)
    number = round(10 * share)
    assert np.array_equal(recent.dst_R, dst) and (recent.num_drawn(np.arange(3000)) == number).all()
    destination_order = list(dict.fromkeys(dst.tolist()))
    event = np.arange(200, 260)
    got, log_draws = draw_for_learning(pools, recent, event, dst[event])
    times = np.bincount(dst) / len(dst)
    hits = 0
    for i, e in enumerate(event.tolist()):
        true = int(dst[e])
        others = [n for n in destination_order if n != true]
        assert got[i].tolist() == plain_draws(e, true, others, dst.tolist(), number)
        hits += sum(dst[hash_of(e, j, RECENT_SEED) % len(dst)] == true for j in range(number))
        want = [share * times[n] * len(others) + 1 - share + (j > 0) * share * times[true] for j, n in enumerate([true, *got[i].tolist()])]
        assert np.allclose(log_draws[i], np.log(want), atol=1e-6)
    assert hits > 5, "true destinations were drawn and replaced"


def test_how_often_a_negative_is_drawn_is_the_frequency_it_is_corrected_by(tmp_path):
    (log, pools, _), dst = world(tmp_path, num_items=15)
    recent = RecentDestinations.until(log, log.num_edges, 0.5)
    true, count = int(np.unique(dst)[1]), 40_000
    got, log_draws = draw_for_learning(pools, recent, np.arange(count), np.full(count, true))
    others = np.setdiff1d(dst, true)
    assert len(others) == 14 and true not in got
    for node in others.tolist():
        expected = np.exp(log_draws[:, 1:][got == node][0]) / len(others)
        assert (got == node).mean() == pytest.approx(expected, abs=float(4 * np.sqrt(expected / got.size)))
    # The frequencies are of one whole, and some are drawn far more often than others.
    odds = [np.exp(log_draws[:, 1:][got == node][0]) for node in others.tolist()]
    assert np.mean(odds) == pytest.approx(1, abs=1e-5) and max(odds) < 2
    popular = true
    _, log_draws = draw_for_learning(pools, recent, np.arange(50), np.full(50, int(others[0])))
    got, _ = draw_for_learning(pools, recent, np.arange(50), np.full(50, int(others[0])))
    assert np.exp(log_draws[:, 1:][got == popular][0]) > 3


def test_no_share_draws_what_was_drawn_before(tmp_path):
    (log, pools, _), dst = world(tmp_path)
    event = np.arange(100)
    recent = RecentDestinations.until(log, log.num_edges, 0.0)
    got, log_draws = draw_for_learning(pools, recent, event, dst[event])
    assert np.array_equal(got, pools.draw(event, dst[event], pools.sizes(dst[event]), NUM_LEARNED, LEARNED_SEED))
    assert log_draws.shape == (100, 11) and not log_draws.any()


@pytest.mark.parametrize("share", [0.01, 0.04, 0.1, 0.25, 0.29, 0.7, 0.9])
def test_a_share_that_is_no_whole_number_of_negatives_is_exact_on_average(share):
    recent, event = RecentDestinations(np.zeros(0, np.int64), share), np.arange(50_000)
    number = recent.num_drawn(event)
    exact, low = 10 * share, int(10 * share + 1e-9)
    assert set(number.tolist()) <= {low, low + 1}
    rest = exact - low
    assert number.mean() == pytest.approx(exact, abs=4 * np.sqrt(max(rest * (1 - rest), 0) / len(event)) + 1e-9)
    assert np.array_equal(number[7:90], recent.num_drawn(event[7:90])), "it is of the event alone"


def test_each_event_is_corrected_by_its_own_number_of_recent_negatives(tmp_path):
    (log, pools, _), dst = world(tmp_path)
    event = np.arange(200)
    got, log_draws = draw_for_learning(pools, mixed := RecentDestinations.until(log, log.num_edges, 0.04), event, dst[event])
    number = mixed.num_drawn(event)
    assert 0 < number.sum() < 200 and not log_draws[number == 0].any()
    uniform, _ = draw_for_learning(pools, RecentDestinations.until(log, log.num_edges, 0.0), event, dst[event])
    one, of_one = draw_for_learning(pools, RecentDestinations.until(log, log.num_edges, 0.1), event, dst[event])
    assert np.array_equal(got, np.where(number[:, None] > 0, one, uniform))
    assert np.array_equal(log_draws, np.where(number[:, None] > 0, of_one, 0)) and log_draws.any()


def test_of_few_destinations_each_comes_once_and_nothing_is_corrected(tmp_path):
    (log, pools, _), dst = world(tmp_path, num_items=9)
    recent = RecentDestinations.until(log, log.num_edges, 0.5)
    got, log_draws = draw_for_learning(pools, recent, np.arange(50), dst[:50])
    for row, true in zip(got, dst[:50], strict=True):
        assert sorted(set(row.tolist()) | {int(true)}) == np.unique(dst).tolist()
    assert not log_draws.any()


def test_only_the_newest_events_count(tmp_path):
    count = RECENT_EVENTS + 500
    dst = np.where(np.arange(count) < 500, 7, 20 + np.arange(count) % 30)
    write_log(tmp_path, np.arange(count) % 5, dst, 1 + np.arange(count), PLAIN, watermark=100 * HOUR)
    recent = RecentDestinations.until(LogReader.open(tmp_path), count, 0.5)
    assert len(recent.dst_R) == RECENT_EVENTS and 7 not in recent.dst_R


def test_deleted_destinations_are_not_drawn(tmp_path):
    (log, _, _), dst = world(tmp_path)
    gone = int(np.unique(dst)[1])
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = gone, -1, -1
    writer = LogWriter(tmp_path, PLAIN)
    writer.commit(dataclasses.replace(empty_batch(PLAIN), deletions_X=rows), Progress(), 100 * HOUR)
    writer.close()
    log.refresh()
    log, pools, _ = pools_of(tmp_path, log)
    left = np.flatnonzero(dst != gone)[:200]
    recent = RecentDestinations.until(log, log.num_edges, 0.9)
    got, log_draws = draw_for_learning(pools, recent, left, dst[left])
    assert gone not in got and np.isfinite(log_draws).all() and log_draws.any()


def test_negatives_are_of_the_node_set_of_the_true_destination(tmp_path):
    src, dst, time, sets = sets_stream(num_users=40, num_items=30)
    write_sets_log(tmp_path, src, dst, time, sets, num_users=40, watermark=100 * HOUR)
    log, pools, _ = pools_of(tmp_path, LogReader.open(tmp_path))
    _, dst, _ = log.edges(0, log.num_edges)
    recent = RecentDestinations.until(log, log.num_edges, 0.5)
    got, log_draws = draw_for_learning(pools, recent, np.arange(len(dst)), dst)
    own = pools.node_sets_of(dst)
    assert len(np.unique(own)) == 2 and log_draws.any()
    assert (pools.node_sets_of(got.ravel()).reshape(got.shape) == own[:, None]).all()
    assert (got[own >= 0] != dst[:, None]).all()


def recorded(path, share):
    log = LogReader.open(path)
    own = learning(settings(path, stream__edge_feature_dim=2, model__name="pair", training__recent_negatives=share))
    recorder = Recorder(own, log)
    return [chunk for hour in range(6) for chunk in recorder.chunks(window_of(log, hour)) if chunk.score is not None]


def window_of(log, hour):
    time = log.edges(0, log.num_edges)[2]
    return Window(hour * HOUR, (hour + 1) * HOUR, *np.searchsorted(time, [hour * HOUR, (hour + 1) * HOUR]).tolist())


def test_what_events_are_scored_with_stays_and_only_learning_is_corrected(tmp_path):
    world(tmp_path)
    plain, mixed = recorded(tmp_path, 0.0), recorded(tmp_path, 0.5)
    for a, b in zip(plain, mixed, strict=True):
        assert np.array_equal(a.scored_facts, b.scored_facts) and np.array_equal(a.known_E, b.known_E)
        assert not a.learn.log_draws_EC.any() and not b.score.log_draws_EC.any()
        assert b.learn.log_draws_EC.any(1).all() and not np.array_equal(a.learn.facts_ECF, b.learn.facts_ECF)
    again = recorded(tmp_path, 0.5)
    assert all((a.learn.facts_ECF == b.learn.facts_ECF).all() for a, b in zip(mixed, again, strict=True))
    assert NUM_SCORED == 100
