"""The elements of the Beam pipeline that samples: blocks of rows, and their keys.

Rows are partitioned by the hash of an id. So a node's edges, its row and the samples that reach it
are grouped under one key, its bucket, which a worker holds in arrays. No machine holds the whole
graph. Later, the nodes and edges of a sample are grouped under the number of its shard.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamd.tfgnn.records.row_names import FileRows
from streamd.tfgnn.records.tensor import Value, Values, take
from streamd.tfgnn.sampling.adjacency import check_weights
from streamd.tfgnn.sampling.draws import ENDLESS, Array, hash_strings
from streamd.tfgnn.sampling.seeds import shard_of
from streamd.tfgnn.sampling.tables_graph import Columns
from streamd.tfgnn.schema.messages import Context, EdgeSet
from streamd.tfgnn.tables.reading import Rows, Set, read_seeds, read_table

ROWS = 1 << 17
"""Rows of a table that are partitioned together."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBlock:
    """Edges of a set, keyed by the bucket of their sources. time, weight: None if the table has
    none."""

    edge_set: str
    source: list[bytes]
    target: list[bytes]
    time: Array | None
    weight: Array | None
    features: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class NodeBlock:
    """Rows of a node set, keyed by the bucket of their ids. row_R: int64, their numbers in the
    file."""

    node_set: str
    ids: list[bytes]
    features: Values
    file: FileRows
    row_R: Array


@dataclass(frozen=True, slots=True, eq=False)
class SeedBlock:
    """Rows of the table of seeds, keyed by the bucket of their ids. times: int64."""

    ids: list[bytes]
    times: Array


@dataclass(frozen=True, slots=True, eq=False)
class SampleArrivals:
    """Nodes that samples reached by an operation, keyed by the bucket of the nodes. samples: as in
    `Seeds.handles`. until_S: int64, time of each sample. sample_P, node_P: P pairs of a sample and
    a node, as indices into the two lists."""

    op: str
    samples: list[bytes]
    until_S: Array
    nodes: list[bytes]
    sample_P: Array
    node_P: Array


@dataclass(frozen=True, slots=True, eq=False)
class EdgeQueries:
    """A query for the edges of an edge set between the nodes of samples, keyed by the bucket of the
    sources.

    sources: of each sample, those in the bucket. targets: of each sample, all.
    """

    edge_set: str
    samples: list[bytes]
    until_S: Array
    sources: list[list[bytes]]
    targets: list[list[bytes]]


@dataclass(frozen=True, slots=True, eq=False)
class SampledEdges:
    """Edges of samples, keyed by the shard of the samples. index_E: int64, index of an edge among
    those of its source. sample_P, edge_P: P pairs of a sample and an edge, as indices into the
    lists."""

    edge_set: str
    samples: list[bytes]
    source: list[bytes]
    target: list[bytes]
    index_E: Array
    features: Values
    sample_P: Array
    edge_P: Array


@dataclass(frozen=True, slots=True, eq=False)
class SampledNodes:
    """Nodes of samples, keyed by the shard of the samples. sample_P, node_P: P pairs, as in
    `SampleArrivals`."""

    node_set: str
    samples: list[bytes]
    ids: list[bytes]
    features: Values
    sample_P: Array
    node_P: Array


@dataclass(frozen=True, slots=True, eq=False)
class ShardSamples:
    """Samples, keyed by their shard. With no samples it makes an empty shard be written."""

    samples: list[bytes]
    until_S: Array


Keyed = tuple[int, Any]
"""(key, block). Keys are numbers of buckets or of shards."""


def of(blocks: Iterable[Any], kind: type) -> list[Any]:
    """The blocks of a kind."""
    return [block for block in blocks if isinstance(block, kind)]


def groups(key_N: Array) -> Iterator[tuple[int, Array]]:
    """Yield each key that occurs, and the indices that have it."""
    # Sort the keys, and cut the indices at each new one.
    order = np.argsort(key_N, kind="stable")
    sorted_key = key_N[order]
    begins = np.flatnonzero(np.diff(sorted_key, prepend=-1))
    yield from zip(
        sorted_key[begins].tolist(), np.split(order, begins[1:]) if len(order) else [], strict=True
    )


def pick(values: list[bytes], indices: Array) -> list[bytes]:
    """The strings at some indices."""
    return [values[i] for i in indices.tolist()]


def number_strings(values: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """The distinct strings, ascending, and the index of each."""
    known = sorted(set(values))
    return known, {value: n for n, value in enumerate(known)}


def indices_of(number: dict[bytes, int], values: list[bytes]) -> Array:
    """Index of each string, int64, -1 for an unknown one."""
    return np.fromiter((number.get(value, -1) for value in values), np.int64, len(values))


def compact(indices: Array) -> tuple[Array, Array]:
    """The distinct indices, ascending, and for each input its index among them, int64."""
    used, which = np.unique(indices, return_inverse=True)
    return used, which.reshape(-1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file to read. kind, for a sampler: edges, nodes, seeds, or every (each row of a node set is
    a seed). one: its set."""

    kind: str
    name: str
    path: Path
    one: Set


def read_file(file: TableFile, buckets: int) -> Iterator[Keyed]:
    """Yield the rows of a file, partitioned by bucket. Raises: TFGNNError."""
    rows = read_seeds(file.path) if file.kind == "seeds" else read_table(file.one, file.path)
    parts: list[Rows] = []
    for part in rows:
        parts.append(part)
        # Partition many rows at once: each bucket then gets a few large blocks.
        if sum(p.num for p in parts) >= ROWS:
            yield from _cut(file, parts, buckets)
            parts = []
    if parts:
        yield from _cut(file, parts, buckets)


def _cut(file: TableFile, parts: list[Rows], buckets: int) -> Iterator[Keyed]:
    """Yield blocks of rows for their buckets."""
    assert not isinstance(file.one, Context)
    columns = Columns(file.one, parts)
    if file.kind == "edges":
        check_weights(columns.weight, columns.location)
    # Rows are named by their numbers in the file, also after they were partitioned.
    of_file = replace(parts[0].location, first=0)
    row_R = np.concatenate([p.location.first + np.arange(p.num) for p in parts])
    keys = columns.source if file.kind == "edges" else columns.ids
    for bucket, indices in groups(bucket_of(keys, buckets)):
        ids = pick(keys, indices)
        if file.kind == "nodes":
            features = take(columns.features, indices)
            yield bucket, NodeBlock(file.name, ids, features, of_file, row_R[indices])
        elif file.kind == "edges":
            time = None if columns.time is None else columns.time[indices]
            weight = None if columns.weight is None else columns.weight[indices]
            features = take(columns.features, indices)
            target = pick(columns.target, indices)
            yield bucket, EdgeBlock(file.name, ids, target, time, weight, features)
        else:
            time = None if file.kind == "every" else columns.time
            # A sample without a time has all edges.
            endless = np.full(len(ids), ENDLESS)
            yield bucket, SeedBlock(ids, endless if time is None else time[indices])


def bucket_of(ids: list[bytes], buckets: int) -> Array:
    """The bucket of each id, int64."""
    return shard_of(hash_strings(ids), buckets)


def plain_rows(file: TableFile) -> Iterator[Any]:
    """Yield the rows of a set's file as Python values: (id, features), (source, target, features),
    or features. Raises: TFGNNError."""
    for rows in read_table(file.one, file.path):
        columns = {name: _items(value) for name, value in rows.features.items()}
        if isinstance(file.one, EdgeSet):
            # Weights and times need not be declared in the schema.
            extra = {"#weight": rows.weight, "#time": rows.time}
            columns |= {name: one.tolist() for name, one in extra.items() if one is not None}
        features = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]
        # `zip` of no columns yields no rows, but the rows exist.
        features = features or [{} for _ in range(rows.num)]
        if rows.ids is not None:
            yield from zip(rows.ids.tolist(), features, strict=True)
        elif rows.source is not None and rows.target is not None:
            yield from zip(rows.source.tolist(), rows.target.tolist(), features, strict=True)
        else:
            yield from features


def _items(value: Value) -> list[Any]:
    """The values of each row."""
    items: list[Any] = value.tolist()
    return items
