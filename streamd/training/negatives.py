"""Negative destinations as a hash of seed, event and number: the same for every model, regime and
restart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Int64
from streamd.graph import PairFacts
from streamd.graph.hashing import GOLDEN, mix

UInt64 = NDArray[np.uint64]
NUM_SCORED = 100
NUM_LEARNED = 10
SCORED = slice(0, 1 + NUM_SCORED)
"""Columns of the candidates that an event is scored with: the true one first."""
LEARNED = np.r_[0, 1 + NUM_SCORED : 1 + NUM_SCORED + NUM_LEARNED]
"""Columns of those that it is learned with."""
SCORED_SEED = 0
LEARNED_SEED = 1


@dataclass(frozen=True)
class Pool:
    """The destinations that negatives of a window are drawn from, in order of first sight, less
    those deleted.

    What was a destination by the window's start comes first, as the facts have it; what the window
    brings follows. new_N: int64 ids that the window brings, in order of first sight, seen as such
    at new_us_N, ascending. gone_G: int64, places of deleted ones, ascending.
    """

    facts: PairFacts
    num_before: int
    new_N: Int64
    new_us_N: Int64
    gone_G: Int64

    @classmethod
    def of(cls, facts: PairFacts, dst_E: Int64, time_E: Int64, deleted: Int64) -> "Pool":
        """For a window's events, before the facts take them in. deleted: ids of deleted nodes."""
        unseen = np.flatnonzero(facts.ranks_of(dst_E) < 0)
        _, first = np.unique(dst_E[unseen], return_index=True)
        at = unseen[np.sort(first)]
        pool = cls(facts, len(facts.sighted), dst_E[at], time_E[at], np.zeros(0, np.int64))
        gone = pool._places(deleted)
        return cls(facts, pool.num_before, pool.new_N, pool.new_us_N, np.unique(gone[gone >= 0]))

    @property
    def size(self) -> int:
        """Destinations known at the window's end, deleted ones among them."""
        return self.num_before + len(self.new_N)

    def known_before(self, time_E: Int64) -> Int64:
        """How many of them were destinations strictly before each time: int64[E]."""
        return self.num_before + np.searchsorted(self.new_us_N, time_E)

    def holds(self, dst_E: Int64, known_E: Int64) -> Bools:
        """Whether each destination is among the first `known_E`: bool[E]."""
        place = self._places(dst_E)
        return (place >= 0) & (place < known_E)

    def has_others(self, dst_E: Int64, known_E: Int64) -> Bools:
        """Whether there is anything to draw for each event: bool[E]."""
        return self._alive(known_E) - self.holds(dst_E, known_E) > 0

    def draw(self, event_E: Int64, dst_E: Int64, known_E: Int64, count: int, seed: int) -> Int64:
        """`count` negatives per event, int64[E, count]: uniform over the first `known_E`
        destinations without the deleted and the true one, with replacement. There must be something
        to draw.

        SplitMix64 of seed and (100 * event + j + 1), the protocol of the accuracy baselines; event:
        global edge id.
        """
        with np.errstate(over="ignore"):
            number = np.arange(1, count + 1, dtype=np.uint64)
            counter: UInt64 = event_E.astype(np.uint64)[:, None] * np.uint64(NUM_SCORED) + number
            start: UInt64 = np.array([seed], np.uint64) + GOLDEN
            h = mix(np.add(mix(start), counter * GOLDEN, dtype=np.uint64))
        in_pool = self.holds(dst_E, known_E)
        left_E = (self._alive(known_E) - in_pool).astype(np.uint64)
        i: Int64 = (h % left_E[:, None]).astype(np.int64)
        true_E = self._alive(np.maximum(self._places(dst_E), 0))
        i += in_pool[:, None] & (i >= true_E[:, None])
        return self._nodes(
            i + np.searchsorted(self.gone_G - np.arange(len(self.gone_G)), i, side="right")
        )

    def _alive(self, place: Int64) -> Int64:
        """How many before a place are not deleted."""
        return place - np.searchsorted(self.gone_G, place)

    def _places(self, nodes: Int64) -> Int64:
        """Place of each node, -1 for one that is no destination by the window's end."""
        place = self.facts.ranks_of(nodes)
        place[place >= self.num_before] = -1  # the facts may have moved on since
        if len(self.new_N):
            by_id = np.argsort(self.new_N)
            at = np.minimum(np.searchsorted(self.new_N[by_id], nodes), len(self.new_N) - 1)
            found = self.new_N[by_id][at] == nodes
            place[found] = self.num_before + by_id[at[found]]
        return place

    def _nodes(self, place: Int64) -> Int64:
        """The node at each place."""
        before = place < self.num_before
        out = np.zeros(place.shape, np.int64)
        out[before] = self.facts.sighted[place[before]]
        out[~before] = self.new_N[place[~before] - self.num_before]
        return out
