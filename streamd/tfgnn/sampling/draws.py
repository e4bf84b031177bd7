"""Draws the edges that an operation of a sampling spec takes at a node.

A draw depends on the run's seed, the operation's name, the ids of sample and node, and the node's
edges in order (`adjacency.edge_order`). It does not depend on threads, processes, the shards of
tables, or the kind of sampler. So its random numbers are a counter-based sequence, keyed by a hash
of seed, operation and ids.

RANDOM_UNIFORM draws without replacement by Floyd's algorithm (Bentley and Floyd, 1987).
RANDOM_WEIGHTED draws edge after edge, each by the weights of the remaining edges. These are the
probabilities of A-ES (Efraimidis and Spirakis, 2006), but this algorithm reads only some edges.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.graph.jit import inner, kernel

TOP_K, RANDOM_UNIFORM, RANDOM_WEIGHTED, LATEST_K = range(4)
"""Numbers of `SamplingStrategy` in tfgnn.proto."""
ENDLESS = np.int64(2**63 - 1)
"""The time of a sample without a time: all edges are before it."""
TRIES = 8
"""Number of times that a drawn edge may be one that was drawn before; then the weights of the
remaining edges are summed, and one of these is drawn."""
GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64 (Steele, Lea and Flood, 2014)."""
FNV_BASIS, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
Array = NDArray[Any]


@inner
def _mix(x: Any) -> Any:
    """SplitMix64's finalizer on a uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inner
def _uniform(key: Any, index: int) -> float:
    """The random number at an index of a key's sequence, in [0, 1) with 53 bits."""
    return float(_mix(key + np.uint64(index + 1) * GAMMA) >> np.uint64(11)) * 2.0**-53


@kernel
def _hash(data: Array, end_N: Array, out_N: Array) -> None:
    """Write the hash of each string of data: FNV-1a of its bytes, then `_mix`."""
    at = 0
    for n in range(len(end_N)):
        found = FNV_BASIS
        while at < end_N[n]:
            found = (found ^ np.uint64(data[at])) * FNV_PRIME
            at += 1
        # FNV-1a alone mixes the last bytes poorly.
        out_N[n] = _mix(found)


def hash_strings(strings: list[bytes]) -> Array:
    """A hash of each string, uint64[N]."""
    out = np.empty(len(strings), np.uint64)
    ends = np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)))
    _hash(np.frombuffer(b"".join(strings), np.uint8), ends, out)
    return out


@kernel
def _keys(op: Any, sample_R: Array, node_R: Array, out_R: Array) -> None:
    for r in range(len(out_R)):
        out_R[r] = _mix(_mix(op ^ sample_R[r]) ^ node_R[r])


def draw_keys(seed: int, op_name: str, sample_R: Array, node_R: Array) -> Array:
    """The key of each draw, uint64[R]. sample_R, node_R: hashes of the ids."""
    op = hash_strings([f"{seed} {op_name}".encode()])[0]
    out = np.empty(len(sample_R), np.uint64)
    _keys(op, sample_R, node_R, out)
    return out


@kernel
def draw_indices(key_S: Array, count_S: Array, out_SK: Array) -> None:
    """Write K indices for each of S draws, uniform in 0 to count_S - 1, with replacement; -1 if
    count_S is 0."""
    for s in range(len(out_SK)):
        for k in range(out_SK.shape[1]):
            count = count_S[s]
            out_SK[s, k] = min(int(_uniform(key_S[s], k) * count), count - 1) if count else -1


@kernel
def sum_weights(start_N: Array, weight_E: Array, sum_E: Array) -> None:
    """Write the running sums of the weights of each node's edges."""
    for n in range(len(start_N) - 1):
        total = 0.0
        for e in range(start_N[n], start_N[n + 1]):
            total += weight_E[e]
            sum_E[e] = total


@kernel
def count_edges(start_N: Array, time_E: Array, node_R: Array, until_R: Array, out_R: Array) -> None:
    """Write the number of edges of each node before a time; these are its first edges.

    start_N: as in `Adjacency`. time_E: empty if edges have no time.
    """
    for r in range(len(node_R)):
        low = start_N[node_R[r]]
        high = start_N[node_R[r] + 1]
        first = low
        if len(time_E) and until_R[r] != ENDLESS:
            while low < high:
                middle = (low + high) // 2
                if time_E[middle] < until_R[r]:
                    low = middle + 1
                else:
                    high = middle
            high = low
        out_R[r] = high - first


@kernel
def draw_edges(
    strategy: int,
    size: int,
    start_N: Array,
    weight_E: Array,
    sum_E: Array,
    top_E: Array,
    node_R: Array,
    count_R: Array,
    key_R: Array,
    taken: Array,
    out: Array,
    num_R: Array,
) -> int:
    """Write the edges of each of R draws, one draw after the other.

    size: maximum number of edges of a draw. weight_E: float32, sum_E, top_E: as in `Adjacency`;
    each empty if the strategy does not use it. count_R: number of edges to draw from. taken: uint8
    zeros, one for each edge of the node with the most edges. num_R: written, number of edges of
    each draw. Returns: number of edges of all draws.
    """
    at = 0
    for r in range(len(node_R)):
        first = start_N[node_R[r]]
        count = count_R[r]
        before = at
        if strategy == RANDOM_WEIGHTED:
            at = _weighted(size, first, count, weight_E, sum_E, key_R[r], taken, out, at)
        elif count <= size:
            for i in range(count):
                out[at] = first + i
                at += 1
        elif strategy == TOP_K:
            index = first
            while at - before < size:
                # Skip edges at or after the sample's time.
                if top_E[index] < first + count:
                    out[at] = top_E[index]
                    at += 1
                index += 1
        elif strategy == LATEST_K:
            for i in range(count - size, count):
                out[at] = first + i
                at += 1
        else:
            at = _uniformly(size, first, count, key_R[r], taken, out, at)
        num_R[r] = at - before
    return at


@inner
def _uniformly(
    size: int, first: int, count: int, key: Any, taken: Array, out: Array, at: int
) -> int:
    """Draw `size` of `count` edges; all subsets are equally likely. Returns: the index after the
    last written edge."""
    begin = at
    for last in range(count - size, count):
        i = min(int(_uniform(key, at - begin) * (last + 1)), last)
        if taken[i]:
            i = last
        taken[i] = 1
        out[at] = first + i
        at += 1
    for j in range(begin, at):
        taken[out[j] - first] = 0
    return at


@inner
def _weighted(
    size: int,
    first: int,
    count: int,
    weight_E: Array,
    sum_E: Array,
    key: Any,
    taken: Array,
    out: Array,
    at: int,
) -> int:
    """Draw up to `size` edges by weight, none with weight 0. Returns: the index after the last
    written edge."""
    begin = at
    if count <= size:
        for i in range(first, first + count):
            if weight_E[i] > 0:
                out[at] = i
                at += 1
        return at
    index = 0
    total = sum_E[first + count - 1]
    while at - begin < size:
        found = -1
        for _ in range(TRIES):
            x = _uniform(key, index) * total
            index += 1
            # Find the first edge with a running sum above x.
            low = first
            high = first + count
            while low < high:
                middle = (low + high) // 2
                if sum_E[middle] > x:
                    high = middle
                else:
                    low = middle + 1
            if low < first + count and not taken[low - first]:
                found = low
                break
        if found < 0:
            # The edges drawn so far have most of the weight: draw among the remaining ones.
            rest = 0.0
            for i in range(first, first + count):
                if not taken[i - first]:
                    rest += weight_E[i]
            x = _uniform(key, index) * rest
            index += 1
            below = 0.0
            for i in range(first, first + count):
                if not taken[i - first] and weight_E[i] > 0:
                    found = i
                    below += weight_E[i]
                    if x < below:
                        break
        if found < 0:
            break
        taken[found - first] = 1
        out[at] = found
        at += 1
    for j in range(begin, at):
        taken[out[j] - first] = 0
    return at
