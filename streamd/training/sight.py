"""What the events of a window see of graph and facts: a recorder's other half, so that backtests
can give it another one."""

from typing import Protocol

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.graph.negatives import Pools
from streamd.models import EdgeRows
from streamd.windows import Window


class Sight(Protocol):
    """What the events of a window see of graph and facts, and when these advance.

    A recorder calls in this order: `pool_of` and `enter` for the window, `edge_before` for each
    chunk and `facts` for each of its slices, `leave` after the last.
    """

    def pool_of(self, window: Window) -> Pools:
        """The pools that the window's negatives are drawn from."""

    def enter(self, window: Window) -> None:
        """Called before the window is recorded."""

    def edge_before(self, part: EdgeRows) -> int:
        """Id of the event before which the chunk's neighbours and features are taken."""

    def facts(self, part: EdgeRows, until: int, asked: Int64, candidates: Int64) -> Float32:
        """Facts of the events of a slice and their candidates, float32[A, C, F].

        part: rows of the whole chunk. until: the row at which the slice ends, the chunk's length
        for its last. asked: int64[A], rows of the chunk, ascending from slice to slice.
        candidates: int64[A, C] node ids.
        """

    def know(self, facts_AF: Float32) -> Bools:
        """Whether the facts have seen each true destination, bool[A]; older facts may lack it.

        facts_AF: facts of the true destinations.
        """

    def leave(self, rows: EdgeRows) -> None:
        """Called after the window was recorded. rows: all of the window's."""


class FreshSight:
    """Events see the facts strictly before them, and neighbours and features before their chunk."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live

    def pool_of(self, window: Window) -> Pools:
        log = self._live.log
        _, dst, time = log.edges(window.first_edge, window.end_edge)
        return Pools(self._live.facts, dst, time, log.deletions.nodes)

    def enter(self, window: Window) -> None:
        self._live.insert(window.end_edge)

    def edge_before(self, part: EdgeRows) -> int:
        return part.first_edge

    def facts(self, part: EdgeRows, until: int, asked: Int64, candidates: Int64) -> Float32:
        # Facts move to the first event of the time at which the slice ends, be it split there.
        done = self._live.edge - part.first_edge
        end = until
        if until < len(part.time_E):
            end = int(np.searchsorted(part.time_E, part.time_E[until]))
        passed = int(np.searchsorted(asked, end))
        rows = part.cut(done, end)
        before = self._live.advance_scoring(
            rows.src_E, rows.dst_E, rows.time_E, asked[:passed] - done, candidates[:passed]
        )
        if passed == len(asked):
            return before

        # The slice's other events have that one time, and see what lies before it.
        at = asked[passed:]
        same = part.facts_now(self._live, at, candidates[passed:])
        return np.concatenate([before, same])

    def know(self, facts_AF: Float32) -> Bools:
        return np.ones(len(facts_AF), np.bool_)

    def leave(self, rows: EdgeRows) -> None:
        pass
