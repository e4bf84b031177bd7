"""Decodes GraphTensors from tf.train.Example records, and encodes them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.columns import Column, ColumnReader
from streamd.tfgnn.records.kernels import min_and_max
from streamd.tfgnn.records.lists import convert, example, int64_list, reshape, values_list
from streamd.tfgnn.records.records import read_records, write_records
from streamd.tfgnn.records.tensor import Edges, GraphTensor, Nodes, Ragged, Value
from streamd.tfgnn.schema.layout import FeatureKeys, FeatureLayout, SetKeys
from streamd.tfgnn.schema.messages import GraphSchema
from streamd.tfgnn.schema.schema import ragged_dims

Array = NDArray[Any]
MAX_ITEMS = 2**40
"""Maximum number of items of a set, and of rows of a ragged dim: beyond it, numbers of values could
overflow int64."""
MAX_ABSENT_ROWS = 2**20
"""Maximum number of rows of a missing ragged feature: else a damaged #size would decide the size of
its arrays."""


class Codec:
    """Decodes and encodes the graphs of one schema. Immutable, so threads may share it.

    Args:
        schema: GraphSchema.
        prefix: str, of every key of a record. Default "".

    Raises:
        TFGNNError: the schema is inconsistent, or two of its parts have the same key.
    """

    def __init__(self, schema: GraphSchema, prefix: str = "") -> None:
        self.schema = schema
        self.prefix = prefix
        self._layout = FeatureLayout(schema, prefix)
        self._reader = ColumnReader(self._layout.keys)
        self._kinds = dict(self._layout.keys)

    def decode(self, record: bytes, where: str = "the record") -> GraphTensor:
        """Decode a record to a graph of numpy arrays.

        A set without `#size` has no items. A missing ragged feature has empty rows, as in TF-GNN's
        guide; any other feature may be missing only if there are no items. Keys that are not in the
        schema are ignored. where: name of the record for errors.

        Raises:
            TFGNNError: the record is no Example; or its sizes, row lengths or endpoints of edges
                are inconsistent, with set and feature.
        """
        span = np.array([[0], [len(record)]], np.int64)
        columns = iter(self._reader.read(record, span[0], span[1], lambda _: where))
        taken = _Taken(columns, where)
        # The context's columns come first, but the sets determine the number of components.
        context = [taken.feature() for keys in self._layout.context.features for _ in slots(keys)]
        parts = [taken.set(one) for one in self._layout.all_sets[1:]]
        components = _components([(one, sizes) for one, sizes, *_ in parts], where)

        node_sets: dict[str, Nodes] = {}
        edge_sets: dict[str, Edges] = {}
        for one, sizes, source, target, features in parts:
            location = f"{where}: {one.words}"
            # Without #size, the set has no items in any component.
            if len(sizes) == 0:
                sizes = np.zeros(components, np.int64)
            num = _total(sizes, location)
            values = _values(one, features, num, location)
            if one.kind == "node set":
                node_sets[one.name] = Nodes(sizes_C=sizes, features=values)
                continue
            # Node sets come before edge sets, so their sizes are known here.
            for end, index, at in zip(
                ("source", "target"), (source, target), one.ends, strict=True
            ):
                _check_ends(index, num, node_sets[at].num, f"{location}: #{end}", at)
            edge_sets[one.name] = Edges(
                sizes_C=sizes, source_E=source, target_E=target, features=values
            )
        location = f"{where}: context"
        return GraphTensor(
            context=_values(self._layout.context, context, components, location),
            node_sets=node_sets,
            edge_sets=edge_sets,
        )

    def encode(self, graph: GraphTensor, where: str = "the graph") -> bytes:
        """Encode a graph of numpy arrays as a record, with every key in order, also those of empty
        lists.

        Floats are written as float32, so a large double becomes infinite. Equal graphs give equal
        bytes. where: name of the graph for errors.

        Raises:
            TFGNNError: the graph does not fit the schema or is inconsistent, with set and feature.
        """
        # Sizes of all sets first: endpoints of edges are checked against those of node sets.
        sizes = {}
        for one in self._layout.all_sets[1:]:
            group: Any = graph.node_sets if one.kind == "node set" else graph.edge_sets
            if one.name not in group:
                raise TFGNNError(f"{where} has no {one.words}.", "give it, of size 0 if empty.")
            sizes[one.kind, one.name] = group[one.name], _int64(group[one.name].sizes_C)
        components = _components(
            [(one, sizes[one.kind, one.name][1]) for one in self._layout.all_sets[1:]], where
        )
        pieces: list[tuple[str, bytes]] = []
        _encode_features(self._layout.context, graph.context, components, where, pieces)
        for one in self._layout.all_sets[1:]:
            content, sizes_C = sizes[one.kind, one.name]
            location = f"{where}: {one.words}"
            if len(sizes_C) != components:
                raise TFGNNError(f"{location} has {len(sizes_C)} sizes, not {components}.")
            num = _total(sizes_C, location)
            pieces.append((one.size, int64_list(sizes_C)))
            if one.kind == "edge set":
                ends = (content.source_E, content.target_E)
                for key, index, at in zip((one.source, one.target), ends, one.ends, strict=True):
                    index = _int64(index)
                    end = key.rpartition(".")[2]
                    others = int(sizes["node set", at][1].sum())
                    _check_ends(index, num, others, f"{location}: {end}", at)
                    pieces.append((key, int64_list(index)))
            _encode_features(one, content.features, num, location, pieces)
        return example(pieces)

    def read(self, path: Path) -> Iterator[GraphTensor]:
        """Yield the graphs of a TFRecord file, a glob or base@N.

        Raises: TFRecordError and TFGNNError, after the graphs before were yielded.
        """
        for number, record in enumerate(read_records(path)):
            yield self.decode(record, f"{path} record {number}")

    def write(self, path: Path, graphs: Iterable[GraphTensor]) -> int:
        """Write graphs to a TFRecord file, or in turn to the shards of base@N. Returns: their
        number."""
        encoded = (self.encode(graph, f"graph {i}") for i, graph in enumerate(graphs))
        return write_records(path, encoded)


class _Taken:
    """Reads the columns of one record in the order of the layout."""

    def __init__(self, columns: Iterator[Column], where: str) -> None:
        self._columns = columns
        self._where = where

    def feature(self) -> Column:
        """The next column."""
        return next(self._columns)

    def set(self, one: SetKeys) -> tuple[SetKeys, Array, Array, Array, list[Column]]:
        """The next set: its keys, sizes, sources, targets, and the columns of its features."""
        sizes = self.feature().values
        source = target = sizes[:0]
        if one.kind == "edge set":
            source, target = self.feature().values, self.feature().values
        features = [self.feature() for keys in one.features for _ in slots(keys)]
        return one, sizes, source, target, features


def slots(keys: FeatureKeys) -> range:
    """A range over the keys of a feature: that of its values, then those of its row lengths."""
    return range(1 + len(keys.row_lengths))


def _components(sets: list[tuple[SetKeys, Array]], where: str) -> int:
    """The number of components: the number of sizes of every set that has any, 1 if none has.
    Raises: TFGNNError if they differ."""
    words_of: dict[int, str] = {}
    for one, sizes in sets:
        if len(sizes):
            words_of.setdefault(len(sizes), one.words)
    if len(words_of) > 1:
        (a, first), (b, second) = list(words_of.items())[:2]
        raise TFGNNError(
            f"{where}: {first} has {a} sizes and {second} has {b}.", "write one a component."
        )
    return next(iter(words_of), 1)


def _total(sizes: Array, location: str) -> int:
    """The number of items of a set. Raises: TFGNNError if it is negative or above MAX_ITEMS."""
    if len(sizes) == 1:
        total = least = int(sizes[0])
    else:
        # Python's integers cannot overflow, as a sum in numpy could.
        total, least = sum(sizes.tolist()), int(sizes.min())
    if least < 0 or total > MAX_ITEMS:
        raise TFGNNError(
            f"{location}: its #size is {least if least < 0 else total}.", "correct it."
        )
    return total


def _check_ends(index: Array, num: int, others: int, location: str, at: str) -> None:
    """Check the number of endpoints, and that each is the index of a node. Raises: TFGNNError."""
    if len(index) != num:
        raise TFGNNError(f"{location} has {len(index)} entries and #size {num}.", "correct one.")
    if num == 0:
        return
    least, most = min_and_max(index)
    if least < 0 or most >= others:
        raise TFGNNError(
            f"{location} has the index {least if least < 0 else most}; node set {at!r} has "
            f"{others} nodes.",
            "correct the index.",
        )


def _values(one: SetKeys, columns: list[Column], num: int, location: str) -> dict[str, Value]:
    """The features of a set of `num` items. Raises: TFGNNError."""
    values: dict[str, Value] = {}
    at = 0
    for keys in one.features:
        of_feature = columns[at : at + 1 + len(keys.row_lengths)]
        at += len(of_feature)
        values[keys.name] = _value(keys, of_feature, num, f"{location}, feature {keys.name!r}")
    return values


def _value(keys: FeatureKeys, columns: list[Column], num: int, location: str) -> Value:
    """The checked values of a feature. Raises: TFGNNError."""
    flat = columns[0].values
    if not keys.row_lengths:
        want = num
        for size in keys.shape:
            want *= size or 0
        if len(flat) != want:
            raise _count_error(columns[0], want, num, location)
        return reshape(convert(flat, keys.dtype, location), (num, *keys.shape), location)

    # A ragged feature: the row lengths of each dim determine the number of rows of the next.
    is_absent = not any(len(column.values) for column in columns)
    rows = num
    lengths = []
    length_columns = iter(columns[1:])
    # The dims after the last ragged one are those of its values.
    trailing = keys.shape[ragged_dims(keys.shape)[-1] :]
    for size in keys.shape[: len(keys.shape) - len(trailing)]:
        if size is not None:
            rows *= size
            continue
        row_lengths = next(length_columns).values
        if is_absent:
            if rows > MAX_ABSENT_ROWS:
                raise _count_error(columns[0], rows, num, location)
            # Broadcast zeros, which take no memory.
            row_lengths = np.broadcast_to(np.int64(0), rows)
        lengths.append(row_lengths)
        rows = _sum_of(row_lengths, rows, is_absent, location, len(lengths), keys)
    want = rows
    for size in trailing:
        want *= size or 0
    if len(flat) != want:
        raise _count_error(columns[0], want, num, location)
    values = reshape(convert(flat, keys.dtype, location), (rows, *trailing), location)
    return Ragged(keys.shape, values, tuple(lengths))


def _sum_of(
    row_lengths: Array, rows: int, is_absent: bool, location: str, nth: int, keys: FeatureKeys
) -> int:
    """The sum of row lengths. Raises: TFGNNError if their number is wrong, or one is negative or
    too large."""
    name = keys.row_lengths[nth - 1].rpartition(".")[2]
    if len(row_lengths) != rows:
        raise TFGNNError(
            f"{location}: {name} has {len(row_lengths)} row lengths for {rows} rows.", "correct it."
        )
    if is_absent or not rows:
        return 0
    least, most = min_and_max(row_lengths)
    # Bound the product first: the sum of many large lengths could overflow.
    if least < 0 or most * rows > MAX_ITEMS:
        raise TFGNNError(f"{location}: {name} has the row length {least if least < 0 else most}.")
    return int(row_lengths.sum())


def _count_error(column: Column, want: int, num: int, location: str) -> TFGNNError:
    """The error for a wrong number of values."""
    if not len(column.values):
        return TFGNNError(f"{location} is missing, and there are {num} items.", "write its values.")
    return TFGNNError(
        f"{location} has {len(column.values)} values; {num} items of its shape have {want}.",
        "correct the values, the row lengths or #size.",
    )


def _encode_features(
    one: SetKeys, features: Any, num: int, location: str, pieces: list[tuple[str, bytes]]
) -> None:
    """Append the keys and lists of a set's features. Raises: TFGNNError."""
    unknown = set(features) - {keys.name for keys in one.features}
    if unknown:
        raise TFGNNError(f"{location} has the feature {min(unknown)!r}, the schema does not.")
    for keys in one.features:
        at = f"{location}, feature {keys.name!r}"
        if keys.name not in features:
            raise TFGNNError(f"{at} is missing.", "give it for every item.")
        value = features[keys.name]
        if isinstance(value, Ragged) != bool(keys.row_lengths):
            raise TFGNNError(f"{at} must {'' if keys.row_lengths else 'not '}be ragged.")
        if isinstance(value, Ragged):
            _encode_ragged(keys, value, num, at, pieces)
            continue
        array = np.asarray(value)
        want = (num, *keys.shape)
        if array.shape != want:
            raise TFGNNError(f"{at} has the shape {array.shape}, not {want}.")
        pieces.append((keys.values, values_list(array.reshape(-1), keys.dtype, at)))


def _encode_ragged(
    keys: FeatureKeys, value: Ragged, num: int, location: str, pieces: list[tuple[str, bytes]]
) -> None:
    """Append the keys and lists of a ragged feature. Raises: TFGNNError."""
    if value.shape != keys.shape or len(value.row_lengths) != len(keys.row_lengths):
        raise TFGNNError(f"{location} has the shape {value.shape}, not {keys.shape}.")
    # Run the reader's checks before writing.
    array = np.asarray(value.values)
    lengths = [_int64(row_lengths) for row_lengths in value.row_lengths]
    flat = array.reshape(-1)
    columns = [Column(part, part) for part in (flat, *lengths)]
    typed = _value(keys, columns, num, location)
    assert isinstance(typed, Ragged)
    if array.shape != typed.values.shape:
        raise TFGNNError(f"{location} has values of shape {array.shape}, not {typed.values.shape}.")
    pieces.append((keys.values, values_list(flat, keys.dtype, location)))
    for key, row_lengths in zip(keys.row_lengths, typed.row_lengths, strict=True):
        pieces.append((key, int64_list(row_lengths)))


def _int64(values: Any) -> Array:
    """Convert values to an int64 array of one dim. Raises: TFGNNError if they are not integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TFGNNError(f"sizes, row lengths and ends of edges are integers, not {array.dtype}.")
    return array.astype(np.int64, copy=False)
