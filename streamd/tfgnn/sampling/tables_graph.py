"""Loads the graph of a schema's unigraph tables into memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from streamd.errors import TFGNNError
from streamd.tfgnn.records.row_names import TableRows
from streamd.tfgnn.records.shards import find_files
from streamd.tfgnn.records.tensor import Values, join, no_rows
from streamd.tfgnn.sampling.adjacency import Graph, NodeTable, adjacency, node_table, shown_id
from streamd.tfgnn.sampling.assembly import ID, is_latent
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.sampling.sampler import seed_set
from streamd.tfgnn.schema.messages import EdgeSet, GraphSchema, NodeSet, SamplingSpec
from streamd.tfgnn.schema.schema import Features
from streamd.tfgnn.tables.reading import Rows, read_table, table_path

logger = structlog.get_logger()
Progress = Callable[[str, int, int], None]
"""Called with the name of a task, its progress and its total."""


def needed_sets(
    schema: GraphSchema, spec: SamplingSpec, aggregation: str, starts: Iterable[str] | None = None
) -> tuple[list[str], list[str]]:
    """The node sets and edge sets that sampling reads. starts: node sets of the seeds, None for the
    spec's."""
    names = {op.edge_set_name for op in spec.sampling_ops}
    nodes = {seed_set(spec)} if starts is None else set(starts)
    for name in names:
        nodes |= {schema.edge_sets[name].source, schema.edge_sets[name].target}
    if aggregation == "node":
        # Add all edge sets between these node sets.
        names |= {n for n, e in schema.edge_sets.items() if {e.source, e.target} <= nodes}
    return sorted(nodes), sorted(names)


def table_of(name: str, one: Any, base: Path) -> Path:
    """The path of the table of a set that sampling needs. Raises: TFGNNError."""
    if one.metadata.HasField("bigquery"):
        raise TFGNNError(
            f"Set {name!r} is in BigQuery, which cannot be read.",
            "export it to a file, and name that as its filename.",
        )
    path = table_path(one, base)
    if path is None:
        raise TFGNNError(f"Edge set {name!r} has no table.", "name its file in the schema.")
    # Refuse a missing file or shard before anything is read.
    find_files(path)
    return path


def check_latent(name: str, features: Features) -> None:
    """Refuse features of a node set without a table. Raises: TFGNNError."""
    own = sorted(set(features) - {ID})
    if own:
        raise TFGNNError(
            f"Node set {name!r} has the feature {own[0]!r} and no table.",
            "name its file in the schema.",
        )


Read = Callable[[str, NodeSet | EdgeSet], Iterable[Rows]]
"""(name, set) -> its rows."""


def read_tables(base: Path, progress: Progress = lambda what, done, total: None) -> Read:
    """A function that reads sets from the tables in a schema. base: folder of relative file
    names."""

    def read(name: str, one: NodeSet | EdgeSet) -> Iterator[Rows]:
        done = 0
        for rows in read_table(one, table_of(name, one, base)):
            done += rows.num
            progress(f"reading {name}", done, done)
            yield rows

    return read


def load_graph(
    schema: GraphSchema,
    spec: SamplingSpec,
    read: Read,
    *,
    seed_ids: Iterable[bytes] = (),
    aggregation: str = "edge",
) -> Graph:
    """Load the sets that sampling needs.

    seed_ids: ids of seeds, which may have no row. Edges of nodes without a row are left out of
    samples, and a warning counts them. Raises: TFGNNError for rows that contradict the schema or
    one another, and the errors of `read`.
    """
    node_names, edge_names = needed_sets(schema, spec, aggregation)
    others: dict[str, set[bytes]] = {name: set() for name in node_names}
    others[seed_set(spec)].update(seed_ids)
    tables = {}
    # Edges first: edges and seeds may name nodes without a row.
    for name in edge_names:
        one = schema.edge_sets[name]
        tables[name] = Columns(one, list(read(name, one)))
        others[one.source].update(tables[name].source)
        others[one.target].update(tables[name].target)

    nodes, latent = {}, set()
    for name in node_names:
        node_set = schema.node_sets[name]
        # The nodes of a latent set are those that edges and seeds name.
        if is_latent(node_set):
            check_latent(name, node_set.features)
            latent.add(name)
            nodes[name] = node_table([], others.pop(name), {}, TableRows())
            continue
        table = Columns(node_set, list(read(name, node_set)))
        nodes[name] = node_table(table.ids, others.pop(name), table.features, table.location)

    edge_sets = {}
    # `pop` frees the ids of each table once its edges are numbered.
    for name in edge_names:
        one, table = schema.edge_sets[name], tables.pop(name)
        source_E = numbers(nodes[one.source], table.source)
        target_E = numbers(nodes[one.target], table.target)
        has_rows = [
            nodes[end].row_N[node_E] >= 0
            for end, node_E in ((one.source, source_E), (one.target, target_E))
            if end not in latent
        ]
        _warn_left_out(name, table, np.logical_and.reduce(has_rows) if has_rows else None)
        edge_sets[name] = adjacency(
            source_E,
            target_E,
            len(nodes[one.source].ids),
            time_E=table.time,
            weight_E=table.weight,
            features=table.features,
            types=one.features,
            location=table.location,
        )
    return Graph(node_sets=nodes, edge_sets=edge_sets, latent=frozenset(latent))


def _warn_left_out(name: str, table: "Columns", is_kept_E: Array | None) -> None:
    """Warn of edges that are left out because an endpoint has no row.

    is_kept_E: bool for each edge, None if all are kept.
    """
    if is_kept_E is None or is_kept_E.all():
        return
    left_out = np.flatnonzero(~is_kept_E)
    e = int(left_out[0])
    logger.warning(
        "tfgnn_edges_omitted",
        edge_set=name,
        edges=len(left_out),
        of=len(is_kept_E),
        example=f"{table.location(e)}: {shown_id(table.source[e])} to {shown_id(table.target[e])}",
        why="the source or the target has no row in the table of its node set",
    )


def numbers(nodes: NodeTable, ids: list[bytes]) -> Array:
    """The number of each node, int64."""
    return np.fromiter(map(nodes.number.__getitem__, ids), np.int64, len(ids))


class Columns:
    """The concatenated rows of a table."""

    def __init__(self, one: NodeSet | EdgeSet, parts: list[Rows]) -> None:
        is_edges = isinstance(one, EdgeSet)

        def ids(get: Callable[[Rows], Any]) -> list[bytes]:
            return [id for rows in parts for id in get(rows).tolist()]

        self.ids = [] if is_edges else ids(lambda rows: rows.ids)
        self.source = ids(lambda rows: rows.source) if is_edges else []
        self.target = ids(lambda rows: rows.target) if is_edges else []
        self.location = TableRows()
        for rows in parts:
            self.location.add(rows.first, rows.location)
        locations = [rows.location(0) for rows in parts]
        self.weight = whole([rows.weight for rows in parts], np.float32, "#weight", locations)
        self.time = whole([rows.time for rows in parts], np.int64, "#time", locations)
        # Ids of nodes are stored once, even if the schema declares them as a feature.
        types = {k: f for k, f in sorted(one.features.items()) if is_edges or k != ID}
        kept: list[Values] = [{k: rows.features[k] for k in types} for rows in parts]
        self.features: Values = join(kept) if kept else no_rows(types)


def whole(
    parts: list[Array | None], dtype: Any, name: str, locations: Sequence[str]
) -> Array | None:
    """Concatenate the parts of a column; None if the table does not have it.

    locations: name of the first row of each part, for errors. Raises: TFGNNError if only some files
    of the table have the column.
    """
    found = [part for part in parts if part is not None]
    if parts and not found:
        return None
    if len(found) < len(parts):
        without = next(p for p, part in zip(locations, parts, strict=True) if part is None)
        raise TFGNNError(
            f"{without}: there is no {name}, and other files of the table have one.",
            "write it in all of them.",
        )
    return np.concatenate([np.empty(0, dtype), *found])
