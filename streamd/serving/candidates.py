"""Candidates are the nodes that may be recommended, and those likely enough to be scored."""

import time

import numpy as np

from streamd.events import Int64
from streamd.graph.live import LiveGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.requests import Recommend

POPULAR_SECONDS = 1.0
"""Time for which the most popular nodes of a kind are remembered: finding them takes a pass over
all of them."""
MAX_KINDS = 1000
"""Kinds whose most popular nodes are remembered: a caller may name as many as it likes."""
MAX_SECOND = 256
"""Most nodes two hops away from which a third hop is taken: it bounds the time of a request."""


class Candidates:
    """Finds nodes by kind, without deleted ones. Owner: the server's graph that it belongs to."""

    def __init__(self, live: LiveGraph, limit: int) -> None:
        """limit: most nodes that `likely` returns."""
        self._live = live
        self.limit = limit
        self._kinds: dict[str, list[int]] = {}
        self._keys_sorted = 0
        self._most_popular: dict[tuple[str | None, int], tuple[float, list[Int64]]] = {}

    def of_request(self, request: Recommend) -> Int64:
        """Ids of all nodes that an answer may name: of the kind asked for, or all destinations of
        the asked edge set's node set."""
        if request.kind is None:
            node_set = self._live.log.state.schema.ends_of(request.edge_set)[1]
            return self._live.destinations(node_set)
        return self.of_kind(request.kind)

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
        edge_set = request.edge_set
        limit = self.limit
        if len(pool) <= limit:
            return pool

        # Near nodes get half of the limit at most; the rest are lists, best first.
        near = self._live.facts.partners(source, edge_set)
        close = np.concatenate([near, self._three_hops_away(near, edge_set)])
        close = close[np.isin(close, pool)][: limit // 2]
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

    def _popular(self, request: Recommend, pool: Int64, as_of_us: int) -> list[Int64]:
        """The most popular nodes of a pool at each half-life, most popular first.

        They may be as of POPULAR_SECONDS ago.
        """
        name = request.kind, request.edge_set
        made_at, most_popular = self._most_popular.get(name, (0.0, []))
        if time.monotonic() - made_at < POPULAR_SECONDS:
            return most_popular

        # A partial sort per half-life: a pool may have millions of nodes.
        share = self._live.facts.log_shares(pool, as_of_us, request.edge_set)
        count = min(self.limit, len(pool) - 1)
        most_popular = []
        for column in -share.T:
            top = np.argpartition(column, count)[:count]
            most_popular.append(pool[top[np.argsort(column[top], kind="stable")]])

        # Forgetting all of them is simple, and they are found again within a second.
        if len(self._most_popular) > MAX_KINDS:
            self._most_popular.clear()
        self._most_popular[name] = (time.monotonic(), most_popular)
        return most_popular
