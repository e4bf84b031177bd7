"""Kernels that offload the blocks of a store, and restore entries that were read from the log.

In the directory (`BlockArrays.blocks`), an offloaded block has the complement (~) of its index. To
restore the blocks of some nodes:

1. `begin_restoring` clears the blocks, and returns the range of their events.
2. `restore_events` writes all events of that range, in log order, in one or several calls.
3. `end_restoring` marks the blocks as no longer offloaded.

Until step 3 the blocks count as offloaded, so that no query reads an incomplete block.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.blocks.block_arrays import BLOCKS, BlockArrays
from streamd.graph.blocks.kernels import (
    DEGREE,
    DIRECTORY,
    FILLER,
    GONE,
    block_of,
    entries_before,
    num_blocks,
)
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import FLAG, FLAGS, INT, INTS, WRITTEN_FLAGS, WRITTEN_INTS


@compiled_for(BLOCKS, INT, INT, WRITTEN_FLAGS, INT)
def offload_blocks(
    g: BlockArrays, num_nodes: int, before: int, kept: NDArray[Any], page_entries: int
) -> Any:
    """Mark each block as offloaded if all of its events are before `before`, except the last block
    of a node, which may not be full. Set kept[p] for each page of the arena with entries of other
    blocks. Returns: (number of entries in offloaded blocks, number of newly marked directory
    slots)."""
    offloaded = marked = np.int64(0)
    for node in range(num_nodes):
        degree = g.nodes[4 * node + DEGREE]
        at = g.nodes[4 * node + DIRECTORY]
        blocks = num_blocks(g, degree)
        for block in range(blocks):
            place = g.blocks[2 * (at + block) + 1]
            size = entries_before(g, block + 1) - entries_before(g, block)
            if place < 0:
                offloaded += size

            # A block has only events before `before` if the next block starts at or before it.
            elif block < blocks - 1 and g.blocks[2 * (at + block + 1)] <= before:
                g.blocks[2 * (at + block) + 1] = ~place
                offloaded += size
                marked += 1
            else:
                first, last = place // page_entries, (place + size - 1) // page_entries
                for page in range(first, last + 1):
                    kept[page] = True
    return offloaded, marked


@compiled_for(BLOCKS, INTS, WRITTEN_INTS, WRITTEN_FLAGS, INT)
def begin_restoring(
    g: BlockArrays,
    nodes: NDArray[Any],
    next_number: NDArray[Any],
    freed: NDArray[Any],
    page_entries: int,
) -> Any:
    """Step 1: clear the offloaded blocks of some nodes for `restore_events`, and freed[p] of their
    pages. next_number: int64[N], set for each of the nodes to the number of its first offloaded
    entry, or -1. Returns: [since, before), a range with all events of these blocks."""
    since, before = np.int64(2**63 - 1), np.int64(0)
    for node in nodes:
        degree = g.nodes[4 * node + DEGREE]
        at = g.nodes[4 * node + DIRECTORY]
        next_number[node] = -1
        for block in range(num_blocks(g, degree)):
            place = g.blocks[2 * (at + block) + 1]
            if place < 0:
                # A node's last block is never offloaded, so there is a next block.
                since = min(since, g.blocks[2 * (at + block)])
                before = max(before, g.blocks[2 * (at + block + 1)])
                if next_number[node] < 0:
                    next_number[node] = entries_before(g, block)

                # An entry stays a filler if the log has dropped its event.
                size = entries_before(g, block + 1) - entries_before(g, block)
                for entry in range(~place, ~place + size):
                    g.entries[entry] = FILLER
                    freed[entry // page_entries] = False
    return since, before


@inner
def _restore(g: BlockArrays, node: int, other: int, event: int, next_number: NDArray[Any]) -> None:
    number = next_number[node]
    if number < 0:
        return
    at = g.nodes[4 * node + DIRECTORY]
    blocks = num_blocks(g, g.nodes[4 * node + DEGREE])
    block = block_of(g, number)
    if event < g.blocks[2 * (at + block)]:
        return  # the event is in an older block, which is not offloaded

    # Skip fillers at the end of a block, and blocks that are not offloaded.
    while block + 1 < blocks and g.blocks[2 * (at + block + 1)] <= event:
        block += 1
        number = entries_before(g, block)
    place = g.blocks[2 * (at + block) + 1]
    if place < 0:
        entry = ~place + number - entries_before(g, block)
        g.entries[entry] = ((event - g.blocks[2 * (at + block)]) << 32) | other
        if other == GONE:
            g.hidden[node] = 1
        number += 1
    next_number[node] = number


@compiled_for(BLOCKS, INTS, INTS, FLAGS, INTS, WRITTEN_INTS, FLAG)
def restore_events(
    g: BlockArrays,
    node: NDArray[Any],
    other: NDArray[Any],
    gone: NDArray[Any],
    event: NDArray[Any],
    next_number: NDArray[Any],
    both: bool,
) -> None:
    """Step 2: write events, in log order, into the offloaded blocks of the nodes of
    `begin_restoring`. gone: bool[E], True for deleted events. event: int64[E], ids."""
    for i in range(len(node)):
        a, b = node[i], other[i]
        if a < len(next_number):
            _restore(g, a, GONE if gone[i] else b, event[i], next_number)
        if both and a != b and b < len(next_number):
            _restore(g, b, GONE if gone[i] else a, event[i], next_number)


@compiled_for(BLOCKS, INTS, WRITTEN_INTS)
def end_restoring(g: BlockArrays, nodes: NDArray[Any], next_number: NDArray[Any]) -> None:
    """Step 3: mark the offloaded blocks of some nodes as in memory again."""
    for node in nodes:
        next_number[node] = -1
        degree = g.nodes[4 * node + DEGREE]
        at = g.nodes[4 * node + DIRECTORY]
        for block in range(num_blocks(g, degree)):
            if g.blocks[2 * (at + block) + 1] < 0:
                # The complement of the complement is the index.
                g.blocks[2 * (at + block) + 1] = ~g.blocks[2 * (at + block) + 1]
