"""Negative destinations, drawn by a hash of seed, event id and number of the negative, so that they
are the same for every model, regime and restart.

An event with fewer other destinations than negatives gets each of them once: with two destinations
in all there are two candidates, not 101.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Int64
from streamd.graph import PairFacts
from streamd.graph.facts.set_facts import Destinations, SetFacts
from streamd.graph.hashing import GOLDEN, mix

UInt64 = NDArray[np.uint64]
NUM_SCORED = 100
"""Number of negatives for the score of an event, as in the accuracy baselines. The hash depends on
it, so another number would draw other negatives."""
NUM_LEARNED = 10
"""Negatives for training on an event."""
SCORED = slice(0, 1 + NUM_SCORED)
"""Columns of the candidates for scoring an event, the true destination first."""
LEARNED = np.r_[0, 1 + NUM_SCORED : 1 + NUM_SCORED + NUM_LEARNED]
"""Columns of the candidates for training on an event, the true destination first."""
SCORED_SEED = 0
"""The evaluation protocol's seed: published scores are for these negatives."""
LEARNED_SEED = 1
"""Differs from SCORED_SEED, so that an event's negatives in training are not those of its score."""


@dataclass(frozen=True)
class Pool:
    """The destinations from which a window's negatives are drawn, in order of their first event as
    a destination: first those of the facts before the window, then the new ones of the window.
    Deleted nodes keep their position and are never drawn.

    num_before: number of destinations before the window. new_N: int64 ids of the window's new
    destinations. new_us_N: int64 times of their first events, ascending, microseconds. gone_G:
    int64 positions of deleted nodes, ascending.
    """

    facts: PairFacts | Destinations
    num_before: int
    new_N: Int64
    new_us_N: Int64
    gone_G: Int64

    @classmethod
    def of(
        cls, facts: PairFacts | Destinations, dst_E: Int64, time_E: Int64, deleted: Int64
    ) -> "Pool":
        """Make the pool of a window's events, before the facts advance over them.

        dst_E: int64 node ids. time_E: int64 microseconds. deleted: int64 ids of deleted nodes.
        """
        unseen = np.flatnonzero(facts.ranks_of(dst_E) < 0)
        _, first = np.unique(dst_E[unseen], return_index=True)
        first_seen = unseen[np.sort(first)]
        pool = cls(
            facts,
            len(facts.destination_order),
            dst_E[first_seen],
            time_E[first_seen],
            np.zeros(0, np.int64),
        )
        gone = pool._positions(deleted)
        return cls(facts, pool.num_before, pool.new_N, pool.new_us_N, np.unique(gone[gone >= 0]))

    @property
    def size(self) -> int:
        """Number of destinations at the window's end, deleted ones included."""
        return self.num_before + len(self.new_N)

    def known_before(self, time_E: Int64) -> Int64:
        """Number of destinations strictly before each time: int64[E]. time_E: microseconds."""
        return self.num_before + np.searchsorted(self.new_us_N, time_E)

    def holds(self, dst_E: Int64, known_E: Int64) -> Bools:
        """Whether each node is among the first `known_E` destinations, bool[E]."""
        position = self._positions(dst_E)
        return (position >= 0) & (position < known_E)

    def num_others(self, dst_E: Int64, known_E: Int64) -> Int64:
        """Number of nodes from which the negatives of each event are drawn: int64[E]."""
        return self._alive(known_E) - self.holds(dst_E, known_E)

    def draw(self, event_E: Int64, dst_E: Int64, known_E: Int64, count: int, seed: int) -> Int64:
        """Draw `count` negatives per event, int64[E, count].

        They are drawn from the first `known_E` destinations without the deleted and the true one.
        If these are more than `count`, the draw is uniform, with replacement. If they are `count`
        or fewer, each occurs once, in an order given by the hash, and the true destination fills
        the remaining columns (`streamd.graph.ranking.is_candidate`). `num_others` must be above 0.
        The hash is SplitMix64 of the seed and (100 * event + j + 1), the protocol of the accuracy
        baselines.

        event_E: int64 event ids. dst_E: int64 true destinations.
        """
        h = hashes(event_E, count, seed)

        # Draw an index among the destinations other than the true and the deleted ones.
        in_pool = self.holds(dst_E, known_E)
        left_E = (self._alive(known_E) - in_pool).astype(np.uint64)
        i: Int64 = (h % left_E[:, None]).astype(np.int64)
        few = np.flatnonzero(left_E <= count)
        if len(few):
            i[few], is_drawn = _each_once(h[few], left_E[few])

        # Convert indices to positions, which count the true destination and the deleted ones too.
        true_E = self._alive(np.maximum(self._positions(dst_E), 0))
        i += in_pool[:, None] & (i >= true_E[:, None])
        drawn = self._nodes(
            i + np.searchsorted(self.gone_G - np.arange(len(self.gone_G)), i, side="right")
        )
        if len(few):
            drawn[few] = np.where(is_drawn, drawn[few], dst_E[few, None])
        return drawn

    def _alive(self, position: Int64) -> Int64:
        """Number of nodes before each position that are not deleted."""
        return position - np.searchsorted(self.gone_G, position)

    def _positions(self, nodes: Int64) -> Int64:
        """Position of each node, -1 for a node that is no destination by the window's end."""
        position = self.facts.ranks_of(nodes)
        position[position >= self.num_before] = -1  # destinations that the facts added since
        if len(self.new_N):
            by_id, ids = self._new_by_id
            at = np.minimum(np.searchsorted(ids, nodes), len(ids) - 1)
            is_new = ids[at] == nodes
            position[is_new] = self.num_before + by_id[at[is_new]]
        return position

    @cached_property
    def _new_by_id(self) -> tuple[Int64, Int64]:
        """Argsort of the new destinations by id, and their ids in that order; computed once per
        window."""
        by_id = np.argsort(self.new_N)
        return by_id, self.new_N[by_id]

    def _nodes(self, position: Int64) -> Int64:
        """The node at each position."""
        before = position < self.num_before
        out = np.zeros(position.shape, np.int64)
        out[before] = self.facts.destination_order[position[before]]
        out[~before] = self.new_N[position[~before] - self.num_before]
        return out


def hashes(event_E: Int64, count: int, seed: int) -> UInt64:
    """64 random bits for each of `count` negatives of each event: uint64[E, count]."""
    with np.errstate(over="ignore"):
        number = np.arange(1, count + 1, dtype=np.uint64)
        counter: UInt64 = event_E.astype(np.uint64)[:, None] * np.uint64(NUM_SCORED) + number
        start: UInt64 = np.array([seed], np.uint64) + GOLDEN
        out: UInt64 = mix(np.add(mix(start), counter * GOLDEN, dtype=np.uint64))
    return out


def _each_once(hash_EC: UInt64, left_E: UInt64) -> tuple[Int64, Bools]:
    """Order the numbers below `left_E` by the hashes of the first `left_E` columns.

    Returns: int64[E, C] with the numbers in the first `left_E` columns of each row and 0 in the
    others; bool[E, C], whether a column has a number. left_E: at least 1 and at most C.
    """
    is_drawn = np.arange(hash_EC.shape[1], dtype=np.uint64) < left_E[:, None]
    last = np.iinfo(np.uint64).max
    order = np.where(is_drawn, hash_EC, last).argsort(1, kind="stable")
    return np.where(is_drawn, order, 0), is_drawn


class Pools:
    """The pools of a window, one for each node set: the negatives of an event have the node set of
    its destination."""

    def __init__(self, facts: SetFacts, dst_E: Int64, time_E: Int64, deleted: Int64) -> None:
        """Make the pools before the facts advance over the window's events. Arguments as in
        `Pool.of`."""
        self._facts = facts
        set_E = facts.node_set_of(dst_E)
        self._pools = [
            Pool.of(facts.destinations_in(n), dst_E[set_E == n], time_E[set_E == n], deleted)
            for n in range(facts.schema.num_node_sets)
        ]

    def known_before(self, time_E: Int64, dst_E: Int64) -> Int64:
        """Number of destinations in the set of each event's destination, strictly before its time:
        int64[E]."""
        out = np.zeros(len(dst_E), np.int64)
        for pool, rows in self._each(dst_E):
            out[rows] = pool.known_before(time_E[rows])
        return out

    def holds(self, dst_E: Int64, known_E: Int64) -> Bools:
        """Whether each node is among the first `known_E` destinations of its set, bool[E]."""
        out = np.zeros(len(dst_E), np.bool_)
        for pool, rows in self._each(dst_E):
            out[rows] = pool.holds(dst_E[rows], known_E[rows])
        return out

    def num_others(self, dst_E: Int64, known_E: Int64) -> Int64:
        """Number of nodes from which the negatives of each event are drawn: int64[E]."""
        out = np.zeros(len(dst_E), np.int64)
        for pool, rows in self._each(dst_E):
            out[rows] = pool.num_others(dst_E[rows], known_E[rows])
        return out

    def has_others(self, dst_E: Int64, known_E: Int64) -> Bools:
        """Whether there is at least one negative for each event: bool[E]."""
        return self.num_others(dst_E, known_E) > 0

    def draw(self, event_E: Int64, dst_E: Int64, known_E: Int64, count: int, seed: int) -> Int64:
        """Draw negatives as `Pool.draw` does, int64[E, count]."""
        out = np.zeros((len(dst_E), count), np.int64)
        for pool, rows in self._each(dst_E):
            out[rows] = pool.draw(event_E[rows], dst_E[rows], known_E[rows], count, seed)
        return out

    def sizes(self, dst_E: Int64) -> Int64:
        """Number of destinations of each node's set at the window's end: int64[E]."""
        sizes = np.array([pool.size for pool in self._pools], np.int64)
        return sizes[self.node_sets_of(dst_E)]

    def node_sets_of(self, dst_E: Int64) -> Int64:
        """Number of each node's node set, int64[E]."""
        return self._facts.node_set_of(dst_E)

    def _each(self, dst_E: Int64) -> Iterator[tuple[Pool, slice | Int64]]:
        """Yield each pool with the rows of the destinations in its node set."""
        if len(self._pools) == 1:
            yield self._pools[0], slice(None)
            return
        set_E = self._facts.node_set_of(dst_E)
        for number, pool in enumerate(self._pools):
            rows = np.flatnonzero(set_E == number)
            if len(rows):
                yield pool, rows
