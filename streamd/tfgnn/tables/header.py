"""Reads the column names of a unigraph table, without a schema."""

from contextlib import ExitStack
from pathlib import Path

from streamd.tfgnn.records.records import read_blocks
from streamd.tfgnn.records.shards import find_files, table_format
from streamd.tfgnn.schema.messages import Example, parse_binary
from streamd.tfgnn.tables.reading import IDS, csv_reader


def table_columns(path: Path) -> list[str]:
    """The columns of a table: the header of its first file, or the keys of its first record.

    path: a file, a glob or base@N. `id`, `source` and `target` of CSV are returned with a #.
    Returns: an empty list if there is no header or record. Raises: TFGNNError.
    """
    if table_format(path) == "csv":
        with ExitStack() as stack:
            header = next(csv_reader(find_files(path)[0], stack), [])
        return [IDS.get(name, name) for name in header]
    for block in read_blocks(path, max_records=1):
        message = parse_binary(Example, block.records()[0], f"{path} record {block.first}")
        return list(message.features.feature)
    return []
