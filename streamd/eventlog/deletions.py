"""Resolves the deletes of a log to node ids and event ids, and answers which rows they hide."""

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import DELETIONS
from streamd.eventlog.tguf.growing import GrowingArray, SortedRuns
from streamd.events import DELETION, Bools, Int64, NodeDeletes

FindEdges = Callable[[Int64, Int64, Int64, Int64, Int64], Int64]
"""(src, dst, time, before event, edge set), int64 of one length each -> ids of the edges of the set
with these endpoints and this original time that come before that event, ascending and distinct."""


class Deletions:
    """Answers which rows of the log are deleted. Owner: a reader of the log.

    A deleted node's id is never used again, so all its rows are hidden, before and after the
    delete.

    count: number of deletes of either kind. `newest_place`: number of edges in the log before the
    newest delete; -1 if there is none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.newest_place = -1
        self._node = GrowingArray(np.int64)
        self._node_place = GrowingArray(np.int64)
        self._edge = GrowingArray(np.int64)
        self._edges = SortedRuns()
        self._gone = np.zeros(0, np.bool_)

    @property
    def of_nodes(self) -> NodeDeletes:
        """The deleted nodes with the positions of their deletes, in log order."""
        return NodeDeletes(self._node.values, self._node_place.values)

    @property
    def nodes(self) -> Int64:
        """Ids of the deleted nodes, int64, in log order."""
        return self._node.values

    @property
    def edges(self) -> Int64:
        """Event ids of the edges that were deleted one by one, int64, each once, in the order in
        which `take` found them."""
        return self._edge.values

    @property
    def has_gone_nodes(self) -> bool:
        """Whether any node id is retired."""
        return bool(len(self._gone))

    def take(self, rows_X: NDArray[np.void], find: FindEdges) -> None:
        """Add further `DELETION` rows."""
        if not len(rows_X):
            return
        self.count += len(rows_X)
        self.newest_place = int(rows_X["edge"][-1])
        of_nodes = rows_X[rows_X["dst"] < 0]
        self._node.append(of_nodes["src"])
        self._node_place.append(of_nodes["edge"])
        self.retire(of_nodes["src"])

        # A delete names an edge by its endpoints and time, and hides only edges before it.
        singles = rows_X[rows_X["dst"] >= 0]
        if len(singles):
            names = ("src", "dst", "time", "edge", "edge_set")
            found = find(*(singles[name].astype(np.int64) for name in names))
            # A second delete of an edge hides nothing more.
            new = found[~self.hides_edges(found)]
            self._edge.append(new)
            self._edges.add(new, new)

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
        return self._edges.holds(event_ids)

    def hides(self, first_edge: int, src_E: Int64, dst_E: Int64) -> Bools:
        """Whether each of the edges first_edge, first_edge + 1, ... is deleted: bool[E]."""
        hidden = self.is_gone(src_E) | self.is_gone(dst_E)
        hidden[self._edges.between(first_edge, first_edge + len(src_E)) - first_edge] = True
        return hidden


def deletes_until(data_dir: Path, state: LogState, event: int) -> tuple[int, int]:
    """The number of a log's deletes at or before an event, and the commit of the newest of them; 0
    and 0 if there is none. Reads only some pages of the file."""
    num_bytes = state.files.get(DELETIONS, NOTHING).num_bytes
    if not num_bytes:
        return 0, 0
    shape = (num_bytes // DELETION.itemsize,)
    rows_X = np.memmap(data_dir / DELETIONS, DELETION, "r", shape=shape)
    count = bisect_right(range(len(rows_X)), event, key=lambda i: int(rows_X[i]["edge"]))
    return count, int(rows_X[count - 1]["seq"]) if count else 0
