"""The deletes of a log, each resolved to node ids or event ids once, and the rows they hide."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamd.events import NO_DELETES, Bools, Int64, NodeDeletes


class Deletions:
    """Answers which rows of the log are deleted. Owner: a reader of the log.

    A deleted node's id is retired for good, so all its rows are hidden wherever they lie.

    of_nodes: deleted nodes with the positions of their deletes. edges: int64 event ids of edges
    that were deleted one by one, in log order. places: int64, position of each delete of either
    kind, which is the number of edges in the log before it.
    """

    def __init__(self) -> None:
        self.of_nodes = NO_DELETES
        self.places = np.zeros(0, np.int64)
        self.edges = np.zeros(0, np.int64)
        self._gone = np.zeros(0, np.bool_)
        self._sorted = self.edges

    @property
    def nodes(self) -> Int64:
        """Ids of the deleted nodes, int64, in log order."""
        return self.of_nodes.node

    def take(self, rows_X: NDArray[np.void], find: Callable[[int, int, int, int], Int64]) -> None:
        """Take in further `DELETION` rows.

        find: (src, dst, time, before event) -> int64 event ids of the matching edges.
        """
        if not len(rows_X):
            return
        self.places = np.concatenate([self.places, rows_X["edge"]])
        of_nodes = rows_X[rows_X["dst"] < 0]
        self.of_nodes = NodeDeletes(
            np.concatenate([self.of_nodes.node, of_nodes["src"]]),
            np.concatenate([self.of_nodes.edge, of_nodes["edge"]]),
        )
        self.retire(of_nodes["src"])

        # An edge is named by its ends and time; only edges before the delete are meant.
        singles = rows_X[rows_X["dst"] >= 0]
        event_ids = [
            find(int(r["src"]), int(r["dst"]), int(r["time"]), int(r["edge"])) for r in singles
        ]
        if event_ids:
            self.edges = np.concatenate([self.edges, *event_ids])
            self._sorted = np.unique(self.edges)

    def retire(self, nodes: Int64) -> None:
        """Hide all rows of these nodes, int64 ids, for good."""
        if not len(nodes):
            return
        # Doubling keeps the cost of growing constant for each node deleted.
        if int(nodes.max()) >= len(self._gone):
            grown = np.zeros(max(int(nodes.max()) + 1, 2 * len(self._gone)), np.bool_)
            grown[: len(self._gone)] = self._gone
            self._gone = grown
        self._gone[nodes] = True

    def is_gone(self, nodes: Int64) -> Bools:
        """Whether each node id is retired: bool of the same shape. Unknown and negative ids are
        not."""
        if not len(self._gone):
            return np.zeros(nodes.shape, np.bool_)
        inside = (nodes >= 0) & (nodes < len(self._gone))
        out: Bools = self._gone[np.where(inside, nodes, 0)] & inside
        return out

    def hides_edges(self, event_ids: Int64) -> Bools:
        """Whether each event id was deleted by a delete of that edge, not of its nodes: bool of the
        same shape."""
        return np.isin(event_ids, self._sorted)

    def hides(self, first_edge: int, src_E: Int64, dst_E: Int64) -> Bools:
        """Whether each of the edges first_edge, first_edge + 1, ... is deleted: bool[E]."""
        hidden = self.is_gone(src_E) | self.is_gone(dst_E)
        a, b = np.searchsorted(self._sorted, [first_edge, first_edge + len(src_E)])
        hidden[self._sorted[a:b] - first_edge] = True
        return hidden
