"""Sampling kernels, compiled by numba. A root's answer depends on the root and its query only, not
on the batch it is asked in nor on the thread that asks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.hashing import GOLDEN, mixed
from streamd.graph.jit import inner, kernel
from streamd.graph.kernels import (
    AHEAD,
    DIRECTORY,
    GONE,
    BlockArrays,
    Query,
    Sampled,
    block_of,
    entries_before,
    locate,
    prefetch,
)


@inner
def _pad(r: int, found: int, out: Sampled) -> None:
    for i in range(found):
        out.mask[r, i] = True
    for i in range(found, out.neighbor.shape[1]):
        out.neighbor[r, i] = out.event[r, i] = 0
        out.mask[r, i] = False


@inner
def _distinct(q: Query, own: NDArray[Any], like: NDArray[Any]) -> int:
    """Find roots that repeat an earlier root's question. own[:n]: the roots that do not; like[r]:
    the first root with r's question."""
    # A power of two, at most half full; 0 is an empty slot, so a root is its index + 1.
    size = 16
    while size < 2 * len(q.root):
        size *= 2
    table = np.zeros(size, np.int32)
    found = 0
    for r in range(len(q.root)):
        # Any quick hash does, as what it finds is compared (the factor is xxHash's second prime).
        key = np.uint64(q.root[r]) * GOLDEN ^ np.uint64(q.before[r]) * np.uint64(0xC2B2AE3D27D4EB4F)
        slot = (key ^ (key >> np.uint64(32))) & np.uint64(size - 1)
        while True:
            other = table[slot] - 1
            if other < 0:
                table[slot], like[r] = r + 1, r
                own[found] = r
                found += 1
                break

            # The slot is taken, by the same question or by chance.
            same = q.before[other] == q.before[r] and q.since[other] == q.since[r]
            if same and q.root[other] == q.root[r]:
                like[r] = other
                break
            slot = (slot + np.uint64(1)) & np.uint64(size - 1)
    return found


@inner
def _repeat(like: NDArray[Any], out: Sampled) -> None:
    """Give roots that ask what an earlier one does its answer."""
    for r in range(len(like)):
        if like[r] != r:
            out.missing[r] = out.missing[like[r]]
            for i in range(out.neighbor.shape[1]):
                out.neighbor[r, i] = out.neighbor[like[r], i]
                out.event[r, i] = out.event[like[r], i]
                out.mask[r, i] = out.mask[like[r], i]


@kernel
def sample_recent(g: BlockArrays, q: Query, out: Sampled) -> None:
    """The newest entries of each root in its events that are not hidden, newest first.

    A binary search of the directory, then of one block, then backwards; roots that ask the same are
    answered once.
    """
    k = out.neighbor.shape[1]
    own = np.empty(len(q.root), np.int32)
    like = np.empty(len(q.root), np.int32)
    distinct = _distinct(q, own, like)
    counts = np.empty(AHEAD, np.int64)
    blocks = np.empty(AHEAD, np.int64)
    for first in range(0, distinct, AHEAD):
        last = min(first + AHEAD, distinct)
        locate(g, q, q.before, own, first, last, counts, blocks)
        for i in range(last - first):
            r = own[first + i]

            # Walk back from the newest entry that the query may see, past those that are hidden.
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
                    # Go on with the block before, where there is one that reaches back far enough.
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
                    if row & GONE != GONE:
                        out.neighbor[r, found] = row & GONE
                        out.event[r, found] = event
                        found += 1
                    entry -= 1
            out.missing[r] = missing
            _pad(np.int64(r), found, out)
    _repeat(like, out)


@inner
def _below(random: Any, bound: Any) -> Any:
    """A number in [0, bound) from 32 random bits; bias below bound / 2^32."""
    return np.int64(((random >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@inner
def _choose(state: Any, count: int, k: int, replace: bool, chosen: NDArray[Any]) -> Any:
    """Write numbers below `count` into chosen: k with replacement, else min(k, count) distinct ones
    (Floyd 1987). Returns: how many."""
    if replace:
        for i in range(k):
            chosen[i] = _below(mixed(state + np.uint64(i)), count)
        return k

    # Few enough: all of them, newest first.
    if count <= k:
        for i in range(count):
            chosen[i] = count - 1 - i
        return count

    # Floyd: a number drawn before is replaced by the highest one allowed, which is new.
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
    """Numbers of a node's entries in [begin, end) that no delete hides. Returns: how many, -1 where
    some are offloaded."""
    held = 0
    at = g.nodes[4 * node + DIRECTORY]
    for number in range(begin, end):
        block = block_of(g, np.int64(number))
        place = g.blocks[2 * (at + block) + 1]
        if place < 0:
            return -1
        if g.entries[place + number - entries_before(g, block)] & GONE != GONE:
            listed[held] = number
            held += 1
    return held


@kernel
def sample_uniform(g: BlockArrays, q: Query, out: Sampled) -> None:
    """Entries of each root in its events that are not hidden, each as likely as any other.

    Without `q.replace` all of them where there are at most k. Random numbers are a hash of seed,
    node, the query's end and the draw.
    """
    k = out.neighbor.shape[1]
    ends = np.empty(AHEAD, np.int64)
    end_blocks = np.empty(AHEAD, np.int64)
    begins = np.zeros(AHEAD, np.int64)
    begin_blocks = np.empty(AHEAD, np.int64)
    chosen = np.empty((AHEAD, k), np.int64)
    found = np.empty(AHEAD, np.int64)
    in_block = np.empty((AHEAD, k), np.int64)
    listed = np.empty(0, np.int64)
    own = np.empty(len(q.root), np.int32)
    like = np.empty(len(q.root), np.int32)
    distinct = _distinct(q, own, like)

    # Roots are asked once each; their lower ends are searched only where a query has any.
    bounded = False
    for r in range(len(q.root)):
        bounded = bounded or q.since[r] > q.first

    for first in range(0, distinct, AHEAD):
        last = min(first + AHEAD, distinct)
        locate(g, q, q.before, own, first, last, ends, end_blocks)
        if bounded:
            locate(g, q, q.since, own, first, last, begins, begin_blocks)

        # Choose numbers of entries, and fetch what says where they lie.
        for i in range(last - first):
            r = own[first + i]
            node = q.root[r]
            begin = begins[i]
            count = ends[i] - begins[i]
            found[i] = 0
            out.missing[r] = (begin < 0 or ends[i] < 0) and q.since[r] < q.before[r]
            if out.missing[r] or count <= 0 or q.since[r] >= q.before[r]:
                continue
            # A node's oldest blocks are offloaded first: the first block of the range tells.
            at = g.nodes[4 * node + DIRECTORY]
            if g.blocks[2 * (at + block_of(g, begin)) + 1] < 0:
                out.missing[r] = True
                continue
            state = np.uint64(q.seed) + GOLDEN * np.uint64(node + 1)
            state = mixed(mixed(state) + np.uint64(q.before[r]))

            # Where deletes hide some, choose among the entries that they leave.
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

        # Say where they lie, and fetch them.
        for i in range(last - first):
            at = g.nodes[4 * q.root[own[first + i]] + DIRECTORY] if found[i] else np.int64(0)
            for j in range(found[i]):
                place = g.blocks[2 * in_block[i, j] + 1]
                chosen[i, j] += place - entries_before(g, in_block[i, j] - at)
                prefetch(g.entries, chosen[i, j])

        # Read them.
        for i in range(last - first):
            r = own[first + i]
            for j in range(found[i]):
                row = g.entries[chosen[i, j]]
                out.neighbor[r, j] = row & GONE
                out.event[r, j] = g.blocks[2 * in_block[i, j]] + (row >> 32)
            _pad(np.int64(r), found[i], out)
    _repeat(like, out)
