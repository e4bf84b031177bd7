"""The graph of a schema's unigraph tables, loaded whole."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import TFGNNError
from streamd.exchange.tfgnn.adjacency import Graph, NodeTable, adjacency, node_table
from streamd.exchange.tfgnn.assembly import ID, is_latent
from streamd.exchange.tfgnn.draws import Array
from streamd.exchange.tfgnn.sampling import seed_set
from streamd.exchange.tfgnn.schema import EdgeSet, Feature, GraphSchema, NodeSet
from streamd.exchange.tfgnn.shards import find_files
from streamd.exchange.tfgnn.spec import SamplingSpec
from streamd.exchange.tfgnn.tensor import Values, join, no_rows
from streamd.exchange.tfgnn.unigraph import Rows, read_table, table_path

Progress = Callable[[str, int, int], None]
"""Takes what is done, in words, how far, and of how much."""


def needed_sets(
    schema: GraphSchema, spec: SamplingSpec, aggregation: str, starts: Iterable[str] | None = None
) -> tuple[list[str], list[str]]:
    """The node sets and edge sets that sampling looks at. starts: node sets of the seeds, that of
    the spec where None."""
    names = {op.edge_set_name for op in spec.sampling_ops}
    nodes = {seed_set(spec)} if starts is None else set(starts)
    for name in names:
        nodes |= {schema.edge_sets[name].source, schema.edge_sets[name].target}
    if aggregation == "node":
        # Edges between nodes of any sets that are there.
        names |= {n for n, e in schema.edge_sets.items() if {e.source, e.target} <= nodes}
    return sorted(nodes), sorted(names)


def table_of(name: str, one: Any, base: Path) -> Path:
    """Where the table of a set that sampling needs lies. Raises: TFGNNError."""
    if one.metadata is not None and one.metadata.bigquery is not None:
        raise TFGNNError(
            f"Set {name!r} lies in BigQuery, which is not read.",
            "export it to a file, and name that as its filename.",
        )
    path = table_path(one, base)
    if path is None:
        raise TFGNNError(f"Edge set {name!r} has no table.", "name its file in the schema.")
    find_files(path)
    return path


def check_latent(name: str, features: dict[str, Feature]) -> None:
    """Refuse features of nodes that no table has. Raises: TFGNNError."""
    own = sorted(set(features) - {ID})
    if own:
        raise TFGNNError(
            f"Node set {name!r} has the feature {own[0]!r} and no table.",
            "name its file in the schema.",
        )


Read = Callable[[str, NodeSet | EdgeSet], Iterable[Rows]]
"""Gives the rows of a set, by its name and itself."""


def read_tables(base: Path, progress: Progress = lambda what, done, total: None) -> Read:
    """Reads sets from the tables that a schema names. base: the folder of relative names."""

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

    seed_ids: nodes of the seed set that may have no row. Raises: TFGNNError for rows that
    contradict the schema or one another, and what `read` raises.
    """
    node_names, edge_names = needed_sets(schema, spec, aggregation)
    others: dict[str, set[bytes]] = {name: set() for name in node_names}
    others[seed_set(spec)].update(seed_ids)
    tables = {}
    for name in edge_names:
        one = schema.edge_sets[name]
        tables[name] = Columns(one, list(read(name, one)))
        others[one.source].update(tables[name].source)
        others[one.target].update(tables[name].target)

    nodes, latent = {}, set()
    for name in node_names:
        node_set = schema.node_sets[name]
        if is_latent(node_set):
            check_latent(name, dict(node_set.features))
            latent.add(name)
            nodes[name] = node_table([], others.pop(name), {}, name)
            continue
        table = Columns(node_set, list(read(name, node_set)))
        nodes[name] = node_table(
            table.ids, others.pop(name), table.features, f"The table of node set {name!r}"
        )

    edge_sets = {}
    for name in edge_names:
        one, table = schema.edge_sets[name], tables.pop(name)
        edge_sets[name] = adjacency(
            numbers(nodes[one.source], table.source),
            numbers(nodes[one.target], table.target),
            len(nodes[one.source].ids),
            time_E=table.time,
            weight_E=table.weight,
            features=table.features,
            types=one.features,
            where=f"Edge set {name!r}",
        )
    return Graph(node_sets=nodes, edge_sets=edge_sets, latent=frozenset(latent))


def numbers(nodes: NodeTable, ids: list[bytes]) -> Array:
    """int64: the number of each node."""
    return np.fromiter(map(nodes.number.__getitem__, ids), np.int64, len(ids))


class Columns:
    """The rows of a table, joined."""

    def __init__(self, one: NodeSet | EdgeSet, parts: list[Rows]) -> None:
        is_edges = isinstance(one, EdgeSet)

        def ids(get: Callable[[Rows], Any]) -> list[bytes]:
            return [id for rows in parts for id in get(rows).tolist()]

        self.ids = [] if is_edges else ids(lambda rows: rows.ids)
        self.source = ids(lambda rows: rows.source) if is_edges else []
        self.target = ids(lambda rows: rows.target) if is_edges else []
        self.weight = whole([rows.weight for rows in parts], np.float32)
        self.time = whole([rows.time for rows in parts], np.int64)
        # The ids of nodes are kept once, also where they are a feature.
        types = {k: f for k, f in one.features.items() if is_edges or k != ID}
        kept: list[Values] = [{k: rows.features[k] for k in types} for rows in parts]
        self.features: Values = join(kept) if kept else no_rows(types)


def whole(parts: list[Array | None], dtype: Any) -> Array | None:
    """The parts of a column, None if the table lacks it. Raises: TFGNNError if some of its files
    have the column and some have none."""
    found = [part for part in parts if part is not None]
    if parts and not found:
        return None
    if len(found) < len(parts):
        raise TFGNNError(
            "Some files of a table have #weight or #time and some have none.",
            "write it in all of them.",
        )
    return np.concatenate([np.empty(0, dtype), *found])
