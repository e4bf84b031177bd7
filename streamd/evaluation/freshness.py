"""Views for backtests: with old facts, or with the state of the last midnight."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from streamd.events import Bools, Float32, Int64
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS
from streamd.graph.live import LiveGraph
from streamd.graph.negatives import Pools
from streamd.models import EdgeRows, LinkModel, Memory
from streamd.training.event_view import FreshView
from streamd.windows import Window


class StaleView:
    """A view with facts that lag: they advance after every group of events of a chunk, or once a
    window.

    Neighbors and node features are fresh.
    """

    def __init__(self, fresh: FreshView, live: LiveGraph, every: int | None) -> None:
        """every: number of events after which facts advance; None: once a window."""
        self._fresh = fresh
        self._live = live
        self._every = every

    def pool_of(self, window: Window) -> Pools:
        return self._fresh.pool_of(window)

    def enter(self, window: Window) -> None:
        self._fresh.enter(window)

    def edge_before(self, part: EdgeRows) -> int:
        return self._fresh.edge_before(part)

    def facts(self, part: EdgeRows, until: int, chosen_A: Int64, candidates: Int64) -> Float32:
        """Facts as of the first event of each group of `every` events, or of the window."""
        if self._every is None:
            return part.facts_now(self._live, chosen_A, candidates)
        out = []
        for a in range(self._live.edge - part.first_edge, until, self._every):
            b = min(a + self._every, len(part.src_E))
            group = slice(np.searchsorted(chosen_A, a), np.searchsorted(chosen_A, b))
            at = chosen_A[group]
            out.append(part.facts_now(self._live, at, candidates[group]))
            # A group that this slice cuts continues in the next slice, so facts do not advance yet.
            if b <= until:
                self._live.advance(part.src_E[a:b], part.dst_E[a:b], part.time_E[a:b])
        return np.concatenate(out)

    def knows_destination(self, facts_AF: Float32) -> Bools:
        return destinations_in(facts_AF)

    def leave(self, rows: EdgeRows) -> None:
        if self._every is None:
            self._live.advance(rows.src_E, rows.dst_E, rows.time_E)


class NightlyView:
    """A view with facts, neighbors and node features as of midnight, for a nightly model's day."""

    def __init__(self, live: LiveGraph, pool: Pools) -> None:
        """pool: of the window, from a recorder with fresh facts, so that all regimes draw the same
        negatives."""
        self._live = live
        self._pool = pool

    def pool_of(self, window: Window) -> Pools:
        return self._pool

    def enter(self, window: Window) -> None:
        pass

    def edge_before(self, part: EdgeRows) -> int:
        return self._live.edge

    def facts(self, part: EdgeRows, until: int, chosen_A: Int64, candidates: Int64) -> Float32:
        return part.facts_now(self._live, chosen_A, candidates)

    def knows_destination(self, facts_AF: Float32) -> Bools:
        return destinations_in(facts_AF)

    def leave(self, rows: EdgeRows) -> None:
        pass


def destinations_in(facts_AF: Float32) -> Bools:
    """Whether each node was a destination by its row of facts, bool[A].

    A model must not train on other events: most of their negatives are in the facts, so it would
    learn that the true destination is the new one.
    """
    # With several edge sets, the facts over all sets come second.
    all_sets = NUM_FACTS if facts_AF.shape[-1] > NUM_FACTS else 0
    column = all_sets + FactColumn.LOG_SECONDS_SINCE_DESTINATION
    known: Bools = facts_AF[:, column] < NEVER_LOG_SECONDS
    return known


@contextmanager
def nightly_memory_step(model: LinkModel, memory: Memory, chunk: EdgeRows) -> Iterator[Tensor]:
    """Use memory without advancing it over the chunk, instead of `LinkModel.over`.

    A nightly model's memory advances only at midnight.
    """
    yield model.updated(memory)
