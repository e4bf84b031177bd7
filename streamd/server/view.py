"""The server's own view of the log: graph, facts and node features, sub-second fresh."""

import numpy as np

from streamd.events import Int64, Key
from streamd.graph import BlockGraph, PairFacts
from streamd.graph.node_features import NodeFeatures
from streamd.segments.reader import LogReader
from streamd.server.served import UNKNOWN
from streamd.settings import Settings

SLICE_EDGES = 20_000


class LogView:
    """Tails the log in slices and answers what is known of nodes. Owner: the engine thread."""

    def __init__(self, settings: Settings, log: LogReader) -> None:
        assert log.state is not None
        self.log = log
        self.graph = BlockGraph(log.first_edge, settings.graph.max_block_entries)
        self.facts = PairFacts(settings.model.half_lives_seconds, settings.model.max_pairs)
        self.features = NodeFeatures(log.state.schema.node_feature_dim)
        self.edge = log.first_edge
        self.newest_us = 0
        self._kinds: dict[str, list[int]] = {}
        self._keys_sorted = 0

    def follow(self) -> int:
        """Take in up to one slice of new edges. Returns: how many."""
        self.log.refresh()
        end = min(self.edge + SLICE_EDGES, self.log.num_edges)
        count = end - self.edge
        if count > 0:
            src, dst, time = self.log.edges(self.edge, end)
            self.graph.insert(src, dst)
            self.facts.advance(src, dst, time)
            self.edge, self.newest_us = end, int(time[-1])
        self.features.advance(self.log.feature_node, self.log.feature_edge, self.log.feature_values, self.edge)
        return count

    @property
    def caught_up(self) -> bool:
        return self.edge == self.log.num_edges

    @property
    def watermark(self) -> int:
        """Event time up to which what was taken in is complete."""
        return self.log.watermark if self.caught_up else self.newest_us

    def ids(self, keys: list[Key]) -> Int64:
        """Dense ids, UNKNOWN for a key never seen."""
        known = self.log.ids
        return np.array([known.get(k, UNKNOWN) for k in keys], np.int64)

    def of_kind(self, kind: str | None) -> Int64:
        """Ids of nodes whose key begins with `kind:`, or of all that were a destination."""
        if kind is None:
            return self.facts.destinations()
        for node in range(self._keys_sorted, len(self.log.keys)):
            key = self.log.keys[node]
            if isinstance(key, str) and ":" in key:
                self._kinds.setdefault(key.split(":", 1)[0], []).append(node)
        self._keys_sorted = len(self.log.keys)
        return np.array(self._kinds.get(kind, []), np.int64)

    def candidates(self, source: int, kind: str | None, limit: int) -> Int64:
        """At most `limit` nodes worth scoring for a source: all, or its partners, theirs, and the popular ones."""
        pool = self.of_kind(kind)
        if len(pool) <= limit:
            return pool
        near = self.facts.partners(source)
        second = [self.facts.partners(int(p)) for p in near]
        third = [self.facts.partners(int(q)) for q in np.unique(np.concatenate([*second, near]))[:256]]
        close = np.unique(np.concatenate([near, *third])) if len(near) else near
        close = close[np.isin(close, pool)][: limit // 2]
        share = self.facts.log_shares(pool, self.newest_us + 1)
        each = (limit - len(close)) // share.shape[1]
        popular = [pool[np.argpartition(-share[:, h], each)[:each]] for h in range(share.shape[1])]
        return np.unique(np.concatenate([close, *popular]))
