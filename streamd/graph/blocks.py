"""GNNFlow's time-indexed blocks (paper section 4.1) with a directory per node that can be binary-searched.

An entry is a neighbour and an edge id, eight bytes; because the log is sorted by time, an edge id orders time too, so a
query "before time t" is a query "edges below id X". No entry ever moves; address space is reserved once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.errors import CapacityError, OffloadedError
from streamd.events import Bools, Int64
from streamd.graph.arena import Arena
from streamd.graph.kernels import DEGREE, BlockArrays, hide_edges, hide_nodes, insert_edges, last_of_blocks, refill
from streamd.graph.sampling import sample_recent, sample_uniform

MAX_ENTRIES = 2**32 - 1
MAX_BLOCKS = 2**31
MAX_NODES = 2**28
PAGE_ENTRIES = 512
"""Entries in a page of memory."""
REFILL_EDGES = 1_000_000


@dataclass(frozen=True)
class Neighbors:
    """Sampled neighbours of R roots. neighbor, eid: int64[R, k]; mask: bool[R, k], True first, False is padding."""

    neighbor: Int64
    eid: Int64
    mask: Bools


@dataclass(frozen=True)
class ExploredHop:
    """root_U: int64[U], neighbor_UK: int64[U, K], places among all nodes reached, a root's own where there is no neighbour;
    eid_UK: int64; mask_UK: bool, True first."""

    root_U: Int64
    neighbor_UK: Int64
    eid_UK: Int64
    mask_UK: Bools


@dataclass(frozen=True)
class Explored:
    """node_M: int64[M], the distinct nodes reached, ascending, the roots among them."""

    node_M: Int64
    hops: tuple[ExploredHop, ...]


class BlockGraph:
    """An append-only temporal graph; a self loop is stored once, repeated edges are kept. Owner: one thread per role.

    since_edge: older edges are no longer answered with, because the log dropped them. offloaded_edge: older edges were
    taken out of memory; a query that needs one of them raises OffloadedError.
    """

    def __init__(self, first_edge: int = 0, max_block_entries: int = 64, directed: bool = False) -> None:
        """first_edge: global id of the first edge that will be inserted. max_block_entries: tau, a power of two.
        directed: keep edges at their source only."""
        self.first_edge = self.num_edges = self.since_edge = self.offloaded_edge = first_edge
        self.directed = directed
        self.num_nodes = 0
        self._entries = Arena(np.int64, MAX_ENTRIES)
        self._nodes, self._blocks = Arena(np.int64, 4 * MAX_NODES), Arena(np.int64, MAX_BLOCKS)
        self._hidden = Arena(np.uint8, MAX_NODES)
        self._freed_pages = np.zeros(0, np.bool_)
        if max_block_entries & (max_block_entries - 1) or max_block_entries < 1:
            raise ValueError(f"max_block_entries is {max_block_entries}; it must be a power of two")
        tau = np.array([max_block_entries, max_block_entries.bit_length() - 1], np.int64)
        self._arrays = BlockArrays(self._nodes.array, self._blocks.array, self._entries.array, self._hidden.array,
                                   np.zeros(2, np.int64), tau)

    def insert(self, src_E: Int64, dst_E: Int64) -> None:
        """Append edges in log order; their ids continue where the last batch ended. Node ids in any order, >= 0.

        Raises: CapacityError where there are too many; nothing is inserted then.
        """
        if not len(src_E):
            return
        highest = int(max(src_E.max(), dst_E.max()))
        relative = self.num_edges - self.first_edge
        room = int(self._arrays.used[0]) + 2 * int(self._arrays.tau[0]) * len(src_E)
        if highest >= MAX_NODES or relative + len(src_E) >= 2**31 or room >= MAX_ENTRIES:
            raise CapacityError(f"The graph cannot hold node {highest} or edge {self.num_edges + len(src_E)}.",
                                "lower retention, or shard the topic.")
        insert_edges(self._arrays, src_E, dst_E, relative, self.directed)
        self.num_edges += len(src_E)
        self.num_nodes = max(self.num_nodes, highest + 1)

    def hide(self, src_E: Int64, dst_E: Int64, edge_E: Int64) -> None:
        """Delete edges, given with their ends; ids the graph does not have are passed over."""
        inside = (edge_E >= self.first_edge) & (edge_E < self.num_edges)
        hide_edges(self._arrays, src_E[inside], dst_E[inside], edge_E[inside] - self.first_edge)

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all edges of some nodes, so that they vanish from their neighbours too."""
        hide_nodes(self._arrays, nodes[(nodes >= 0) & (nodes < self.num_nodes)])

    def recent(self, nodes_R: Int64, before_edge: int | Int64, k: int, since_edge: int | Int64 = 0) -> Neighbors:
        """The k most recent neighbours of each node among edges [since_edge, before_edge), newest first.

        Both may be one for all, or int64[R]. Unknown nodes have none. Raises: OffloadedError.
        """
        since, cutoff = self._range(nodes_R, since_edge, before_edge)
        out = _room(len(nodes_R), k)
        return self._answer(out, sample_recent(
            self._arrays, nodes_R, since, cutoff, self._resident(), self.num_nodes, self.num_edges - self.first_edge,
            self.first_edge, out.neighbor, out.eid, out.mask))

    def uniform(
        self, nodes_R: Int64, before_edge: int | Int64, k: int, seed: int, replace: bool = False,
        since_edge: int | Int64 = 0
    ) -> Neighbors:
        """k neighbours of each node drawn uniformly among its edges [since_edge, before_edge).

        Without replacement all of them where there are at most k. A draw is a function of seed, node and cutoff.
        Raises: OffloadedError.
        """
        since, cutoff = self._range(nodes_R, since_edge, before_edge)
        out = _room(len(nodes_R), k)
        return self._answer(out, sample_uniform(
            self._arrays, nodes_R, since, cutoff, self._resident(), self.num_nodes, self.num_edges - self.first_edge,
            self.first_edge, replace, seed, out.neighbor, out.eid, out.mask))

    def explore(
        self, roots_U: Int64, ranges: Sequence[tuple[int, int]], k: int, seed: int | None, deeper: bool
    ) -> Explored:
        """k neighbours a root for each range of edges [since, before), all nodes reached numbered anew.

        Args: roots_U: distinct; seed: to draw uniformly, None for the most recent; deeper: the next range is asked for the
            distinct roots and neighbours of the one before, else for the same roots.
        Raises: OffloadedError.
        """
        asked, found, near, roots = [], [], [], roots_U
        for number, (since, before) in enumerate(ranges):
            if seed is None:
                got = self.recent(roots, before, k, since)
            else:
                got = self.uniform(roots, before, k, seed + number, since_edge=since)
            asked.append(roots)
            found.append(got)
            near.append(np.where(got.mask, got.neighbor, roots[:, None]))
            if deeper and number + 1 < len(ranges):
                roots = np.unique(np.concatenate([roots, near[-1].ravel()]))
        nodes, places = np.unique(np.concatenate([p.ravel() for pair in zip(asked, near, strict=True) for p in pair]),
                                  return_inverse=True)
        hops, at = [], 0
        for root, got in zip(asked, found, strict=True):
            root_at, at = places[at: at + len(root)], at + len(root)
            neighbor_at, at = places[at: at + got.eid.size].reshape(got.eid.shape), at + got.eid.size
            hops.append(ExploredHop(root_at, neighbor_at, got.eid, got.mask))
        return Explored(nodes, tuple(hops))

    def _range(self, nodes: Int64, since: int | Int64, before: int | Int64) -> tuple[Int64, Int64]:
        # Fresh arrays, so that kernels are compiled for one kind of array only.
        low, high = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
        low[:], high[:] = since, before
        np.maximum(low, self.since_edge, out=low)
        np.minimum(np.maximum(high, self.first_edge, out=high), self.num_edges, out=high)
        low -= self.first_edge
        high -= self.first_edge
        return low, high

    def _resident(self) -> int:
        return self.offloaded_edge - self.first_edge

    def _answer(self, out: Neighbors, complete: bool) -> Neighbors:
        if not complete:
            raise self._offloaded()
        return out

    def _offloaded(self) -> OffloadedError:
        return OffloadedError(f"The answer needs edges before {self.offloaded_edge}, which were taken out of memory.",
                              "restore them, or ask for less of the past.")

    def offload(self, before_edge: int) -> int:
        """Take edges before an id out of memory, as far as whole pages hold nothing newer. Returns: bytes given back."""
        before_edge = min(before_edge, self.num_edges)
        if before_edge <= self.offloaded_edge:
            return 0
        used = int(self._arrays.used[0])
        newest = np.full(used // PAGE_ENTRIES + 1, -1, np.int64)
        last_of_blocks(self._arrays, self.num_nodes, newest, PAGE_ENTRIES)
        old = newest < before_edge - self.first_edge
        old[used // PAGE_ENTRIES:] = False
        fresh = old & ~np.pad(self._freed_pages, (0, len(old) - len(self._freed_pages)))
        self._freed_pages, self.offloaded_edge = old, before_edge
        edges = np.flatnonzero(np.diff(fresh.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        return sum(self._entries.release(a * PAGE_ENTRIES, b * PAGE_ENTRIES) for a, b in edges.tolist())

    def restore(self, since_edge: int, read: Callable[[int, int], tuple[Int64, Int64, Bools]]) -> None:
        """Bring back what was offloaded, all of it where `since_edge` lies before. read: (first, end) -> src, dst and
        whether deleted, of those edges."""
        if since_edge >= self.offloaded_edge:
            return
        counts = np.zeros(self.num_nodes, np.uint32)
        for first in range(self.first_edge, self.offloaded_edge, REFILL_EDGES):
            end = min(first + REFILL_EDGES, self.offloaded_edge)
            src, dst, gone = read(first, end)
            refill(self._arrays, src, dst, first - self.first_edge, counts, self._freed_pages, PAGE_ENTRIES, gone,
                   self.directed)
        self._freed_pages, self.offloaded_edge = np.zeros(0, np.bool_), self.first_edge

    @property
    def num_entries(self) -> int:
        return int(self._nodes.array[DEGREE: 4 * self.num_nodes: 4].sum())

    @property
    def num_bytes(self) -> int:
        """Bytes in use: entries, directories and node table, allocated but unfilled parts included, less what was freed."""
        freed = int(self._freed_pages.sum()) * PAGE_ENTRIES
        return (int(self._arrays.used[0]) - freed) * 8 + int(self._arrays.used[1]) * 8 + self.num_nodes * 33


def _room(count: int, k: int) -> Neighbors:
    return Neighbors(np.empty((count, k), np.int64), np.empty((count, k), np.int64), np.empty((count, k), np.bool_))
