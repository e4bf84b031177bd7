"""Searches of all nodes under more load than can be answered."""

from types import SimpleNamespace

import numpy as np
import pytest

from streamd.server.engine import search
from streamd.server.engine.search import Searches
from streamd.serving.requests import Overloaded

NODES, SLICE, SLICE_SECONDS = 10_000, 1_000, 0.01
BEST = SLICE / NODES / SLICE_SECONDS
"""Searches a second, one after the other."""


class Line:
    """Searches that come evenly, on a clock that only slices move."""

    def __init__(self, monkeypatch):
        self.now, self.answered, self.refused, self.late = 0.0, 0, 0, 0
        candidates = SimpleNamespace(of_request=lambda _: np.arange(NODES))
        self.moment = SimpleNamespace(view=SimpleNamespace(candidates=candidates, ids=lambda _: [0]))
        self.searches = Searches(SimpleNamespace(max_candidates=SLICE, deadline_seconds=1.0))
        monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(search, "scores_of", self.scored)
        monkeypatch.setattr(search, "recommended", lambda *_: "the best")

    def scored(self, moments, sources, parts, edge_sets):
        self.now += SLICE_SECONDS
        return [np.zeros(len(part), np.float32) for part in parts]

    def done(self, result):
        self.answered += isinstance(result, list)
        self.refused += isinstance(result, Overloaded)
        self.late += isinstance(result, TimeoutError)

    def ask(self, a_second, seconds):
        due, until = self.now, self.now + seconds
        request = SimpleNamespace(exclude_seen=False, src=0, edge_set=0)
        while self.now < until:
            while due <= self.now:
                self.searches.begin([request], [self.moment], due + 1.0, self.done)
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
