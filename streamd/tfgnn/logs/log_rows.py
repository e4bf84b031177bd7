"""Reads the nodes and edges of a log as rows of unigraph tables.

Deleted nodes and edges are left out, also if they were deleted after the cut, since their keys are
gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from streamd.errors import TFGNNError
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64, split_key
from streamd.exchange.export import parts_of
from streamd.tfgnn.logs.declared import ID, TIME, Declared, feature_type
from streamd.tfgnn.logs.feature_values import to_columns
from streamd.tfgnn.logs.node_keys import form_of, id_of
from streamd.tfgnn.sampling.draws import ENDLESS, Array
from streamd.tfgnn.schema.schema import dtype_of, shape_of
from streamd.tfgnn.tables.reading import WEIGHT, Rows

NODES = 65_536
"""Nodes per block of rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogCut:
    """The part of a log to read; it stays the same while the log grows.

    edge: id of the first event after the part. first_edge: of the log. num_nodes: number of node
    ids in the log; the form of ids depends on all of their keys. num_known: number of node ids
    assigned before the cut. num_updates: updates of node features in the log. num_deletes: deletes
    in the log.
    """

    edge: int
    first_edge: int
    num_nodes: int
    num_known: int
    num_updates: int
    num_deletes: int

    @classmethod
    def of(cls, log: LogReader, edge: int) -> "LogCut":
        """The cut of a log's present state before an event, or after its last one."""
        num_known = log.num_nodes
        if edge < log.num_edges:
            history = log.feature_history(edge, log.num_feature_updates)
            num_known = int(node_counts(log, edge, *history.places())[1].max(initial=0))
        return cls(
            edge=edge,
            first_edge=log.first_edge,
            num_nodes=log.num_nodes,
            num_known=num_known,
            num_updates=log.num_feature_updates,
            num_deletes=log.deletions.count,
        )

    def check(self, log: LogReader) -> None:
        """Check that a log still has all data of the cut. Raises: TFGNNError."""
        now = LogCut.of(log, log.num_edges)
        for count, least in (
            (now.edge, self.edge),
            (now.num_nodes, self.num_nodes),
            (now.num_updates, self.num_updates),
        ):
            if count < least:
                raise TFGNNError(
                    f"The log in {log.data_dir} is not the one that the run began with.",
                    "remove its shards and run it again.",
                )
        # A delete changes samples of finished shards, and dropped events cannot be read again.
        changes = {
            "deletes": log.deletions.count - self.num_deletes,
            "events dropped by retention": log.first_edge - self.first_edge,
        }
        for words, count in changes.items():
            if count:
                raise TFGNNError(
                    f"The log has {count:,} more {words} than when the run began, so its finished "
                    "and its missing shards would not fit together.",
                    "remove its shards and run it again.",
                )


class LogRows:
    """Reads the sets of a log before a cut. Owner: one thread; the log is not refreshed meanwhile.

    key_forms: form of ids by node set. history: of node features.
    """

    def __init__(self, log: LogReader, declared: Declared, cut: LogCut) -> None:
        self.log = log
        self.declared = declared
        self.cut = cut
        nodes = np.arange(cut.num_nodes)
        self._set_N = log.node_sets_of(nodes)
        self._is_live_N = ~log.deletions.is_gone(nodes)
        self._ids_N = np.full(cut.num_nodes, None, object)
        self.history = log.feature_history(cut.edge, cut.num_updates)
        self.key_forms: dict[str, str] = {}
        for name, one in declared.node_sets.items():
            # From all keys of the log, so that ids do not depend on the cut.
            live = np.flatnonzero((self._set_N == one.number) & self._is_live_N)
            keys = [split_key(key)[1] for n in live.tolist() if (key := log.keys[n]) is not None]
            form = self.key_forms[name] = form_of(keys)
            ids = np.empty(len(keys), object)
            ids[:] = [id_of(key, form) for key in keys]
            self._ids_N[live] = ids

    def nodes_of(self, name: str) -> Int64:
        """The node ids of a set before the cut, int64, ascending."""
        number = self.declared.node_sets[name].number
        is_there = (self._set_N == number) & self._is_live_N
        return np.flatnonzero(is_there[: self.cut.num_known])

    def ids(self, nodes: Int64) -> Array:
        """The table ids of nodes that are not deleted: an array of bytes."""
        found: Array = self._ids_N[nodes]
        return found

    def edge_parts(self, name: str, first: int = 0) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
        """Yield the edges of a set from event `first` on: event ids, sources, targets, times."""
        log, number = self.log, self.declared.edge_sets[name].number
        is_only = self.declared.schema.num_edge_sets == 1
        for a, b in parts_of(max(first, log.first_edge), self.cut.edge):
            kept = ~log.hidden(a, b)
            if not is_only:
                kept &= log.edge_sets(a, b) == number
            at = np.flatnonzero(kept)
            src, dst, time = log.edges(a, b)
            yield a + at, src[at], dst[at], time[at]

    def edge_features(self, name: str, event_E: Int64) -> Float32:
        """The features of edges of a set, by event id: float32[E, width]."""
        columns = self.declared.edge_sets[name].columns
        return np.ascontiguousarray(self.log.features_of(event_E)[:, columns])

    def edge_columns(self, name: str, event_E: Int64, time_E: Int64) -> dict[str, Array]:
        """The features of edges of a set, with their times. Raises: TFGNNError."""

        def location(row: int) -> str:
            return f"edge set {name}, event {event_E[row]}"

        one = self.declared.edge_sets[name]
        return {TIME: time_E, **to_columns(one, self.edge_features(name, event_E), location)}

    def edge_weights(self, name: str, event_E: Int64, time_E: Int64) -> Float32 | None:
        """The weights of edges, as a reader of tables would find them: a feature `#weight` or
        `weight` of one number. None if the set has none. Raises: TFGNNError."""
        one = self.declared.edge_sets[name]
        for feature in (WEIGHT, "weight"):
            declared = one.features.get(feature)
            if declared is None:
                continue
            type_ = feature_type(declared)
            if not shape_of(type_) and dtype_of(type_).numpy.kind in "fiu":
                found: Float32 = self.edge_columns(name, event_E, time_E)[feature]
                return found.astype(np.float32)
        return None

    def first_events_at(self, until_X: Int64) -> Int64:
        """For each time in microseconds, the id of the first event at or after it: int64[X]."""
        # Search each distinct time once.
        times, inverse = np.unique(until_X, return_inverse=True)
        first_U = np.minimum(self.log.lower_bounds(times), self.cut.edge)
        return np.where(times == ENDLESS, ENDLESS, first_U)[inverse]

    def node_columns(self, name: str, nodes: Int64, edge_N: Int64) -> dict[str, Array]:
        """The features of nodes of a set, each before an event of its own. Raises: TFGNNError."""

        def location(row: int) -> str:
            return f"node set {name}, node {self._ids_N[nodes[row]].decode()!r}"

        one = self.declared.node_sets[name]
        if not one.features:
            return {}
        return to_columns(one, self.history.before(nodes, edge_N)[:, one.columns], location)

    def node_rows(
        self, name: str, progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Rows]:
        """Yield the table of a node set, with the features before the cut."""
        nodes = self.nodes_of(name)
        # At least one block, so that a table without rows has a header.
        for a in range(0, max(len(nodes), 1), NODES):
            some = nodes[a : a + NODES]
            ids = self.ids(some)
            columns = self.node_columns(name, some, np.full(len(some), ENDLESS))
            features = {ID: ids, **columns}
            yield Rows(first=a, num=len(some), ids=ids, features=features)
            progress(a + len(some))

    def edge_rows(
        self, name: str, first: int = 0, progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Rows]:
        """Yield the table of an edge set from event `first` on, in log order.

        progress: called with the number of events read, of all sets.
        """
        at = 0
        # An empty block first, so that a table without rows has a header.
        none = np.zeros(0, np.int64)
        yield self._edge_rows(name, 0, none, none, none, none)
        for event_E, src_E, dst_E, time_E in self.edge_parts(name, first):
            yield self._edge_rows(name, at, event_E, src_E, dst_E, time_E)
            at += len(event_E)
            if len(event_E):
                progress(int(event_E[-1]) + 1 - first)

    def _edge_rows(
        self, name: str, at: int, event_E: Int64, src_E: Int64, dst_E: Int64, time_E: Int64
    ) -> Rows:
        """Some rows of an edge set."""
        return Rows(
            first=at,
            num=len(event_E),
            source=self.ids(src_E),
            target=self.ids(dst_E),
            time=time_E,
            features=self.edge_columns(name, event_E, time_E),
        )


def node_counts(log: LogReader, cut: int, node_U: Int64, event_U: Int64) -> tuple[Int64, Int64]:
    """The events at which the number of assigned node ids grows; ids ascend in order of the nodes'
    first event.

    node_U, event_U: nodes and positions of feature updates. Deleted events do not count: compaction
    overwrites their nodes by another one, whose id may be newer. Returns: int64[K] event ids,
    ascending; and int64[K], the number of node ids assigned before each.
    """
    most, edges, counts = 0, [event_U], [node_U + 1]
    counts[0] = np.where(log.deletions.is_gone(node_U), 0, counts[0])
    for a, b in parts_of(log.first_edge, cut):
        src, dst, _ = log.edges(a, b)
        # Ids ascend in order of first events, so the largest id so far gives the number of known
        # nodes.
        num_E = np.where(log.deletions.hides(a, src, dst), 0, np.maximum(src, dst) + 1)
        known_E = np.maximum.accumulate(num_E)
        grows = np.flatnonzero((np.diff(known_E, prepend=0) > 0) & (known_E > most))
        edges.append(a + grows + 1)
        counts.append(known_E[grows])
        most = max(most, int(known_E[-1]))
    edge, count = np.concatenate(edges), np.concatenate(counts)
    order = np.argsort(edge, kind="stable")
    return edge[order], np.maximum.accumulate(count[order])
