"""The graph of a log before a cut. Its features stay in the log until a sample reads them.

Nodes are numbered and edges ordered as in the tables of `table_export` for the same cut, so samples
are equal.
"""

from collections.abc import Iterable

import numpy as np

from streamd.events import Int64
from streamd.tfgnn.logs.declared import REVERSE_OF, TIME, metadata_value
from streamd.tfgnn.logs.log_rows import LogRows
from streamd.tfgnn.records.tensor import Values
from streamd.tfgnn.sampling.adjacency import Adjacency, Graph, NodeTable, adjacency, node_table
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.sampling.tables_graph import Progress
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema


class LogFeatures:
    """Reads the features of nodes and edges of a log: a `FeatureReader`.

    An update of a node's features has no time of its own, only a position among the edges of the
    log, which ingest gave it by its record's timestamp and its order in its partition. A sample at
    time t has the updates before the first edge with time t or later. If that edge is later than t,
    some of these updates may have come after t. Rows of nodes are their ids in the log, rows of
    edges their event ids.
    """

    def __init__(self, rows: LogRows, schema: GraphSchema) -> None:
        self._rows = rows
        self._schema = schema

    def of_nodes(self, name: str, row_N: Array, until_N: Array) -> Values:
        """The features of nodes, each before a time of its own (until_N: microseconds). Raises:
        TFGNNError."""
        return self._rows.node_columns(name, row_N, self._rows.first_events_at(until_N))

    def of_edges(self, name: str, row_E: Array) -> Values:
        """The features of edges. Raises: TFGNNError."""
        time_E = self._rows.log.time_of(row_E)
        return self._rows.edge_columns(forward_name(name, self._schema), row_E, time_E)


def forward_name(name: str, schema: GraphSchema) -> str:
    """The edge set of the log for an edge set, which may be its reverse."""
    return metadata_value(schema.edge_sets[name], REVERSE_OF) or name


def load_log_graph(
    rows: LogRows,
    schema: GraphSchema,
    needed: tuple[list[str], list[str]],
    *,
    first: int = 0,
    others: dict[str, set[bytes]],
    progress: Progress = lambda what, done, total: None,
) -> Graph:
    """Load the nodes and edges of some sets of a log, without their features.

    schema: of `graph_schema`. needed: names of node sets and edge sets. first: id of the first
    event. others: by node set, ids that may have no node. Raises: TFGNNError for invalid weights,
    and numbers that are no value of a feature.
    """
    node_names, edge_names = needed
    reader = LogFeatures(rows, schema)
    node_sets = {name: _node_table(rows, name, others.get(name, ())) for name in node_names}

    # A set and its reverse have the same events.
    parts = {}
    for name in sorted({forward_name(name, schema) for name in edge_names}):
        parts[name] = _edges(rows, name, first, progress)
    edge_sets = {}
    for name in edge_names:
        one, forward = schema.edge_sets[name], forward_name(name, schema)
        event_E, src_E, dst_E, time_E, weight_E = parts[forward]
        source_E, target_E = (src_E, dst_E) if name == forward else (dst_E, src_E)
        edge_sets[name] = _adjacency(
            name, one, reader, node_sets, event_E, source_E, target_E, time_E, weight_E
        )
    return Graph(node_sets=node_sets, edge_sets=edge_sets, reader=reader)


def _node_table(rows: LogRows, name: str, others: Iterable[bytes]) -> NodeTable:
    """The nodes of a set; row_N has their ids in the log."""
    nodes = rows.nodes_of(name)
    table = node_table(rows.ids(nodes).tolist(), set(others), {}, "node {}".format)
    has = table.row_N >= 0
    # `row_N` has indices of `nodes` so far; features are read by ids of the log.
    table.row_N[has] = nodes[table.row_N[has]]
    return table


def _edges(
    rows: LogRows, name: str, first: int, progress: Progress
) -> tuple[Int64, Int64, Int64, Int64, Array | None]:
    """Event ids, sources, targets and times of a set's edges, and their weights or None."""
    none = np.zeros(0, np.int64)
    parts, weights = [(none, none, none, none)], []
    begin = max(first, rows.log.first_edge)
    for event_E, src_E, dst_E, time_E in rows.edge_parts(name, first):
        parts.append((event_E, src_E, dst_E, time_E))
        weights.append(rows.edge_weights(name, event_E, time_E))
        done = int(event_E[-1]) + 1 if len(event_E) else begin
        progress(f"reading {name}", done - begin, rows.cut.edge - begin)
    event_E, src_E, dst_E, time_E = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Without edges, an empty array shows whether the set has weights.
    if not weights:
        return event_E, src_E, dst_E, time_E, rows.edge_weights(name, none, none)
    found = [weight for weight in weights if weight is not None]
    return event_E, src_E, dst_E, time_E, np.concatenate(found) if found else None


def _adjacency(
    name: str,
    one: EdgeSet,
    reader: LogFeatures,
    node_sets: dict[str, NodeTable],
    event_E: Int64,
    source_E: Int64,
    target_E: Int64,
    time_E: Int64,
    weight_E: Array | None,
) -> Adjacency:
    """The edges of a set by source."""
    # If times are the only feature, they cannot order edges of equal times.
    types = {} if set(one.features) == {TIME} else one.features
    return adjacency(
        _numbers(node_sets[one.source], source_E),
        _numbers(node_sets[one.target], target_E),
        len(node_sets[one.source].ids),
        time_E=time_E,
        weight_E=weight_E,
        row_E=event_E,
        features={},
        types=types,
        read=lambda row_E: reader.of_edges(name, row_E),
        location=lambda e: f"Edge set {name!r}, event {event_E[e]}",
    )


def numbers_of_nodes(table: NodeTable) -> Int64:
    """The number in a table of each node id of the log, up to the table's last node; -1 if the
    table lacks it. int64."""
    number_N = np.full(int(table.row_N.max(initial=-1)) + 1, -1)
    has = np.flatnonzero(table.row_N >= 0)
    number_N[table.row_N[has]] = has
    return number_N


def _numbers(table: NodeTable, nodes: Int64) -> Int64:
    """The numbers in a table of node ids of the log, int64 of the same length."""
    found = numbers_of_nodes(table)[nodes]
    assert found.min(initial=0) >= 0, "an edge before the cut has a node that is not"
    return found
