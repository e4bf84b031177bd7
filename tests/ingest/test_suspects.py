"""One clock ahead of all others takes nobody's time, and whoever is merely late or silent is not refused for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, ROW, Block, joined
from streamd.events import DELETE, EDGE, NODE
from streamd.ingest.order import suspects
from streamd.ingest.order.replay_pace import LEVEL_EVENTS, usual_step
from streamd.ingest.order.suspects import HOLD_SECONDS, NUM_FOLLOWERS, StreamSuspects, Suspects

SECOND, HOUR, DAY = 10**6, 3600 * 10**6, 24 * 3600 * 10**6
TODAY = 50 * 365 * DAY


def block(times, stamps, first_offset=0, kind=EDGE):
    rows = np.zeros(len(times), ROW)
    rows["time"], rows["stamp"], rows["kind"] = times, stamps, kind
    rows["offset"], rows["b"], rows["extra"] = first_offset + np.arange(len(times)), 1, -1
    return Block(rows, np.zeros((len(rows), 0), np.float32))


class Partition:
    """Events judged in polls of so many, in 10 ms of time each, or `every` seconds; then a quiet time."""

    def __init__(self, times, stamps, poll=500, max_ahead=60 * SECOND, every=0.01):
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
            now += every
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


def replayed(hours, each, disorder=0, seed=0):
    """History at an hour a second: `each` events an hour, at random times of it, of which some come out of order."""
    rng = np.random.default_rng(seed)
    of_hour = np.repeat(np.arange(hours), each)
    time = TODAY // 2 + of_hour * HOUR + np.sort(rng.integers(0, HOUR, (hours, each))).ravel()
    return time + rng.integers(-disorder, disorder + 1, len(time)), TODAY + of_hour * SECOND + np.tile(np.arange(each) * 20, hours)


@pytest.mark.parametrize("disorder", [0, 60 * SECOND])
@pytest.mark.parametrize("each", [1, 5, 20, 53, 99])
def test_history_at_an_hour_a_second_never_waits(each, disorder):
    """Fewer than 100 events follow an event for a second, and each hour leads by an hour further than the last."""
    read = Partition(*replayed(max(40, 2500 // each), each, disorder), each, every=1.0)
    assert read.refused == [] and read.waited == 0


def test_history_whose_events_are_minutes_out_of_order_is_taken_once_its_pace_is_known():
    read = Partition(*replayed(200, 50, 10 * 60 * SECOND), 50, every=1.0)
    assert not [offset for offset in read.refused if offset > 200]


@pytest.mark.parametrize("each", [1, 5, 20, 53])
@pytest.mark.parametrize("ahead", [3 * DAY, 365 * DAY])
def test_single_events_of_a_replay_that_are_far_ahead_wait_and_are_refused(each, ahead):
    time, stamp = replayed(2_400 // each, each)
    wrong = [300, 1503, 1504, 2222]
    time[wrong] += ahead
    read = Partition(time, stamp, each, every=0.2 if each == 1 else 0.6)
    assert read.refused == wrong and HOLD_SECONDS <= read.waited <= HOLD_SECONDS + 0.6


@pytest.mark.parametrize("num_wrong", [1, 40])
def test_a_replay_that_begins_behind_events_of_a_wrong_clock_waits_for_none_and_refuses_what_is_far_ahead_of_it(num_wrong):
    """The wrong clock's events are the last for a while, so they are taken; they say nothing of the replay's pace."""
    live_time, live_stamp = live(400)
    ahead = live_time[-1] + 30 * DAY + np.arange(num_wrong)
    time, stamp = replayed(60, 53)
    stamp += HOUR
    time[[1500, 2500]] += 3 * DAY
    suspects, now, refused = Suspects(60 * SECOND, 0), 0.0, []
    suspects.judge(block(live_time, live_stamp), now)
    assert not len(suspects.judge(block(ahead, live_stamp[-1] + ahead * 0, 400), 2.0).taken)
    assert len(suspects.judge(EMPTY, 3.1).taken) == num_wrong

    whole, waits = block(time, stamp, 10_000), []
    for first in range(0, len(time), 53):
        now = 100.0 + first
        judged = suspects.judge(whole.take(np.arange(first, first + 53)), now)
        if len(judged.taken) < 53:
            waits.append(first)
            later = suspects.judge(EMPTY, now + HOLD_SECONDS)
            assert len(judged.taken) + len(later.taken) == 52
            refused += later.refused.rows["offset"].tolist()
    assert refused == [11_500, 12_500] and waits == [1484, 2491], "only the hours with a wrong time wait"


def poll_of(four, first, each):
    """The next events of four partitions that share a stream."""
    return [whole.take(np.arange(first, first + each)) for whole in four]


def four_of_a_replay(hours, each, gap):
    """Four partitions with a gap in event time before the last five hours."""
    of_each = [replayed(hours, each, seed=seed) for seed in range(4)]
    for time, _ in of_each:
        time[-5 * each :] += gap
    return [block(time, stamp) for time, stamp in of_each]


@pytest.mark.parametrize(("each", "waits"), [(40, False), (10, True)])
def test_behind_a_gap_nothing_waits_if_a_hundred_events_of_all_partitions_lead_as_far(each, waits):
    suspects, four, held = StreamSuspects(4, 60 * SECOND, 0), four_of_a_replay(60, each, 40 * DAY), []
    for hour in range(60):
        judged = suspects.judge(poll_of(four, hour * each, each), float(hour))
        assert not any(len(one.refused) for one in judged)
        if any(part.waiting_since is not None for part in suspects.partitions):
            held.append(hour)
    assert (55 in held) == waits and all(hour >= 55 for hour in held)


def test_a_clock_that_is_wrong_in_every_partition_confirms_nothing():
    """One producer's events go to all partitions, forty of its days ahead among hundreds of others that are not."""
    suspects, four = StreamSuspects(4, 60 * SECOND, 0), [block(*live(900)) for _ in range(4)]
    for part in four:
        part.rows["time"][500:510] += DAY
    for first in range(0, 500, 50):
        assert [len(one.taken) for one in suspects.judge(poll_of(four, first, 50), first / 50)] == [50] * 4
    assert not any(len(one.taken) for one in suspects.judge(poll_of(four, 500, 10), 20.0)), "forty events alone decide nothing"
    assert not any(len(one.taken) for one in suspects.judge(poll_of(four, 510, 50), 20.5)), "forty among two hundred and forty"
    for one in suspects.judge(poll_of(four, 560, 200), 20.6):
        assert one.refused.rows["offset"].tolist() == [*range(500, 510)] and len(one.taken)


def test_a_partition_that_is_years_further_on_confirms_nothing():
    time, stamp = imported(2000, SECOND)
    ahead = block(time + 365 * DAY, stamp)
    time[1000] += 4 * DAY
    suspects, four = StreamSuspects(4, 60 * SECOND, 0), [block(time, stamp), *[ahead] * 3]
    for first in range(0, 1000, 100):
        suspects.judge(poll_of(four, first, 100), first / 100)
    judged = suspects.judge(poll_of(four, 1000, 50), 10.0)
    assert not len(judged[0].taken) and [len(one.taken) for one in judged[1:]] == [50] * 3
    assert suspects.judge(poll_of(four, 1050, 100), 10.5)[0].refused.rows["offset"].tolist() == [1000]


def test_events_of_before_a_suspect_came_decide_nothing_about_it():
    suspects, four = StreamSuspects(4, 60 * SECOND, 0), [block(*imported(1000, SECOND)) for _ in range(4)]
    four[0].rows["time"][500] += 4 * DAY
    for part in four:
        part.rows["time"][600:] += 8 * HOUR
    for first in range(0, 500, 100):
        suspects.judge(poll_of(four, first, 100), first / 100)
    assert [len(one.taken) for one in suspects.judge(poll_of(four, 500, 100), 10.0)] == [0, 100, 100, 100]
    assert [len(one.taken) for one in suspects.judge(poll_of(four, 600, 40), 10.5)][1:] == [40, 40, 40]


def test_a_whole_burst_of_a_wrong_clock_in_a_replay_is_refused():
    """The level behind its first events is that of the wrong clock itself."""
    time, stamp = replayed(120, 20)
    wrong = [*range(1604, 1612)]
    time[wrong] += 3 * DAY
    read = Partition(time, stamp, 20, every=1.1)
    assert read.refused == wrong


def test_a_clock_that_is_wrong_again_and_again_makes_no_pace():
    """Bursts of one to thirty events that lead a day further, each over before the next."""
    rng = np.random.default_rng(3)
    for length in (1, 3, 5, 8, 30):
        lead = rng.integers(-SECOND, SECOND, 1000)
        for first in range(40, 960, 60):
            lead[first : first + length] += DAY
        assert usual_step(lead) < 2 * SECOND


def test_a_pace_is_known_after_six_steps_and_is_that_of_the_sixth_greatest():
    steps = np.array([0, 9, 7, 8, 2, 5, 6, 7, 1]) * HOUR
    lead = np.repeat(np.cumsum(steps), LEVEL_EVENTS)
    assert usual_step(lead) == 5 * HOUR, "9, 8, 7, 7, 6, 5; the last level confirms nothing yet of the step to it"
    assert usual_step(lead[: 7 * LEVEL_EVENTS]) == 0 and usual_step(lead[: 8 * LEVEL_EVENTS]) == 2 * HOUR
    assert usual_step(np.append(lead, [0] * LEVEL_EVENTS)) == 0, "all was undone"
    assert usual_step(lead[::-1]) == 0 and usual_step(lead[:0]) == 0


def test_an_event_may_lead_by_two_steps_of_the_pace_and_no_more():
    time, stamp = replayed(40, 10)
    for more, waits in ((2, False), (3, True)):
        suspects = Suspects(60 * SECOND, 0)
        suspects.judge(block(time, stamp), 0.0)
        suspects.judge(EMPTY, 2.0)
        lead = time - stamp
        last = int(np.median(lead[-LEVEL_EVENTS:])) + stamp[-1] + more * usual_step(lead)
        assert len(suspects.judge(block([last], [stamp[-1]], 400), 3.0).taken) == (not waits)


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
    assert not len(later.taken.rows) and suspects.first_waiting == (400, 0)
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
        assert held.first_waiting == (500, 0) and sum(copied) == 0
        assert len(held.judge(EMPTY, 2.0).taken) == 50 * num_polls + 1 and sum(copied) == 50 * num_polls + 1


EMPTY = block([], [])
