"""One clock ahead of all others takes nobody's time, and whoever is merely late or silent is not refused for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, ROW, Block, joined
from streamd.events import DELETE, EDGE, NODE
from streamd.ingest.order import suspects
from streamd.ingest.order.suspects import HOLD_SECONDS, NUM_FOLLOWERS, Suspects

SECOND, HOUR, DAY = 10**6, 3600 * 10**6, 24 * 3600 * 10**6
TODAY = 50 * 365 * DAY


def block(times, stamps, first_offset=0, kind=EDGE):
    rows = np.zeros(len(times), ROW)
    rows["time"], rows["stamp"], rows["kind"] = times, stamps, kind
    rows["offset"], rows["b"], rows["extra"] = first_offset + np.arange(len(times)), 1, -1
    return Block(rows, np.zeros((len(rows), 0), np.float32))


class Partition:
    """Events judged in polls of so many, in 10 ms of time each; then a quiet time."""

    def __init__(self, times, stamps, poll=500, max_ahead=60 * SECOND):
        self.suspects, now = Suspects(max_ahead, 0), 0.0
        self.taken, self.refused, self.waited, came = [], [], 0.0, []
        whole = block(times, stamps)
        for first in [*range(0, len(times), poll), *[len(times)] * 200]:
            events = whole.take(np.arange(first, min(first + poll, len(times))))
            came += [now] * len(events)
            judged = self.suspects.judge(events, now)
            self.taken += judged.taken.rows["offset"].tolist()
            self.refused += judged.refused.rows["offset"].tolist()
            for offset in [*judged.taken.rows["offset"].tolist(), *judged.refused.rows["offset"].tolist()]:
                self.waited = max(self.waited, now - came[offset])
            now += 0.01
        assert sorted(self.taken + self.refused) == list(range(len(times))) and self.taken == sorted(self.taken)


def live(num, every=SECOND, lag=SECOND // 2, start=TODAY):
    time = start + np.arange(num) * every
    return time, time + lag


def imported(num, every, start=TODAY // 2):
    """History produced today, as fast as it goes."""
    return start + np.arange(num) * every, TODAY + np.arange(num) * 20


@pytest.mark.parametrize("poll", [1, 7, 500, 20_000])
def test_in_a_live_stream_nothing_waits(poll):
    read = Partition(*live(3000), poll)
    assert read.refused == [] and read.waited == 0


@pytest.mark.parametrize("poll", [1, 30, 500, 20_000])
def test_single_events_of_an_import_that_are_days_ahead_are_refused(poll):
    time, stamp = imported(6000, 30 * SECOND)
    wrong = [150, 1000, 1001, 1002, 3500, 5600]
    time[wrong] += 4 * DAY
    read = Partition(time, stamp, poll)
    assert read.refused == wrong and read.waited <= HOLD_SECONDS + 0.02


@pytest.mark.parametrize("poll", [1, 30, 500])
def test_an_import_of_a_year_is_taken_whole(poll):
    read = Partition(*imported(8000, 365 * DAY // 8000), poll)
    assert read.refused == [] and read.waited <= HOLD_SECONDS + 0.02


def test_eight_hours_of_silence_are_no_reason_to_refuse_anything():
    for time, stamp in (live(2000), imported(2000, SECOND)):
        time[1200:] += 8 * HOUR
        if time is not stamp and stamp[0] > time[0] and stamp[0] - time[0] < DAY:
            stamp[1200:] += 8 * HOUR
        for poll in (1, 500):
            read = Partition(time, stamp, poll)
            assert read.refused == []


def test_the_last_event_of_an_import_is_taken_after_a_moment_though_a_gap_lies_before_it():
    time, stamp = imported(2000, SECOND)
    time[-1] += 8 * HOUR
    read = Partition(time, stamp)
    assert read.refused == [] and HOLD_SECONDS <= read.waited <= HOLD_SECONDS + 0.02


def test_producers_that_send_in_batches_lose_nothing():
    """Ten minutes of events are sent together, in order or shuffled: leads spread over ten minutes."""
    rng = np.random.default_rng(0)
    for shuffled in (False, True):
        time, stamp = [], []
        for batch in range(30):
            own = TODAY + batch * 600 * SECOND + np.sort(rng.integers(0, 600, 200)) * SECOND
            time.append(rng.permutation(own) if shuffled else own)
            stamp.append(np.full(200, TODAY + (batch + 1) * 600 * SECOND))
        assert Partition(np.concatenate(time), np.concatenate(stamp), 200).refused == []


def test_late_events_do_not_make_others_suspicious():
    rng = np.random.default_rng(1)
    time, stamp = live(5000)
    time[rng.random(5000) < 0.3] -= 5 * HOUR
    assert Partition(time, stamp).refused == []


def test_deletes_and_records_without_a_timestamp_pass_and_wait_with_what_is_before_them():
    suspects = Suspects(60 * SECOND, 0)
    time, stamp = imported(400, SECOND)
    suspects.judge(block(time, stamp), 0.0)
    suspects.judge(block(time[:0], stamp[:0]), HOLD_SECONDS)
    ahead = block([int(time[-1]) + DAY], [int(stamp[-1])], 400)
    assert not len(suspects.judge(ahead, 5.0).taken.rows)
    later = suspects.judge(block([0], [TODAY], 401, DELETE), 5.1)
    assert not len(later.taken.rows) and suspects.first_held == (400, 0)
    rest = block(time[-1] + np.arange(NUM_FOLLOWERS), stamp[:NUM_FOLLOWERS] + 400 * 20, 402)
    judged = suspects.judge(rest, 5.2)
    assert judged.refused.rows["offset"].tolist() == [400] and judged.taken.rows["offset"].tolist() == list(range(401, 502))
    assert judged.ahead_seconds[0] > 80_000
    none = suspects.judge(block([5], [NO_STAMP], 502), 6.0)
    assert len(none.taken.rows) == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_stream_comes_out_in_order_within_a_second(seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 800))
    time = TODAY + np.cumsum(rng.choice([0, SECOND, HOUR, DAY], num, p=[0.3, 0.5, 0.15, 0.05]))
    time = time + rng.choice([0, 0, 0, 5 * DAY], num)
    read = Partition(time, TODAY + np.sort(rng.integers(0, 10**9, num)), int(rng.integers(1, 300)))
    assert read.waited <= HOLD_SECONDS + 0.02


def test_while_an_event_is_held_whatever_comes_behind_it_is_copied_once(monkeypatch):
    """Node features decide nothing about an event that leads far, and may be many."""
    copied = []
    monkeypatch.setattr(suspects, "joined", lambda blocks: copied.append(sum(map(len, blocks))) or joined(blocks))
    for num_polls in (100, 200):
        copied.clear()
        held = Suspects(60 * SECOND, 0)
        held.judge(block(*live(500)), 0.0)
        held.judge(block([TODAY + DAY], [TODAY], 500), 0.0)
        for i in range(num_polls):
            assert not len(held.judge(block([0] * 50, [TODAY] * 50, 501 + 50 * i, NODE), 0.001 * i).taken)
        assert held.first_held == (500, 0) and sum(copied) == 0
        assert len(held.judge(EMPTY, 2.0).taken) == 50 * num_polls + 1 and sum(copied) == 50 * num_polls + 1


EMPTY = block([], [])
