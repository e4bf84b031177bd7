"""What deletes hide: rows of retired nodes, and single edges, resolved to ids once."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamd.events import NO_DELETES, Bools, Int64, NodeDeletes


class Deletions:
    """Owner: a reader of the log. A deleted node's id is retired for good, so all its rows are
    hidden wherever they lie.

    of_nodes: deleted nodes with the places of their deletes. edges: int64, single edges deleted, in
    log order. places: int64, number of edges in the log before each delete of either kind.
    """

    def __init__(self) -> None:
        self.of_nodes = NO_DELETES
        self.places = np.zeros(0, np.int64)
        self.edges = np.zeros(0, np.int64)
        self._gone = np.zeros(0, np.bool_)
        self._sorted = self.edges

    @property
    def nodes(self) -> Int64:
        """int64, deleted nodes in log order."""
        return self.of_nodes.node

    def take(self, rows_X: NDArray[np.void], find: Callable[[int, int, int, int], Int64]) -> None:
        """Take in `DELETION` rows. find: (src, dst, time, before edge) -> ids of the matching
        edges."""
        if not len(rows_X):
            return
        self.places = np.concatenate([self.places, rows_X["edge"]])
        of_nodes = rows_X[rows_X["dst"] < 0]
        self.of_nodes = NodeDeletes(
            np.concatenate([self.of_nodes.node, of_nodes["src"]]),
            np.concatenate([self.of_nodes.edge, of_nodes["edge"]]),
        )
        self.retire(of_nodes["src"])
        singles = rows_X[rows_X["dst"] >= 0]
        found = [
            find(int(r["src"]), int(r["dst"]), int(r["time"]), int(r["edge"])) for r in singles
        ]
        if found:
            self.edges = np.concatenate([self.edges, *found])
            self._sorted = np.unique(self.edges)

    def retire(self, nodes: Int64) -> None:
        """Hide all rows of these nodes."""
        if not len(nodes):
            return
        if int(nodes.max()) >= len(self._gone):
            grown = np.zeros(max(int(nodes.max()) + 1, 2 * len(self._gone)), np.bool_)
            grown[: len(self._gone)] = self._gone
            self._gone = grown
        self._gone[nodes] = True

    def is_gone(self, nodes: Int64) -> Bools:
        """Whether each node id is retired, same shape."""
        if not len(self._gone):
            return np.zeros(nodes.shape, np.bool_)
        inside = (nodes >= 0) & (nodes < len(self._gone))
        out: Bools = self._gone[np.where(inside, nodes, 0)] & inside
        return out

    def hides_edges(self, event_ids: Int64) -> Bools:
        """Whether each of some edges was deleted as a single edge, same shape."""
        return np.isin(event_ids, self._sorted)

    def hides(self, first_edge: int, src_E: Int64, dst_E: Int64) -> Bools:
        """Whether each of the edges first_edge, first_edge + 1, ... is hidden: bool[E]."""
        hidden = self.is_gone(src_E) | self.is_gone(dst_E)
        a, b = np.searchsorted(self._sorted, [first_edge, first_edge + len(src_E)])
        hidden[self._sorted[a:b] - first_edge] = True
        return hidden
