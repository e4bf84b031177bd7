"""Kernels for co-visits: the number of sources that sent events to two destinations, one soon after
the other. Compiled by numba.

The table has a fixed size. The index of a count is a hash of its pair; if two pairs have the same
index, the newer count replaces the older one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Int64
from streamd.graph.facts.fact_arrays import COVISITS, VISITED, FactArrays
from streamd.graph.facts.pair_table import pair_key
from streamd.graph.hashing import mix, mixed
from streamd.graph.jit import inner

COVISIT_SCALE = 100.0
"""Factor of shares of co-visits before log(1 + x): a share of 0.01 becomes log 2."""


@inner
def count_visit(f: FactArrays, u: int, v: int, is_first: bool) -> None:
    """Count an event u -> v. is_first: whether it is the pair's first in this direction."""
    if is_first:
        for i in range(VISITED):
            x = np.int64(f.visited[u, i]) - 1
            if x < 0:
                break
            if x != v:
                _count(f, x, v)
        f.num_sources[v] += 1

    # Move the newest destination to the front.
    held = f.visited[u, 0]
    f.visited[u, 0] = v + 1
    for i in range(1, VISITED):
        if held == 0 or held == v + 1:
            break
        f.visited[u, i], held = held, f.visited[u, i]


@inner
def _key(x: int, v: int) -> Any:
    # Keys start at 1: 0 is an empty entry.
    return pair_key(x, v) + np.uint64(1)


@inner
def _count(f: FactArrays, x: int, v: int) -> None:
    # The index is the sum of two hashes of nodes, so that a query hashes each node once.
    key = _key(x, v)
    at = (mixed(np.uint64(x)) + mixed(np.uint64(v))) & np.uint64(COVISITS - 1)
    if f.covisits[at, 0] != key:
        f.covisits[at, 0] = key
        f.covisits[at, 1] = 0
    f.covisits[at, 1] += np.uint64(1)


def indices_of(nodes: Int64) -> Int64:
    """The rows of the table for all pairs of some destinations: int64. nodes: int64 ids."""
    hashed = mix(nodes.astype(np.uint64))
    x, v = np.triu_indices(len(nodes), 1)
    at: Int64 = ((hashed[x] + hashed[v]) & np.uint64(COVISITS - 1)).astype(np.int64)
    return at


@inner
def fill_covisits(
    f: FactArrays, u: int, candidates: NDArray[Any], out_total: NDArray[Any], out_greatest: Any
) -> None:
    """Write the co-visits of each candidate with the last destinations of u, a known node: their
    sum and maximum, float32[C] each, as in the columns LOG_COVISITS and LOG_GREATEST_COVISITS.
    candidates: int64[C]."""

    # Hash and weigh the last destinations of the source once.
    count = 0
    node = np.empty(VISITED, np.int64)
    hashed = np.empty(VISITED, np.uint64)
    root = np.empty(VISITED)
    for i in range(VISITED):
        x = np.int64(f.visited[u, i]) - 1
        if x < 0:
            break
        node[i], hashed[i], root[i] = x, mixed(np.uint64(x)), np.sqrt(f.num_sources[x])
        count += 1

    for c in range(len(candidates)):
        v = candidates[c]
        out_total[c] = out_greatest[c] = 0.0
        if not (count and 0 <= v < len(f.seen) and f.num_sources[v] > 0):
            continue
        total = greatest = 0.0
        own = mixed(np.uint64(v))
        for i in range(count):
            # Compare the key first, since few pairs have a count.
            at = (hashed[i] + own) & np.uint64(COVISITS - 1)
            if f.covisits[at, 0] == _key(node[i], v):
                share = np.float64(f.covisits[at, 1]) / root[i]
                total += share
                greatest = max(greatest, share)
        if total > 0.0:
            scale = COVISIT_SCALE / np.sqrt(f.num_sources[v])
            out_total[c] = np.log1p(scale * total)
            out_greatest[c] = np.log1p(scale * greatest)


@inner
def forget_visits(f: FactArrays, gone: Any) -> None:
    """Delete the nodes of gone, bool[N]: their co-visits, their rows, and their entries among the
    last destinations of other nodes."""
    for at in range(COVISITS):
        if f.covisits[at, 0] != 0:
            key = f.covisits[at, 0] - np.uint64(1)
            if gone[key >> np.uint64(32)] or gone[key & np.uint64(0xFFFFFFFF)]:
                f.covisits[at, 0] = 0
    for node in range(len(gone)):
        if gone[node]:
            f.num_sources[node] = 0

        # The remaining destinations keep their order.
        count = 0
        for i in range(VISITED):
            x = f.visited[node, i]
            if x == 0:
                break
            if not (gone[node] or gone[x - 1]):
                f.visited[node, count] = x
                count += 1
            if count <= i:
                f.visited[node, i] = 0
