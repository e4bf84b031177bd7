"""Searches of all nodes under more load than can be answered."""

from types import SimpleNamespace

import numpy as np
import pytest

from streamd.server.engine import search
from streamd.server.engine.search import Searches
from streamd.serving.requests import Overloaded, Recommend, TooManyNodes

NODES, LARGEST_SLICE, NODE_SECONDS = 10_000, 1_000, 1e-5
BEST = 1 / (NODES * NODE_SECONDS)
"""Searches a second, one after the other."""


class Line:
    """Searches that come evenly, on a clock that only slices move."""

    def __init__(self, monkeypatch, nodes=NODES):
        self.now, self.answered, self.refused, self.late, self.too_many, self.longest = 0.0, 0, 0, 0, [], 0.0
        candidates = SimpleNamespace(nodes_of=lambda _: np.arange(nodes), allows=lambda nodes, _: np.ones(len(nodes), bool))
        self.state = SimpleNamespace(view=SimpleNamespace(candidates=candidates, ids=lambda _: [0]), served=None)
        self.searches = Searches(SimpleNamespace(max_candidates=LARGEST_SLICE, deadline_seconds=1.0))
        monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(search, "scores_of", self.scored)
        monkeypatch.setattr(search, "best_of", lambda *_: [0])
        monkeypatch.setattr(search, "make_recommendation", lambda *_: "the best")

    def scored(self, states, sources, parts, edge_sets):
        took = NODE_SECONDS * sum(map(len, parts))
        self.now += took
        self.longest = max(self.longest, took)
        return [np.zeros(len(part), np.float32) for part in parts]

    def done(self, result):
        self.answered += isinstance(result, list)
        self.refused += isinstance(result, Overloaded)
        self.late += isinstance(result, TimeoutError)
        if isinstance(result, TooManyNodes):
            self.too_many.append(str(result))

    def ask(self, a_second, seconds):
        due, until = self.now, self.now + seconds
        request = SimpleNamespace(exclude_seen=False, src=0, edge_set=0)
        while self.now < until:
            while due <= self.now:
                self.searches.begin([request], [self.state], due + 1.0, self.done)
                due += 1 / a_second
            if self.searches:
                self.searches.step()
            else:
                self.now = due
        return self


@pytest.mark.parametrize("times", [1.2, 3, 30])
def test_overload_is_refused_and_what_is_let_in_is_answered(monkeypatch, times):
    line = Line(monkeypatch).ask(times * BEST, 10)
    assert line.answered > 0.8 * BEST * 10 and line.late <= BEST, "all that wait would come too late"
    assert line.refused > 0


def test_a_burst_that_can_be_answered_passes_whole(monkeypatch):
    line = Line(monkeypatch).ask(0.9 * BEST, 5)
    assert (line.refused, line.late) == (0, 0)
    line.ask(1000, 0.005)
    line.ask(0.1, 2)
    assert (line.refused, line.late) == (0, 0)


def test_a_slice_takes_little_time_however_long_a_node_takes(monkeypatch):
    line = Line(monkeypatch).ask(0.5 * BEST, 2)
    assert line.longest < 2 * search.SLICE_SECONDS


def test_more_nodes_than_there_is_time_for_are_refused_early_and_then_at_once(monkeypatch):
    line = Line(monkeypatch, nodes=5_000_000)
    request = SimpleNamespace(exclude_seen=False, src=0, edge_set=0)
    line.searches.begin([request], [line.state], 1.0, line.done)
    while line.searches:
        line.searches.step()
    assert len(line.too_many) == 1 and line.now < 0.1, "not only at the deadline"
    begun = line.now
    line.searches.begin([request], [line.state], begun + 1.0, line.done)
    assert line.now == begun and len(line.too_many) == 2 and not line.searches
    assert line.too_many[1] == "exact: 5,000,000 nodes would take about 50 s, and server.deadline_seconds is 1; raise it, or ask without exact"
    assert (line.late, line.refused, line.answered) == (0, 0, 0)


def test_after_a_stall_searches_are_tried_again(monkeypatch):
    line = Line(monkeypatch)
    monkeypatch.setattr(search, "SLICE_SECONDS", 1.0)
    monkeypatch.setattr("tests.server.test_search.NODE_SECONDS", 1e-3)
    line.ask(1.0, 0.5)
    assert line.answered == 0
    monkeypatch.setattr("tests.server.test_search.NODE_SECONDS", 1e-5)
    line.ask(20, 10)
    assert line.too_many and line.answered > 50


def test_recommendations_are_compared_with_exact_ones_for_a_small_share_of_the_time(monkeypatch):
    line = Line(monkeypatch)
    line.state.view.candidates.limit = 10
    request, answer = Recommend(src="n:1"), SimpleNamespace(dst=("n:2",))
    monkeypatch.setattr(search, "make_recommendation", lambda *_: answer)
    for _ in range(2_000):
        line.searches.measure([request], [line.state], [answer])
        line.now += 0.001
        searching = line.now
        while line.searches:
            line.searches.step()
        line.measured = getattr(line, "measured", 0.0) + line.now - searching
    assert 0 < line.measured < 0.1 * line.now
