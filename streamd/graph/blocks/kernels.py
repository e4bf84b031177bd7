"""The layout of a block store, and its numba kernels to insert, search and hide; `offloading.py`
has the kernels to offload.

A block has room for clamp(degree, 1, tau) entries, with the degree of its node when the block was
started: 1, 1, 2, 4, ... and then tau each. The entries of a node are numbered from 0, the oldest
first. Only its last block may be partly filled, so the number of an entry determines its block and
its index in the block.

An entry has its event id relative to the first event of its block. A block spans fewer than SPAN
events: if the next event of a node is further away, its block is filled up with hidden entries, and
a new block starts.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from streamd.graph.blocks.block_arrays import BLOCKS, BlockArrays, Query
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import (
    FLAG,
    INT,
    INTS,
    WRITTEN_INTS,
    reads,
    writes,
)

GONE = 0xFFFFFFFF
"""Neighbor of a hidden entry: a deleted entry or a filler. No node has this id."""
NEIGHBOR_BITS = GONE
"""Mask of the neighbor, the lower half of a packed entry. It equals GONE, in which all these bits
are set, so `entry |= GONE` hides an entry and keeps its event id."""
SPAN = 2**31 - 1
"""Bound of relative event ids, so that a packed entry is a non-negative int64."""
FILLER = ((SPAN - 1) << 32) | GONE
"""A hidden entry that fills up a block. Its event id is above those of all real entries."""

# Columns of a node's row in `BlockArrays.nodes`.
TAIL = 0
BASE = 1
DEGREE = 2
DIRECTORY = 3

AHEAD = 32
"""Number of events or roots per prefetch."""
NEAR = 16
"""Number of rows around a guess that a search compares first."""


@intrinsic
def bit_length(_: Any, x: Any) -> Any:
    """Bit length of an int64 that is not negative; 0 has 0."""

    def build(__: Any, builder: Any, ___: Any, args: Any) -> Any:
        # The second argument defines the result for 0, which is 64.
        leading_zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), leading_zeros)

    return types.int64(types.int64), build


@intrinsic
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Prefetch the cache line of array[at]; an index outside the array has no effect."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [args[1]]), byte_pointer)
        # For a read, into all levels of the cache, of data rather than code.
        builder.call(function, [address, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), build


@inner
def num_blocks(g: BlockArrays, degree: int) -> Any:
    """Number of blocks of a node with `degree` entries."""
    tau = g.tau[0]
    shift = g.tau[1]
    # Sizes double up to tau, then stay at tau.
    if degree > tau:
        return shift + ((degree + tau - 1) >> shift)
    return 1 + bit_length(degree - 1) if degree > 1 else degree


@inner
def entries_before(g: BlockArrays, block: int) -> Any:
    """Number of a node's entries before its block number `block`."""
    shift = g.tau[1]
    if block > shift:
        return (block - shift) << shift
    return np.int64(1) << (block - 1) if block > 0 else np.int64(0)


@inner
def block_of(g: BlockArrays, number: int) -> Any:
    """The block of a node's entry with this number."""
    shift = g.tau[1]
    return shift + (number >> shift) if number >= g.tau[0] else bit_length(number)


@inner
def _has_room(g: BlockArrays, degree: int) -> Any:
    """Whether the last block of a node with `degree` entries has room for one more."""
    tau = g.tau[0]
    if degree >= tau:
        return degree & (tau - 1) != 0
    return degree & (degree - 1) != 0


@inner
def _begin_block(g: BlockArrays, node: int, event: int) -> None:
    degree = g.nodes[4 * node + DEGREE]

    # If the last block has room, the event is too far away for it, so fill it up.
    while _has_room(g, degree):
        g.entries[g.nodes[4 * node + TAIL]] = FILLER
        g.nodes[4 * node + TAIL] += 1
        degree += 1
        g.hidden[node] = 1
    g.nodes[4 * node + DEGREE] = degree

    # A full directory moves to one of twice its size.
    number = num_blocks(g, degree)
    at = g.nodes[4 * node + DIRECTORY]
    if number == 0 or (number >= 2 and number & (number - 1) == 0):
        capacity = max(2, 2 * number)
        old = at
        at = g.used[1]
        g.used[1] += capacity
        for i in range(number):
            g.blocks[2 * (at + i)] = g.blocks[2 * (old + i)]
            g.blocks[2 * (at + i) + 1] = g.blocks[2 * (old + i) + 1]
        g.nodes[4 * node + DIRECTORY] = at

    # Allocate the new block at the end of the arena, with as many entries as the node has, from 1
    # to tau.
    g.blocks[2 * (at + number)] = event
    g.blocks[2 * (at + number) + 1] = g.used[0]
    g.nodes[4 * node + TAIL] = g.used[0]
    g.nodes[4 * node + BASE] = event
    g.used[0] += min(max(degree, 1), g.tau[0])


@inner
def _append(g: BlockArrays, node: int, other: int, event: int) -> None:
    # The relative id SPAN - 1 marks a filler: real ids stay below it.
    far = event - g.nodes[4 * node + BASE] >= SPAN - 1
    if far or not _has_room(g, g.nodes[4 * node + DEGREE]):
        _begin_block(g, node, event)
    at = g.nodes[4 * node + TAIL]
    g.entries[at] = ((event - g.nodes[4 * node + BASE]) << 32) | other
    g.nodes[4 * node + TAIL] = at + 1
    g.nodes[4 * node + DEGREE] += 1


@compiled_for(BLOCKS, INTS, INTS, INTS, FLAG)
def insert_events(
    g: BlockArrays, node: NDArray[Any], other: NDArray[Any], event: NDArray[Any], both: bool
) -> None:
    """Append an entry for each event to its `node`, and with `both` to its `other` too; a self loop
    gets one entry. node, other, event: int64[E]; event ids ascend.

    The memory to write is prefetched for AHEAD events together, so that they wait for it together.
    """
    for begin in range(0, len(node), AHEAD):
        end = min(begin + AHEAD, len(node))

        # Prefetch the nodes' rows.
        for i in range(begin, end):
            prefetch(g.nodes, 4 * node[i])
            if both:
                prefetch(g.nodes, 4 * other[i])

        # Prefetch their next entries, whose indices are in those rows.
        for i in range(begin, end):
            prefetch(g.entries, g.nodes[4 * node[i] + TAIL])
            if both:
                prefetch(g.entries, g.nodes[4 * other[i] + TAIL])

        # Write in log order.
        for i in range(begin, end):
            _append(g, node[i], other[i], event[i])
            if both and node[i] != other[i]:
                _append(g, other[i], node[i], event[i])


@compiled_for(INTS, INTS, FLAG, INT, WRITTEN_INTS)
def count_ends(
    node: NDArray[Any], other: NDArray[Any], both: bool, shift: int, start: NDArray[Any]
) -> None:
    """Count the endpoints of events in each part of the nodes (part: node >> shift). start: int64[P
    + 1], zeros; set to the first index of each part in the sorted endpoints, and last to the number
    of all."""
    for i in range(len(node)):
        start[(node[i] >> shift) + 1] += 1
        if both and node[i] != other[i]:
            start[(other[i] >> shift) + 1] += 1
    for part in range(1, len(start)):
        start[part] += start[part - 1]


@compiled_for(INTS, INTS, FLAG, INT, WRITTEN_INTS, writes(np.uint32), WRITTEN_INTS)
def partition_ends(
    node: NDArray[Any],
    other: NDArray[Any],
    both: bool,
    shift: int,
    place: NDArray[Any],
    own: NDArray[Any],
    packed: NDArray[Any],
) -> None:
    """Sort the endpoints of events by part, and within a part by log order.

    place: `start` of `count_ends`; changed. own: uint32[X], the node of each endpoint. packed:
    int64[X], index of the event << 32 | the other endpoint.
    """
    for i in range(len(node)):
        a, b = node[i], other[i]
        x = place[a >> shift]
        place[a >> shift] = x + 1
        own[x], packed[x] = a, (i << 32) | b
        if both and a != b:
            x = place[b >> shift]
            place[b >> shift] = x + 1
            own[x], packed[x] = b, (i << 32) | a


@compiled_for(BLOCKS, reads(np.uint32), INTS, INTS)
def append_ends(
    g: BlockArrays, own: NDArray[Any], packed: NDArray[Any], event: NDArray[Any]
) -> None:
    """Append the endpoints that `partition_ends` has sorted. event: int64[E], ids by index of the
    event."""
    for begin in range(0, len(own), AHEAD):
        end = min(begin + AHEAD, len(own))
        for x in range(begin, end):
            prefetch(g.nodes, 4 * np.int64(own[x]))
        for x in range(begin, end):
            prefetch(g.entries, g.nodes[4 * np.int64(own[x]) + TAIL])
        for x in range(begin, end):
            _append(g, np.int64(own[x]), packed[x] & GONE, event[packed[x] >> 32])


@inner
def _rows_below(table: NDArray[Any], step: int, at: int, count: int, bound: int) -> Any:
    """Number of rows below `bound` in the rows [at, at + count) of an ascending table, count > 0.
    Row i is table[step * i].

    There are no branches, since the processor could not predict them. Indices are unsigned, so that
    numba generates no code for negative ones.
    """
    low = np.uint64(at)
    left = np.uint64(count)
    while left > np.uint64(1):
        half = left >> np.uint64(1)
        low += half * np.uint64(table[np.uint64(step) * (low + half - np.uint64(1))] < bound)
        left -= half
    return np.int64(low) - at + np.int64(table[np.uint64(step) * low] < bound)


@inner
def _window(count: int, guess: int) -> Any:
    """First of the NEAR rows around a guess, among `count`."""
    return min(max(guess - NEAR // 2, 0), max(count - NEAR, 0))


@inner
def _rows_below_near(
    table: NDArray[Any], step: int, at: int, count: int, bound: int, window: int
) -> Any:
    """As `_rows_below`, but compare the NEAR rows from `window` on first, which are prefetched."""
    below = np.int64(0)
    near = min(count, NEAR)
    place = np.uint64(at + window)
    for i in range(near):
        below += np.int64(table[np.uint64(step) * (place + np.uint64(i))] < bound)
    # If all or none of these rows are below, search the other ones.
    if (below > 0 or window == 0) and (below < near or window + near == count):
        return window + below
    return _rows_below(table, step, at, count, bound)


@inner
def _read_ahead(table: NDArray[Any], step: int, at: int, count: int) -> None:
    """Prefetch the rows [at, at + count) of a table, count at most NEAR; row i is table[step *
    i]."""
    # A cache line holds eight int64; the last row may be in one more line.
    for i in range(0, step * count, 8):
        prefetch(table, step * at + i)
    prefetch(table, step * (at + count) - 1)


@inner
def _bound(base: int, before: int) -> Any:
    """The smallest packed entry with an event at or after `before`, in a block with first event
    `base`."""
    return min(before - base, SPAN) << 32


@inner
def entries_below(g: BlockArrays, node: int, before: int) -> Any:
    """Count a node's entries with event ids below `before`. Returns: (their number, block of the
    last one); (0, -1) if there are none, (-1, block) if that block is offloaded."""
    degree = g.nodes[4 * node + DEGREE]
    if degree == 0:
        return np.int64(0), np.int64(-1)

    # Find the last block that starts before `before`.
    at = g.nodes[4 * node + DIRECTORY]
    block = _rows_below(g.blocks, 2, at, num_blocks(g, degree), before) - 1
    if block < 0:
        return np.int64(0), np.int64(-1)
    place = g.blocks[2 * (at + block) + 1]
    if place < 0:
        return np.int64(-1), block

    # Count all entries before that block, and those in it that are below.
    count = entries_before(g, block)
    size = min(entries_before(g, block + 1), degree) - count
    return count + _rows_below(
        g.entries, 1, place, size, _bound(g.blocks[2 * (at + block)], before)
    ), block


@inner
def locate(
    g: BlockArrays,
    q: Query,
    before: NDArray[Any],
    places: NDArray[Any],
    begin: int,
    end: int,
    count: NDArray[Any],
    block: NDArray[Any],
) -> None:
    """`entries_below` for the query's roots places[begin : end], written to count[i] and block[i]
    from i = 0 on; unknown nodes have none. before: int64[R], `q.before` or `q.since`.

    Each step of the search is done for all roots and prefetches the rows of the next step, so that
    all roots wait for memory together. The guesses assume that a node's entries are spread evenly
    over the log.
    """
    # Prefetch the nodes' rows.
    window = np.empty(AHEAD, np.int64)
    for i in range(end - begin):
        if 0 <= q.root[places[begin + i]] < q.num_nodes:
            prefetch(g.nodes, 4 * q.root[places[begin + i]])

    # Guess the block's index in the directory. Until it is found, block[i] is the number of the
    # node's blocks.
    for i in range(end - begin):
        r = places[begin + i]
        node = q.root[r]
        count[i], block[i] = 0, -1
        if 0 <= node < q.num_nodes:
            degree = g.nodes[4 * node + DEGREE]
            if degree > 0:
                blocks = num_blocks(g, degree)
                share = (before[r] - q.first) / (q.next - q.first)
                window[i] = _window(blocks, block_of(g, np.int64(degree * share)))
                at = g.nodes[4 * node + DIRECTORY] + window[i]
                _read_ahead(g.blocks, 2, at, min(blocks, NEAR))
                block[i] = blocks

    # Find the block, and guess the entry's index in it. Until the entry is found, count[i] is the
    # number of entries in the block.
    for i in range(end - begin):
        r = places[begin + i]
        node = q.root[r]
        blocks = block[i]
        if blocks > 0:
            at = g.nodes[4 * node + DIRECTORY]
            degree = g.nodes[4 * node + DEGREE]
            block[i] = _rows_below_near(g.blocks, 2, at, blocks, before[r], window[i]) - 1
            if block[i] >= 0:
                size = entries_before(g, block[i] + 1) - entries_before(g, block[i])
                # A node's last block reaches to the newest event, and may not be full.
                after = q.next
                if block[i] + 1 < blocks:
                    after = g.blocks[2 * (at + block[i] + 1)]
                else:
                    size = degree - entries_before(g, block[i])
                place = g.blocks[2 * (at + block[i]) + 1]
                if place < 0:
                    count[i] = -1
                    continue
                base = g.blocks[2 * (at + block[i])]
                share = (before[r] - base) / (after - base)
                window[i] = _window(size, np.int64(size * share))
                count[i] = size
                _read_ahead(g.entries, 1, place + window[i], min(size, NEAR))

    # Find the entry.
    for i in range(end - begin):
        if block[i] >= 0 and count[i] > 0:
            r = places[begin + i]
            at = g.nodes[4 * q.root[r] + DIRECTORY] + block[i]
            bound = _bound(g.blocks[2 * at], before[r])
            below = _rows_below_near(g.entries, 1, g.blocks[2 * at + 1], count[i], bound, window[i])
            count[i] = entries_before(g, block[i]) + below


@inner
def _hide(g: BlockArrays, node: int, event: int) -> None:
    """Hide a node's entry of an event, if it has one in memory."""
    count, block = entries_below(g, node, event + 1)
    # If the node has an entry of the event, it is the last one up to the event.
    if count > 0:
        at = g.nodes[4 * node + DIRECTORY] + block
        entry = g.blocks[2 * at + 1] + count - 1 - entries_before(g, block)
        if g.blocks[2 * at] + (g.entries[entry] >> 32) == event:
            g.entries[entry] |= GONE
            g.hidden[node] = 1


@compiled_for(BLOCKS, INTS, INTS, INTS, FLAG)
def hide_events(
    g: BlockArrays, node: NDArray[Any], other: NDArray[Any], event: NDArray[Any], both: bool
) -> None:
    """Hide the entries of some events; unknown events are ignored. Arguments as in
    `insert_events`."""
    for i in range(len(event)):
        _hide(g, node[i], event[i])
        if both and node[i] != other[i]:
            _hide(g, other[i], event[i])


@compiled_for(BLOCKS, INTS)
def hide_nodes(g: BlockArrays, nodes: NDArray[Any]) -> None:
    """Hide all entries of some nodes, and the entries of their neighbors that point to them, in a
    store of both directions. No block of the store may ever have been offloaded."""
    for node in nodes:
        at = g.nodes[4 * node + DIRECTORY]
        degree = g.nodes[4 * node + DEGREE]
        for block in range(num_blocks(g, degree)):
            start = g.blocks[2 * (at + block) + 1]
            size = min(entries_before(g, block + 1), degree) - entries_before(g, block)
            for entry in range(start, start + size):
                row = g.entries[entry]
                other = row & NEIGHBOR_BITS
                # A hidden entry has lost its neighbor.
                if other != GONE:
                    g.entries[entry] |= GONE
                    g.hidden[node] = 1
                    # The neighbor has an entry of the same event.
                    if other != node:
                        _hide(g, other, g.blocks[2 * (at + block)] + (row >> 32))
