"""The view of graph and facts that events of a window get. It is separate from the recorder, so
that a backtest can replace it."""

from typing import Protocol

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.graph.negatives import Pools
from streamd.models import EdgeRows
from streamd.windows import Window


class EventView(Protocol):
    """The view of graph and facts for the events of a window, and the moments at which both
    advance.

    A recorder calls, in this order: `pool_of` and `enter` for the window, `edge_before` for each
    chunk and `facts` for each of its slices, `leave` after the last chunk.
    """

    def pool_of(self, window: Window) -> Pools:
        """The pools from which the window's negatives are drawn."""

    def enter(self, window: Window) -> None:
        """Called before the window is recorded."""

    def edge_before(self, part: EdgeRows) -> int:
        """Id of the event before which the chunk's neighbors and node features are taken."""

    def facts(self, part: EdgeRows, until: int, chosen_A: Int64, candidates: Int64) -> Float32:
        """Facts of a slice's events and their candidates, float32[A, C, F].

        part: rows of the whole chunk. until: the row at which the slice ends; for the chunk's last
        slice the chunk's length. chosen_A: int64[A], the chosen rows of the slice, ascending over
        all slices. candidates: int64[A, C], node ids.
        """

    def knows_destination(self, facts_AF: Float32) -> Bools:
        """Whether the facts include each true destination, bool[A]. Facts older than the event may
        lack it.

        facts_AF: float32[A, F], facts of the true destinations.
        """

    def leave(self, rows: EdgeRows) -> None:
        """Called after the window was recorded. rows: all rows of the window."""


class FreshView:
    """Facts strictly before each event; neighbors and node features before its chunk."""

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

    def facts(self, part: EdgeRows, until: int, chosen_A: Int64, candidates: Int64) -> Float32:
        # Advance the facts to the first event with the time at which the slice ends: events of
        # equal time may be split between slices, and must not see each other.
        done = self._live.edge - part.first_edge
        end = until
        if until < len(part.time_E):
            end = int(np.searchsorted(part.time_E, part.time_E[until]))
        passed = int(np.searchsorted(chosen_A, end))
        rows = part.cut(done, end)
        before = self._live.advance_scoring(
            rows.src_E, rows.dst_E, rows.time_E, chosen_A[:passed] - done, candidates[:passed]
        )
        if passed == len(chosen_A):
            return before

        # The slice's remaining events all have that time, and see only facts before it.
        at = chosen_A[passed:]
        same = part.facts_now(self._live, at, candidates[passed:])
        return np.concatenate([before, same])

    def knows_destination(self, facts_AF: Float32) -> Bools:
        return np.ones(len(facts_AF), np.bool_)

    def leave(self, rows: EdgeRows) -> None:
        pass
