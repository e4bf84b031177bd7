"""Rows of nodes in pages that copies of a memory share until one of them writes (copy on write).

A copy of a memory copies its table of pages, and a write copies the pages that it changes. So
several memories with mostly equal rows (epochs of one window, the shadow, the next version)
together take little more space than one.
"""

import collections
import os
import threading

import numpy as np

from streamd.events import Bools, Int64
from streamd.graph.blocks.arena import Arena
from streamd.graph.blocks.hops import arrays_of
from streamd.graph.ownership import OwnedNodes
from streamd.models.device_arrays import HOST, Array, on_host, put, zeros

PAGE = 16
"""Rows of a page. A larger page copies more unchanged rows; a smaller one makes the table larger,
which every copy of a memory copies whole."""
RESERVED_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Address space reserved for a pool on the host: as much as this machine's memory, so that rows
never move. Only written pages take memory."""
FIRST_PAGES = 1024
"""Initial pages of a pool on a GPU; its arrays double when they are full."""


class PagePool:
    """The pages of several memories on one device, with the number of memories that use each.

    Thread-safe: a page that several memories use is never written, and a page of one memory is
    written by that memory's owner only. Page 0 is all zeros and never written.

    state: float32[R, D]; last_us: int64[R]; numpy's on the host, tensors on a GPU. Page p holds the
    rows [p * PAGE, (p + 1) * PAGE).
    """

    def __init__(self, dim: int, device: str) -> None:
        self.lock = threading.Lock()
        self.dim = dim
        if device == HOST:
            rows = RESERVED_BYTES // (4 * dim + 8) // PAGE * PAGE
            self._arenas = Arena(np.float32, rows, dim), Arena(np.int64, rows)
            self.state: Array = self._arenas[0].array
            self.last_us: Array = self._arenas[1].array
        else:
            rows = FIRST_PAGES * PAGE
            self.state = zeros(device, (rows, dim))
            self.last_us = zeros(device, (rows,), np.int64)

        # Pages below `_end` have been used; those without users are in `_free`.
        self._users = np.zeros(FIRST_PAGES, np.int32)
        self._end = 1
        self._free = np.zeros(0, np.int64)
        self._dropped: collections.deque[Int64] = collections.deque()

    @property
    def device(self) -> str:
        return HOST if isinstance(self.state, np.ndarray) else str(self.state.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages ever used: the pool's size on the device."""
        return self._end * PAGE * (4 * self.dim + 8)

    def share(self, page_P: Int64) -> None:
        """Count one more memory that uses these pages; page 0 is not counted."""
        with self.lock:
            self._release_dropped()
            self._users[page_P[page_P > 0]] += 1

    def drop(self, page_P: Int64) -> None:
        """Release the pages of a memory that was collected.

        It only records them, since the garbage collector calls it and may interrupt any other
        method.
        """
        self._dropped.append(page_P)

    def is_shared(self, page_P: Int64) -> Bools:
        """Whether each page has several users or is the page of zeros; the caller holds the
        lock."""
        self._release_dropped()
        shared: Bools = (page_P == 0) | (self._users[page_P] > 1)
        return shared

    def copies(self, page_P: Int64) -> Int64:
        """Copy pages to new ones with one user each. The caller holds the lock, and uses the copies
        instead of the originals. Returns: the new pages, int64[P]."""
        new_P = self._take(len(page_P))
        for array in (self.state, self.last_us):
            pages = array.reshape(len(array) // PAGE, PAGE, *array.shape[1:])
            new, old = (put(p, self.device) for p in (new_P, page_P))
            pages[new] = pages[old]
        self._release(page_P)
        return new_P

    def replace(self, old_P: Int64, new_P: Int64) -> None:
        """Count one user less of the old pages, and one more of the new ones; the caller holds the
        lock."""
        self._users[new_P] += 1
        self._release(old_P)

    def _take(self, count: int) -> Int64:
        """Allocate pages without users, free ones first, and count one user each."""
        free = min(count, len(self._free))
        taken = self._free[len(self._free) - free :]
        self._free = self._free[: len(self._free) - free]

        # The rest are new pages.
        end = self._end + count - free
        self._grow(end)
        taken = np.concatenate([taken, np.arange(self._end, end)])
        self._end = end
        self._users[taken] = 1
        return taken

    def _release_dropped(self) -> None:
        """Release the pages of dropped memories."""
        while self._dropped:
            self._release(self._dropped.popleft())

    def _release(self, page_P: Int64) -> None:
        page_P = page_P[page_P > 0]
        self._users[page_P] -= 1
        self._free = np.concatenate([self._free, page_P[self._users[page_P] == 0]])

    def _grow(self, end: int) -> None:
        """Make room for pages below `end`."""
        if end > len(self._users):
            more = max(end, 2 * len(self._users)) - len(self._users)
            self._users = np.concatenate([self._users, np.zeros(more, np.int32)])
        if end * PAGE > len(self.state):
            more = max(end * PAGE, 2 * len(self.state)) - len(self.state)
            states = zeros(self.device, (more, self.dim))
            times = zeros(self.device, (more,), np.int64)
            self.state = arrays_of(self.state).concatenate([self.state, states])
            self.last_us = arrays_of(self.last_us).concatenate([self.last_us, times])


class NodeRows:
    """A state and a time for each node. Owner: one thread.

    Nodes that were never written have zeros. owned: the nodes of this rank, or None for all. A
    node's position is its slot in `owned`, or its id if `owned` is None. num_positions: one past
    the highest position that was written.
    """

    def __init__(self, pool: PagePool, owned: OwnedNodes | None = None) -> None:
        self.pool = pool
        self.owned = owned
        self.num_positions = 0
        # Slot s of the table holds the page of the positions [s * PAGE, (s + 1) * PAGE).
        self._page_S: Int64 = np.zeros(0, np.int64)
        self._on_device = put(self._page_S, pool.device)

    def __del__(self) -> None:
        self.pool.drop(self._page_S)

    def _set_table(self, page_S: Int64) -> None:
        self._page_S = page_S
        self._on_device = put(page_S, self.pool.device)

    def copy(self) -> "NodeRows":
        """Equal rows for another memory; the pages are shared."""
        twin = NodeRows(self.pool, self.owned)
        self.pool.share(self._page_S)
        twin._set_table(self._page_S.copy())
        twin.num_positions = self.num_positions
        return twin

    def rows(self, node_M: Array) -> Array:
        """Rows of the pool that hold the nodes' values, int64[M]; a row of zeros for nodes without
        values.

        node_M: int64[M] on the device; negative ids are unknown nodes.
        """
        if self.owned is not None:
            node_M = put(self.owned.slots(on_host(node_M)), self.pool.device)
        return self._rows_at(node_M)

    def _rows_at(self, position_M: Array) -> Array:
        """As `rows`, for positions."""
        arrays = arrays_of(position_M)
        known_M = (position_M >= 0) & (position_M < self.num_positions)
        if not len(self._page_S):
            return arrays.zeros_like(position_M)
        table_S = self._page_S if arrays is np else self._on_device
        slot_M = arrays.where(known_M, position_M // PAGE, 0)
        return arrays.where(known_M, table_S[slot_M] * PAGE + position_M % PAGE, 0)

    def positions(self, node_M: Int64) -> Int64:
        """The positions of nodes, int64[M]; negative for nodes of other ranks."""
        return node_M if self.owned is None else self.owned.slots(node_M)

    def nodes_at(self, slot_S: Int64) -> Int64:
        """The nodes of some slots of the table, without positions past the end: int64."""
        position_K = _positions_of(slot_S)
        position_K = position_K[position_K < self.num_positions]
        return position_K if self.owned is None else self.owned.nodes(position_K)

    def slots_of(self, node_M: Int64) -> Int64:
        """Slots of the table that hold nodes: int64, ascending, each once."""
        return np.unique(self.positions(node_M) // PAGE)

    def state(self, node_M: Array) -> Array:
        """States of nodes, float32[M, D]. node_M: as in `rows`."""
        return self.pool.state[self.rows(node_M)]

    def last_us(self, node_M: Array) -> Array:
        """Times of nodes, int64[M]. node_M: as in `rows`."""
        return self.pool.last_us[self.rows(node_M)]

    def write(self, node_K: Int64, state_KD: Array, last_us_K: Array) -> None:
        """Replace the values of nodes. node_K: int64[K], each once, all of this rank."""
        if not len(node_K):
            return
        position_K = self.positions(node_K)
        assert position_K.min() >= 0, "a node of another rank"
        self._own(np.unique(position_K // PAGE))
        self.num_positions = max(self.num_positions, int(position_K.max()) + 1)
        # Under the lock, since another memory may enlarge the pool's arrays.
        with self.pool.lock:
            row_K = put(self._rows_at(position_K), self.pool.device)
            self.pool.state[row_K] = state_KD
            self.pool.last_us[row_K] = last_us_K

    def _own(self, slot_S: Int64) -> None:
        """Replace the pages of some slots by copies that only this memory uses, unless it is their
        only user. slot_S: int64[S], ascending, each once."""
        if slot_S[-1] >= len(self._page_S):
            grown = np.zeros(max(int(slot_S[-1]) + 1, 2 * len(self._page_S)), np.int64)
            grown[: len(self._page_S)] = self._page_S
            self._set_table(grown)
        with self.pool.lock:
            shared = slot_S[self.pool.is_shared(self._page_S[slot_S])]
            if len(shared):
                self._page_S[shared] = self.pool.copies(self._page_S[shared])
        self._update_device_table(shared)

    def _update_device_table(self, slot_S: Int64) -> None:
        # On the host there is only one table.
        if self.pool.device != HOST and len(slot_S):
            slots, pages = (put(a, self.pool.device) for a in (slot_S, self._page_S[slot_S]))
            self._on_device[slots] = pages

    def changed_slots(self, since: "NodeRows") -> Int64:
        """Slots whose pages differ from those of `since`, which is of the same pool.

        Their values may still be equal. Returns: int64, ascending.
        """
        size = max(len(self._page_S), len(since._page_S))
        a, b = (np.pad(t, (0, size - len(t))) for t in (self._page_S, since._page_S))
        return np.flatnonzero(a != b)

    def changed_nodes(self, slot_S: Int64, since: "NodeRows") -> Int64:
        """Nodes of some slots whose values differ in any bit from those of `since`: int64,
        ascending."""
        position_K = _positions_of(slot_S)
        position = put(position_K, self.pool.device)
        row, before = self._rows_at(position), since._rows_at(position)
        bits = arrays_of(position).int32
        differs_K = (self.pool.state[row].view(bits) != since.pool.state[before].view(bits)).any(1)
        differs_K |= self.pool.last_us[row] != since.pool.last_us[before]
        differing: Int64 = position_K[on_host(differs_K)]
        return differing if self.owned is None else self.owned.nodes(differing)

    def used_slots(self) -> Int64:
        """Slots of the table that have a page: int64, ascending."""
        return np.flatnonzero(self._page_S)

    def share_equal(self, slot_S: Int64, other: "NodeRows") -> None:
        """Use the pages of `other`, which is of the same pool, for slots with equal bits.

        slot_S: int64, the slots to compare.
        """
        slot_S = slot_S[slot_S < min(len(self._page_S), len(other._page_S))]
        differing = self.slots_of(self.changed_nodes(slot_S, other))
        slot_S = np.setdiff1d(slot_S, differing, assume_unique=True)
        slot_S = slot_S[self._page_S[slot_S] != other._page_S[slot_S]]
        with self.pool.lock:
            # A page of zeros may be page 0, which has no users.
            theirs = other._page_S[slot_S]
            self.pool.replace(self._page_S[slot_S], theirs[theirs > 0])
            self._page_S[slot_S] = theirs
        self._update_device_table(slot_S)

    def is_finite(self, slot_S: Int64) -> bool:
        """Whether all states of some slots are numbers."""
        row = self._rows_at(put(_positions_of(slot_S), self.pool.device))
        return bool(arrays_of(row).isfinite(self.pool.state[row]).all())


def _positions_of(slot_S: Int64) -> Int64:
    positions: Int64 = (slot_S[:, None] * PAGE + np.arange(PAGE)).ravel()
    return positions
