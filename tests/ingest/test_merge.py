import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, ROW, Block
from streamd.events import EDGE, Position, Run
from streamd.ingest.order.merge import Merger as AnyMerger
from streamd.ingest.order.runs import lacks_events


class Merger(AnyMerger):
    """Takes and gives events as plain (time, source, offset, item)."""

    def __init__(self, num_sources, wait_seconds, **more):
        super().__init__(num_sources, wait_seconds, 0, **more)

    def push(self, source, events, next_offset, at_end, now):
        super().push(source, block(events), (next_offset, 0), at_end, now)

    def release(self, now, limit):
        return [tuple(int(r[n]) for n in ("time", "source", "offset", "item")) for r in super().release(now, limit).rows]


def block(events):
    rows = np.array([(t, NO_STAMP, s, o, i, EDGE, 0, 0, -1) for t, s, o, i in events], ROW)
    return Block(rows, np.zeros((len(rows), 0), np.float32))


def event(time, source, offset, item=0):
    return time, source, offset, item


def times(events):
    return [e[0] for e in events]


def runs(*places):
    """Runs of one event each."""
    return tuple(Run(place, place) for place in places)


@given(st.integers(0, 10), st.integers(0, 9), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=5))
def test_what_a_start_takes_over_is_what_position_says(offset, index, ahead):
    """Whoever has nothing buffered must not forget the events of its record that the log holds already."""
    stored = Position(offset, index, runs(*sorted(a for a in set(ahead) if a >= (offset, index))))
    merger = Merger(2, 0.2)
    merger.start(0, stored)
    assert merger.position(0) == stored
    for now in (0.0, 1.0):
        merger.push(0, [], offset, False, now)
        merger.release(now, 100)
        assert merger.position(0) == stored, "a poll without records changes nothing"
    merger.push(0, [], 20, True, 2.0)
    assert merger.position(0) == Position(20), "what lies before the position need not be remembered"


def test_one_partition_waits_for_nobody():
    merger = Merger(1, 0.2)
    merger.push(0, [event(5, 0, 0), event(3, 0, 1)], 2, False, 0.0)
    assert times(merger.release(0.0, 100)) == [3, 5]
    assert merger.position(0) == Position(2)


def test_partitions_ahead_wait_for_those_behind():
    merger = Merger(2, 0.2)
    merger.push(0, [event(t, 0, t) for t in (1, 5, 9)], 10, False, 0.0)
    assert merger.release(100.0, 100) == [], "the other partition may hold anything"
    merger.push(1, [event(t, 1, t) for t in (2, 6)], 7, False, 0.0)
    assert times(merger.release(100.0, 100)) == [1, 2, 5], "6 may tie with what is still to come"
    merger.push(0, [], 10, True, 100.0)
    merger.push(1, [], 7, True, 100.0)
    assert times(merger.release(200.0, 100)) == [6, 9]


def test_a_live_event_waits_a_bounded_time_only():
    merger = Merger(2, 0.2)
    merger.push(0, [event(1, 0, 0)], 1, True, 0.0)
    merger.push(1, [event(2, 1, 0)], 1, True, 0.0)
    assert merger.next_due(0.0) == 0.2
    assert times(merger.release(0.1, 100)) == []
    assert times(merger.release(0.21, 100)) == [1, 2]
    assert merger.next_due(0.21) == 3600.0


def test_events_out_of_order_between_a_first_and_a_last_leave_in_order_of_time():
    merger = Merger(1, 0.2)
    merger.push(0, [event(t, 0, o) for o, t in enumerate((1, 3, 2, 4))], 4, True, 0.0)
    assert times(merger.release(1.0, 100)) == [1, 2, 3, 4] and merger.position(0) == Position(4)


def test_with_one_partition_no_event_waits():
    merger = Merger(1, 0.2)
    assert merger.next_due(0.0) == 3600.0
    merger.push(0, [event(1, 0, 0)], 1, False, 0.0)
    assert merger.next_due(0.0) == 0.0


def test_a_partition_that_never_had_a_record_holds_nobody_back():
    merger = Merger(3, 10.0)
    for empty in (1, 2):
        merger.push(empty, [], 0, True, 0.0)
    merger.push(0, [event(4, 0, 0), event(5, 0, 1)], 2, True, 0.0)
    assert times(merger.release(0.0, 100)) == [4]
    assert times(merger.release(10.0, 100)) == [5]


def test_positions_name_the_first_event_not_appended_and_those_ahead_of_it():
    merger = Merger(2, 10.0)
    merger.push(0, [event(9, 0, 0), event(2, 0, 1), event(3, 0, 1, 1)], 2, False, 0.0)
    merger.push(1, [event(5, 1, 0)], 1, False, 0.0)
    assert times(merger.release(0.0, 100)) == [2, 3]
    assert merger.position(0) == Position(0, 0, (Run((1, 0), (1, 1)),))
    again = block([event(9, 0, 0), event(2, 0, 1), event(3, 0, 1, 1), event(4, 0, 2)])
    assert lacks_events(again.rows, merger.position(0)).tolist() == [True, False, False, True]


def test_full_buffers_pause_all_but_the_partition_waited_for():
    merger = Merger(2, 0.2, max_buffered=3)
    merger.push(0, [event(t, 0, t) for t in range(5, 10)], 5, False, 0.0)
    merger.push(1, [event(1, 1, t) for t in range(4)], 4, False, 0.0)
    assert merger.partitions_to_pause() == [0]


def batched(source, times, rng):
    """Events as records of one to five, in order: a list of events per offset."""
    records, at = [], 0
    while at < len(times):
        size = int(rng.integers(1, 6))
        records.append([event(t, source, len(records), i) for i, t in enumerate(times[at: at + size])])
        at += size
    return records


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_interleaving_of_polls_gives_the_same_order_and_resumes_exactly(seed):
    rng = np.random.default_rng(seed)
    parts = [batched(p, np.sort(rng.integers(0, 30, rng.integers(1, 25))).tolist(), rng) for p in range(3)]
    want = sorted(e for part in parts for record in part for e in record)
    got, stored = [], [Position(0)] * 3
    resumed = list(stored)
    merger = Merger(3, 1e9)
    at = [0, 0, 0]
    while len(got) < len(want):
        if rng.random() < 0.1:
            merger = Merger(3, 1e9)
            for p in range(3):
                merger.start(p, stored[p])
                at[p] = stored[p].offset
            resumed = list(stored)
        p = int(rng.integers(3))
        n = int(rng.integers(0, 6))
        polled = [e for record in parts[p][at[p]:at[p] + n] for e in record]
        missing = lacks_events(block(polled).rows, resumed[p])
        fresh = [e for e, m in zip(polled, missing, strict=True) if m]
        at[p] = min(at[p] + n, len(parts[p]))
        merger.push(p, fresh, at[p], at[p] == len(parts[p]), 0.0)
        if all(a == len(x) for a, x in zip(at, parts, strict=True)):
            merger.wait_seconds = 0.0
        got += merger.release(0.0, int(rng.integers(1, 9)))
        stored = [merger.position(p) for p in range(3)]
    assert got == want
