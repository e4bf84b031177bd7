"""Merges the graphs of several records into one graph with all of their components.

This is TF-GNN's `merge_batch_to_components`. All records are read together by columns, so a batch
takes hardly more time than its largest columns.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.columns import Column, ColumnReader
from streamd.tfgnn.records.examples import MAX_ITEMS, Codec, slots
from streamd.tfgnn.records.lists import convert, reshape
from streamd.tfgnn.records.records import read_records
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged, Value, join
from streamd.tfgnn.schema.layout import FeatureKeys, FeatureLayout, SetKeys
from streamd.tfgnn.schema.messages import GraphSchema

Array = NDArray[Any]


def read_batches(codec: Codec, path: Path, size: int) -> Iterator[GraphTensor]:
    """Yield graphs of `size` records each (the last may have fewer) from a TFRecord file, a glob or
    base@N.

    Raises: TFRecordError and TFGNNError as `Codec.read`, after the batches before were yielded.
    """
    records = enumerate(read_records(path))
    reader = _BatchReader(codec)
    while batch := list(islice(records, size)):
        yield reader.read([record for _, record in batch], f"{path} record", batch[0][0])


def merge(graphs: Sequence[GraphTensor], schema: GraphSchema) -> GraphTensor:
    """Merge one or more graphs of numpy arrays into one with all of their components."""
    node_sets = {
        name: Nodes(
            sizes_C=np.concatenate([graph.node_sets[name].sizes_C for graph in graphs]),
            features=join([graph.node_sets[name].features for graph in graphs]),
        )
        for name in graphs[0].node_sets
    }
    # The nodes of a graph come after those of the graphs before it.
    before = {
        name: np.cumsum([0, *(graph.node_sets[name].num for graph in graphs)]).tolist()
        for name in node_sets
    }
    edge_sets = {}
    for name in graphs[0].edge_sets:
        parts = [graph.edge_sets[name] for graph in graphs]
        ends = schema.edge_sets[name]
        edge_sets[name] = Edges(
            sizes_C=np.concatenate([part.sizes_C for part in parts]),
            source_E=_shift([part.source_E for part in parts], before[ends.source]),
            target_E=_shift([part.target_E for part in parts], before[ends.target]),
            features=join([part.features for part in parts]),
        )
    context = join([graph.context for graph in graphs])
    return GraphTensor(context=context, node_sets=node_sets, edge_sets=edge_sets)


def _shift(ends: list[Array], before: list[int]) -> Array:
    return np.concatenate([end + first for end, first in zip(ends, before, strict=False)])


class _BatchReader:
    """Reads batches of records. Immutable."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._layout = FeatureLayout(codec.schema, codec.prefix)
        self._reader = ColumnReader(self._layout.keys)

    def read(self, records: list[bytes], where: str, first: int) -> GraphTensor:
        """Merge records into one graph. first: number of the first record, for errors. Raises:
        TFGNNError."""
        ends = np.cumsum([len(record) for record in records])
        starts = ends - [len(record) for record in records]
        columns = self._reader.read(
            b"".join(records), starts, ends, lambda r: f"{where} {first + r}"
        )
        try:
            return _Batch(self._layout, iter(columns)).graph()
        except (_Unusual, TFGNNError):
            # Decode one by one: missing keys get their defaults, and errors name their record.
            graphs = [
                self._codec.decode(record, f"{where} {number}")
                for number, record in enumerate(records, first)
            ]
            return merge(graphs, self._codec.schema)


class _Unusual(Exception):  # noqa: N818 - never leaves this module
    """A record lacks a key or is inconsistent."""


class _Batch:
    """Builds one graph from the columns of R records. Raises: _Unusual, TFGNNError."""

    def __init__(self, layout: FeatureLayout, columns: Iterator[Column]) -> None:
        self._layout = layout
        self._columns = columns
        self._num_components_R: Array | None = None
        self._num_nodes_R: dict[str, Array] = {}

    def graph(self) -> GraphTensor:
        """The graph of all records."""
        # The context's columns come first, but the sets determine the number of components.
        context = self._take(self._layout.context)
        node_sets = {one.name: self._nodes(one) for one in self._layout.node_sets}
        edge_sets = {one.name: self._edges(one) for one in self._layout.edge_sets}
        if self._num_components_R is None:
            raise _Unusual
        return GraphTensor(
            context=_values(self._layout.context, context, self._num_components_R),
            node_sets=node_sets,
            edge_sets=edge_sets,
        )

    def _take(self, one: SetKeys) -> list[Column]:
        return [next(self._columns) for keys in one.features for _ in slots(keys)]

    def _nodes(self, one: SetKeys) -> Nodes:
        sizes = next(self._columns)
        num_R = self._sizes(sizes)
        self._num_nodes_R[one.name] = num_R
        return Nodes(sizes_C=sizes.values, features=_values(one, self._take(one), num_R))

    def _edges(self, one: SetKeys) -> Edges:
        sizes, *ends = (next(self._columns) for _ in range(3))
        num_R = self._sizes(sizes)
        source_E, target_E = (
            self._nodes_of(end, num_R, self._num_nodes_R[name])
            for end, name in zip(ends, one.ends, strict=True)
        )
        return Edges(
            sizes_C=sizes.values,
            source_E=source_E,
            target_E=target_E,
            features=_values(one, self._take(one), num_R),
        )

    def _sizes(self, sizes: Column) -> Array:
        """Number of items of each record, int64[R]."""
        if self._num_components_R is None:
            self._num_components_R = sizes.count_R
        # Records without a size, or with another number of components, are decoded one by one.
        if not np.array_equal(sizes.count_R, self._num_components_R) or not sizes.count_R.all():
            raise _Unusual
        return _sums(sizes.values, sizes.count_R)

    def _nodes_of(self, end: Column, num_R: Array, num_nodes_R: Array) -> Array:
        """Endpoints of edges as indices into the nodes of all records."""
        if not np.array_equal(end.count_R, num_R):
            raise _Unusual
        nodes_E = np.repeat(num_nodes_R, num_R)
        if ((end.values < 0) | (end.values >= nodes_E)).any():
            raise _Unusual
        # The nodes of a record come after those of the records before it.
        before_R = np.cumsum(num_nodes_R) - num_nodes_R
        indices: Array = end.values + np.repeat(before_R, num_R)
        return indices


def _values(one: SetKeys, columns: list[Column], num_R: Array) -> dict[str, Value]:
    values = {}
    rest = iter(columns)
    for keys in one.features:
        values[keys.name] = _value(keys, [next(rest) for _ in slots(keys)], num_R)
    return values


def _value(keys: FeatureKeys, columns: list[Column], num_R: Array) -> Value:
    """The values of a feature. num_R: number of items of each record."""
    flat = columns[0]
    rows_R = num_R
    lengths = []
    length_columns = iter(columns[1:])
    num_leading = max((i + 1 for i, size in enumerate(keys.shape) if size is None), default=0)
    for size in keys.shape[:num_leading]:
        if size is not None:
            rows_R = rows_R * size
            continue
        row_lengths = next(length_columns)
        if not np.array_equal(row_lengths.count_R, rows_R):
            raise _Unusual
        lengths.append(row_lengths.values)
        rows_R = _sums(row_lengths.values, rows_R)
    trailing = keys.shape[num_leading:]
    want_R = rows_R
    for size in trailing:
        want_R = want_R * (size or 0)
    if not np.array_equal(flat.count_R, want_R):
        raise _Unusual
    rows = int(rows_R.sum())
    values = reshape(convert(flat.values, keys.dtype, keys.name), (rows, *trailing), keys.name)
    return Ragged(keys.shape, values, tuple(lengths)) if lengths else values


def _sums(values: Array, count_R: Array) -> Array:
    """The sum of the values of each record, int64[R]. Raises: _Unusual for a negative or too large
    value."""
    # The product bounds the sum, which could overflow.
    if len(values) and (int(values.min()) < 0 or int(values.max()) * len(values) > MAX_ITEMS):
        raise _Unusual
    ends = np.cumsum(np.concatenate([[0], values]))
    end_R = np.cumsum(count_R)
    sums: Array = ends[end_R] - ends[end_R - count_R]
    return sums
