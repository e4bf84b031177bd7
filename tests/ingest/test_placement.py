"""Places of deletes and node features: as the plain reference has them, at a cost that grows with the events alone."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, ROW, Block, joined
from streamd.events import DELETE, EDGE, LABEL, NODE
from streamd.ingest.order.placement import Situation, order_events
from tests.ingest import placement_reference


def block(source, events):
    """events: (kind, stamp, time, a, b) each; a delete with a `b` names an edge, of `time`."""
    rows = np.zeros(len(events), ROW)
    extras = []
    for i, (kind, stamp, time, a, b) in enumerate(events):
        of_edge = kind == DELETE and b >= 0
        rows[i] = (0 if kind in (DELETE, NODE) else time, stamp, source, i // 2, i % 2, kind, a, b if kind in (EDGE, DELETE) else -1,
                   len(extras) if of_edge else -1)
        extras += [(time, 0)] if of_edge else []
    return Block(rows, np.zeros((len(rows), 0), np.float32), extras)


def small(low, high):
    return st.integers(low, high)


EVENTS = st.lists(st.tuples(st.sampled_from([EDGE, EDGE, DELETE, NODE, LABEL]), small(NO_STAMP, 6), small(0, 6), small(0, 2), small(-1, 2)).filter(
    lambda e: e[0] != EDGE or e[4] >= 0), max_size=12)
SITUATIONS = st.builds(Situation, lead=st.none() | small(-3, 3), reached=small(-1, 8), bound=st.none() | small(0, 9),
                       overdue=st.tuples(small(-1, 4), small(0, 1)), crowded=st.booleans())


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(EVENTS, SITUATIONS), min_size=1, max_size=3))
def test_places_are_those_of_the_reference(parts):
    buffers = [block(source, events) for source, (events, _) in enumerate(parts)]
    situations = [now for _, now in parts]
    at, ready = order_events(joined(buffers), [len(b) for b in buffers], situations)
    assert list(zip(at.tolist(), ready.tolist(), strict=True)) == placement_reference.order_events(buffers, situations)


def presence(num, source=0):
    """One node that comes, is deleted and comes again."""
    return block(source, [(EDGE, i, 10 + i, 0, 1 + i) if i % 2 else (DELETE, i, 0, 0, -1) for i in range(num)])


def repeated(num, source=0):
    """One delete of an edge that a producer sends again and again, with edges between."""
    return block(source, [(EDGE, i, i, 3, 4) if i % 2 else (DELETE, i, 1, 3, 4) for i in range(num)])


def work(buffers):
    """Lines of Python that a placement runs, and the bytes that it holds at most."""
    now = Situation(lead=0, reached=2**62, bound=None, overdue=(-1, -1))
    all_of_them, lines = joined(buffers), 0

    def count(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return count if "streamd/ingest" in frame.f_code.co_filename else None

    before = sys.gettrace()
    tracemalloc.start()
    sys.settrace(count)
    try:
        order_events(all_of_them, [len(b) for b in buffers], [now] * len(buffers))
    finally:
        sys.settrace(before)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return lines, peak


@pytest.mark.parametrize("made", [
    lambda n: [presence(n)], lambda n: [presence(n, 0), presence(n, 1)],
    lambda n: [repeated(n, 0), repeated(n, 1), presence(n, 2)]])
def test_deletes_of_one_name_cost_no_steps_of_their_own_and_memory_by_the_event(made):
    work(made(10))  # whatever the first call of all costs
    (lines, peak), (lines_of_twice, peak_of_twice) = work(made(1500)), work(made(3000))
    assert lines_of_twice < 2.2 * lines and peak_of_twice < 2.2 * peak
