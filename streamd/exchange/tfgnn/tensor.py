"""A GraphTensor: the features, nodes and edges of one graph, or of some graphs side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.exchange.tfgnn.schema import Feature

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Values whose dims have a length of their own in each row.

    shape: of one item, None for a ragged dim. values: [N, *the dims behind the last ragged one].
    row_lengths: int64, for each ragged dim in turn one length for each row at its place.
    """

    shape: tuple[int | None, ...]
    values: Array
    row_lengths: tuple[Array, ...]

    def tolist(self) -> list[Any]:
        """The values as lists in lists, one for each item."""
        rows: list[Any] = self.values.tolist()
        lengths = list(self.row_lengths)
        last = max(i for i, size in enumerate(self.shape) if size is None)
        # From the inside out, put what belongs together into lists.
        for size in self.shape[last::-1]:
            counts = lengths.pop().tolist() if size is None else [size] * (len(rows) // size)
            nested, at = [], 0
            for count in counts:
                nested.append(rows[at : at + count])
                at += count
            rows = nested
        return rows


def ragged(feature: Feature, rows: Sequence[Any]) -> Ragged:
    """A ragged value from lists in lists, one for each item. Raises: TFGNNError for uneven dims."""
    lengths = []
    level: list[Any] = list(rows)
    last = feature.ragged_dims[-1]
    for size in feature.shape[:last]:
        counts = [len(row) for row in level]
        if size is None:
            lengths.append(np.array(counts, np.int64))
        elif any(count != size for count in counts):
            raise TFGNNError(f"a dim of {size} has rows of other lengths.", "correct the rows.")
        level = [value for row in level for value in row]
    trailing = [size or 0 for size in feature.shape[last:]]
    values = np.empty((len(level), *trailing), feature.dtype.numpy)
    try:
        for i, value in enumerate(level):
            values[i] = value
    except ValueError as error:
        raise TFGNNError(f"the rows do not fit the shape {feature.shape}: {error}.") from None
    return Ragged(feature.shape, values, tuple(lengths))


Value = Array | Ragged
Values = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Nodes:
    """The nodes of a set. sizes_C: int64, how many each component has. features: [N, *shape]."""

    sizes_C: Array
    features: Values = field(default_factory=dict)

    @property
    def num(self) -> int:
        """How many nodes there are."""
        return int(self.sizes_C.sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """The edges of a set. source_E, target_E: int64, places in the schema's two node sets."""

    sizes_C: Array
    source_E: Array
    target_E: Array
    features: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphTensor:
    """A graph of C components. context: features of the graph, [C, *shape]."""

    context: Values = field(default_factory=dict)
    node_sets: Mapping[str, Nodes] = field(default_factory=dict)
    edge_sets: Mapping[str, Edges] = field(default_factory=dict)

    def map(self, change: Callable[[Array], Array]) -> "GraphTensor":
        """The same graph with each array changed by a function."""

        def values(of: Values) -> dict[str, Value]:
            return {
                name: Ragged(v.shape, change(v.values), tuple(map(change, v.row_lengths)))
                if isinstance(v, Ragged)
                else change(v)
                for name, v in of.items()
            }

        return GraphTensor(
            context=values(self.context),
            node_sets={
                name: Nodes(sizes_C=change(n.sizes_C), features=values(n.features))
                for name, n in self.node_sets.items()
            },
            edge_sets={
                name: Edges(
                    sizes_C=change(e.sizes_C),
                    source_E=change(e.source_E),
                    target_E=change(e.target_E),
                    features=values(e.features),
                )
                for name, e in self.edge_sets.items()
            },
        )
