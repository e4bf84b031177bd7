"""Sampling kernels, compiled by numba. The result of a root depends on the root and its query
alone, not on the batch or the thread."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.blocks.block_arrays import BLOCKS, QUERY, SAMPLED, BlockArrays, Query, Sampled
from streamd.graph.blocks.kernels import (
    AHEAD,
    DIRECTORY,
    GONE,
    NEIGHBOR_BITS,
    block_of,
    entries_before,
    locate,
    prefetch,
)
from streamd.graph.hashing import GOLDEN, mixed
from streamd.graph.jit import compiled_for, inner
from streamd.graph.kernel_types import INTS, writes


@inner
def _pad(r: int, found: int, out: Sampled) -> None:
    """Mark the first `found` neighbors of root r as real, and zero the rest."""
    for i in range(out.first, out.first + found):
        out.mask[r, i] = True
    for i in range(out.first + found, out.first + out.fanout):
        out.neighbor[r, i] = out.event[r, i] = 0
        out.mask[r, i] = False


@compiled_for(INTS, INTS, INTS, writes(np.int32), writes(np.int32))
def find_distinct(
    node_R: NDArray[Any],
    since_R: NDArray[Any],
    before_R: NDArray[Any],
    distinct: NDArray[Any],
    first_root: NDArray[Any],
) -> int:
    """Find the roots with the same query (node, since and before) as an earlier root.

    Writes distinct[:n], int32, the index of the first root of each of the n distinct queries, and
    first_root, int32[R], the index of the first root with the same query. Returns: n.
    """
    # A hash table with open addressing; its size is a power of two, and it is at most half full. An
    # empty slot is 0, so a root is stored as its index + 1.
    size = 16
    while size < 2 * len(node_R):
        size *= 2
    table = np.zeros(size, np.int32)
    found = 0
    for r in range(len(node_R)):
        # Any fast hash is enough, since matches are compared (the factor is xxHash's second prime).
        key = np.uint64(node_R[r]) * GOLDEN ^ np.uint64(before_R[r]) * np.uint64(0xC2B2AE3D27D4EB4F)
        slot = (key ^ (key >> np.uint64(32))) & np.uint64(size - 1)
        while True:
            other = table[slot] - 1
            if other < 0:
                table[slot] = r + 1
                first_root[r] = r
                distinct[found] = r
                found += 1
                break

            # The slot has the same query, or another one with the same hash.
            same = before_R[other] == before_R[r] and since_R[other] == since_R[r]
            if same and node_R[other] == node_R[r]:
                first_root[r] = other
                break
            slot = (slot + np.uint64(1)) & np.uint64(size - 1)
    return found


@inner
def _repeat(q: Query, out: Sampled) -> None:
    """Copy the result of the first root of each distinct query to the other roots with that
    query."""
    for r in range(len(q.first_root)):
        first = q.first_root[r]
        if first != r:
            out.missing[r] = out.missing[first]
            for i in range(out.first, out.first + out.fanout):
                out.neighbor[r, i] = out.neighbor[first, i]
                out.event[r, i] = out.event[first, i]
                out.mask[r, i] = out.mask[first, i]


@compiled_for(BLOCKS, QUERY, SAMPLED)
def sample_recent(g: BlockArrays, q: Query, out: Sampled) -> None:
    """Sample the newest visible entries of each root in its range of events, newest first.

    Search the directory, then one block, then walk backwards. Equal queries are computed once.
    """
    k = out.fanout
    distinct, num_distinct = q.distinct, len(q.distinct)
    counts = np.empty(AHEAD, np.int64)
    blocks = np.empty(AHEAD, np.int64)
    for low in range(0, num_distinct, AHEAD):
        high = min(low + AHEAD, num_distinct)
        locate(g, q, q.before, distinct, low, high, counts, blocks)
        for i in range(high - low):
            r = distinct[low + i]

            # Walk back from the newest entry in the range, and skip hidden entries.
            found = 0
            block = blocks[i]
            since = q.since[r]
            missing = counts[i] < 0 and since < q.before[r]
            if counts[i] > 0 and since < q.before[r]:
                at = g.nodes[4 * q.root[r] + DIRECTORY]
                base = g.blocks[2 * (at + block)]
                start = g.blocks[2 * (at + block) + 1]
                entry = start + counts[i] - entries_before(g, block) - 1
                while found < k:
                    # Continue with the block before, if there is one with events of the range.
                    if entry < start:
                        if block == 0 or base <= since:
                            break
                        block -= 1
                        base = g.blocks[2 * (at + block)]
                        start = g.blocks[2 * (at + block) + 1]
                        if start < 0:
                            missing = True
                            break
                        entry = start + entries_before(g, block + 1) - entries_before(g, block) - 1
                    row = g.entries[entry]
                    event = base + (row >> 32)
                    if event < since:
                        break
                    if row & NEIGHBOR_BITS != GONE:
                        out.neighbor[r, out.first + found] = row & NEIGHBOR_BITS
                        out.event[r, out.first + found] = event
                        found += 1
                    entry -= 1
            out.missing[r] = missing
            _pad(np.int64(r), found, out)
    _repeat(q, out)


@inner
def _below(random: Any, bound: Any) -> Any:
    """A number in [0, bound) from 32 random bits; bias below bound / 2^32."""
    return np.int64(((random >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@inner
def _choose(state: Any, count: int, k: int, replace: bool, chosen: NDArray[Any]) -> Any:
    """Write random numbers below `count` to chosen: k with replacement, or min(k, count) distinct
    ones (Floyd 1987). Returns: how many."""
    if replace:
        for i in range(k):
            chosen[i] = _below(mixed(state + np.uint64(i)), count)
        return k

    # If there are at most k: all of them, newest first.
    if count <= k:
        for i in range(count):
            chosen[i] = count - 1 - i
        return count

    # Floyd: replace a number that was drawn before by the highest one allowed, which is new.
    for i in range(k):
        top = count - k + i
        pick = _below(mixed(state + np.uint64(i)), top + 1)
        for j in range(i):
            if chosen[j] == pick:
                pick = top
                break
        chosen[i] = pick
    return k


@inner
def _list_visible(g: BlockArrays, node: int, begin: int, end: int, listed: NDArray[Any]) -> Any:
    """List the numbers of the visible entries among a node's entries [begin, end). Returns: their
    count, or -1 if some are offloaded."""
    held = 0
    at = g.nodes[4 * node + DIRECTORY]
    for number in range(begin, end):
        block = block_of(g, np.int64(number))
        place = g.blocks[2 * (at + block) + 1]
        if place < 0:
            return -1
        row = g.entries[place + number - entries_before(g, block)]
        if row & NEIGHBOR_BITS != GONE:
            listed[held] = number
            held += 1
    return held


@compiled_for(BLOCKS, QUERY, SAMPLED)
def sample_uniform(g: BlockArrays, q: Query, out: Sampled) -> None:
    """Sample visible entries of each root uniformly from its range of events.

    Without `q.replace`, return all of them if there are at most k. Random numbers are a hash of
    seed, node, the range's end and the number of the draw.
    """
    k = out.fanout
    ends = np.empty(AHEAD, np.int64)
    end_blocks = np.empty(AHEAD, np.int64)
    begins = np.zeros(AHEAD, np.int64)
    begin_blocks = np.empty(AHEAD, np.int64)
    chosen = np.empty((AHEAD, k), np.int64)
    found = np.empty(AHEAD, np.int64)
    in_block = np.empty((AHEAD, k), np.int64)
    listed = np.empty(0, np.int64)
    distinct, num_distinct = q.distinct, len(q.distinct)

    # Search for the beginnings of the ranges only if some root has one.
    bounded = False
    for r in range(len(q.root)):
        bounded = bounded or q.since[r] > q.first

    for low in range(0, num_distinct, AHEAD):
        high = min(low + AHEAD, num_distinct)
        locate(g, q, q.before, distinct, low, high, ends, end_blocks)
        if bounded:
            locate(g, q, q.since, distinct, low, high, begins, begin_blocks)

        # Draw entries by number, and prefetch the directory rows of their blocks.
        for i in range(high - low):
            r = distinct[low + i]
            node = q.root[r]
            begin = begins[i]
            count = ends[i] - begins[i]
            found[i] = 0
            out.missing[r] = (begin < 0 or ends[i] < 0) and q.since[r] < q.before[r]
            if out.missing[r] or count <= 0 or q.since[r] >= q.before[r]:
                continue
            # The oldest blocks of a node are offloaded first, so check the first one of the range.
            at = g.nodes[4 * node + DIRECTORY]
            if g.blocks[2 * (at + block_of(g, begin)) + 1] < 0:
                out.missing[r] = True
                continue
            state = np.uint64(q.seed) + GOLDEN * np.uint64(q.node[r] + 1)
            state = mixed(mixed(state) + np.uint64(q.before[r]))

            # If deletes hide some entries, draw from the visible ones.
            if g.hidden[node]:
                if len(listed) < count:
                    listed = np.empty(2 * count, np.int64)
                held = _list_visible(g, node, begin, begin + count, listed)
                if held < 0:
                    out.missing[r] = True
                    continue
                found[i] = _choose(state, held, k, q.replace, chosen[i]) if held else 0
                for j in range(found[i]):
                    chosen[i, j] = listed[chosen[i, j]]
            else:
                found[i] = _choose(state, count, k, q.replace, chosen[i])
                for j in range(found[i]):
                    chosen[i, j] += begin
            for j in range(found[i]):
                in_block[i, j] = at + block_of(g, chosen[i, j])
                prefetch(g.blocks, 2 * in_block[i, j])

        # Turn the numbers into indices in the arena, and prefetch these entries.
        for i in range(high - low):
            at = g.nodes[4 * q.root[distinct[low + i]] + DIRECTORY] if found[i] else np.int64(0)
            for j in range(found[i]):
                place = g.blocks[2 * in_block[i, j] + 1]
                chosen[i, j] += place - entries_before(g, in_block[i, j] - at)
                prefetch(g.entries, chosen[i, j])

        # Read the entries.
        for i in range(high - low):
            r = distinct[low + i]
            for j in range(found[i]):
                row = g.entries[chosen[i, j]]
                out.neighbor[r, out.first + j] = row & NEIGHBOR_BITS
                out.event[r, out.first + j] = g.blocks[2 * in_block[i, j]] + (row >> 32)
            _pad(np.int64(r), found[i], out)
    _repeat(q, out)
