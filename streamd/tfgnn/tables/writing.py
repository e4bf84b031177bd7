"""Writes unigraph tables: the rows of a set to CSV or TFRecord files."""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.tfgnn.records.lists import encode_row
from streamd.tfgnn.records.records import ShardFiles, write_records
from streamd.tfgnn.records.shards import table_format
from streamd.tfgnn.records.tensor import Ragged, Value, by_row
from streamd.tfgnn.schema.messages import EdgeSet, NodeSet
from streamd.tfgnn.schema.schema import TYPES, DataType, dtype_of, is_reversed
from streamd.tfgnn.tables.reading import TIME, WEIGHT, Rows, Set

Array = NDArray[Any]


def write_table(one: Set, path: Path, tables: Iterable[Rows]) -> int:
    """Write a set's table to a file or to the shards of base@N, as CSV or TFRecord by its name.

    Sources and targets are swapped if the metadata has `edge_type: reversed`. Each file gets its
    name only when it is complete. Returns: the number of rows. Raises: TFGNNError if a CSV cell
    cannot hold a value, or a feature is missing.
    """
    if table_format(path) == "tfrecord":
        return write_records(path, _row_records(one, tables))
    return _write_csv(one, path, tables)


def _columns(one: Set, rows: Rows) -> list[tuple[str, DataType, Value]]:
    """The columns of a table with these rows. Raises: TFGNNError."""
    ends = {"#source": rows.source, "#target": rows.target}
    if is_reversed(one):
        ends = {"#source": rows.target, "#target": rows.source}
    keys = {"#id": rows.ids} if isinstance(one, NodeSet) else {}
    keys |= ends if isinstance(one, EdgeSet) else {}
    found: list[tuple[str, DataType, Value]] = []
    for name, ids in keys.items():
        if ids is None:
            raise TFGNNError(f"the rows have no {name}.", "give one for every row.")
        found.append((name, TYPES["DT_STRING"], ids))
    if lacking := set(one.features) - set(rows.features) - set(keys):
        raise TFGNNError(f"the rows lack the feature {min(lacking)!r}.", "give every feature.")
    for name, value in rows.features.items():
        if name in one.features and name not in keys:
            found.append((name, dtype_of(one.features[name]), value))
    declares = WEIGHT in one.features or "weight" in one.features
    if rows.weight is not None and not declares:
        found.append((WEIGHT, TYPES["DT_FLOAT"], rows.weight))
    if rows.time is not None and not {TIME, "time"} & set(one.features):
        found.append((TIME, TYPES["DT_INT64"], rows.time))
    return found


def _row_records(one: Set, tables: Iterable[Rows]) -> Iterator[bytes]:
    """Yield a record for each row. Raises: TFGNNError."""
    for rows in tables:
        columns = [(name, dtype, by_row(value)) for name, dtype, value in _columns(one, rows)]
        for r in range(rows.num):
            yield encode_row(
                [(name, dtype, value(r)) for name, dtype, value in columns], f"row {rows.first + r}"
            )


def _write_csv(one: Set, path: Path, tables: Iterable[Rows]) -> int:
    """Write the rows as CSV, to the shards in turn. Returns: the number of rows. Raises:
    TFGNNError."""
    number, header = 0, None
    with ShardFiles(path) as files, ExitStack() as stack:
        texts = []
        for file in files:
            texts.append(io.TextIOWrapper(file, "utf-8", newline=""))
            # Flush the wrapper at the end, and leave closing the file to its owner.
            stack.callback(texts[-1].detach)
        writers = [csv.writer(text, lineterminator="\n") for text in texts]
        for rows in tables:
            columns = _columns(one, rows)
            names = [name for name, _, _ in columns]
            if header is None:
                header = names
                for writer in writers:
                    writer.writerow(names)
            elif header != names:
                raise TFGNNError(f"rows have the columns {names}, those before {header}.")
            cells = [_cells_of(name, dtype, value) for name, dtype, value in columns]
            for row in zip(*cells, strict=True):
                # In turn, so that shards have equal sizes.
                writers[number % len(writers)].writerow(row)
                number += 1
        if header is None:
            raise TFGNNError(f"{path} would have no header.", "give rows, if only of size 0.")
    return number


def _cells_of(name: str, dtype: DataType, value: Value) -> list[Any]:
    """The cells of a column. Raises: TFGNNError."""
    if isinstance(value, Ragged) or np.ndim(value) != 1:
        raise TFGNNError(
            f"Feature {name!r} has dims, but a cell of CSV holds one value.",
            "write the table as .tfrecord.",
        )
    array = np.asarray(value)
    if dtype.wire == "bytes":
        return [_cell(name, value) for value in array.tolist()]
    if dtype.wire == "int64":
        # A bool is 0 or 1.
        return list(map(int, array.tolist()))
    # The shortest text that parses to the same float.
    return list(map(str, array.tolist() if array.dtype == np.float64 else array.astype(str)))


def _cell(name: str, value: Any) -> str:
    """Convert a string to a cell. Raises: TFGNNError."""
    try:
        text: str = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise TFGNNError(f"feature {name!r} is not UTF-8.", "use .tfrecord.") from None
    if "\n" in text or "\r" in text:
        # Readers that split the file into lines first could not parse it.
        raise TFGNNError(f"feature {name!r} has a line break in a value.", "use .tfrecord.")
    return text
