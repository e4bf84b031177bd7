"""A cache of the node embeddings that a version has computed at one cut of its memory."""

from collections.abc import Sequence

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.blocks.arena import Arena
from streamd.graph.blocks.hops import arrays_of
from streamd.models.device_arrays import HOST, Array, on_host, put, zeros

MAX_BYTES = 100 << 20
"""Memory of the cached embeddings, after which all are dropped: 130,000 nodes at `model.dim` 64
without node features, more than a request needs."""
MAX_NODES = 1 << 28
"""Address space for this many node ids; unwritten pages take no memory."""
MAX_SLOTS = 1 << 23
"""Address space for this many embeddings: one pass of requests may need more than MAX_BYTES."""
FIRST_SLOTS = 1024
"""Initial capacity of the cache on a GPU."""


class Embeddings:
    """A sparse set of nodes; each has a slot with three vectors: its embedding, and those by which
    it is scored as source and as destination. Owner: the version that computes them.

    Dropping all costs nothing: a slot counts only if it is below the number in use and names the
    node. Nodes are ids from UNKNOWN (-1) on.
    """

    def __init__(self, widths: Sequence[int], device: str) -> None:
        """widths: of the vectors. device: their location, numpy arrays on the host and torch
        tensors on a GPU."""

        # Small pages, since a version that only one query uses has few embeddings.
        self._slot_of = Arena(np.int32, MAX_NODES, huge_pages=False).array
        self._node_of = Arena(np.int64, MAX_SLOTS, huge_pages=False).array
        self._num_kept = 0
        self._device = device
        self._inverse_norm = Arena(np.float32, MAX_SLOTS, huge_pages=False).array
        self._parts: list[Array]
        if device == HOST:
            arenas = (Arena(np.float32, MAX_SLOTS, width, huge_pages=False) for width in widths)
            self._parts = [arena.array for arena in arenas]
        else:
            self._parts = [zeros(device, (FIRST_SLOTS, width)) for width in widths]
        self._max_kept = MAX_BYTES // (4 * sum(widths))

    def forget(self) -> None:
        """Drop all embeddings."""
        self._num_kept = 0

    def forget_nodes(self, nodes: Int64) -> None:
        """Drop the embeddings of some nodes, and all that were added after the first of them."""
        slots = self._slot_of[nodes[self.has(nodes)] + 1]
        self._num_kept = min([self._num_kept, *slots.tolist()])

    def has(self, nodes: Int64) -> Bools:
        """Whether each node's embedding is cached: bool of the same shape."""
        slot = self._slot_of[nodes + 1]
        kept: Bools = (slot < self._num_kept) & (self._node_of[slot] == nodes)
        return kept

    def missing(self, nodes: Int64) -> Int64:
        """The nodes without a cached embedding: int64, ascending, each once.

        If the cache would exceed MAX_BYTES, all are dropped first, so that all of the nodes are
        returned.
        """
        wanted = np.unique(nodes)
        out = wanted[~self.has(wanted)]
        if len(out) and self._num_kept + len(out) > self._max_kept:
            self.forget()
            return wanted
        return out

    def keep(self, nodes: Int64, parts: Sequence[Array]) -> None:
        """Add nodes that are not cached, int64[M], each once. parts: their vectors, float32[M, D]
        of each width."""
        first, end = self._num_kept, self._num_kept + len(nodes)
        if end > len(self._parts[0]):
            # Capacity at least doubles, so that growth copies each vector a few times only.
            more = max(end, 2 * len(self._parts[0])) - len(self._parts[0])
            self._parts = [
                arrays_of(part).concatenate([part, zeros(self._device, (more, part.shape[1]))])
                for part in self._parts
            ]
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
        """Gather one of the vectors of cached nodes, by its number: float32[M, D]."""
        slots = self._slot_of[nodes + 1].astype(np.int64)
        return self._parts[part][put(slots, self._device)]
