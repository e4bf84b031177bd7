"""GNNFlow's time-indexed blocks (paper section 4.1) with a directory per node that can be binary-searched.

An entry is a neighbour and an edge id; because the log is sorted by time, an edge id orders time too, so a query
"before time t" is a query "edges below id X". Blocks of a node have capacity clamp(degree, 1, tau); no entry moves.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.errors import CapacityError
from streamd.events import Int64
from streamd.graph.arena import reserve
from streamd.graph.kernels import BlockArrays, hide_edges, hide_nodes, insert_edges, sample_recent

MAX_ENTRIES = 2**33
MAX_DIRECTORY = 2**31
MAX_NODES = 2**28


@dataclass(frozen=True)
class Neighbors:
    """Sampled neighbours of R roots, most recent first. neighbor, eid: int64[R, k]; mask: bool[R, k], False is padding."""

    neighbor: Int64
    eid: Int64
    mask: NDArray[np.bool_]


class BlockGraph:
    """An append-only temporal graph, both directions, a self loop stored once. Owner: one thread per role.

    since_edge: older edges are no longer answered with, because the log dropped them.
    """

    def __init__(self, first_edge: int = 0, max_block_entries: int = 64) -> None:
        """first_edge: global id of the first edge that will be inserted. max_block_entries: tau."""
        self.first_edge = first_edge
        self.num_edges = first_edge
        self.since_edge = first_edge
        self.num_nodes = 0
        self._tau = max_block_entries
        self._arrays = BlockArrays(
            degree=reserve(np.uint32, MAX_NODES), directory_at=reserve(np.int64, MAX_NODES),
            directory_len=reserve(np.int32, MAX_NODES), directory_cap=reserve(np.int32, MAX_NODES),
            block_first=reserve(np.uint32, MAX_DIRECTORY), block_start=reserve(np.int64, MAX_DIRECTORY),
            block_size=reserve(np.int32, MAX_DIRECTORY), block_cap=reserve(np.int32, MAX_DIRECTORY),
            neighbor=reserve(np.uint32, MAX_ENTRIES), eid=reserve(np.uint32, MAX_ENTRIES),
            used=np.zeros(2, np.int64))

    def insert(self, src_E: Int64, dst_E: Int64) -> None:
        """Append edges in log order; their ids continue where the last batch ended. Node ids in any order, >= 0."""
        if not len(src_E):
            return
        highest = int(max(src_E.max(), dst_E.max()))
        relative = self.num_edges - self.first_edge
        entries = int(self._arrays.used[0])
        if (highest >= MAX_NODES or relative + len(src_E) >= 2**32 or entries + 130 * len(src_E) >= MAX_ENTRIES):
            raise CapacityError(f"The graph cannot hold node {highest} or edge {self.num_edges + len(src_E)}.",
                                "lower retention, or shard the topic.")
        insert_edges(self._arrays, src_E, dst_E, relative, self._tau)
        self.num_edges += len(src_E)
        self.num_nodes = max(self.num_nodes, highest + 1)

    def hide(self, src_E: Int64, dst_E: Int64, edge_E: Int64) -> None:
        """Delete edges, given with their ends; ids the graph does not have are passed over."""
        inside = (edge_E >= self.first_edge) & (edge_E < self.num_edges)
        hide_edges(self._arrays, src_E[inside], dst_E[inside], edge_E[inside] - self.first_edge)

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all edges of some nodes, so that they vanish from their neighbours too."""
        hide_nodes(self._arrays, nodes[(nodes >= 0) & (nodes < self.num_nodes)])

    def recent(self, nodes_R: Int64, before_edge: int, k: int) -> Neighbors:
        """The k most recent neighbours of each node among edges with id below `before_edge`; unknown nodes have none."""
        count = len(nodes_R)
        neighbor = np.zeros((count, k), np.int64)
        eid = np.zeros((count, k), np.int64)
        found = np.zeros(count, np.int64)
        cutoff = min(max(before_edge - self.first_edge, 0), self.num_edges - self.first_edge)
        since = self.since_edge - self.first_edge
        sample_recent(self._arrays, nodes_R, since, cutoff, self.num_nodes, self.first_edge, neighbor, eid, found)
        return Neighbors(neighbor, eid, np.arange(k) < found[:, None])

    @property
    def num_entries(self) -> int:
        return int(self._arrays.degree[: self.num_nodes].sum(dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Bytes in use: entries, directories and node table, allocated but unfilled parts included."""
        return int(self._arrays.used[0]) * 8 + int(self._arrays.used[1]) * 20 + self.num_nodes * 20
