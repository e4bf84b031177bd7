"""A cache of the node embeddings that a version has computed at one cut of its memory."""

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks.arena import Arena
from streamd.graph.blocks.hops import arrays_of
from streamd.models.device_arrays import HOST, Array, on_host, put, zeros

MAX_KEPT = 1 << 17
"""Maximum number of cached embeddings, after which all are dropped: 100 MB at `model.dim` 64, more
than a request needs."""
MAX_NODES = 1 << 28
"""Address space for this many node ids; unwritten pages take no memory."""
MAX_SLOTS = 1 << 23
"""Address space for this many embeddings: one pass of requests may need more than MAX_KEPT."""
FIRST_SLOTS = 1024
"""Initial capacity of the cache on a GPU."""
PARTS = 3
"""Vectors of each node: the embedding itself, and the head's vectors of it as source and as
destination."""


class Embeddings:
    """A sparse set of nodes; each has a slot with its vectors. Owner: the version that computes
    them.

    Dropping all costs nothing: a slot counts only if it is below the number in use and names the
    node. Nodes are ids from UNKNOWN (-1) on.
    """

    def __init__(self, dim: int, device: str) -> None:
        """device: location of the vectors, numpy arrays on the host and torch tensors on a GPU."""

        # Small pages, since a version that only one query uses has few embeddings.
        self._slot_of = Arena(np.int32, MAX_NODES, huge_pages=False).array
        self._node_of = Arena(np.int64, MAX_SLOTS, huge_pages=False).array
        self._num_kept = 0
        self._device = device
        self._inverse_norm = Arena(np.float32, MAX_SLOTS, huge_pages=False).array
        self._parts: list[Array]
        if device == HOST:
            arenas = (Arena(np.float32, MAX_SLOTS, dim, huge_pages=False) for _ in range(PARTS))
            self._parts = [arena.array for arena in arenas]
        else:
            self._parts = [zeros(device, (FIRST_SLOTS, dim)) for _ in range(PARTS)]

    def forget(self) -> None:
        """Drop all embeddings."""
        self._num_kept = 0

    def has(self, nodes: Int64) -> Bools:
        """Whether each node's embedding is cached: bool of the same shape."""
        slot = self._slot_of[nodes + 1]
        kept: Bools = (slot < self._num_kept) & (self._node_of[slot] == nodes)
        return kept

    def missing(self, nodes: Int64) -> Int64:
        """The nodes without a cached embedding: int64, ascending, each once.

        If the cache would exceed MAX_KEPT, all are dropped first, so that all of the nodes are
        returned.
        """
        wanted = np.unique(nodes)
        out = wanted[~self.has(wanted)]
        if len(out) and self._num_kept + len(out) > MAX_KEPT:
            self.forget()
            return wanted
        return out

    def keep(self, nodes: Int64, parts: list[Array]) -> None:
        """Add nodes that are not cached, int64[M], each once. parts: PARTS vectors of each,
        float32[M, D]."""
        first, end = self._num_kept, self._num_kept + len(nodes)
        if end > len(self._parts[0]):
            # Capacity at least doubles, so that growth copies each vector a few times only.
            more = max(end, 2 * len(self._parts[0])) - len(self._parts[0])
            added = zeros(self._device, (more, self._parts[0].shape[1]))
            self._parts = [arrays_of(part).concatenate([part, added]) for part in self._parts]
        for kept, part in zip(self._parts, parts, strict=True):
            kept[first:end] = part
        norm_M = on_host((parts[0] * parts[0]).sum(1)) ** 0.5
        self._inverse_norm[first:end] = 1 / norm_M.clip(1e-9)
        self._slot_of[nodes + 1] = np.arange(first, end)
        self._node_of[first:end] = nodes
        self._num_kept = end

    def likeness(self, node: int) -> tuple[Int64, Float32]:
        """All cached nodes, and the dot product of their normalized embedding with the embedding of
        a cached node: int64[K] and float32[K]. This is the cosine times the node's own norm, which
        is the same for all."""
        z_D = self.of(0, np.array([node]))[0]
        dot_K = on_host(self._parts[0][: self._num_kept] @ z_D)
        cosine_K: Float32 = dot_K * self._inverse_norm[: self._num_kept]
        return self._node_of[: self._num_kept], cosine_K

    def of(self, part: int, nodes: Int64) -> Array:
        """Gather one of the PARTS vectors of cached nodes: float32[M, D]."""
        slots = self._slot_of[nodes + 1].astype(np.int64)
        return self._parts[part][put(slots, self._device)]
