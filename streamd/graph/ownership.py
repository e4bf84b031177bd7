"""The partition of nodes among ranks by hash (GNNFlow section 4.4): the rank that owns a node has
its adjacency, memory and features."""

import threading

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Int64
from streamd.graph.hashing import mix


def owner_of(node_N: Int64, num_ranks: int) -> Int64:
    """The rank that owns each node, int64[N], by a hash of its id, which spreads busy nodes. A
    negative id, of an unknown node, has a rank too."""
    owner_N: Int64 = (mix(node_N.astype(np.uint64)) % np.uint64(num_ranks)).astype(np.int64)
    return owner_N


class OwnedNodes:
    """The nodes that one rank owns, with slots 0, 1, ... in order of their ids. Arrays over slots
    have rows for the rank's own nodes only. Thread-safe.

    The map itself takes 4 bytes for each node of the graph.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._lock = threading.Lock()
        # Slot of each node id, -1 if another rank owns it; and node id of each slot.
        self._slot_N: NDArray[np.int32] = np.zeros(0, np.int32)
        self._node_S = np.zeros(0, np.int64)

    def is_own(self, node_N: Int64) -> Bools:
        """Whether this rank owns each node, bool[N]."""
        own: Bools = owner_of(node_N, self.num_ranks) == self.rank
        return own

    def slots(self, node_N: Int64) -> Int64:
        """The slot of each node, int64[N]; -1 for an unknown node, or a node of another rank."""
        if not len(node_N):
            return np.zeros(0, np.int64)
        highest = int(node_N.max())
        slot_N = self._slot_N
        if highest >= len(slot_N):
            slot_N = self._grow(highest + 1)
        found: Int64 = slot_N[np.maximum(node_N, 0)].astype(np.int64)
        found[node_N < 0] = -1
        return found

    def nodes(self, slot_S: Int64) -> Int64:
        """The node ids of slots that `slots` returned, int64[S]."""
        ids: Int64 = self._node_S[slot_S]
        return ids

    def entries(self, node_E: Int64, other_E: Int64, both: bool) -> tuple[Int64, Int64, Int64]:
        """This rank's adjacency entries for events: slot of the node, other endpoint, and index of
        the event, int64[F] each, in the order of the events.

        node_E: the node that gets an entry of each event. both: other_E gets one too; a self loop
        has one entry.
        """
        row = np.arange(len(node_E))
        if both:
            loop = node_E == other_E
            node_E, other_E = (
                np.stack([a, b], 1).ravel() for a, b in ((node_E, other_E), (other_E, node_E))
            )
            row = np.repeat(row, 2)
            kept = self.is_own(node_E)
            kept[1::2] &= ~loop
        else:
            kept = self.is_own(node_E)
        at = np.flatnonzero(kept)
        return self.slots(node_E[at]), other_E[at], row[at]

    def _grow(self, num_nodes: int) -> NDArray[np.int32]:
        """Assign slots to all own nodes below `num_nodes`, or more. Returns: the slots by id."""
        with self._lock:
            known = len(self._slot_N)
            if num_nodes > known:
                # At least double the size, so that growing takes little time per node.
                added = np.arange(known, max(num_nodes, 2 * known))
                own = np.flatnonzero(self.is_own(added))
                slots = np.full(len(added), -1, np.int32)
                slots[own] = len(self._node_S) + np.arange(len(own))
                # Publish ids before slots: another thread that finds a slot must find its id.
                self._node_S = np.concatenate([self._node_S, added[own]])
                self._slot_N = np.concatenate([self._slot_N, slots])
            return self._slot_N
