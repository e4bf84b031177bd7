"""Block graph kernels, compiled by numba: layout, insert, hide. `streamd.graph.reference` says the same in plain Python.

Block b of a node has room for clamp(degree, 1, tau) entries, degree being the node's when the block was begun: 1, 1, 2, 4,
... and then tau each. Only a node's last block is ever partly filled, so where an entry lies follows from its number.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from streamd.graph.jit import inner, kernel

GONE = 0xFFFFFFFF
"""Neighbour of an entry that a delete hides, and the lower half of a packed row."""
TAIL, FREE, DEGREE, DIRECTORY = 0, 1, 2, 3
AHEAD = 32
"""Edges whose memory is read ahead of appending them."""


class BlockArrays(NamedTuple):
    """nodes: int64[4 N], a cache line holds two: place of the next entry, entries free in the last block, degree, place of
    the directory. blocks: int64[B], the directories: edge id << 32 | place of the first entry of each block, in order of
    time. entries: int64[E]: edge id << 32 | neighbour. hidden: uint8[N], 1 where a delete hid an entry of the node. used:
    entries and directory slots taken. tau: int64[2]: tau, a power of two, and which one. Edge ids are relative to the
    graph's first and below 2^31."""

    nodes: NDArray[Any]
    blocks: NDArray[Any]
    entries: NDArray[Any]
    hidden: NDArray[Any]
    used: NDArray[Any]
    tau: NDArray[Any]


@intrinsic
def bit_length(_: Any, x: Any) -> Any:
    """Of an int64 that is not negative; 0 has 0."""
    def build(__: Any, builder: Any, ___: Any, args: Any) -> Any:
        return builder.sub(ir.Constant(ir.IntType(64), 64), builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0)))

    return types.int64(types.int64), build


@inner
def num_blocks(g: BlockArrays, degree: int) -> Any:
    """Blocks of a node with so many entries."""
    tau, shift = g.tau[0], g.tau[1]
    if degree > tau:
        return shift + ((degree + tau - 1) >> shift)
    return 1 + bit_length(degree - 1) if degree > 1 else degree


@inner
def entries_before(g: BlockArrays, block: int) -> Any:
    """Entries of a node that lie before its block number `block`."""
    shift = g.tau[1]
    if block > shift:
        return (block - shift) << shift
    return np.int64(1) << (block - 1) if block > 0 else np.int64(0)


@inner
def block_of(g: BlockArrays, number: int) -> Any:
    """The block that a node's entry with this number lies in."""
    shift = g.tau[1]
    return shift + (number >> shift) if number >= g.tau[0] else bit_length(number)


@inner
def _begin_block(g: BlockArrays, node: int, edge: int) -> None:
    degree = g.nodes[4 * node + DEGREE]
    number = num_blocks(g, degree)
    at = g.nodes[4 * node + DIRECTORY]
    if number == 0 or (number >= 2 and number & (number - 1) == 0):
        capacity = max(2, 2 * number)
        old, at = at, g.used[1]
        g.used[1] += capacity
        for i in range(number):
            g.blocks[at + i] = g.blocks[old + i]
        g.nodes[4 * node + DIRECTORY] = at
    size = min(max(degree, 1), g.tau[0])
    g.blocks[at + number] = (edge << 32) | g.used[0]
    g.nodes[4 * node + TAIL] = g.used[0]
    g.nodes[4 * node + FREE] = size
    g.used[0] += size


@inner
def _append(g: BlockArrays, node: int, other: int, edge: int) -> None:
    if g.nodes[4 * node + FREE] == 0:
        _begin_block(g, node, edge)
    at = g.nodes[4 * node + TAIL]
    g.entries[at] = (edge << 32) | other
    g.nodes[4 * node + TAIL] = at + 1
    g.nodes[4 * node + FREE] -= 1
    g.nodes[4 * node + DEGREE] += 1


@inner
def _touch(g: BlockArrays, nodes: NDArray[Any], begin: int, end: int) -> Any:
    """Read what appending to these nodes will write: one after the other an append would wait for each from memory."""
    seen = np.int64(0)
    for i in range(begin, end):
        seen += g.nodes[4 * nodes[i] + TAIL]
    for i in range(begin, end):
        seen += g.entries[g.nodes[4 * nodes[i] + TAIL]]
    return seen


@kernel
def insert_edges(g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], first: int, directed: bool) -> Any:
    """Append edges first, first + 1, ...: to the source's blocks, and to the destination's too where not directed.

    Returns: a number without meaning, so that the reads ahead are not left out.
    """
    seen = np.int64(0)
    for begin in range(0, len(src), AHEAD):
        end = min(begin + AHEAD, len(src))
        seen += _touch(g, src, begin, end)
        if not directed:
            seen += _touch(g, dst, begin, end)
        for i in range(begin, end):
            _append(g, src[i], dst[i], first + i)
            if not directed and src[i] != dst[i]:
                _append(g, dst[i], src[i], first + i)
    return seen


@inner
def _rows_below(table: NDArray[Any], at: int, count: int, cutoff: int) -> Any:
    """How many rows of the ascending table[at : at + count] have an edge id below `cutoff`; count is above 0.

    Without branches, since what a search finds is anyone's guess, and with unsigned places, which cannot count from the end.
    """
    low, left, bound = np.uint64(at), np.uint64(count), np.int64(cutoff) << 32
    while left > np.uint64(1):
        half = left >> np.uint64(1)
        low += half * np.uint64(table[low + half - np.uint64(1)] < bound)
        left -= half
    return np.int64(low) - at + np.int64(table[low] < bound)


@inner
def entries_below(g: BlockArrays, node: int, cutoff: int) -> Any:
    """(entries of a node with edge id below `cutoff`, the block the last of them lies in)."""
    degree = g.nodes[4 * node + DEGREE]
    if degree == 0:
        return np.int64(0), np.int64(-1)
    at = g.nodes[4 * node + DIRECTORY]
    block = _rows_below(g.blocks, at, num_blocks(g, degree), cutoff) - 1
    if block < 0:
        return np.int64(0), np.int64(-1)
    before = entries_before(g, block)
    size = min(entries_before(g, block + 1), degree) - before
    return before + _rows_below(g.entries, g.blocks[at + block] & GONE, size, cutoff), block


@inner
def locate(
    g: BlockArrays, nodes: NDArray[Any], cutoff: NDArray[Any], num_nodes: int, begin: int, end: int, count: NDArray[Any],
    block: NDArray[Any],
) -> Any:
    """`entries_below` for the roots [begin, end), into count and block from 0 on; unknown nodes have none.

    In three passes, each of independent reads, so that many roots wait for memory at once. Returns: a number without
    meaning, so that the reads ahead are not left out.
    """
    seen = np.int64(0)
    for r in range(begin, end):
        if 0 <= nodes[r] < num_nodes:
            seen += g.blocks[g.nodes[4 * nodes[r] + DIRECTORY]]
    for r in range(begin, end):
        i, node = r - begin, nodes[r]
        count[i], block[i] = 0, -1
        if 0 <= node < num_nodes and g.nodes[4 * node + DEGREE] > 0:
            at = g.nodes[4 * node + DIRECTORY]
            block[i] = _rows_below(g.blocks, at, num_blocks(g, g.nodes[4 * node + DEGREE]), cutoff[r]) - 1
            if block[i] >= 0:
                seen += g.entries[(g.blocks[at + block[i]] & GONE) + (g.tau[0] >> 1)]
    for r in range(begin, end):
        i, node = r - begin, nodes[r]
        if block[i] >= 0:
            before = entries_before(g, block[i])
            size = min(entries_before(g, block[i] + 1), g.nodes[4 * node + DEGREE]) - before
            start = g.blocks[g.nodes[4 * node + DIRECTORY] + block[i]] & GONE
            count[i] = before + _rows_below(g.entries, start, size, cutoff[r])
    return seen


@inner
def _hide(g: BlockArrays, node: int, edge: int) -> None:
    """Hide one end of an edge, if `node` has it."""
    count, block = entries_below(g, node, edge + 1)
    if count:
        at = g.nodes[4 * node + DIRECTORY]
        entry = (g.blocks[at + block] & GONE) + count - 1 - entries_before(g, block)
        if g.entries[entry] >> 32 == edge:
            g.entries[entry] |= GONE
            g.hidden[node] = 1


@kernel
def hide_edges(g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], edge: NDArray[Any]) -> None:
    """Hide edges at both ends; those the graph does not have are passed over."""
    for i in range(len(edge)):
        _hide(g, src[i], edge[i])
        if src[i] != dst[i]:
            _hide(g, dst[i], edge[i])


@kernel
def hide_nodes(g: BlockArrays, nodes: NDArray[Any]) -> None:
    """Hide all entries of some nodes, and those of their neighbours that lead to them."""
    for node in nodes:
        at, degree = g.nodes[4 * node + DIRECTORY], g.nodes[4 * node + DEGREE]
        for block in range(num_blocks(g, degree)):
            start = g.blocks[at + block] & GONE
            size = min(entries_before(g, block + 1), degree) - entries_before(g, block)
            for entry in range(start, start + size):
                other = g.entries[entry] & GONE
                if other != GONE:
                    g.entries[entry] |= GONE
                    g.hidden[node] = 1
                    if other != node:
                        _hide(g, other, g.entries[entry] >> 32)


@kernel
def last_of_blocks(g: BlockArrays, num_nodes: int, pages: NDArray[Any], page_entries: int) -> None:
    """Raise pages[p] to the newest edge id of any block with an entry in page p of the arena, 2^32 for one being filled."""
    for node in range(num_nodes):
        degree, at = g.nodes[4 * node + DEGREE], g.nodes[4 * node + DIRECTORY]
        count = num_blocks(g, degree)
        for block in range(count):
            start = g.blocks[at + block] & GONE
            size = entries_before(g, block + 1) - entries_before(g, block)
            last = np.int64(2**32) if block == count - 1 else (g.blocks[at + block + 1] >> 32) - 1
            for page in range(start // page_entries, (start + size - 1) // page_entries + 1):
                pages[page] = max(pages[page], last)


@kernel
def refill(
    g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], first: int, counts: NDArray[Any], empty: NDArray[Any],
    page_entries: int, gone: NDArray[Any], directed: bool
) -> None:
    """Write edges again into pages that were given back. counts: uint32[N] entries of each node before edge `first`, moved
    on; empty: bool per page; gone: bool per edge, hidden."""
    for i in range(len(src)):
        for side in range(1 if directed or src[i] == dst[i] else 2):
            node, other = (src[i], dst[i]) if side == 0 else (dst[i], src[i])
            block = block_of(g, np.int64(counts[node]))
            place = g.blocks[g.nodes[4 * node + DIRECTORY] + block] & GONE
            entry = place + np.int64(counts[node]) - entries_before(g, block)
            counts[node] += np.uint32(1)
            if empty[entry // page_entries]:
                g.entries[entry] = ((first + i) << 32) | (GONE if gone[i] else other)
