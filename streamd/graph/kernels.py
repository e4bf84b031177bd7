"""Block graph kernels, compiled by numba; `streamd.graph.reference` says the same in plain numpy."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

GONE = np.uint32(0xFFFFFFFF)
"""Neighbour of an entry that a delete hides."""


class BlockArrays(NamedTuple):
    """degree[n], directory_at/len/cap[n] per node; block_first (edge id), start, size, cap per directory slot;
    neighbor, eid per entry; used: entries and directory slots taken. Edge ids are relative to the graph's first."""

    degree: NDArray[Any]
    directory_at: NDArray[Any]
    directory_len: NDArray[Any]
    directory_cap: NDArray[Any]
    block_first: NDArray[Any]
    block_start: NDArray[Any]
    block_size: NDArray[Any]
    block_cap: NDArray[Any]
    neighbor: NDArray[Any]
    eid: NDArray[Any]
    used: NDArray[Any]


@njit(cache=True, nogil=True)
def _grow_directory(g: BlockArrays, node: int) -> None:
    old_at, length = g.directory_at[node], g.directory_len[node]
    capacity = max(2, 2 * length)
    at = g.used[1]
    g.used[1] += capacity
    for i in range(length):
        g.block_first[at + i] = g.block_first[old_at + i]
        g.block_start[at + i] = g.block_start[old_at + i]
        g.block_size[at + i] = g.block_size[old_at + i]
        g.block_cap[at + i] = g.block_cap[old_at + i]
    g.directory_at[node], g.directory_cap[node] = at, capacity


@njit(cache=True, nogil=True)
def _append(g: BlockArrays, node: int, other: int, edge: int, tau: int) -> None:
    degree = g.degree[node]
    last = g.directory_at[node] + g.directory_len[node] - 1
    if degree == 0 or g.block_size[last] == g.block_cap[last]:
        if g.directory_len[node] == g.directory_cap[node]:
            _grow_directory(g, node)
        last = g.directory_at[node] + g.directory_len[node]
        g.directory_len[node] += 1
        capacity = min(max(np.int64(degree), 1), tau)
        g.block_first[last] = edge
        g.block_start[last] = g.used[0]
        g.block_size[last] = 0
        g.block_cap[last] = capacity
        g.used[0] += capacity
    at = g.block_start[last] + g.block_size[last]
    g.neighbor[at] = other
    g.eid[at] = edge
    g.block_size[last] += 1
    g.degree[node] = degree + np.uint32(1)


@njit(cache=True, nogil=True)
def insert_edges(g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], first: int, tau: int) -> None:
    """Append edges first, first+1, ... to both ends' blocks, a self loop once."""
    for i in range(len(src)):
        _append(g, src[i], dst[i], first + i, tau)
        if src[i] != dst[i]:
            _append(g, dst[i], src[i], first + i, tau)


@njit(cache=True, nogil=True)
def _count_below(values: NDArray[Any], at: int, length: int, cutoff: int) -> Any:
    """How many of the ascending values[at : at + length] lie below `cutoff`; the last is looked at first."""
    low, high = np.int64(0), np.int64(length)
    if values[at + high - 1] < cutoff:
        return high
    while low < high:
        middle = (low + high) // 2
        if values[at + middle] < cutoff:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _hide(g: BlockArrays, node: int, edge: int) -> None:
    """Hide one end of an edge, if `node` has it."""
    at = g.directory_at[node]
    if g.directory_len[node] == 0:
        return
    before = _count_below(g.block_first, at, g.directory_len[node], edge + 1)
    if before == 0:
        return
    block = at + before - 1
    entry = g.block_start[block] + _count_below(g.eid, g.block_start[block], g.block_size[block], edge)
    if entry < g.block_start[block] + g.block_size[block] and g.eid[entry] == edge:
        g.neighbor[entry] = GONE


@njit(cache=True, nogil=True)
def hide_edges(g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], edge: NDArray[Any]) -> None:
    """Hide edges at both ends; those the graph does not have are passed over."""
    for i in range(len(edge)):
        _hide(g, src[i], edge[i])
        if src[i] != dst[i]:
            _hide(g, dst[i], edge[i])


@njit(cache=True, nogil=True)
def hide_nodes(g: BlockArrays, nodes: NDArray[Any]) -> None:
    """Hide all edges of some nodes, at their neighbours too."""
    for node in nodes:
        at = g.directory_at[node]
        for block in range(at, at + g.directory_len[node]):
            for entry in range(g.block_start[block], g.block_start[block] + g.block_size[block]):
                other = g.neighbor[entry]
                if other != GONE:
                    g.neighbor[entry] = GONE
                    if other != node:
                        _hide(g, other, g.eid[entry])


@njit(cache=True, nogil=True)
def sample_recent(
    g: BlockArrays, nodes: NDArray[Any], since: int, cutoff: int, num_nodes: int, first_edge: int,
    out_neighbor: NDArray[Any], out_eid: NDArray[Any], out_count: NDArray[Any],
) -> None:
    """Newest entries with edge id in [since, cutoff) that are not hidden, newest first.

    A binary search of the directory, then of one block, then backwards.
    """
    k = out_neighbor.shape[1]
    for r in range(len(nodes)):
        node = nodes[r]
        if node < 0 or node >= num_nodes or g.directory_len[node] == 0:
            continue
        at = g.directory_at[node]
        before = _count_below(g.block_first, at, g.directory_len[node], cutoff)
        if before == 0:
            continue
        block = at + before - 1
        start = g.block_start[block]
        entry = start + _count_below(g.eid, start, g.block_size[block], cutoff) - 1
        found = 0
        while found < k:
            if entry < start:
                block -= 1
                if block < at:
                    break
                start = g.block_start[block]
                entry = start + g.block_size[block] - 1
            if g.eid[entry] < since:
                break
            if g.neighbor[entry] != GONE:
                out_neighbor[r, found] = g.neighbor[entry]
                out_eid[r, found] = np.int64(g.eid[entry]) + first_edge
                found += 1
            entry -= 1
        out_count[r] = found
