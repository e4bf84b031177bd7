"""The schema of a log: the declared node sets and edge sets, and the layout of their features in
rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEFAULT_SET = "default"
"""Name of the node set and of the edge set of a log that declares none."""


@dataclass(frozen=True)
class Feature:
    """A declared feature of a set. width: its number of columns in a row. declared: its declaration
    in the settings, as JSON."""

    name: str
    width: int
    declared: str


@dataclass(frozen=True)
class NodeSet:
    """A declared node set. feature_dim: number of columns of its features. features: in order;
    empty if only their width is known."""

    name: str
    feature_dim: int = 0
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class EdgeSet:
    """A declared edge set. source, target: names of the node sets of its endpoints. feature_dim,
    features: as in `NodeSet`."""

    name: str
    source: str = DEFAULT_SET
    target: str = DEFAULT_SET
    feature_dim: int = 0
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class Schema:
    """The schema of a log: widths of rows of features and labels, and the declared sets.

    node_sets, edge_sets: empty if there is only the set `default`. A set's number is its index.
    edge_features, node_features: the features of `default`, if they are declared by name.

    With several edge sets, a row of edge features is a one-hot of the set, then the columns of all
    sets' features, which are 0 for the other sets. Rows of node features have the same layout. So a
    linear layer on such rows is one linear layer per set, each with its own bias.
    """

    edge_feature_dim: int = 0
    node_feature_dim: int = 0
    label_dim: int = 0
    node_sets: tuple[NodeSet, ...] = ()
    edge_sets: tuple[EdgeSet, ...] = ()
    edge_features: tuple[Feature, ...] = ()
    node_features: tuple[Feature, ...] = ()

    @classmethod
    def declared(
        cls, node_sets: Sequence[NodeSet], edge_sets: Sequence[EdgeSet], label_dim: int = 0
    ) -> "Schema":
        """The schema of declared sets, with the widths of their rows."""
        nodes, edges = tuple(node_sets), tuple(edge_sets)
        return cls(_row_dim(edges), _row_dim(nodes), label_dim, nodes, edges)

    @classmethod
    def restored(cls, fields: Mapping[str, Any]) -> "Schema":
        """Decode the result of `fields`."""
        # Older releases did not write all of these fields.
        rest = dict(fields)
        nodes = tuple(NodeSet(**_with_features(s)) for s in rest.pop("node_sets", ()))
        edges = tuple(EdgeSet(**_with_features(s)) for s in rest.pop("edge_sets", ()))
        of_edges = _features(rest.pop("edge_features", ()))
        of_nodes = _features(rest.pop("node_features", ()))
        return cls(
            **rest,
            node_sets=nodes,
            edge_sets=edges,
            edge_features=of_edges,
            node_features=of_nodes,
        )

    def fields(self) -> dict[str, Any]:
        """The schema as JSON fields; with sets and features only if they are declared."""
        return {k: v for k, v in asdict(self).items() if v != ()}

    @property
    def is_declared(self) -> bool:
        """Whether it has declared sets or features, rather than widths alone."""
        return bool(self.node_sets or self.edge_sets or self.edge_features or self.node_features)

    @property
    def edge_set_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.edge_sets) or (DEFAULT_SET,)

    @property
    def node_set_names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.node_sets) or (DEFAULT_SET,)

    @property
    def num_edge_sets(self) -> int:
        return len(self.edge_sets) or 1

    @property
    def num_node_sets(self) -> int:
        return len(self.node_sets) or 1

    def ends_of(self, edge_set: int) -> tuple[int, int]:
        """Numbers of the node sets of an edge set's sources and targets."""
        if not self.edge_sets:
            return 0, 0
        one = self.edge_sets[edge_set]
        names = self.node_set_names
        return names.index(one.source), names.index(one.target)

    def edge_columns(self, edge_set: int) -> slice:
        """The columns of an edge set's features in a row of edge features."""
        return _columns(self.edge_sets, edge_set, self.edge_feature_dim)

    def node_columns(self, node_set: int) -> slice:
        """The columns of a node set's features in a row of node features."""
        return _columns(self.node_sets, node_set, self.node_feature_dim)

    @property
    def all_edge_columns(self) -> list[slice]:
        """`edge_columns` of each edge set."""
        return [self.edge_columns(n) for n in range(self.num_edge_sets)]

    @property
    def all_node_columns(self) -> list[slice]:
        """`node_columns` of each node set."""
        return [self.node_columns(n) for n in range(self.num_node_sets)]

    def edge_sets_of(self, rows_ED: NDArray[np.float32]) -> NDArray[np.int64]:
        """Number of the edge set of each row of edge features: int64[E]."""
        if self.num_edge_sets == 1:
            return np.zeros(len(rows_ED), np.int64)
        # The first columns are the one-hot of the set.
        numbers: NDArray[np.int64] = rows_ED[:, : self.num_edge_sets].argmax(1).astype(np.int64)
        return numbers

    def edge_rows(self, edge_set: int, features_ED: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of edge features for events of one edge set: float32[E, edge_feature_dim].
        features_ED: float32[E, width of the set]."""
        return _rows(
            features_ED,
            self.edge_columns(edge_set),
            edge_set,
            self.edge_sets,
            self.edge_feature_dim,
        )

    def node_rows(self, node_set: int, features_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of node features for nodes of one node set: float32[N, node_feature_dim].
        features_ND: float32[N, width of the set]."""
        return _rows(
            features_ND,
            self.node_columns(node_set),
            node_set,
            self.node_sets,
            self.node_feature_dim,
        )


Sets = tuple[NodeSet, ...] | tuple[EdgeSet, ...]


def _with_features(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**fields, "features": _features(fields.get("features", ()))}


def _features(fields: Sequence[Mapping[str, Any]]) -> tuple[Feature, ...]:
    return tuple(Feature(**f) for f in fields)


def _row_dim(sets: Sets) -> int:
    """Width of a row: a one-hot of the set if there are several, and the features of all sets."""
    return sum(s.feature_dim for s in sets) + (len(sets) if len(sets) > 1 else 0)


def _columns(sets: Sets, number: int, dim: int) -> slice:
    if not sets:
        return slice(0, dim)
    # After the one-hot, if there is one, and after the features of the sets before.
    start = sum(s.feature_dim for s in sets[:number]) + (len(sets) if len(sets) > 1 else 0)
    return slice(start, start + sets[number].feature_dim)


def _rows(
    features: NDArray[np.float32], columns: slice, number: int, sets: Sets, dim: int
) -> NDArray[np.float32]:
    # A single set has no one-hot, and no columns of other sets.
    if len(sets) <= 1:
        return features
    rows = np.zeros((len(features), dim), np.float32)
    # The one-hot of the set, then its features; the columns of other sets stay 0.
    rows[:, number] = 1.0
    rows[:, columns] = features
    return rows
