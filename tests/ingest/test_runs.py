"""Runs of events ahead of a position: what they join, and what is read again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.decode.block import ROW
from streamd.events import EDGE, Position, Run
from streamd.ingest.order.runs import join_runs, lacks_events, runs_from, runs_of

WHERE_OPTIONS_ARE = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), unique=True).map(sorted)


def rows(places):
    return np.array([(0, 0, 0, offset, item, EDGE, 0, 0, -1) for offset, item in places], ROW)


@given(WHERE_OPTIONS_ARE, st.data())
def test_what_is_released_is_ahead_and_what_waits_is_not(places, data):
    """Several releases, and polls in between; then all is read again."""
    read, waiting, log, runs, following = 0, [], [], (), (0, 0)
    while read < len(places) or waiting:
        polled = places[read: read + data.draw(st.integers(1, 5))]
        read, waiting = read + len(polled), waiting + polled
        following = (*waiting[-1][:1], waiting[-1][1] + 1)
        gone = np.array([data.draw(st.booleans()) or read >= len(places) for _ in waiting])
        runs = [*runs, *runs_of(rows(waiting), gone)]
        log += [w for w, g in zip(waiting, gone, strict=True) if g]
        waiting = [w for w, g in zip(waiting, gone, strict=True) if not g]
        runs = join_runs(runs, rows(waiting), following)
        first = waiting[0] if waiting else following
        resume = Position(*first, runs_from(runs, first))
        assert lacks_events(rows(places), resume).tolist() == [p not in log for p in places]
        assert len(runs) <= len(waiting), "between two runs an event waits"


def test_a_run_known_from_before_a_restart_is_not_joined_over_what_is_not_read_yet():
    stored = Run((5, 0), (7, 0))
    assert join_runs([Run((1, 0), (2, 0)), stored], rows([(0, 0)]), (3, 0)) == (Run((1, 0), (2, 0)), stored)
    assert join_runs([Run((1, 0), (4, 0)), stored], rows([(0, 0)]), (8, 0)) == (Run((1, 0), (7, 0)),)
    assert join_runs([stored], rows([]), (5, 0)) == (stored,), "all before it is in the log, and a kill may come before it is read"
    assert join_runs([stored], rows([]), (8, 0)) == ()
