"""A log as a GraphSchema with its unigraph tables."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from streamd.errors import TFGNNError
from streamd.storage import write_durably
from streamd.tfgnn.logs.declared import KEYS, REVERSE_OF, graph_schema, note
from streamd.tfgnn.logs.node_keys import PLAIN
from streamd.tfgnn.logs.rows import LogRows
from streamd.tfgnn.records.shards import make_folder_of, shard_paths
from streamd.tfgnn.sampling.tables_graph import Progress
from streamd.tfgnn.schema.schema import EdgeSet, GraphSchema, Metadata, NodeSet, schema_text
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table

SCHEMA_NAME = "graph.pbtxt"
"""The schema, beside the folders of its tables. It is written last, so where it is, all is."""
FORMATS = ("tfrecord", "csv")
"""Formats of tables. A cell of CSV holds one value, so vectors need the first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """first: event id from which on edges are written. format: of FORMATS. shards: files of each
    table, None for one without a number. with_reverse: also the reverse of each edge set."""

    first: int = 0
    format: str = "tfrecord"
    shards: int | None = None
    with_reverse: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The rows that were written."""

    num_nodes: int
    num_edges: int


def export_tables(
    rows: LogRows,
    folder: Path,
    options: TableOptions,
    progress: Progress = lambda what, done, total: None,
) -> Written:
    """Write the node sets of a log before a cut, and its edges from an event on, to a new folder.

    Raises: TFGNNError where the folder holds something, or numbers are no value of a declared
    feature; what was written is removed then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TFGNNError(f"{folder} is there already.", "name a new folder, or an empty one.")
    make_folder_of(folder / SCHEMA_NAME)
    declared = rows.declared
    schema = graph_schema(declared, declared.edge_sets if options.with_reverse else ())
    end = options.format + (f"@{options.shards}" if options.shards is not None else "")
    node_sets, edge_sets = dict(schema.node_sets), dict(schema.edge_sets)
    paths: list[Path] = []

    def write(filename: str, one: NodeSet | EdgeSet, table: Iterable[Rows]) -> Metadata:
        """Write a table. Returns: the set's metadata with its place and size."""
        paths.append(folder / filename)
        count = write_table(one, paths[-1], table)
        return replace(one.metadata or Metadata(), filename=filename, cardinality=count)

    def telling(what: str, total: int) -> Callable[[int], None]:
        return lambda done: progress(what, done, total)

    num_nodes = num_edges = 0
    try:
        for name, node_set in schema.node_sets.items():
            told = telling(f"nodes {name}", len(rows.nodes_of(name)))
            metadata = write(f"nodes/{name}.{end}", node_set, rows.node_rows(name, told))
            if rows.key_forms[name] != PLAIN:
                extra = (*metadata.extra, (KEYS, rows.key_forms[name]))
                metadata = replace(metadata, extra=extra)
            node_sets[name] = replace(node_set, metadata=metadata)
            num_nodes += metadata.cardinality or 0
        for name in declared.edge_sets:
            told = telling(f"edges {name}", max(rows.cut.edge - options.first, 0))
            table = rows.edge_rows(name, options.first, told)
            metadata = write(f"edges/{name}.{end}", edge_sets[name], table)
            edge_sets[name] = replace(edge_sets[name], metadata=metadata)
            num_edges += metadata.cardinality or 0
    except BaseException:
        for path in paths:
            for file in shard_paths(path):
                file.unlink(missing_ok=True)
        raise

    # A reverse shares the table of its edge set.
    for name, one in edge_sets.items():
        forward = note(one, REVERSE_OF)
        if forward is not None:
            of = edge_sets[forward].metadata
            assert of is not None and one.metadata is not None
            shared = replace(one.metadata, filename=of.filename, cardinality=of.cardinality)
            edge_sets[name] = replace(one, metadata=shared)
    whole = GraphSchema(node_sets=node_sets, edge_sets=edge_sets)
    write_durably(folder / SCHEMA_NAME, schema_text(whole).encode())
    return Written(num_nodes=num_nodes, num_edges=num_edges)
