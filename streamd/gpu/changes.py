"""Kernels that find the changes in a block store's arrays since they were last sent to the GPU, by
the touched nodes. Compiled by numba."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64
from streamd.graph.blocks.block_arrays import BLOCKS, BlockArrays
from streamd.graph.blocks.kernels import (
    DEGREE,
    DIRECTORY,
    GONE,
    block_of,
    entries_before,
    entries_below,
    num_blocks,
)
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import INTS, WRITTEN_INTS, writes


@inner
def _old_blocks(g: BlockArrays, sent: NDArray[Any], node: int) -> Any:
    """Number of a node's directory slots that were sent and did not move. sent: as in
    `count_changes`."""
    # A directory that grew has moved, so all of it must be sent.
    if sent[4 * node + DIRECTORY] != g.nodes[4 * node + DIRECTORY]:
        return np.int64(0)
    return num_blocks(g, sent[4 * node + DEGREE])


@compiled_for(INTS, INTS, writes(np.uint8), WRITTEN_INTS)
def list_touched(
    src: NDArray[Any], dst: NDArray[Any], marks: NDArray[Any], node: NDArray[Any]
) -> Any:
    """Write the distinct endpoints of events to `node`, in order of their first occurrence. src,
    dst: int64[E]. marks: uint8[N], zeros before and after. Returns: their number."""
    count = np.int64(0)
    for i in range(len(src)):
        for end in (src[i], dst[i]):
            if marks[end] == 0:
                marks[end] = 1
                node[count] = end
                count += 1
    for i in range(count):
        marks[node[i]] = 0
    return count


@compiled_for(BLOCKS, INTS, INTS)
def count_changes(g: BlockArrays, sent: NDArray[Any], touched: NDArray[Any]) -> Any:
    """Count the new (directory slots, entries) of touched nodes. touched: int64 node ids. sent:
    int64[4 N], the node table as it was last sent."""
    blocks = entries = np.int64(0)
    for node in touched:
        degree = g.nodes[4 * node + DEGREE]
        blocks += num_blocks(g, degree) - _old_blocks(g, sent, node)
        entries += degree - sent[4 * node + DEGREE]
    return blocks, entries


@compiled_for(BLOCKS, INTS, INTS, WRITTEN_INTS, WRITTEN_INTS)
def list_changes(
    g: BlockArrays,
    sent: NDArray[Any],
    touched: NDArray[Any],
    block_at: NDArray[Any],
    entry_at: NDArray[Any],
) -> Any:
    """Write the indices of new directory slots to `block_at`, and of new entries to `entry_at`,
    both as long as `count_changes` returned. Offloaded entries are skipped. Returns: number of
    entries to send."""
    b = e = np.int64(0)
    for node in touched:
        at = g.nodes[4 * node + DIRECTORY]
        degree = g.nodes[4 * node + DEGREE]

        # Directory slots after those that were sent.
        for block in range(_old_blocks(g, sent, node), num_blocks(g, degree)):
            block_at[b] = at + block
            b += 1

        # Entries after those that were sent.
        for number in range(sent[4 * node + DEGREE], degree):
            block = block_of(g, np.int64(number))
            place = g.blocks[2 * (at + block) + 1]
            if place >= 0:
                entry_at[e] = place + number - entries_before(g, block)
                e += 1
    return e


def find_changes(g: BlockArrays, sent: Int64, touched: Int64) -> tuple[Int64, Int64]:
    """The indices of directory slots and of entries to send: int64, ascending within a node.
    Arguments as in `count_changes`."""
    blocks, entries = count_changes(g, sent, touched)
    block_at = np.empty(blocks, np.int64)
    entry_at = np.empty(entries, np.int64)
    num_entries = list_changes(g, sent, touched, block_at, entry_at)
    return block_at, entry_at[:num_entries]


@compiled_for(BLOCKS, INTS, INTS, WRITTEN_INTS)
def list_entry_indices(
    g: BlockArrays, node: NDArray[Any], event: NDArray[Any], entry_at: NDArray[Any]
) -> Any:
    """Write the index of each node's entry of an event to `entry_at`. node, event: int64[X]. Nodes
    without an entry of the event, and offloaded entries, are skipped. Returns: number of
    indices."""
    count = np.int64(0)
    for i in range(len(node)):
        below, block = entries_below(g, node[i], event[i] + 1)
        if below > 0:
            at = g.nodes[4 * node[i] + DIRECTORY] + block
            place = g.blocks[2 * at + 1] + below - 1 - entries_before(g, block)
            if g.blocks[2 * at] + (g.entries[place] >> 32) == event[i]:
                entry_at[count] = place
                count += 1
    return count


@compiled_for(BLOCKS, INTS, WRITTEN_INTS, WRITTEN_INTS)
def list_ends(g: BlockArrays, nodes: NDArray[Any], other: NDArray[Any], event: NDArray[Any]) -> Any:
    """Write the other endpoint and the event of all visible entries of some nodes, which must have
    no offloaded blocks. Returns: their number."""
    count = np.int64(0)
    for node in nodes:
        at = g.nodes[4 * node + DIRECTORY]
        for number in range(g.nodes[4 * node + DEGREE]):
            block = block_of(g, np.int64(number))
            first = g.blocks[2 * (at + block)]
            row = g.entries[g.blocks[2 * (at + block) + 1] + number - entries_before(g, block)]
            if row & GONE != GONE:
                other[count] = row & GONE
                event[count] = first + (row >> 32)
                count += 1
    return count


def entries_of(g: BlockArrays, node: Int64, event: Int64) -> Int64:
    """The indices of the entries of nodes for events: int64, ascending, each once. node, event:
    int64[X]."""
    entry_at = np.empty(len(node), np.int64)
    return np.unique(entry_at[: list_entry_indices(g, node, event, entry_at)])


def events_of(g: BlockArrays, nodes: Int64) -> tuple[Int64, Int64]:
    """The other endpoint and the event of each visible entry of some nodes: int64[X] each."""
    size = int(g.nodes.reshape(-1, 4)[nodes, DEGREE].sum())
    other = np.empty(size, np.int64)
    event = np.empty(size, np.int64)
    count = list_ends(g, nodes, other, event)
    return other[:count], event[:count]


class Touched:
    """Finds the nodes that an insert touched, without sorting. Owner: a `DeviceGraph`."""

    def __init__(self) -> None:
        self._marks = np.zeros(0, np.uint8)

    def nodes(self, src: Int64, dst: Int64, num_nodes: int) -> Int64:
        """The distinct endpoints of events, int64. num_nodes: one past the highest."""
        if num_nodes > len(self._marks):
            self._marks = np.zeros(max(num_nodes, 2 * len(self._marks)), np.uint8)
        node = np.empty(min(2 * len(src), num_nodes), np.int64)
        return node[: list_touched(src, dst, self._marks, node)]
