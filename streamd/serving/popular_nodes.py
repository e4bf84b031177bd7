"""The most popular nodes of a pool, updated with each event."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from streamd.events import Bools, Float64, Int64
from streamd.graph.facts.columns import NUM_HALF_LIVES
from streamd.serving.node_filter import is_in

PopularityOf = Callable[[Int64], Float64]
"""The popularity of nodes at each half-life, larger for more popular ones: float64[N, 5]."""


class PopularNodes:
    """The most popular members of a pool at each half-life. Owner: the candidates.

    Over time, all popularities at one half-life decay by the same factor. So nodes overtake each
    other only by events, and an event only raises its own destination: a node that was left out
    returns by an event or not at all. If deletes make room, `is_short` is true, and all nodes must
    be offered again.
    """

    def __init__(self, popularity_of: PopularityOf, size: int) -> None:
        """size: number of nodes that are kept at each half-life; up to twice as many for a
        while."""
        self._popularity_of = popularity_of
        self._size = size
        self.is_whole = True
        """Whether all offered nodes are kept, except deleted ones."""
        self._members: list[Int64] = [np.zeros(0, np.int64) for _ in range(NUM_HALF_LIVES)]
        """At each half-life, ascending."""
        self._most_left_out = np.full(NUM_HALF_LIVES, -np.inf)
        """The largest popularity among the nodes left out, at each half-life. All nodes above it
        are kept."""
        self._ordered: list[Int64] | None = None

    @property
    def num_members(self) -> int:
        """Number of nodes at the half-life with the fewest: all of them, if the pool is whole."""
        return min(map(len, self._members))

    @property
    def most_members(self) -> int:
        """Number of nodes at the half-life with the most."""
        return max(map(len, self._members))

    def offer(self, nodes: Int64) -> None:
        """Add nodes of the pool that are new or had events, if they are popular enough. nodes:
        int64, each once."""
        if not len(nodes):
            return
        # Nodes less popular than one that was left out stay out.
        popularity_N5 = self._popularity_of(nodes)
        self._ordered = None
        for h, members in enumerate(self._members):
            new = nodes
            if not self.is_whole:
                new = nodes[popularity_N5[:, h] > self._most_left_out[h]]
            new = new[~is_in(new, members)]
            if len(new):
                self._members[h] = np.sort(np.concatenate([members, new]))

        # The first time, all half-lives have the same members.
        for h, members in enumerate(self._members):
            if len(members) > 2 * self._size:
                self._leave_out(h, members)

    def _leave_out(self, h: int, members: Int64) -> None:
        """Keep the `size` most popular members at a half-life."""
        # A partial sort: the order of the others does not matter.
        popularity_M = self._popularity_of(members)[:, h]
        order = np.argpartition(-popularity_M, self._size - 1)
        left_out = popularity_M[order[self._size :]]
        self._most_left_out[h] = max(self._most_left_out[h], left_out.max())
        self._members[h] = np.sort(members[order[: self._size]])
        self.is_whole = False

    def restart(self) -> None:
        """Reset the bounds before all nodes are offered again."""
        self.is_whole = True
        self._most_left_out[:] = -np.inf

    def drop(self, is_gone: Callable[[Int64], Bools]) -> None:
        """Drop nodes. is_gone: selects them."""
        self._members = [members[~is_gone(members)] for members in self._members]
        self._ordered = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Undo, after a block, all changes within it."""
        # Arrays of members are replaced, never written.
        before = vars(self) | {
            "_members": [*self._members],
            "_most_left_out": self._most_left_out.copy(),
        }
        try:
            yield
        finally:
            vars(self).update(before)

    def is_short(self, least: int) -> bool:
        """Whether a half-life has fewer than `least` nodes although others were left out."""
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
