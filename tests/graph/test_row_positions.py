"""The age of each node's newest row of features, and a bounded sample of the nodes that have one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.graph import row_positions
from streamd.graph.row_positions import RowPositions


@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=6), max_size=12), st.integers(0, 100))
def test_ages_are_those_of_the_newest_rows(commits, more):
    """Each commit: (node, number of events since the row before)."""
    positions, newest, at = RowPositions(), {}, 0
    for commit in commits:
        events = []
        for node, gap in commit:
            at += gap
            newest[node] = at
            events.append(at)
        positions.take(np.array([node for node, _ in commit], np.int64), np.array(events, np.int64))
        assert positions.sample().tolist() == sorted(newest)
    nodes = np.arange(-1, 50)
    want = [np.log1p(at + more - newest[n]) if n in newest else -1 for n in nodes.tolist()]
    np.testing.assert_allclose(positions.ages(nodes, at + more), want, rtol=1e-6)
    assert positions.has_row(nodes).tolist() == [n in newest for n in nodes.tolist()]
    assert (positions.ages(nodes, 0)[positions.has_row(nodes)] == 0).all(), "a server may have rows that are newer than its memory"


def test_a_sample_of_many_rows_is_bounded_and_a_function_of_the_rows(monkeypatch):
    monkeypatch.setattr(row_positions, "MAX_SAMPLE", 100)
    nodes = np.random.default_rng(0).permutation(3000)
    grown, at_once = RowPositions(), RowPositions()
    for number, node in enumerate(nodes):
        grown.take(np.array([node]), np.array([number]))
        sample = grown.sample()
        assert len(sample) <= 150 and (number >= 100 or len(sample) == number + 1)
    at_once.take(nodes, np.arange(3000))
    assert np.array_equal(grown.sample(), at_once.sample())
    assert np.array_equal(np.unique(grown.sample()), grown.sample()) and len(sample) > 50, "about 94 of 3,000"
    assert abs(sample.mean() - 1500) < 300
