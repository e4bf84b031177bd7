"""Candidates are the nodes that may be recommended, and those likely enough to be scored."""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from streamd.events import Bools, Float32, Int64
from streamd.graph.live import LiveGraph
from streamd.serving.feature_columns import FeatureColumns
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.node_filter import FeatureCondition, NodeFilter, ValueLimit, is_in
from streamd.serving.requests import Recommend, Similar

POPULAR_SECONDS = 1.0
"""Time for which the most popular nodes of a kind are remembered: finding them takes a pass over
all of them."""
MAX_KINDS = 1000
"""Kinds, and filters of one kind, whose most popular nodes are remembered: a caller may name as
many as it likes."""
MAX_SECOND = 256
"""Most nodes two hops away from which a third hop is taken: it bounds the time of a request."""


@dataclass(frozen=True, slots=True)
class _Popularity:
    """The popularity of the nodes of a kind. made_at: monotonic time. pool: int64[P], ascending.
    share_P5: their log shares at each half-life. best: conditions on features -> most popular nodes
    that they hold for at each half-life, most popular first."""

    made_at: float
    pool: Int64
    share_P5: Float32
    best: dict[tuple[FeatureCondition, ...], list[Int64]] = field(default_factory=dict)


class Candidates:
    """Finds nodes by kind, without deleted ones. Owner: the server's graph that it belongs to."""

    def __init__(self, live: LiveGraph, features: FeatureColumns, limit: int) -> None:
        """features: of the live graph. limit: most nodes that `likely` returns."""
        self._live = live
        self._features = features
        self.limit = limit
        self._kinds: dict[str, list[int]] = {}
        self._keys_sorted = 0
        self._popularity: dict[tuple[str | None, int], _Popularity] = {}

    def of_request(self, request: Recommend | Similar) -> Int64:
        """Ids of all nodes that an answer may name, ascending: of the kind asked for, or all
        destinations of the asked edge set's node set, as far as the request's filter allows."""
        node_set = self._live.log.state.schema.ends_of(request.edge_set)[1]
        return self.filter_nodes(request.filter, node_set)

    def filter_nodes(self, filter: NodeFilter, node_set: int) -> Int64:
        """Ids of the destinations of a node set, or of the nodes of a kind, that a filter allows:
        int64, ascending."""
        if filter.kind is None:
            pool = self._live.destinations(node_set)
        else:
            pool = self.of_kind(filter.kind)

        # Keys that were never seen name no node.
        ids = self._live.log.ids
        if filter.only is not None:
            named = np.array([ids[key] for key in filter.only if key in ids], np.int64)
            named = np.unique(named)
            pool = named[is_in(named, pool)]

        # The pool is ascending, so names are found in it by search.
        if filter.exclude:
            named = np.array([ids[key] for key in filter.exclude if key in ids], np.int64)
            pool = np.delete(pool, np.searchsorted(pool, named[is_in(named, pool)]))

        # Each condition looks only at the nodes that the ones before it left.
        for condition in filter.where:
            numbers = self._features.numbers(pool, condition.first, condition.end)
            pool = pool[condition.holds(numbers)]
        return pool

    def diverse(self, diversity: ValueLimit, nodes: Int64) -> Bools:
        """Which nodes of a list stay, best first, so that it has the diversity: bool[N]."""
        return diversity.keeps(self._features.numbers(nodes, diversity.first, diversity.end))

    def of_kind(self, kind: str) -> Int64:
        """Ids of nodes whose key begins with `kind:`."""

        # Sort only the keys that came since the last call; node ids are rows of the keys.
        keys = self._live.log.keys
        for node in range(self._keys_sorted, len(keys)):
            key = keys[node]
            if isinstance(key, str) and ":" in key:
                self._kinds.setdefault(key.split(":", 1)[0], []).append(node)
        self._keys_sorted = len(keys)
        nodes = np.array(self._kinds.get(kind, []), np.int64)
        return nodes[~self._live.log.deletions.is_gone(nodes)]

    def unseen(self, nodes: Int64, source: int, edge_set: int) -> Int64:
        """The nodes that are not among a source's last partners in an edge set, ascending."""
        return np.setdiff1d(nodes, self._live.facts.partners(source, edge_set))

    def likely(
        self, request: Recommend, source: int, as_of_us: int, served: LoadedVersion | None
    ) -> Int64:
        """At most `limit` nodes worth scoring for a source, ascending.

        These are all nodes of the request, or, of too many, the source's partners, nodes three hops
        away, the most popular ones at each half-life, and those whose embedding is like its own.
        as_of_us: time just after the newest event, microseconds.
        """
        pool = self.of_request(request)
        if len(pool) <= self.limit:
            return pool
        near = self._live.facts.partners(source, request.edge_set)
        close = np.concatenate([near, self._three_hops_away(near, request.edge_set)])
        return self._likely_of(pool, close, request, source, as_of_us, served)

    def alike(
        self, request: Similar, node: int, as_of_us: int, served: LoadedVersion | None
    ) -> Int64:
        """At most `limit` nodes worth comparing with a node, ascending: all nodes of the request,
        or those of `likely` with the nodes that share a partner instead of partners."""
        pool = self.of_request(request)
        pool = np.delete(pool, np.flatnonzero(pool == node))
        if len(pool) <= self.limit:
            return pool
        close, _ = self.sharing_partners(node, request.edge_set)
        return self._likely_of(pool, close, request, node, as_of_us, served)

    def sharing_partners(self, node: int, edge_set: int) -> tuple[Int64, Float32]:
        """The nodes that lately shared partners with a node, and how much: int64[N] and float32[N],
        largest first, equal ones by id.

        It is the index of Adamic and Adar (2003) over the last partners of nodes, at most 16 each:
        the sum over shared partners of 1 / log(number of the partner's own last partners).
        """
        partners = self._live.facts.of_set(edge_set).partners
        lists = [partners(int(p)) for p in partners(node)]
        if not lists:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)

        # A shared partner has two partners at least.
        weights = [np.full(len(one), 1 / np.log(max(len(one), 2))) for one in lists]
        nodes, index = np.unique(np.concatenate(lists), return_inverse=True)
        sums = np.bincount(index, np.concatenate(weights), len(nodes)).astype(np.float32)
        order = np.lexsort((nodes, -sums))
        order = order[nodes[order] != node]
        return nodes[order], sums[order]

    def _likely_of(
        self,
        pool: Int64,
        close: Int64,
        request: Recommend | Similar,
        source: int,
        as_of_us: int,
        served: LoadedVersion | None,
    ) -> Int64:
        """The likely nodes of a pool that is too large. close: nodes near the source, best
        first."""
        # Near nodes get half of the limit at most; the rest are lists, best first.
        limit = self.limit
        close = close[is_in(close, pool)][: limit // 2]
        lists = self._popular(request, pool, as_of_us)
        if served is not None:
            lists = [*lists, served.nearest(source, pool, limit, self._live)]

        # Take turns between the lists, so that none crowds out another.
        table = np.full((max(map(len, lists)), len(lists)), -1, np.int64)
        for column, nodes in enumerate(lists):
            table[: len(nodes), column] = nodes

        # Each node once, at its best rank; ascending, as facts and embeddings are gathered.
        ranked = np.concatenate([close, table.ravel()])
        ranked = ranked[ranked >= 0]
        return np.sort(ranked[np.sort(np.unique(ranked, return_index=True)[1])[:limit]])

    def _three_hops_away(self, near: Int64, edge_set: int) -> Int64:
        """Partners of nodes that share a partner with the source, those with most paths first.

        near: the source's partners.
        """
        if not len(near):
            return near
        partners = self._live.facts.of_set(edge_set).partners
        second = np.unique(np.concatenate([partners(int(p)) for p in near]))[:MAX_SECOND]
        ends = [near[:0], *(partners(int(q)) for q in second)]
        third, paths = np.unique(np.concatenate(ends), return_counts=True)
        return third[np.argsort(-paths, kind="stable")]

    def _popular(self, request: Recommend | Similar, pool: Int64, as_of_us: int) -> list[Int64]:
        """The most popular nodes of a pool at each half-life, most popular first.

        They may be as of POPULAR_SECONDS ago. Each list has at least `request.k` nodes, if the pool
        and the limit allow so many.
        """
        popularity = self._popularity_of(request, as_of_us)
        where = request.filter.where
        if where not in popularity.best:
            whole = replace(request.filter, only=None, exclude=())
            best = self._most_popular(popularity, self.of_request(replace(request, filter=whole)))
            popularity.best[where] = best

        # Without those that were deleted meanwhile, or that the request leaves out.
        best = [nodes[is_in(nodes, pool)] for nodes in popularity.best[where]]
        enough = min(len(pool), self.limit, max(request.k, self.limit // 2))
        if min(map(len, best)) < enough:
            best = self._most_popular(popularity, pool)
        return best

    def _popularity_of(self, request: Recommend | Similar, as_of_us: int) -> _Popularity:
        """The popularity of all nodes of the request's kind."""
        kind, edge_set = request.filter.kind, request.edge_set
        found = self._popularity.get((kind, edge_set))
        is_fresh = found is not None and time.monotonic() - found.made_at < POPULAR_SECONDS
        if found is not None and is_fresh and len(found.best) < MAX_KINDS:
            return found
        pool = self.of_request(replace(request, filter=NodeFilter(kind=kind)))
        share_P5 = self._live.facts.log_shares(pool, as_of_us, edge_set)

        # Forgetting all of them is simple, and they are found again within a second.
        if len(self._popularity) > MAX_KINDS:
            self._popularity.clear()
        found = _Popularity(time.monotonic(), pool, share_P5)
        self._popularity[kind, edge_set] = found
        return found

    def _most_popular(self, popularity: _Popularity, pool: Int64) -> list[Int64]:
        """At most `limit` nodes of a pool at each half-life, most popular first."""
        # Nodes that came since are the least popular.
        share = np.full((len(pool), popularity.share_P5.shape[1]), -np.inf, np.float32)
        known = is_in(pool, popularity.pool)
        share[known] = popularity.share_P5[np.searchsorted(popularity.pool, pool[known])]

        # A partial sort per half-life: a pool may have millions of nodes.
        best = []
        for column in -share.T:
            top = np.arange(len(pool))
            if len(pool) > self.limit:
                top = np.argpartition(column, self.limit)[: self.limit]
            best.append(pool[top[np.argsort(column[top], kind="stable")]])
        return best
