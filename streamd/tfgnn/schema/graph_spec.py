"""The arrays of a schema's graphs, and the keys of its records."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamd.tfgnn.schema.layout import FeatureLayout, SetKeys
from streamd.tfgnn.schema.messages import GraphSchema
from streamd.tfgnn.schema.schema import TYPES, DataType


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySpec:
    """The array of a feature over all items of a set.

    dtype: of the array; object for bytes. shape: with the dim of the items first; None for dims
    that differ between graphs, and for ragged dims.
    """

    dtype: "np.dtype[Any]"
    shape: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeSpec:
    """An edge set: its source and target node sets, and its features."""

    source: str
    target: str
    features: dict[str, ArraySpec]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSpec:
    """The arrays of a graph: of its context, node sets and edge sets, by name."""

    context: dict[str, ArraySpec]
    node_sets: dict[str, dict[str, ArraySpec]]
    edge_sets: dict[str, EdgeSpec]

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Node and edge types in the form of PyG's `to_hetero` and `HeteroData.metadata`."""
        edges = [(one.source, name, one.target) for name, one in self.edge_sets.items()]
        return list(self.node_sets), edges


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySpec:
    """A key of a record. kind: of its list: bytes, float or int64.

    shape: of one item's value, None for a ragged dim, () for sizes and endpoints of edges.
    row_lengths: the keys of the row lengths of each ragged dim, in order.
    """

    kind: str
    dtype: DataType
    shape: tuple[int | None, ...] = ()
    row_lengths: tuple[str, ...] = ()


def graph_spec(schema: GraphSchema) -> GraphSpec:
    """The arrays of the graphs of a schema. Raises: TFGNNError if it is inconsistent."""
    layout = FeatureLayout(schema)
    return GraphSpec(
        context=_arrays(layout.context),
        node_sets={one.name: _arrays(one) for one in layout.node_sets},
        edge_sets={
            one.name: EdgeSpec(source=one.ends[0], target=one.ends[1], features=_arrays(one))
            for one in layout.edge_sets
        },
    )


def _arrays(one: SetKeys) -> dict[str, ArraySpec]:
    """The arrays of a set's features."""
    return {
        keys.name: ArraySpec(dtype=keys.dtype.numpy, shape=(None, *keys.shape))
        for keys in one.features
    }


def example_spec(schema: GraphSchema, prefix: str = "") -> dict[str, KeySpec]:
    """The keys of the records of a schema. prefix: of each key. Raises: TFGNNError."""
    number = KeySpec(kind="int64", dtype=TYPES["DT_INT64"])
    found: dict[str, KeySpec] = {}
    for one in FeatureLayout(schema, prefix).all_sets:
        found |= {key: number for key in (one.size, one.source, one.target) if key}
        for keys in one.features:
            found[keys.values] = KeySpec(
                kind=keys.dtype.wire,
                dtype=keys.dtype,
                shape=keys.shape,
                row_lengths=keys.row_lengths,
            )
            found |= dict.fromkeys(keys.row_lengths, number)
    return found
