"""Block graph kernels, compiled by numba: layout, insert, hide. `streamd.graph.reference` says the same in plain Python.

Block b of a node has room for clamp(degree, 1, tau) entries, degree being the node's when the block was begun: 1, 1, 2, 4,
... and then tau each. Only a node's last block is ever partly filled, so where an entry lies follows from its number.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from streamd.graph.jit import inner, kernel

GONE = 0xFFFFFFFF
"""Neighbour of an entry that a delete hides, and the lower half of a packed row."""
TAIL, FREE, DEGREE, DIRECTORY = 0, 1, 2, 3
AHEAD = 32
"""Edges or roots whose memory is read ahead together."""
NEAR = 16
"""Rows a search looks at first, around a guess."""


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


@intrinsic
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Ask for the cache line of array[at] without waiting for it; where there is no such row nothing happens."""
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(builder.gep(data, [args[1]]), byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), build


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


@kernel
def insert_edges(g: BlockArrays, src: NDArray[Any], dst: NDArray[Any], first: int, directed: bool) -> None:
    """Append edges first, first + 1, ...: to the source's blocks, and to the destination's too where not directed.

    What appending will write is fetched for AHEAD edges at a time: one after the other each would wait for memory."""
    for begin in range(0, len(src), AHEAD):
        end = min(begin + AHEAD, len(src))
        for i in range(begin, end):
            prefetch(g.nodes, 4 * src[i])
            if not directed:
                prefetch(g.nodes, 4 * dst[i])
        for i in range(begin, end):
            prefetch(g.entries, g.nodes[4 * src[i] + TAIL])
            if not directed:
                prefetch(g.entries, g.nodes[4 * dst[i] + TAIL])
        for i in range(begin, end):
            _append(g, src[i], dst[i], first + i)
            if not directed and src[i] != dst[i]:
                _append(g, dst[i], src[i], first + i)


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
def _window(count: int, guess: int) -> Any:
    """Where the NEAR rows around a guess begin, among `count`."""
    return min(max(guess - NEAR // 2, 0), max(count - NEAR, 0))


@inner
def _rows_below_near(table: NDArray[Any], at: int, count: int, cutoff: int, window: int) -> Any:
    """As `_rows_below`, looked for among NEAR rows from `window` on first: they lie side by side, and were read ahead."""
    bound, below = np.int64(cutoff) << 32, np.int64(0)
    near = min(count, NEAR)
    place = np.uint64(at + window)
    for i in range(near):
        below += np.int64(table[place + np.uint64(i)] < bound)
    if (below > 0 or window == 0) and (below < near or window + near == count):
        return window + below
    return _rows_below(table, at, count, cutoff)


@inner
def _read_ahead(table: NDArray[Any], at: int, count: int) -> None:
    """Fetch the rows [at, at + count) of a table of int64, count at most NEAR."""
    prefetch(table, at)
    prefetch(table, at + count // 2)
    prefetch(table, at + count - 1)


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
    g: BlockArrays, nodes: NDArray[Any], cutoff: NDArray[Any], num_nodes: int, num_edges: int, own: NDArray[Any],
    begin: int, end: int, count: NDArray[Any], block: NDArray[Any],
) -> None:
    """`entries_below` for the roots own[begin : end], into count and block from 0 on; unknown nodes have none.

    Each step of the search is taken for all of them, and what the next will read is fetched, so that memory is waited for
    once and not for every root. Where a node's entries are spread evenly over time, the place looked at first is the
    right one.
    """
    window = np.empty(AHEAD, np.int64)
    for i in range(end - begin):
        if 0 <= nodes[own[begin + i]] < num_nodes:
            prefetch(g.nodes, 4 * nodes[own[begin + i]])
    for i in range(end - begin):
        r = own[begin + i]
        node = nodes[r]
        count[i], block[i] = 0, -1
        if 0 <= node < num_nodes:
            degree = g.nodes[4 * node + DEGREE]
            if degree > 0:
                blocks = num_blocks(g, degree)
                window[i] = _window(blocks, block_of(g, np.int64(degree * (cutoff[r] / num_edges))))
                _read_ahead(g.blocks, g.nodes[4 * node + DIRECTORY] + window[i], min(blocks, NEAR))
                block[i] = blocks
    for i in range(end - begin):
        r = own[begin + i]
        node, blocks = nodes[r], block[i]
        if blocks > 0:
            at, degree = g.nodes[4 * node + DIRECTORY], g.nodes[4 * node + DEGREE]
            block[i] = _rows_below_near(g.blocks, at, blocks, cutoff[r], window[i]) - 1
            if block[i] >= 0:
                row, after = g.blocks[at + block[i]], num_edges
                size = entries_before(g, block[i] + 1) - entries_before(g, block[i])
                if block[i] + 1 < blocks:
                    after = g.blocks[at + block[i] + 1] >> 32
                else:
                    size = degree - entries_before(g, block[i])
                edge = row >> 32
                window[i] = _window(size, np.int64(size * ((cutoff[r] - edge) / (after - edge))))
                count[i] = size
                _read_ahead(g.entries, (row & GONE) + window[i], min(size, NEAR))
    for i in range(end - begin):
        if block[i] >= 0:
            r = own[begin + i]
            start = g.blocks[g.nodes[4 * nodes[r] + DIRECTORY] + block[i]] & GONE
            count[i] = entries_before(g, block[i]) + _rows_below_near(g.entries, start, count[i], cutoff[r], window[i])


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
