"""GNNFlow's time-indexed blocks (paper section 4.1), with a directory per node for binary search.

The log is sorted by time, and so are event ids: a query "before time t" becomes a query "before
event X". No entry ever moves, since the address space is reserved in advance.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from streamd.errors import CapacityError, OffloadedError
from streamd.events import Bools, Int64
from streamd.graph.blocks import kernels, offloading
from streamd.graph.blocks.arena import Arena
from streamd.graph.blocks.block_arrays import BlockArrays, Query, Sampled
from streamd.graph.blocks.draws import ALL_SETS, Direction, Draw, HopDraws, Neighbors
from streamd.graph.blocks.hops import (
    NextRoots,
    NumberedHops,
    Roots,
    renumbered,
    sample_hops,
)
from streamd.graph.blocks.kernels import DEGREE
from streamd.graph.blocks.sampling_kernels import find_distinct
from streamd.graph.blocks.strategies import STRATEGIES, StrategyName
from streamd.graph.ownership import OwnedNodes
from streamd.telemetry import metrics

MAX_ENTRIES = 2**34
"""Reserved address space of a store: 128 GB, more than the memory of the machines it runs on."""
MAX_BLOCKS = 2**31
"""Directory slots: 32 GB of address space, one for every eight entries."""
MAX_NODES = 2**28
"""The node table reserves 8 GB of address space; an entry could name 2^32 - 1 nodes."""
PAGE_ENTRIES = 512
"""Entries in a page of memory."""
RESTORE_EVENTS = 1_000_000
"""Events per read from the log, 17 MB of columns."""
MANY_EVENTS = 200_000
"""From this number of events on, an insert sorts the events by part of the nodes."""
PART_NODES = 11
"""Binary logarithm of the number of nodes in a part: the rows of a part fit a core's cache."""
BYTES_A_NODE = 4 * 8 + 1
"""A row of `BlockArrays.nodes` and the flag in `hidden`."""
BYTES_A_BLOCK = 2 * 8
"""A directory slot: first event and index of the first entry."""

ReadBack = Callable[[int, int], tuple[Int64, Int64, Bools]]
"""(first, end) -> sources, destinations and deleted flags of the log's events [first, end)."""
SetsOf = Callable[[int, int], Int64]
"""(first, end) -> edge sets of the log's events [first, end)."""
ReadRows = Callable[[int, int], tuple[Int64, Int64, Bools, Int64]]
"""(first, end) -> as `ReadBack`, for the events of one store, with their ids."""


class BlockStore:
    """The events of one edge set (or of all sets) in one direction, by node. Owner: its graph."""

    def __init__(
        self,
        direction: Direction,
        first_event: int,
        max_block_entries: int,
        owned: OwnedNodes | None = None,
    ) -> None:
        """max_block_entries: tau, a power of two. owned: the nodes with entries, which are rows by
        slot; None for all nodes, which are rows by id."""
        if max_block_entries & (max_block_entries - 1) or max_block_entries < 1:
            raise ValueError(f"max_block_entries is {max_block_entries}; it must be a power of two")
        self.direction = direction
        self._owned = owned
        self.first_event = self.next_event = first_event
        self.num_nodes = 0
        self.any_offloaded = False

        # This reserves only address space: a page takes memory at its first write.
        self._entries = Arena(np.int64, MAX_ENTRIES)
        self._nodes = Arena(np.int64, 4 * MAX_NODES)
        self._blocks = Arena(np.int64, 2 * MAX_BLOCKS)
        self._hidden = Arena(np.uint8, MAX_NODES)
        # Whether each page of entries was freed.
        self._freed_pages = np.zeros(0, np.bool_)
        self.arrays = BlockArrays(
            nodes=self._nodes.array,
            blocks=self._blocks.array,
            entries=self._entries.array,
            hidden=self._hidden.array,
            used=np.zeros(2, np.int64),
            tau=np.array([max_block_entries, max_block_entries.bit_length() - 1], np.int64),
        )

    def check_room(self, src_E: Int64, dst_E: Int64) -> None:
        """Check the capacity for events. Raises: CapacityError."""
        if not len(src_E):
            return

        # Check before anything is written. Each endpoint may need a new block.
        highest = int(max(src_E.max(), dst_E.max()))
        room = int(self.arrays.used[0]) + 3 * int(self.arrays.tau[0]) * len(src_E)
        if highest >= MAX_NODES or room >= MAX_ENTRIES:
            raise CapacityError(
                f"The graph cannot hold node {highest} or {self.next_event + len(src_E)} events.",
                "lower retention, or shard the topic.",
            )

    def insert(self, src_E: Int64, dst_E: Int64, event_E: Int64, next_event: int) -> None:
        """Append events in log order, after `check_room`. src_E, dst_E, event_E: int64[E], node ids
        and event ids. next_event: of the graph after this insert."""
        self.next_event = next_event
        if not len(src_E):
            return
        highest = int(max(src_E.max(), dst_E.max()))
        node_E, other_E, row_E, both = self._ends(src_E, dst_E)
        if row_E is not None:
            event_E = event_E[row_E]
            highest = int(node_E.max(initial=-1))
        if len(node_E) < MANY_EVENTS:
            kernels.insert_events(self.arrays, node_E, other_E, event_E, both)
        else:
            self._insert_many(node_E, other_E, event_E, both, highest)
        self.num_nodes = max(self.num_nodes, highest + 1)

    def _insert_many(
        self, node_E: Int64, other_E: Int64, event_E: Int64, both: bool, highest: int
    ) -> None:
        """Append events to one part of the nodes after another, so that the rows of a part stay in
        the cache. The result does not depend on the order of the nodes."""
        place_P = np.zeros((highest >> PART_NODES) + 2, np.int64)
        kernels.count_ends(node_E, other_E, both, PART_NODES, place_P)
        own = np.empty(place_P[-1], np.uint32)
        packed = np.empty(place_P[-1], np.int64)
        kernels.partition_ends(node_E, other_E, both, PART_NODES, place_P, own, packed)
        kernels.append_ends(self.arrays, own, packed, event_E)

    @contextmanager
    def keeping(self, nodes: Int64) -> Iterator[None]:
        """Undo the inserts that are made inside the block. nodes: int64, the endpoints of the
        inserted events, each once."""
        # An insert writes only after a node's last entry and its last directory slot.
        arrays = self.arrays
        rows_N4 = arrays.nodes.reshape(-1, 4)
        kept = rows_N4[nodes], arrays.hidden[nodes], arrays.used.copy()
        before = self.num_nodes, self.next_event
        try:
            yield
        finally:
            rows_N4[nodes], arrays.hidden[nodes], arrays.used[:] = kept
            self.num_nodes, self.next_event = before

    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        """Delete events, given by their endpoints and ids, int64[E] each; unknown ones are
        ignored."""
        node_E, other_E, row_E, both = self._ends(src_E, dst_E)
        if row_E is not None:
            event_E = event_E[row_E]
        kernels.hide_events(self.arrays, node_E, other_E, event_E, both)

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all events of some known nodes. The store must be of both directions, and must
        never have offloaded a block."""
        assert self.direction == "both"
        kernels.hide_nodes(self.arrays, nodes)

    def sample(self, query: Query, strategy: StrategyName, out: Sampled) -> None:
        """Sample for a query. A root with `out.missing` has an incomplete result."""
        STRATEGIES[strategy].kernel(self.arrays, query, out)

    def offload(self, before_event: int) -> int:
        """Free the memory of blocks that have only events before an id. Returns: number of changed
        directory slots."""

        # Mark the blocks, and find the pages that no other block needs.
        used = int(self.arrays.used[0])
        kept = np.zeros(used // PAGE_ENTRIES + 1, np.bool_)
        offloaded, marked = offloading.offload_blocks(
            self.arrays, self.num_nodes, before_event, kept, PAGE_ENTRIES
        )
        # The page of the next block's first entry stays.
        kept[used // PAGE_ENTRIES :] = True
        self.any_offloaded = offloaded > 0
        if not marked:
            return 0

        # Free runs of such pages together, with one system call each.
        freed = ~kept
        runs = np.flatnonzero(np.diff(freed.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
        for first, end in runs.tolist():
            self._entries.release(first * PAGE_ENTRIES, end * PAGE_ENTRIES)
        self._freed_pages = freed
        return int(marked)

    def restore(self, nodes: Int64, read: ReadRows, since_event: int) -> int:
        """Read the offloaded entries of some known nodes back from the log. since_event: first
        event of the log; entries of older events stay fillers. Returns: number of events read."""

        # Clear the blocks, and find the range of their events.
        next_number_N = np.full(self.num_nodes, -1, np.int64)
        since, before = offloading.begin_restoring(
            self.arrays, nodes, next_number_N, self._freed_pages, PAGE_ENTRIES
        )
        if since < since_event:
            since = since_event
            self.arrays.hidden[nodes] = 1  # entries of dropped events stay fillers

        # Write their events, in the order of the log.
        for first in range(since, before, RESTORE_EVENTS):
            src_E, dst_E, gone_E, event_E = read(first, min(first + RESTORE_EVENTS, before))
            node_E, other_E, row_E, both = self._ends(src_E, dst_E)
            if row_E is not None:
                gone_E, event_E = gone_E[row_E], event_E[row_E]
            offloading.restore_events(
                self.arrays, node_E, other_E, gone_E, event_E, next_number_N, both
            )
        offloading.end_restoring(self.arrays, nodes, next_number_N)
        return max(0, int(before - since))

    def _ends(self, src_E: Int64, dst_E: Int64) -> tuple[Int64, Int64, Int64 | None, bool]:
        """Return the rows that get an entry for each event, the other endpoints, the indices of the
        events (None for all in order), and whether the other endpoints get an entry too."""
        both = self.direction == "both"
        node_E, other_E = (dst_E, src_E) if self.direction == "in" else (src_E, dst_E)
        if self._owned is None:
            return node_E, other_E, None, both
        return *self._owned.entries(node_E, other_E, both), False

    @property
    def num_entries(self) -> int:
        """Entries, offloaded ones included."""
        return int(self.arrays.nodes[DEGREE : 4 * self.num_nodes : 4].sum())

    @property
    def num_bytes(self) -> int:
        """Bytes in use by entries, directories and node table: with blocks that are not full yet,
        without freed pages."""
        freed = int(self._freed_pages.sum()) * PAGE_ENTRIES
        entries = int(self.arrays.used[0]) - freed
        blocks = int(self.arrays.used[1])
        return entries * 8 + blocks * BYTES_A_BLOCK + self.num_nodes * BYTES_A_NODE


class BlockGraph:
    """An append-only temporal multigraph on the host, which samples neighbors (`NeighborSampler`).
    Owner: one thread per role.

    stores: (edge set, direction) -> the store from which such draws sample. The direction `both`,
    and all sets together, have their own stores, in which an insert merges by event id. A merge in
    each query would need a search for every neighbor drawn at random.

    Args:
        first_event: int, id of the first event that will be inserted. Default 0.
        max_block_entries: int, tau of the paper, the most entries of a block; a power of two.
            Default 64.
        directions: Iterable[str], "out", "in", "both", for draws from the events of all sets.
            Default ("both",).
        read_back: ReadBack, reads offloaded events from the log. Default None: none can be read.
        of_sets: Iterable[tuple[int, str]], (number of an edge set, direction), for draws from
            single sets. Default ().
        sets_of: SetsOf, reads the edge sets of offloaded events; required with `of_sets` to read
            any back. Default None.
        owned: OwnedNodes, the nodes to sample for; `insert` still takes all events. Default None:
            all nodes.

    Raises:
        ValueError: `max_block_entries` is no power of two.
    """

    def __init__(
        self,
        first_event: int = 0,
        max_block_entries: int = 64,
        directions: Iterable[Direction] = ("both",),
        read_back: ReadBack | None = None,
        of_sets: Iterable[tuple[int, Direction]] = (),
        sets_of: SetsOf | None = None,
        owned: OwnedNodes | None = None,
    ) -> None:
        self.stores: dict[tuple[int, Direction], BlockStore] = {
            (number, d): BlockStore(d, first_event, max_block_entries, owned)
            for number, d in (*((ALL_SETS, d) for d in directions), *of_sets)
        }
        self._owned = owned
        self._sets_of = sets_of
        self.since_event = first_event
        """Older events are not sampled, because the log dropped them."""
        self._read_back = read_back
        self._was_offloaded = False
        """Whether any block was ever offloaded: its entries may have been deleted meanwhile."""

    @property
    def directions(self) -> Collection[Direction]:
        """Directions in which it can sample from the events of all sets."""
        return [d for number, d in self.stores if number == ALL_SETS]

    @property
    def any_store(self) -> BlockStore:
        """Any store: all have the same first and next event."""
        return next(iter(self.stores.values()))

    @property
    def first_event(self) -> int:
        return self.any_store.first_event

    @property
    def next_event(self) -> int:
        """Id of the next event that will be inserted."""
        return self.any_store.next_event

    @property
    def num_nodes(self) -> int:
        return max(store.num_nodes for store in self.stores.values())

    @property
    def num_entries(self) -> int:
        return sum(store.num_entries for store in self.stores.values())

    @property
    def num_bytes(self) -> int:
        return sum(store.num_bytes for store in self.stores.values())

    def insert(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> None:
        """Append events in log order; their ids continue those of the last batch. src_E, dst_E:
        int64[E] node ids >= 0, in any order. set_E: int64[E] edge sets, required if any store is of
        a single set. Raises: CapacityError, with nothing inserted."""
        for store in self.stores.values():
            store.check_room(src_E, dst_E)
        first = self.next_event
        end = first + len(src_E)
        event_E = np.arange(first, end)
        for (number, _), store in self.stores.items():
            if number == ALL_SETS:
                store.insert(src_E, dst_E, event_E, end)
            else:
                assert set_E is not None
                own = np.flatnonzero(set_E == number)
                store.insert(src_E[own], dst_E[own], event_E[own], end)

    @contextmanager
    def supposing(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> Iterator[None]:
        """Insert events inside the block, and remove them at its end. Nothing may be offloaded
        inside. Arguments as in `insert`."""
        nodes = np.unique(np.concatenate([src_E, dst_E]))
        with ExitStack() as undo:
            for store in self.stores.values():
                store.check_room(src_E, dst_E)
                undo.enter_context(store.keeping(nodes))
            self.insert(src_E, dst_E, set_E)
            yield

    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        """Delete events, given by their endpoints and ids, int64[E] each; unknown ids are
        ignored."""
        inside = (event_E >= self.first_event) & (event_E < self.next_event)
        for store in self.stores.values():
            store.hide(src_E[inside], dst_E[inside], event_E[inside])

    @property
    def finds_neighbors(self) -> bool:
        """Whether a node's own entries name all of its neighbors: True for a graph with one store,
        of both directions and all nodes, that has never offloaded a block."""
        is_one = set(self.stores) == {(ALL_SETS, "both")} and self._owned is None
        return is_one and not self._was_offloaded

    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all events of some nodes, including the entries of their neighbors. Raises:
        OffloadedError if this must read the log and there is no `read_back`."""
        nodes = np.unique(nodes[nodes >= 0])
        if self._owned is None:
            nodes = nodes[nodes < self.num_nodes]
        if not len(nodes):
            return

        has_all_ends = all(d == "both" for _, d in self.stores) and self._owned is None
        if has_all_ends and not self._was_offloaded:
            for store in self.stores.values():
                store.hide_nodes(nodes[nodes < store.num_nodes])
            return

        # Find the events in the log: a store of one direction, or of some nodes, does not have all
        # entries that point to a node, and an entry that was read back after its delete has no
        # neighbor.
        since = max(self.first_event, self.since_event)
        for first in range(since, self.next_event, RESTORE_EVENTS):
            src_E, dst_E, _ = self._read(first, min(first + RESTORE_EVENTS, self.next_event))
            at = np.flatnonzero(np.isin(src_E, nodes) | np.isin(dst_E, nodes))
            self.hide(src_E[at], dst_E[at], first + at)

    def drop_before(self, event: int) -> None:
        """Sample no events before this id from now on: the log no longer has them."""
        self.since_event = max(self.since_event, event)

    def sample(
        self, root_R: Int64, since: int | Int64, before: int | Int64, draws: HopDraws
    ) -> Neighbors[Int64]:
        # All draws share one query, and write their own columns of the same arrays.
        parts = draws if isinstance(draws, tuple) else (draws,)
        query = self._query(root_R, since, before)
        shape = (len(root_R), sum(draw.fanout for draw in parts))
        neighbor, event = np.empty(shape, np.int64), np.empty(shape, np.int64)
        mask, missing = np.empty(shape, np.bool_), np.zeros(len(root_R), np.bool_)
        first = 0
        for draw in parts:
            out = Sampled(neighbor, event, mask, missing, first, draw.fanout)
            self._draw(query._replace(replace=draw.replace, seed=draw.seed), draw, out)
            first += draw.fanout
        return Neighbors(neighbor, event, mask)

    def _draw(self, query: Query, draw: Draw, out: Sampled) -> None:
        """Sample for one draw of a query."""
        name = draw.edge_set, draw.direction
        store = self.stores[name]
        store.sample(query, draw.strategy, out)
        # Read back the offloaded entries of the roots that need them, and repeat the query.
        while out.missing.any():
            self.restore(name, np.unique(query.root[out.missing]))
            store.sample(query, draw.strategy, out)

    def sample_neighborhood(
        self, roots: Roots[Int64], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Int64]:
        """Sample hop after hop, and number the nodes reached. Raises: OffloadedError."""
        return renumbered(sample_hops(self, roots, draws, next_roots))

    def _query(self, root_R: Int64, since: int | Int64, before: int | Int64) -> Query:
        """Make the query for kernels, without the fields of a draw."""
        # Copy the arrays: those of a named tuple must be writable, the arguments may be read-only.
        since_R, before_R = (np.empty(len(root_R), np.int64) for _ in range(2))
        since_R[:] = since
        before_R[:] = before

        # Clip to the events that the log still has and that were inserted.
        np.maximum(since_R, self.since_event, out=since_R)
        np.clip(before_R, self.first_event, self.next_event, out=before_R)

        # Random draws depend on the node id, not on the row.
        node_R = root_R = np.array(root_R, np.int64)
        if self._owned is not None:
            root_R = self._owned.slots(node_R)

        distinct, first_root = (np.empty(len(root_R), np.int32) for _ in range(2))
        count = find_distinct(root_R, since_R, before_R, distinct, first_root)

        # Kernels divide by next - first, so make it positive in an empty store too.
        return Query(
            root=root_R,
            node=node_R,
            since=since_R,
            before=before_R,
            distinct=distinct[:count],
            first_root=first_root,
            num_nodes=self.num_nodes,
            first=self.first_event,
            next=max(self.next_event, self.first_event + 1),
            replace=False,
            seed=0,
        )

    def offload(self, before_event: int) -> None:
        """Free the memory of blocks that have only events before an id. A query that needs them
        reads them back from the log."""
        for store in self.stores.values():
            self._was_offloaded |= store.offload(before_event) > 0

    def restore(self, name: tuple[int, Direction], nodes: Int64) -> None:
        """Read the offloaded entries of some known nodes back into a store. name: (edge set,
        direction). Raises: OffloadedError if there is no `read_back`."""

        def read(first: int, end: int) -> tuple[Int64, Int64, Bools, Int64]:
            src_E, dst_E, gone_E = self._read(first, end)
            event_E = np.arange(first, end)
            if name[0] == ALL_SETS:
                return src_E, dst_E, gone_E, event_E
            assert self._sets_of is not None
            own = np.flatnonzero(self._sets_of(first, end) == name[0])
            return src_E[own], dst_E[own], gone_E[own], event_E[own]

        count = self.stores[name].restore(nodes, read, self.since_event)
        metrics.graph_events_read_back.inc(count)

    def _read(self, first: int, end: int) -> tuple[Int64, Int64, Bools]:
        """Read events from the log. Raises: OffloadedError."""
        if self._read_back is None:
            raise OffloadedError(
                "The graph needs events of the log that are not in memory.",
                "create the graph with a `read_back`, or sample newer events only.",
            )
        return self._read_back(first, end)

    def restore_all(self) -> None:
        """Read all offloaded entries back."""
        for name, store in self.stores.items():
            if store.any_offloaded:
                self.restore(name, np.arange(store.num_nodes))
                store.any_offloaded = False
