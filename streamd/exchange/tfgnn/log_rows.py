"""The nodes and edges of a log as rows of unigraph tables.

What was deleted is not there, whenever it was deleted: its keys are gone.
"""

from collections.abc import Callable, Iterator

import numpy as np

from streamd.events import Float32, Int64, split_key
from streamd.exchange.export import features_before, parts_of
from streamd.exchange.tfgnn.declared import ID, TIME, Declared
from streamd.exchange.tfgnn.draws import Array
from streamd.exchange.tfgnn.feature_values import to_columns
from streamd.exchange.tfgnn.node_keys import form_of, id_of
from streamd.exchange.tfgnn.unigraph import Rows
from streamd.segments.reader import LogReader

NODES = 65_536
"""Nodes of a table that are given at once."""


class LogRows:
    """Reads the sets of a log before a cut. Owner: one thread; the log is not refreshed meanwhile.

    cut: an event id; nothing from it on is there. key_forms: how ids stand for keys, by node set.
    """

    def __init__(self, log: LogReader, declared: Declared, cut: int) -> None:
        self.log = log
        self.declared = declared
        self.cut = cut
        nodes = np.arange(log.num_nodes)
        self._set_N = log.node_sets_of(nodes)
        self._is_live_N = ~log.deletions.is_gone(nodes)
        self._ids_N = np.full(log.num_nodes, None, object)
        self.key_forms: dict[str, str] = {}
        for name, one in declared.node_sets.items():
            # Of all keys, so that a later cut does not give nodes other ids.
            live = np.flatnonzero((self._set_N == one.number) & self._is_live_N)
            keys = [split_key(key)[1] for n in live.tolist() if (key := log.keys[n]) is not None]
            form = self.key_forms[name] = form_of(keys)
            ids = np.empty(len(keys), object)
            ids[:] = [id_of(key, form) for key in keys]
            self._ids_N[live] = ids
        self._num_known = _num_known(log, cut)

    def nodes_of(self, name: str) -> Int64:
        """int64, ascending: the nodes of a set in the log, of those first seen before the cut."""
        number = self.declared.node_sets[name].number
        is_there = (self._set_N == number) & self._is_live_N
        return np.flatnonzero(is_there[: self._num_known])

    def ids(self, nodes: Int64) -> Array:
        """The ids of nodes that are not deleted: an array of bytes."""
        found: Array = self._ids_N[nodes]
        return found

    def edge_parts(self, name: str, first: int = 0) -> Iterator[tuple[Int64, Int64, Int64, Int64]]:
        """Yield the edges of a set from an event on: event ids, sources, targets, times."""
        log, number = self.log, self.declared.edge_sets[name].number
        is_only = self.declared.schema.num_edge_sets == 1
        for a, b in parts_of(max(first, log.first_edge), self.cut):
            kept = ~log.hidden(a, b)
            if not is_only:
                kept &= log.edge_sets(a, b) == number
            at = np.flatnonzero(kept)
            src, dst, time = log.edges(a, b)
            yield a + at, src[at], dst[at], time[at]

    def edge_features(self, name: str, event_E: Int64) -> Float32:
        """float32[E, width]: the features of edges of a set, by event id."""
        columns = self.declared.edge_sets[name].columns
        return np.ascontiguousarray(self.log.features_of(event_E)[:, columns])

    def edge_columns(self, name: str, event_E: Int64, time_E: Int64) -> dict[str, Array]:
        """The features of edges of a set, with their times. Raises: TFGNNError."""

        def place(row: int) -> str:
            return f"edge set {name}, event {event_E[row]}"

        one = self.declared.edge_sets[name]
        return {TIME: time_E, **to_columns(one, self.edge_features(name, event_E), place)}

    def node_rows(
        self, name: str, progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Rows]:
        """Yield the table of a node set, with the features in force before the cut."""
        one, nodes = self.declared.node_sets[name], self.nodes_of(name)
        values_ND = features_before(self.log, self.cut)[0] if one.features else None
        for a in range(0, max(len(nodes), 1), NODES):
            some = nodes[a : a + NODES]
            ids = self.ids(some)
            features = {ID: ids}
            if values_ND is not None:

                def place(row: int, ids: Array = ids) -> str:
                    return f"node set {name}, node {ids[row].decode()!r}"

                features |= to_columns(one, values_ND[some][:, one.columns], place)
            yield Rows(first=a, num=len(some), ids=ids, features=features)
            progress(a + len(some))

    def edge_rows(
        self, name: str, first: int = 0, progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Rows]:
        """Yield the table of an edge set from an event on, in log order.

        progress: takes the events that were looked at, of all sets.
        """
        at = 0
        # A table has a header also where it has no rows.
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


def _num_known(log: LogReader, cut: int) -> int:
    """How many node ids were given out before a cut; ids count up in the order of first sight."""
    if cut >= log.num_edges:
        return log.num_nodes
    last = -1
    for a, b in parts_of(log.first_edge, cut):
        src, dst, _ = log.edges(a, b)
        last = max(last, int(src.max(initial=-1)), int(dst.max(initial=-1)))
    for nodes, _ in log.feature_updates().until(cut):
        last = max(last, int(nodes.max(initial=-1)))
    return last + 1
