"""A sampler's graph: its nodes and edges in arrays.

A `Graph` is built from tables (`tables_graph`), from a bucket of tables in a Beam pipeline, or from
a log. Nodes are numbered in byte order of their ids, and a node's edges are in `edge_order`, so
graphs of the same rows give the same samples, whatever the order of the rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from streamd.errors import TFGNNError
from streamd.tfgnn.records.lists import encode_row
from streamd.tfgnn.records.row_names import Location
from streamd.tfgnn.records.tensor import Values, by_row, take
from streamd.tfgnn.sampling.draws import Array, hash_strings, sum_weights
from streamd.tfgnn.schema.schema import Features, dtype_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NodeTable:
    """The nodes of a set by number.

    ids: bytes, ascending. row_N: int64, the row of each in `features`, -1 for a node without a row,
    which only edges or seeds name. features: [rows, *shape] by name. number: number by id. hash_N:
    uint64, of the ids.
    """

    ids: list[bytes]
    row_N: Array
    features: Values = field(default_factory=dict)
    number: Mapping[bytes, int]
    hash_N: Array


def node_table(
    ids: list[bytes], others: set[bytes], features: Values, location: Location
) -> NodeTable:
    """The nodes of a table's rows, and others without a row. Raises: TFGNNError for a repeated
    id."""
    row = {id: r for r, id in enumerate(ids)}
    # Find the first repeated id for the error.
    if len(row) < len(ids):
        first: dict[bytes, int] = {}
        for r, id in enumerate(ids):
            if first.setdefault(id, r) != r:
                raise TFGNNError(
                    f"{location(r)}: the id {shown_id(id)} occurs twice, first in "
                    f"{location(first[id])}.",
                    "remove one of the rows.",
                )
    known = sorted(row.keys() | others)
    return NodeTable(
        ids=known,
        row_N=np.fromiter((row.get(id, -1) for id in known), np.int64, len(known)),
        features=features,
        number={id: n for n, id in enumerate(known)},
        hash_N=hash_strings(known),
    )


def shown_id(id: bytes) -> str:
    """The start of an id, quoted, for errors."""
    return repr(id[:40].decode(errors="replace"))


@dataclass(frozen=True, kw_only=True)
class Adjacency:
    """The edges of a set by source; those of a node are in `edge_order`.

    start_N: int64, index of each source's first edge, and last the number of edges. source_E,
    target_E: int64, numbers of nodes. row_E: int64, rows of `features`. time_E: int64, weight_E:
    float32, each None if the edges have none.
    """

    start_N: Array
    source_E: Array
    target_E: Array
    row_E: Array
    time_E: Array | None
    weight_E: Array | None
    features: Values

    @cached_property
    def most(self) -> int:
        """The largest number of edges of a node."""
        return int(np.diff(self.start_N).max(initial=0))

    @cached_property
    def sum_E(self) -> Array:
        """Running sums of the weights of each node's edges, float64; they start at 0 at each
        node."""
        assert self.weight_E is not None
        sums = np.empty(len(self.weight_E))
        sum_weights(self.start_N, self.weight_E, sums)
        return sums

    @cached_property
    def top_E(self) -> Array:
        """Each node's edges by descending weight, int64; of equal weights, the last in order comes
        first."""
        assert self.weight_E is not None
        indices = np.arange(len(self.weight_E))
        return np.lexsort((-indices, -self.weight_E, self.source_E))


class FeatureReader(Protocol):
    """Reads features that are not in the graph's arrays."""

    def of_nodes(self, name: str, row_N: Array, until_N: Array) -> Values:
        """The features of nodes of a set, each before a time of its own."""

    def of_edges(self, name: str, row_E: Array) -> Values:
        """The features of edges of a set."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """The node sets and edge sets of a sampler.

    latent: node sets without a table. reader: of features, if they are not in the arrays.
    """

    node_sets: Mapping[str, NodeTable]
    edge_sets: Mapping[str, Adjacency]
    latent: frozenset[str] = frozenset()
    reader: FeatureReader | None = None

    def node_features(self, name: str, node_N: Array, until_N: Array) -> Values:
        """The features of some nodes of a set, each before a time of its own if features change."""
        table = self.node_sets[name]
        if self.reader is not None:
            return self.reader.of_nodes(name, table.row_N[node_N], until_N)
        return take(table.features, table.row_N[node_N])

    def edge_features(self, name: str, edge_E: Array) -> Values:
        """The features of some edges of a set."""
        edges = self.edge_sets[name]
        if self.reader is not None:
            return self.reader.of_edges(name, edges.row_E[edge_E])
        return take(edges.features, edges.row_E[edge_E])


def edge_order(
    source_E: Array,
    target_E: Array,
    time_E: Array | None,
    weight_E: Array | None,
    contents: Callable[[list[int]], list[bytes]] | None,
) -> Array:
    """The order of edges: by source, time, target, weight and, last, features.

    Edges that are equal in all of these are interchangeable. contents: returns features of edges as
    bytes; None if there are none. Returns: int64[E].
    """
    # `np.lexsort` takes its last key as the first criterion.
    keys = [key for key in (weight_E, target_E, time_E, source_E) if key is not None]
    order = np.lexsort(keys)
    if contents is None or len(order) < 2:
        return order

    # Order edges with equal keys by their features.
    same = np.ones(len(order) - 1, bool)
    for key in keys:
        sorted_key = key[order]
        same &= sorted_key[1:] == sorted_key[:-1]
    tied = np.flatnonzero(np.concatenate([[False], same]) | np.concatenate([same, [False]]))
    if len(tied):
        # Number the groups of equal keys, and sort each group by the bytes of its features.
        begins = ~np.concatenate([[False], same])[tied]
        group = np.cumsum(begins).tolist()
        edges = order[tied].tolist()
        by_content = sorted(zip(group, contents(edges), edges, strict=True))
        order[tied] = [edge for _, _, edge in by_content]
    return order


def adjacency(
    source_E: Array,
    target_E: Array,
    num_sources: int,
    *,
    time_E: Array | None = None,
    weight_E: Array | None = None,
    row_E: Array | None = None,
    features: Values,
    types: Features,
    read: Callable[[Array], Values] | None = None,
    location: Location,
) -> Adjacency:
    """Build the adjacency of edges in any order.

    row_E: rows of their features, int64; None if these are in the edges' order. types: of the
    features that order edges with equal keys. read: reads rows of features that are not in
    `features`. location: names an edge in errors. Raises: TFGNNError as `check_weights`.
    """
    check_weights(weight_E, location)

    # Only edges with equal keys need their features: in a log they are read from disk.
    def contents(edges: list[int]) -> list[bytes]:
        rows = np.array(edges, np.int64) if row_E is None else row_E[edges]
        values = take(features, rows) if read is None else read(rows)
        return row_bytes(values, types, len(edges), lambda r: location(edges[r]))

    order = edge_order(source_E, target_E, time_E, weight_E, contents if types else None)
    source_E = source_E[order]
    return Adjacency(
        start_N=np.searchsorted(source_E, np.arange(num_sources + 1)),
        source_E=source_E,
        target_E=target_E[order],
        row_E=order if row_E is None else row_E[order],
        time_E=None if time_E is None else time_E[order],
        weight_E=None if weight_E is None else weight_E[order],
        features=features,
    )


def check_weights(weight_E: Array | None, location: Location) -> None:
    """Refuse a weight that is negative or not finite. Raises: TFGNNError with the edge."""
    if weight_E is None:
        return
    wrong = np.flatnonzero(~((weight_E >= 0) & (weight_E < np.inf)))
    if len(wrong):
        e = int(wrong[0])
        raise TFGNNError(
            f"{location(e)}: its weight is {weight_E[e]}; weights are finite, not negative.",
            "correct it.",
        )


def row_bytes(features: Values, types: Features, num: int, location: Location) -> list[bytes]:
    """The features of each row as bytes. Raises: TFGNNError."""
    getters = [(name, dtype_of(types[name]), by_row(features[name])) for name in sorted(types)]
    return [
        encode_row([(name, t, get(r)) for name, t, get in getters], location(r)) for r in range(num)
    ]
