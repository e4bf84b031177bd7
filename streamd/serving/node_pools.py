"""Pools of the nodes that answers may have, by edge set and filter, and the most popular nodes of
each."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float64, Int64
from streamd.graph.live import LiveGraph
from streamd.serving.feature_columns import FeatureColumns
from streamd.serving.node_filter import FeatureCondition, NodeFilter, is_in
from streamd.serving.popular_nodes import PopularNodes

KEPT_LIMITS = 3
"""Popular nodes that are kept at each half-life, as a multiple of the maximum that a request
scores: enough are left if a request excludes as many as it scores, or if a filter by features
leaves a third of them."""
LEAST_LIMITS = 2
"""All nodes are searched again if deletes left fewer popular nodes than this multiple of the same
maximum."""
SLICE_NODES = 8_192
"""Nodes that are searched between two readings of the clock: about a millisecond."""
MAX_FILTERED = 16
"""Maximum number of pools with a filter that are kept up to date, the most recently used ones: each
adds a tenth of a millisecond to a commit."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The parts of a request that determine its pool. kind, conditions: as `kind` and `where` in
    `NodeFilter`."""

    edge_set: int
    kind: str | None = None
    conditions: tuple[FeatureCondition, ...] = ()

    @property
    def filter(self) -> NodeFilter:
        return NodeFilter(kind=self.kind, where=self.conditions)


class NodePool:
    """The nodes of one pool, searched once from the first to the last, and the most popular ones of
    them. Owner: `NodePools`.

    New nodes are appended, so a search continues at the end of the last one.
    """

    def __init__(
        self,
        nodes: Callable[[], NDArray[Any]],
        allows: Callable[[Int64], Bools],
        popularity_of: Callable[[Int64], Float64],
        limit: int,
    ) -> None:
        """nodes: returns all nodes that the pool may have; new ones are appended. allows: filters
        nodes by the pool. limit: maximum number of nodes that a request scores."""
        self._nodes = nodes
        self._allows = allows
        self._limit = limit
        self._num_seen = 0
        self.popular = PopularNodes(popularity_of, KEPT_LIMITS * limit)

    @property
    def covers_all(self) -> bool:
        """Whether all nodes were searched."""
        return self._num_seen >= len(self._nodes())

    @property
    def is_whole(self) -> bool:
        """Whether the popular nodes are all nodes of the pool."""
        return self.popular.is_whole and self.covers_all

    def cover(self, until: float) -> bool:
        """Search the nodes that were not searched yet, at least one slice. until: monotonic
        seconds. Returns: whether all were searched."""
        # Nodes that are added meanwhile are left for the next call.
        nodes = self._nodes()
        while self._num_seen < len(nodes):
            part = nodes[self._num_seen : self._num_seen + SLICE_NODES].astype(np.int64)
            self._num_seen += len(part)
            self.offer(np.sort(part))
            if time.monotonic() >= until:
                break
        return self._num_seen >= len(nodes)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Undo, after a block, all changes within it."""
        before = self._num_seen
        with self.popular.keeping():
            try:
                yield
            finally:
                self._num_seen = before

    def offer(self, nodes: Int64) -> None:
        """Offer nodes with new events or features: int64, ascending."""
        self.popular.offer(nodes[self._allows(nodes)])

    def restart_if_short(self) -> None:
        """Search all nodes again if too few popular ones are left."""
        if self.popular.is_short(LEAST_LIMITS * self._limit):
            self.popular.restart()
            self._num_seen = 0


class NodePools:
    """All pools of a graph. Owner: the candidates.

    The pools of the edge sets without a filter are always kept, and of the others the most recently
    used ones.
    """

    def __init__(self, live: LiveGraph, features: FeatureColumns, limit: int) -> None:
        """features: of the live graph. limit: maximum number of nodes that a request scores."""
        self._live = live
        self._features = features
        self._limit = limit
        self._pools: dict[PoolKey, NodePool] = {}
        self._edge = 0
        """Event id up to which the pools have the events."""
        self._num_deletes = 0

    # Nodes by filter

    def nodes_of(self, edge_set: int) -> NDArray[Any]:
        """The destinations in an edge set's node set: int32 or int64; new ones are appended."""
        return self._live.facts.destinations_in(self._node_set(edge_set)).destination_order

    def allows(self, nodes: Int64, filter: NodeFilter, edge_set: int) -> Bools:
        """Which nodes an answer may have: bool[N]. nodes: ids, or UNKNOWN."""
        # Only destinations that are not deleted. A node that never was a destination has the logit
        # of any new destination, which means nothing for this node and may be higher than those of
        # known ones.
        log = self._live.log
        allowed = ~log.deletions.is_gone(nodes)
        destinations = self._live.facts.destinations_in(self._node_set(edge_set))
        allowed &= destinations.ranks_of(nodes) >= 0

        # Unknown keys name no node.
        if filter.only is not None:
            allowed &= is_in(nodes, self.ids_of(filter.only))
        if filter.exclude:
            allowed &= ~is_in(nodes, self.ids_of(filter.exclude))

        # Check kind and conditions only for the nodes that are left.
        if filter.kind is not None:
            left = np.flatnonzero(allowed)
            allowed[left] = self._is_of_kind(nodes[left], filter.kind)
        for condition in filter.where:
            left = np.flatnonzero(allowed)
            numbers = self._features.numbers(nodes[left], condition.first, condition.end)
            allowed[left] = condition.holds(numbers)
        return allowed

    def ids_of(self, keys: tuple[Any, ...]) -> Int64:
        """The nodes of the known keys: int64, ascending, each once."""
        ids = self._live.log.ids
        return np.unique(np.array([ids[key] for key in keys if key in ids], np.int64))

    def _is_of_kind(self, nodes: Int64, kind: str) -> Bools:
        keys = self._live.log.keys
        found = (
            n >= 0 and isinstance(key := keys[n], str) and key.partition(":")[:2] == (kind, ":")
            for n in nodes.tolist()
        )
        return np.fromiter(found, np.bool_, len(nodes))

    def _node_set(self, edge_set: int) -> int:
        return self._live.log.state.schema.ends_of(edge_set)[1]

    # Popular nodes

    @property
    def covers_all(self) -> bool:
        """Whether all nodes of the pools without a filter were searched."""
        return bool(self._pools) and all(self.plain(n).covers_all for n in self._edge_sets)

    @property
    def _edge_sets(self) -> range:
        return range(self._live.log.state.schema.num_edge_sets)

    def plain(self, edge_set: int) -> NodePool:
        """The pool of an edge set without a filter."""
        return self.of(PoolKey(edge_set))

    def find(self, key: PoolKey) -> NodePool | None:
        """A pool if it is kept, otherwise None."""
        return self._pools.get(key)

    def of(self, key: PoolKey) -> NodePool:
        """A pool, a new one if it is not kept."""
        # The most recently used pool is last.
        pool = self._pools.pop(key, None)
        if pool is None:
            self._drop_oldest()
            pool = self._new(key)
        self._pools[key] = pool
        return pool

    def _new(self, key: PoolKey) -> NodePool:
        return NodePool(
            lambda: self.nodes_of(key.edge_set),
            lambda nodes: self.allows(nodes, key.filter, key.edge_set),
            lambda nodes: self._live.facts.of_set(key.edge_set).popularity(nodes),
            self._limit,
        )

    def _drop_oldest(self) -> None:
        """Make room for a pool with a filter: drop the least recently used one."""
        filtered = [key for key in self._pools if key != PoolKey(key.edge_set)]
        if len(filtered) >= MAX_FILTERED:
            del self._pools[filtered[0]]

    def begin(self) -> None:
        """Keep the pools without a filter from now on."""
        for edge_set in self._edge_sets:
            self.plain(edge_set)

    def cover(self, until: float) -> bool:
        """Search further nodes in the pools without a filter. until: monotonic seconds. Returns:
        whether all nodes were searched."""
        return all(self.plain(edge_set).cover(until) for edge_set in self._edge_sets)

    def advance(self) -> None:
        """Apply the events, deletes and features that the graph has since the last call."""
        first, self._edge = self._edge, self._live.edge
        updated = self._features.take_updated()
        if not self._pools:
            return

        # Deletes since the last call.
        deletions = self._live.log.deletions
        if deletions.count != self._num_deletes:
            self._num_deletes = deletions.count
            for pool in self._pools.values():
                pool.popular.drop(deletions.is_gone)

        # Offer the destinations of each edge set's events. Pools with conditions first drop the
        # nodes with new features, which may not meet the conditions any more.
        moved = self._destinations(max(first, self._live.log.first_edge), self._edge)
        for key, pool in self._pools.items():
            nodes = moved.get(key.edge_set, updated[:0])
            if key.conditions and len(updated):
                pool.popular.drop(lambda members: is_in(members, updated))
                nodes = np.union1d(nodes, updated)
            if len(nodes):
                pool.offer(nodes)
            pool.restart_if_short()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Undo, after a block, all changes within it: those by `advance`, and new pools."""
        pools, before = dict(self._pools), (self._edge, self._num_deletes)
        with ExitStack() as undo:
            for pool in pools.values():
                undo.enter_context(pool.keeping())
            try:
                yield
            finally:
                self._pools = pools
                self._edge, self._num_deletes = before

    def _destinations(self, first: int, end: int) -> dict[int, Int64]:
        """Edge set -> the destinations of its events in [first, end): int64, ascending."""
        if first >= end:
            return {}
        log = self._live.log
        dst_E = log.edges(first, end)[1]
        set_E = log.edge_sets(first, end)
        return {s: np.unique(dst_E[set_E == s]) for s in self._edge_sets}
