"""Finds the nodes that may be recommended, and among them those likely enough to be scored."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.serving.feature_columns import FeatureColumns
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.node_filter import ValueLimit
from streamd.serving.node_pools import NodePool, NodePools, PoolKey
from streamd.serving.requests import Recommend, Request, Similar

MAX_SECOND = 256
"""Maximum number of nodes two hops away that are expanded to a third hop: it bounds the time of a
request."""
Asked = Recommend | Similar


class Candidates:
    """Finds candidate destinations, without deleted nodes. Owner: the server's graph to which it
    belongs."""

    def __init__(self, live: LiveGraph, features: FeatureColumns, limit: int) -> None:
        """features: of the live graph. limit: maximum number of nodes that `likely` returns."""
        self._live = live
        self._features = features
        self.limit = limit
        self._pools = NodePools(live, features, limit)

    # Following the graph

    def follow(self, caught_up: bool) -> None:
        """Apply the events that the graph added. caught_up: whether the graph has the whole log;
        popular nodes are maintained once it has."""
        if caught_up:
            self._pools.begin()
        self._pools.advance()

    @contextmanager
    def supposing(self) -> Iterator[None]:
        """Have the events that the graph supposes within a block."""
        with self._pools.keeping():
            self._pools.advance()
            yield

    @property
    def covers_all(self) -> bool:
        """Whether all nodes were searched for the popular ones."""
        return self._pools.covers_all

    def cover(self, until: float) -> bool:
        """Search further nodes for the popular ones, at least one slice. until: monotonic seconds.
        Returns: whether all nodes were searched."""
        return self._pools.cover(until)

    # The nodes that an answer may have

    def nodes_of(self, request: Asked) -> NDArray[Any]:
        """Ids of the destinations in the request's node set, int32 or int64, a view. It may include
        nodes that `allows` rejects."""
        return self._pools.nodes_of(request.edge_set)

    def allows(self, nodes: Int64, request: Asked) -> Bools:
        """Which nodes an answer may have: bool[N]. These are the destinations in the edge set's
        node set that pass the request's filter."""
        return self._pools.allows(nodes, request.filter, request.edge_set)

    def diverse(self, diversity: ValueLimit, nodes: Int64) -> Bools:
        """Which nodes of a list to keep so that it is within the diversity: bool[N]. nodes: best
        first."""
        return diversity.keeps(self._features.numbers(nodes, diversity.first, diversity.end))

    def unseen(self, nodes: Int64, source: int, edge_set: int) -> Int64:
        """The nodes that are not among a source's last partners in an edge set, in their order."""
        return nodes[~np.isin(nodes, self._live.facts.partners(source, edge_set))]

    # Likely nodes

    def is_ready_for(self, request: Request) -> bool:
        """Whether the popular nodes that a request allows are known."""
        if not isinstance(request, Recommend | Similar) or request.filter.only is not None:
            return True
        pool = self._pools.find(self._pool_of(request))
        return pool is not None and pool.covers_all

    def prepare(self, request: Request, until: float) -> bool:
        """Search all nodes for the popular ones that a request allows, at least one slice. until:
        monotonic seconds. Returns: whether they are known."""
        if self.is_ready_for(request):
            return True
        assert isinstance(request, Recommend | Similar)
        return self._pools.of(self._pool_of(request)).cover(until)

    def likely(self, request: Recommend, source: int, served: LoadedVersion | None) -> Int64:
        """At most `limit` nodes worth scoring for a source, ascending.

        These are all nodes that the request allows. If there are more than `limit`, they are the
        source's partners, nodes three hops away, the most popular nodes at each half-life, and the
        nodes with the most similar embeddings.
        """
        popular, is_all = self._popular(request)
        if is_all and len(popular[0]) <= self.limit:
            return np.sort(popular[0])

        # Too many: start with the nodes near the source.
        near = self._live.facts.partners(source, request.edge_set)
        close = np.concatenate([near, self._three_hops_away(near, request.edge_set)])
        return self._likely_of(
            close, popular, lambda nodes: self.allows(nodes, request), source, served
        )

    def alike(self, request: Similar, node: int, served: LoadedVersion | None) -> Int64:
        """At most `limit` nodes worth comparing with a node, ascending: all nodes that the request
        allows, or those of `likely`, with nodes that share a partner instead of partners."""

        def allows(nodes: Int64) -> Bools:
            others: Bools = self.allows(nodes, request) & (nodes != node)
            return others

        popular, is_all = self._popular(request)
        popular = [nodes[nodes != node] for nodes in popular]
        if is_all and len(popular[0]) <= self.limit:
            return np.sort(popular[0])
        close, _ = self.sharing_partners(node, request.edge_set)
        return self._likely_of(close, popular, allows, node, served)

    def sharing_partners(self, node: int, edge_set: int) -> tuple[Int64, Float32]:
        """The nodes that shared partners with a node lately, and how much: int64[N] and float32[N],
        largest first, equal ones by id.

        The measure is the index of Adamic and Adar (2003) over the last partners of nodes, at most
        16 each: the sum over shared partners of 1 / log(number of the partner's own last partners).
        """
        facts = self._live.facts.of_set(edge_set)
        others, counts = facts.partners_of(facts.partners(node))
        if not len(others):
            return np.zeros(0, np.int64), np.zeros(0, np.float32)

        # A shared partner has at least two partners.
        weights = np.repeat(1 / np.log(counts.clip(min=2)), counts)
        nodes, index = np.unique(others, return_inverse=True)
        sums = np.bincount(index, weights, len(nodes)).astype(np.float32)
        order = np.lexsort((nodes, -sums))
        order = order[nodes[order] != node]
        return nodes[order], sums[order]

    def _likely_of(
        self,
        close: Int64,
        popular: list[Int64],
        allows: Callable[[Int64], Bools],
        source: int,
        served: LoadedVersion | None,
    ) -> Int64:
        """The likely nodes of a request that allows too many. close: nodes near the source, best
        first. popular: as `_popular` returns them. allows: filters nodes by the request."""
        # Nodes near the source get at most half of the limit; the other nodes are lists, best
        # first.
        limit = self.limit
        close = close[allows(close)][: limit // 2]
        lists = [nodes[:limit] for nodes in popular]
        if served is not None:
            lists.append(served.nearest(source, allows, limit, self._live))

        # Take turns between the lists, so that none crowds out another.
        table = np.full((max(map(len, lists)), len(lists)), -1, np.int64)
        for column, nodes in enumerate(lists):
            table[: len(nodes), column] = nodes

        # Each node once, at its best rank; ascending, since facts and embeddings are gathered in
        # this order.
        ranked = np.concatenate([close, table.ravel()])
        ranked = ranked[ranked >= 0]
        return np.sort(ranked[np.sort(np.unique(ranked, return_index=True)[1])[:limit]])

    def _three_hops_away(self, near: Int64, edge_set: int) -> Int64:
        """Partners of nodes that share a partner with the source, most paths first.

        near: the source's partners.
        """
        facts = self._live.facts.of_set(edge_set)
        second = np.unique(facts.partners_of(near)[0])[:MAX_SECOND]
        third, paths = np.unique(facts.partners_of(second)[0], return_counts=True)
        ends: Int64 = third[np.argsort(-paths, kind="stable")]
        return ends

    # Popular nodes

    def _popular(self, request: Asked) -> tuple[list[Int64], bool]:
        """The most popular nodes that a request allows at each half-life, most popular first, and
        whether these are all nodes that it allows. If not, each list has at least `request.k` nodes
        and at least half of the limit, if the request allows as many."""
        only = request.filter.only
        if only is not None:
            named = self._pools.ids_of(only)
            return [named[self.allows(named, request)]], True
        pool = self._pools.of(self._pool_of(request))
        pool.cover(math.inf)
        return self._select(pool, request)

    def _pool_of(self, request: Asked) -> PoolKey:
        """The pool in which the popular nodes of a request are found."""
        edge_set, filter = request.edge_set, request.filter
        key = PoolKey(edge_set, filter.kind, filter.where)
        if key == PoolKey(edge_set):
            return key

        # A filter by features that leaves enough of the popular nodes needs no pool of its own.
        plain = self._pools.plain(edge_set)
        if filter.kind is None and self._pools.find(key) is None and plain.covers_all:
            lists, is_all = self._select(plain, request)
            if is_all or min(map(len, lists)) >= max(request.k, self.limit // 2):
                return PoolKey(edge_set)
        return key

    def _select(self, pool: NodePool, request: Asked) -> tuple[list[Int64], bool]:
        """The popular nodes of a pool that a request allows, and whether these are all that it
        allows."""
        # As many nodes as are scored and as may be excluded.
        filter = request.filter
        count = self.limit + len(filter.exclude)
        if pool.is_whole or filter.where:
            count = pool.popular.most_members
        lists = pool.popular.best(count)
        allowed = self.allows(np.concatenate(lists), request)
        ends = np.cumsum([len(nodes) for nodes in lists])[:-1]
        kept = [n[ok] for n, ok in zip(lists, np.split(allowed, ends), strict=True)]
        return kept, pool.is_whole
