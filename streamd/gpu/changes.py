"""What of a block store's arrays changed since it was last sent to the GPU: found from the nodes
touched, by numba."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64
from streamd.graph.jit import inner, kernel
from streamd.graph.kernels import (
    DEGREE,
    DIRECTORY,
    BlockArrays,
    block_of,
    entries_before,
    num_blocks,
)


@inner
def _old_blocks(g: BlockArrays, sent: NDArray[Any], node: int) -> Any:
    """Slots of a node's directory that were sent and lie where they did."""
    # A directory that grew lies elsewhere and is sent whole.
    if sent[4 * node + DIRECTORY] != g.nodes[4 * node + DIRECTORY]:
        return np.int64(0)
    return num_blocks(g, sent[4 * node + DEGREE])


@kernel
def count_changes(g: BlockArrays, sent: NDArray[Any], touched: NDArray[Any]) -> Any:
    """(directory slots, entries) that are new in the touched nodes. sent: int64[4 N], their rows as
    they were sent."""
    blocks = entries = np.int64(0)
    for node in touched:
        degree = g.nodes[4 * node + DEGREE]
        blocks += num_blocks(g, degree) - _old_blocks(g, sent, node)
        entries += degree - sent[4 * node + DEGREE]
    return blocks, entries


@kernel
def list_changes(
    g: BlockArrays,
    sent: NDArray[Any],
    touched: NDArray[Any],
    block_at: NDArray[Any],
    entry_at: NDArray[Any],
) -> Any:
    """Their places among directory slots and in `entries`, as many as `count_changes` said; an
    entry that is offloaded has nothing to send. Returns: how many entries there are to send."""
    b = e = np.int64(0)
    for node in touched:
        at = g.nodes[4 * node + DIRECTORY]
        degree = g.nodes[4 * node + DEGREE]

        # Directory slots behind those that were sent.
        for block in range(_old_blocks(g, sent, node), num_blocks(g, degree)):
            block_at[b] = at + block
            b += 1

        # Entries behind those that were sent.
        for number in range(sent[4 * node + DEGREE], degree):
            block = block_of(g, np.int64(number))
            place = g.blocks[2 * (at + block) + 1]
            if place >= 0:
                entry_at[e] = place + number - entries_before(g, block)
                e += 1
    return e


def changed(g: BlockArrays, sent: Int64, touched: Int64) -> tuple[Int64, Int64]:
    """Places of directory slots and entries to be sent, int64, each ascending within a node."""
    blocks, entries = count_changes(g, sent, touched)
    block_at = np.empty(blocks, np.int64)
    entry_at = np.empty(entries, np.int64)
    num_entries = list_changes(g, sent, touched, block_at, entry_at)
    return block_at, entry_at[:num_entries]
