"""Exports a log as a GraphSchema with unigraph tables."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamd.errors import TFGNNError
from streamd.storage import write_durably
from streamd.tfgnn.logs.declared import KEYS, REVERSE_OF, graph_schema, metadata_value
from streamd.tfgnn.logs.log_rows import LogRows
from streamd.tfgnn.logs.node_keys import PLAIN
from streamd.tfgnn.records.shards import make_folder_of, shard_paths
from streamd.tfgnn.sampling.tables_graph import Progress
from streamd.tfgnn.schema.schema import schema_text
from streamd.tfgnn.tables.reading import Rows
from streamd.tfgnn.tables.writing import write_table

SCHEMA_NAME = "graph.pbtxt"
"""File of the schema, next to the folders of its tables. It is written last, so its existence
proves that all tables are complete."""
FORMATS = ("tfrecord", "csv")
"""Formats of tables. A CSV cell has one value, so vectors need tfrecord."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableOptions:
    """first: id of the first event to write. format: one of FORMATS. shards: number of files of
    each table, None for a single file without a number. with_reverse: add the reverse of each edge
    set to the schema."""

    first: int = 0
    format: str = "tfrecord"
    shards: int | None = None
    with_reverse: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """Numbers of written rows."""

    num_nodes: int
    num_edges: int


def export_tables(
    rows: LogRows,
    folder: Path,
    options: TableOptions,
    progress: Progress = lambda what, done, total: None,
) -> Written:
    """Write the node sets of a log before a cut, and its edges from `options.first` on, to a new
    folder:

    1. Write the tables.
    2. Write the schema. In another order a kill would leave a schema that names missing tables.

    Raises: TFGNNError if the folder is not empty, or if numbers are no value of a declared feature;
    written tables are removed then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TFGNNError(f"{folder} already exists.", "name a new folder, or an empty one.")
    make_folder_of(folder / SCHEMA_NAME)
    declared = rows.declared
    schema = graph_schema(declared, declared.edge_sets if options.with_reverse else ())
    end = options.format + (f"@{options.shards}" if options.shards is not None else "")
    num_nodes = num_edges = 0

    def report(what: str, total: int) -> Callable[[int], None]:
        return lambda done: progress(what, done, total)

    with _remove_on_error() as paths:

        def write(filename: str, one: Any, table: Iterable[Rows]) -> int:
            """Write the table of a set, and set its file name and size in the schema. Returns:
            number of rows."""
            paths.append(folder / filename)
            one.metadata.cardinality = write_table(one, paths[-1], table)
            one.metadata.filename = filename
            return int(one.metadata.cardinality)

        # 1. The tables.
        for name, node_set in sorted(schema.node_sets.items()):
            done = report(f"nodes {name}", len(rows.nodes_of(name)))
            num_nodes += write(f"nodes/{name}.{end}", node_set, rows.node_rows(name, done))
            if rows.key_forms[name] != PLAIN:
                node_set.metadata.extra.add(key=KEYS, value=rows.key_forms[name])
        for name in declared.edge_sets:
            done = report(f"edges {name}", max(rows.cut.edge - options.first, 0))
            table = rows.edge_rows(name, options.first, done)
            num_edges += write(f"edges/{name}.{end}", schema.edge_sets[name], table)

    # A reverse edge set shares the table of its edge set.
    for one in schema.edge_sets.values():
        if (forward := metadata_value(one, REVERSE_OF)) is not None:
            its = schema.edge_sets[forward].metadata
            one.metadata.filename, one.metadata.cardinality = its.filename, its.cardinality
    # 2. The schema.
    write_durably(folder / SCHEMA_NAME, schema_text(schema).encode())
    return Written(num_nodes=num_nodes, num_edges=num_edges)


@contextmanager
def _remove_on_error() -> Iterator[list[Path]]:
    """Yield a list for the paths of tables, which are removed if an error ends the block."""
    paths: list[Path] = []
    try:
        yield paths
    except BaseException:
        for path in paths:
            for file in shard_paths(path):
                file.unlink(missing_ok=True)
        raise
