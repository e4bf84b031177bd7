"""Sampling kernels, compiled by numba; each root's result depends on the root and its place only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.hashing import mixed as _mixed
from streamd.graph.jit import inner, kernel
from streamd.graph.kernels import (
    AHEAD,
    DIRECTORY,
    GONE,
    BlockArrays,
    block_of,
    entries_before,
    locate,
    prefetch,
)


@inner
def _pad(r: int, found: int, neighbor: NDArray[Any], eid: NDArray[Any], mask: NDArray[Any]) -> None:
    for i in range(found):
        mask[r, i] = True
    for i in range(found, neighbor.shape[1]):
        neighbor[r, i] = eid[r, i] = 0
        mask[r, i] = False


@inner
def _distinct(nodes: NDArray[Any], since: NDArray[Any], cutoff: NDArray[Any], own: NDArray[Any], like: NDArray[Any]) -> int:
    """Roots that ask what an earlier one does: own[:n] lists the others, like[r] is the first that asks the same as r."""
    size = 16
    while size < 2 * len(nodes):
        size *= 2
    table, found = np.zeros(size, np.int32), 0
    for r in range(len(nodes)):
        key = np.uint64(nodes[r]) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(cutoff[r]) * np.uint64(0xC2B2AE3D27D4EB4F)
        slot = (key ^ (key >> np.uint64(32))) & np.uint64(size - 1)
        while True:
            other = table[slot] - 1
            if other < 0:
                table[slot], like[r] = r + 1, r
                own[found] = r
                found += 1
                break
            if nodes[other] == nodes[r] and cutoff[other] == cutoff[r] and since[other] == since[r]:
                like[r] = other
                break
            slot = (slot + np.uint64(1)) & np.uint64(size - 1)
    return found


@inner
def _repeat(like: NDArray[Any], neighbor: NDArray[Any], eid: NDArray[Any], mask: NDArray[Any]) -> None:
    """Give roots that ask what an earlier one does its answer."""
    for r in range(len(like)):
        if like[r] != r:
            for i in range(neighbor.shape[1]):
                neighbor[r, i], eid[r, i], mask[r, i] = neighbor[like[r], i], eid[like[r], i], mask[like[r], i]


@kernel
def sample_recent(
    g: BlockArrays, nodes: NDArray[Any], since: NDArray[Any], cutoff: NDArray[Any], resident: int, num_nodes: int,
    num_edges: int, first_edge: int, neighbor: NDArray[Any], eid: NDArray[Any], mask: NDArray[Any],
) -> Any:
    """Newest entries with edge id in [since[r], cutoff[r]) that are not hidden, newest first, into neighbor, eid, mask.

    A binary search of the directory, then of one block, then backwards; roots that ask the same are answered once.
    resident: entries below it may be offloaded. Returns: False where an answer needs entries that were.
    """
    k = neighbor.shape[1]
    own, like = np.empty(len(nodes), np.int32), np.empty(len(nodes), np.int32)
    distinct = _distinct(nodes, since, cutoff, own, like)
    counts, blocks = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    for first in range(0, distinct, AHEAD):
        last = min(first + AHEAD, distinct)
        locate(g, nodes, cutoff, num_nodes, num_edges, own, first, last, counts, blocks)
        for i in range(last - first):
            r = own[first + i]
            found, count, block = 0, counts[i], blocks[i]
            if count > 0:
                at = g.nodes[4 * nodes[r] + DIRECTORY]
                start = g.blocks[at + block] & GONE
                entry = start + count - entries_before(g, block) - 1
                while found < k:
                    if entry < start:
                        block -= 1
                        if block < 0:
                            break
                        start = g.blocks[at + block] & GONE
                        entry = start + entries_before(g, block + 1) - entries_before(g, block) - 1
                    row = g.entries[entry]
                    edge = row >> 32
                    if edge < resident and since[r] < resident:
                        return False  # offloaded rows read as edge 0: not asked whether they lie before since
                    if edge < since[r]:
                        break
                    if row & GONE != GONE:
                        neighbor[r, found] = row & GONE
                        eid[r, found] = edge + first_edge
                        found += 1
                    entry -= 1
            _pad(np.int64(r), found, neighbor, eid, mask)
    _repeat(like, neighbor, eid, mask)
    return True


@inner
def _below(random: Any, bound: Any) -> Any:
    """A number in [0, bound) from 32 random bits; bias below bound / 2^32."""
    return np.int64(((random >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@inner
def _entry(g: BlockArrays, node: int, number: int) -> Any:
    block = block_of(g, number)
    return (g.blocks[g.nodes[4 * node + DIRECTORY] + block] & GONE) + number - entries_before(g, block)


@inner
def _choose(state: Any, count: int, k: int, replace: bool, chosen: NDArray[Any]) -> Any:
    """Numbers below `count` into chosen: k with replacement, else min(k, count) distinct ones (Floyd 1987). How many."""
    if replace:
        for i in range(k):
            chosen[i] = _below(_mixed(state + np.uint64(i)), count)
        return k
    if count <= k:
        for i in range(count):
            chosen[i] = count - 1 - i
        return count
    for i in range(k):
        top = count - k + i
        pick = _below(_mixed(state + np.uint64(i)), top + 1)
        for j in range(i):
            if chosen[j] == pick:
                pick = top
                break
        chosen[i] = pick
    return k


@inner
def _list_visible(g: BlockArrays, node: int, begin: int, end: int, listed: NDArray[Any]) -> int:
    """Places of a node's entries with numbers [begin, end) that no delete hides. Returns: how many."""
    held = 0
    for number in range(begin, end):
        entry = _entry(g, node, number)
        if g.entries[entry] & GONE != GONE:
            listed[held] = entry
            held += 1
    return held


@kernel
def sample_uniform(
    g: BlockArrays, nodes: NDArray[Any], since: NDArray[Any], cutoff: NDArray[Any], resident: int, num_nodes: int,
    num_edges: int, first_edge: int, replace: bool, seed: int, neighbor: NDArray[Any], eid: NDArray[Any],
    mask: NDArray[Any],
) -> Any:
    """Entries with edge id in [since[r], cutoff[r]) that are not hidden, each as likely as any other. As `sample_recent`.

    Random numbers are a hash of seed, node, cutoff and the draw: a root's answer is the same in any batch, on any thread.
    """
    k = neighbor.shape[1]
    ends, starts, blocks = np.empty(AHEAD, np.int64), np.zeros(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    chosen, found = np.empty((AHEAD, k), np.int64), np.empty(AHEAD, np.int64)
    listed = np.empty(0, np.int64)
    own, like = np.empty(len(nodes), np.int32), np.empty(len(nodes), np.int32)
    distinct = _distinct(nodes, since, cutoff, own, like)
    asked = False
    for r in range(len(nodes)):
        asked = asked or since[r] > 0
    for first in range(0, distinct, AHEAD):
        last = min(first + AHEAD, distinct)
        locate(g, nodes, cutoff, num_nodes, num_edges, own, first, last, ends, blocks)
        if asked:
            locate(g, nodes, since, num_nodes, num_edges, own, first, last, starts, blocks)
        for i in range(last - first):
            r = own[first + i]
            node = nodes[r]
            begin, count = starts[i], ends[i] - starts[i]
            found[i] = 0
            if count <= 0:
                continue
            if since[r] < resident and g.entries[_entry(g, node, begin)] >> 32 < resident:
                return False
            state = _mixed(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(node + 1))
            state = _mixed(state + np.uint64(cutoff[r]))
            if g.hidden[node]:
                if len(listed) < count:
                    listed = np.empty(2 * count, np.int64)
                held = _list_visible(g, node, begin, begin + count, listed)
                found[i] = _choose(state, held, k, replace, chosen[i]) if held else 0
                for j in range(found[i]):
                    chosen[i, j] = listed[chosen[i, j]]
            else:
                found[i] = _choose(state, count, k, replace, chosen[i])
                for j in range(found[i]):
                    chosen[i, j] += begin
                    prefetch(g.blocks, g.nodes[4 * node + DIRECTORY] + block_of(g, chosen[i, j]))
        for i in range(last - first):
            node = nodes[own[first + i]]
            for j in range(found[i]):
                if not g.hidden[node]:
                    chosen[i, j] = _entry(g, node, chosen[i, j])
                prefetch(g.entries, chosen[i, j])
        for i in range(last - first):
            r = own[first + i]
            for j in range(found[i]):
                row = g.entries[chosen[i, j]]
                neighbor[r, j] = row & GONE
                eid[r, j] = (row >> 32) + first_edge
            _pad(np.int64(r), found[i], neighbor, eid, mask)
    _repeat(like, neighbor, eid, mask)
    return True
