"""GraphTensor: the features, nodes and edges of one graph, or of several graphs as components."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.tfgnn.schema.messages import Feature
from streamd.tfgnn.schema.schema import Features, dtype_of, ragged_dims, shape_of

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Values with ragged dims, whose length differs from row to row.

    shape: of one item, None for a ragged dim. values: [N, *the dims after the last ragged one].
    row_lengths: for each ragged dim, in order, an int64 array with the length of each of its rows.
    """

    shape: tuple[int | None, ...]
    values: Array
    row_lengths: tuple[Array, ...]

    def tolist(self) -> list[Any]:
        """The values as nested lists, one for each item."""
        rows: list[Any] = self.values.tolist()
        lengths = list(self.row_lengths)
        last = max(i for i, size in enumerate(self.shape) if size is None)
        # Nest from the innermost dim outwards.
        for size in self.shape[last::-1]:
            counts = lengths.pop().tolist() if size is None else [size] * (len(rows) // size)
            nested, at = [], 0
            for count in counts:
                nested.append(rows[at : at + count])
                at += count
            rows = nested
        return rows


def ragged(feature: Feature, rows: Sequence[Any]) -> Ragged:
    """A ragged value from nested lists, one for each item. Raises: TFGNNError for uneven dims."""
    lengths = []
    level: list[Any] = list(rows)
    shape = shape_of(feature)
    last = ragged_dims(shape)[-1]
    for size in shape[:last]:
        # Flatten one dim: store the lengths of its rows, or check them.
        counts = [len(row) for row in level]
        if size is None:
            lengths.append(np.array(counts, np.int64))
        elif any(count != size for count in counts):
            raise TFGNNError(f"a dim of {size} has rows of other lengths.", "correct the rows.")
        level = [value for row in level for value in row]
    trailing = [size or 0 for size in shape[last:]]
    values = np.empty((len(level), *trailing), dtype_of(feature).numpy)
    try:
        for i, value in enumerate(level):
            values[i] = value
    except ValueError as error:
        raise TFGNNError(f"the rows do not fit the shape {shape}: {error}.") from None
    return Ragged(shape, values, tuple(lengths))


Value = Array | Ragged
Values = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Nodes:
    """The nodes of a set. sizes_C: int64, number of nodes of each component. features: [N,
    *shape]."""

    sizes_C: Array
    features: Values = field(default_factory=dict)

    @property
    def num(self) -> int:
        """Number of nodes."""
        return int(self.sizes_C.sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """The edges of a set. sizes_C: int64, number of edges of each component. source_E, target_E:
    int64, indices into the two node sets of the schema."""

    sizes_C: Array
    source_E: Array
    target_E: Array
    features: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphTensor:
    """A graph of C components. context: features of the components, [C, *shape]."""

    context: Values = field(default_factory=dict)
    node_sets: Mapping[str, Nodes] = field(default_factory=dict)
    edge_sets: Mapping[str, Edges] = field(default_factory=dict)

    def map(self, change: Callable[[Array], Array]) -> "GraphTensor":
        """The same graph with a function applied to each array."""

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


def by_row(value: Value) -> Callable[[int], Array]:
    """A function that returns the flat values of a row."""
    if not isinstance(value, Ragged):
        array = np.asarray(value)
        return lambda r: array[r : r + 1].reshape(-1)
    starts = np.concatenate([[0], np.cumsum(_counts(value))]).tolist()
    values = np.asarray(value.values)
    return lambda r: values[starts[r] : starts[r + 1]].reshape(-1)


def _counts(value: Ragged) -> Array:
    """Number of values of each row, int64."""
    counts, lengths = np.ones(len(value.values), np.int64), list(value.row_lengths)
    last = max(i for i, size in enumerate(value.shape) if size is None)
    # Sum the row lengths of each partition, innermost first.
    for size in value.shape[last::-1]:
        if size is not None:
            counts = counts.reshape(-1, size).sum(1)
            continue
        row_lengths = np.asarray(lengths.pop())
        sums = np.concatenate([[0], np.cumsum(counts)])
        ends = np.cumsum(row_lengths)
        counts = sums[ends] - sums[ends - row_lengths]
    return counts


def take(features: Values, rows: Array) -> dict[str, Value]:
    """Select rows of features. A ragged feature must have one ragged dim, the first. rows:
    int64."""
    return {name: _take(value, rows) for name, value in features.items()}


def _take(value: Value, rows: Array) -> Value:
    if not isinstance(value, Ragged):
        return value[rows]
    lengths = value.row_lengths[0]
    start = np.concatenate([[0], np.cumsum(lengths)])[rows]
    taken = lengths[rows]
    # Index of each value within its row, added to the row's start.
    within = np.arange(int(taken.sum())) - np.repeat(np.cumsum(taken) - taken, taken)
    return Ragged(value.shape, value.values[np.repeat(start, taken) + within], (taken,))


def join(parts: Sequence[Values]) -> dict[str, Value]:
    """Concatenate the features of several blocks of rows."""
    if not parts:
        return {}
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _join(values: list[Value]) -> Value:
    first = values[0]
    if not isinstance(first, Ragged):
        return np.concatenate([np.asarray(value) for value in values])
    lengths = zip(*(value.row_lengths for value in values), strict=True)
    return Ragged(
        first.shape,
        np.concatenate([value.values for value in values]),
        tuple(np.concatenate(of_dim) for of_dim in lengths),
    )


def no_rows(features: Features) -> dict[str, Value]:
    """Features of zero items. A ragged feature must have one ragged dim, the first."""
    found: dict[str, Value] = {}
    for name, feature in sorted(features.items()):
        shape = shape_of(feature)
        ragged = ragged_dims(shape)
        sizes = [size or 0 for size in shape[len(ragged) :]]
        values = np.empty((0, *sizes), dtype_of(feature).numpy)
        lengths = np.empty(0, np.int64)
        found[name] = Ragged(shape, values, (lengths,)) if ragged else values
    return found
