"""The most popular nodes of a pool, kept as events come."""

from collections.abc import Callable

import numpy as np

from streamd.events import Bools, Float64, Int64
from streamd.graph.facts.columns import NUM_HALF_LIVES
from streamd.serving.node_filter import is_in

PopularityOf = Callable[[Int64], Float64]
"""Popularity of nodes at each half-life, at which larger is more popular: float64[N, 5]."""


class PopularNodes:
    """The members of a pool with the largest popularity at each half-life. Owner: the candidates.

    As time passes, all popularities of one half-life fall by one factor, so nodes overtake each
    other only by events, and an event only raises its own destination. A node that was left out
    therefore comes back by an event or not at all, unless deletes make room: `is_short` then says
    that all nodes must be offered again.
    """

    def __init__(self, popularity_of: PopularityOf, size: int) -> None:
        """size: nodes kept at each half-life, at most twice as many for a while."""
        self._popularity_of = popularity_of
        self._size = size
        self.is_whole = True
        """Whether every node that was offered is kept, but for deleted ones."""
        self._members: list[Int64] = [np.zeros(0, np.int64) for _ in range(NUM_HALF_LIVES)]
        """At each half-life, ascending."""
        self._most_left_out = np.full(NUM_HALF_LIVES, -np.inf)
        """Largest popularity of the nodes left out, at each half-life. All above it are kept."""
        self._ordered: list[Int64] | None = None

    @property
    def num_members(self) -> int:
        """Nodes kept at the half-life that has fewest: all of them, if the pool is whole."""
        return min(map(len, self._members))

    @property
    def most_members(self) -> int:
        """Nodes kept at the half-life that has most."""
        return max(map(len, self._members))

    def offer(self, nodes: Int64) -> None:
        """Take in nodes of the pool that are new or had events. nodes: int64, each once."""
        if not len(nodes):
            return
        # Those that are less popular than one left out stay out.
        popularity_N5 = self._popularity_of(nodes)
        self._ordered = None
        for h, members in enumerate(self._members):
            new = nodes
            if not self.is_whole:
                new = nodes[popularity_N5[:, h] > self._most_left_out[h]]
            new = new[~is_in(new, members)]
            if len(new):
                self._members[h] = np.sort(np.concatenate([members, new]))

        # The first time all half-lives have the same members.
        for h, members in enumerate(self._members):
            if len(members) > 2 * self._size:
                self._leave_out(h, members)

    def _leave_out(self, h: int, members: Int64) -> None:
        """Keep the most popular `size` members at a half-life."""
        # A partial sort: the order of the others does not matter.
        popularity_M = self._popularity_of(members)[:, h]
        order = np.argpartition(-popularity_M, self._size - 1)
        left_out = popularity_M[order[self._size :]]
        self._most_left_out[h] = max(self._most_left_out[h], left_out.max())
        self._members[h] = np.sort(members[order[: self._size]])
        self.is_whole = False

    def restart(self) -> None:
        """Have all nodes offered again, for want of those that were left out."""
        self.is_whole = True
        self._most_left_out[:] = -np.inf

    def drop(self, is_gone: Callable[[Int64], Bools]) -> None:
        """Drop deleted nodes. is_gone: which of some nodes are."""
        self._members = [members[~is_gone(members)] for members in self._members]
        self._ordered = None

    def is_short(self, least: int) -> bool:
        """Whether fewer than so many nodes are kept at a half-life, and others were left out."""
        return not self.is_whole and self.num_members < least

    def best(self, count: int) -> list[Int64]:
        """At most `count` nodes at each half-life, most popular first, equal ones by id."""
        if self._ordered is None:
            self._ordered = [self._in_order(h, members) for h, members in enumerate(self._members)]
        return [nodes[:count] for nodes in self._ordered]

    def _in_order(self, h: int, members: Int64) -> Int64:
        # The sort is stable, and members are ascending.
        order = np.argsort(-self._popularity_of(members)[:, h], kind="stable")
        return members[order]
