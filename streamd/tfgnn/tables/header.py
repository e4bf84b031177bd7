"""The columns of a unigraph table, without a schema."""

from contextlib import ExitStack
from pathlib import Path

from streamd.tfgnn.records.records import read_blocks
from streamd.tfgnn.records.shards import find_files, table_format
from streamd.tfgnn.schema.messages import Example, parse_binary
from streamd.tfgnn.tables.reading import IDS, csv_reader


def table_columns(path: Path) -> list[str]:
    """The columns of a table: of the header of its first file, or of its first record.

    path: a file, a glob or base@N. CSV's `id`, `source` and `target` have their #. Returns: an
    empty list without a header or record. Raises: TFGNNError.
    """
    if table_format(path) == "csv":
        with ExitStack() as stack:
            header = next(csv_reader(find_files(path)[0], stack), [])
        return [IDS.get(name, name) for name in header]
    for block in read_blocks(path, max_records=1):
        message = parse_binary(Example, block.records()[0], f"{path} record {block.first}")
        return list(message.features.feature)
    return []
