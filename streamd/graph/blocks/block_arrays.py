"""The arrays of a block store, of a query and of its result, and their types as arguments of
kernels."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.graph.kernel_types import FLAG, INT, WRITTEN_FLAGS, WRITTEN_INTS, record, writes


class BlockArrays(NamedTuple):
    """The memory of a block store.

    nodes: int64[4 N], two nodes per cache line: index of the next entry, first event of the last
        block, number of entries (fillers included), index of the directory.
    blocks: int64[2 B], the directories: for each block of a node, ascending, its first event id and
        the index of its first entry; ~index if its entries are offloaded.
    entries: int64[E], the arena: relative event id << 32 | neighbor.
    hidden: uint8[N], 1 if an entry of the node is hidden.
    used: int64[2], numbers of allocated entries and directory slots.
    tau: int64[2], tau, which is a power of two, and its logarithm to base 2.
    """

    nodes: NDArray[Any]
    blocks: NDArray[Any]
    entries: NDArray[Any]
    hidden: NDArray[Any]
    used: NDArray[Any]
    tau: NDArray[Any]


BLOCKS = record(BlockArrays, *[WRITTEN_INTS] * 3, writes(np.uint8), WRITTEN_INTS, WRITTEN_INTS)


class Query(NamedTuple):
    """A query of a block store: the neighbors of R roots in their events [since, before).

    root: int64[R], rows of the roots in the store; num_nodes or more for an unknown node. node:
    int64[R], their node ids. since, before: int64[R], clipped to the store's events [first, next).
    distinct: int32[D], index of the first root of each distinct query. first_root: int32[R], index
    of the first root with the same query as each root. replace, seed: of random draws.
    """

    root: NDArray[Any]
    node: NDArray[Any]
    since: NDArray[Any]
    before: NDArray[Any]
    distinct: NDArray[Any]
    first_root: NDArray[Any]
    num_nodes: int
    first: int
    next: int
    replace: bool
    seed: int


QUERY = record(Query, *[WRITTEN_INTS] * 4, *[writes(np.int32)] * 2, INT, INT, INT, FLAG, INT)


class Sampled(NamedTuple):
    """The output of a sampling kernel, which writes columns [first, first + fanout).

    neighbor, event: int64[R, K]. mask: bool[R, K], False for padding. missing: bool[R], True if the
    result of a root needs offloaded entries.
    """

    neighbor: NDArray[Any]
    event: NDArray[Any]
    mask: NDArray[Any]
    missing: NDArray[Any]
    first: int
    fanout: int


SAMPLED = record(Sampled, *[writes(np.int64, 2)] * 2, writes(np.bool_, 2), WRITTEN_FLAGS, INT, INT)
