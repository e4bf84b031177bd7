"""Reads unigraph tables: the rows of a set from CSV or TFRecord files."""

import csv
import io
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TFGNNError
from streamd.settings.sets import nearest_of
from streamd.tfgnn.records.columns import Column, ColumnReader
from streamd.tfgnn.records.lists import convert, first_out_of_range
from streamd.tfgnn.records.records import MAX_RECORD_BYTES, MAX_RECORDS, open_file, read_blocks
from streamd.tfgnn.records.row_names import FileRows, Location
from streamd.tfgnn.records.shards import find_files, table_format
from streamd.tfgnn.records.tensor import Ragged, Value
from streamd.tfgnn.schema.messages import EdgeSet, Feature, NodeSet
from streamd.tfgnn.schema.schema import (
    TYPES,
    DataType,
    dtype_of,
    is_reversed,
    ragged_dims,
    shape_of,
    type_words,
)

ROWS = 1 << 13
"""Rows of a CSV file per block."""
CELLS = 1 << 22
"""Maximum of features times records of a block, which bounds the memory of the arrays about
them."""
MAX_LINE = 1 << 24
"""Maximum number of characters of a CSV line: a file without line ends would be a single line."""
WEIGHT = "#weight"
"""The column of edge weights in TF-GNN's guide; also read as `weight`. Floats, whether the schema
declares it or not."""
TIME = "#time"
"""The column of times of edges and seeds; also read as `time`. Integers, with one unit in all
tables."""
IDS = {"id": "#id", "source": "#source", "target": "#target"}
"""Columns whose # may be left out in CSV."""
Set = Any
"""A message: Context, NodeSet or EdgeSet."""
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Some rows of a table, in the order of its files.

    first: number of the first row, from 0. ids: of nodes; source, target: of edges; object arrays
    of bytes, None if the set has none. features: [R, *shape] by name. weight: of edges, float32,
    None if the table has none. time: of edges and seeds, int64, None if the table has none. others:
    columns that are not in the schema, as bytes (CSV only). location: names a row in errors.
    """

    first: int
    num: int
    ids: Array | None = None
    source: Array | None = None
    target: Array | None = None
    weight: Array | None = None
    time: Array | None = None
    features: Mapping[str, Value] = field(default_factory=dict)
    others: Mapping[str, Array] = field(default_factory=dict)
    location: FileRows = FileRows()


def table_path(one: Set, base: Path) -> Path | None:
    """The path of a set's table, None if the schema names none.

    base: the folder of the schema, or the schema file. Raises: TFGNNError for a URL.
    """
    name: str = one.metadata.filename
    if not name:
        return None
    if "://" in name:
        raise TFGNNError(f"{name} is not a local file.", "copy it here and name the copy.")
    return (base if base.is_dir() else base.parent) / name


def read_table(
    one: Set, path: Path, *, at_once: int = MAX_RECORDS, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Rows]:
    """Yield the rows of a set's table: a file, a glob or base@N, which is CSV or TFRecord by its
    name.

    at_once: maximum number of rows of a block. max_bytes: maximum size of a record.
    Sources and targets are swapped if the set's metadata has `edge_type: reversed`.
    Raises: TFGNNError with file and row if a row does not fit the set, after the rows before it.
    """
    yield from _read(_Table(one, isinstance(one, EdgeSet), at_once, max_bytes), path)


def _read(table: "_Table", path: Path) -> Iterator[Rows]:
    """Yield the rows of a table. Raises: TFGNNError."""
    read = table.csv_rows if table_format(path) == "csv" else table.records
    number = 0
    for file in find_files(path):
        for rows in read(file, number):
            number += rows.num
            yield rows


def read_ids(path: Path) -> Iterator[bytes]:
    """Yield the ids of a table of seeds. Raises: as `read_table`."""
    for rows in read_seeds(path):
        assert rows.ids is not None
        yield from rows.ids.tolist()


def read_seeds(path: Path) -> Iterator[Rows]:
    """Yield the rows of a table of seeds: ids, and times if it has them. Raises: as
    `read_table`."""
    yield from _read(_Table(NodeSet(), True), path)


class _Table:
    """Reads the rows of one set's table."""

    def __init__(
        self,
        one: Set,
        is_timed: bool,
        at_once: int = MAX_RECORDS,
        max_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._at_once, self._max_bytes = at_once, max_bytes
        self._features = dict(sorted(one.features.items()))
        self._is_timed = is_timed
        self._is_reversed = is_reversed(one)
        self._keys: tuple[str, ...] = ()
        if isinstance(one, NodeSet):
            self._keys = ("#id",)
        elif isinstance(one, EdgeSet):
            self._keys = ("#source", "#target")
        self._is_edges = isinstance(one, EdgeSet)
        for name in self._keys:
            feature = self._features.get(name)
            if feature is not None and type_words(feature) != "DT_STRING":
                raise TFGNNError(
                    f"{name} is one string a row, not {type_words(feature)}.", "correct the schema."
                )

    def records(self, path: Path, first: int) -> Iterator[Rows]:
        """Yield the rows of a TFRecord file. Raises: TFGNNError."""
        features = self._features
        for name, feature in features.items():
            shape = shape_of(feature)
            ragged = ragged_dims(shape)
            if len(ragged) > 1 or (ragged and shape[0]):
                raise TFGNNError(
                    f"{path}: feature {name!r} has the shape {shape}; a row of a table "
                    "holds one ragged dim at most, the first.",
                    "flatten it.",
                )
        # The columns to read: ids, declared features, and weights and times even if undeclared.
        weights = self._names_undeclared_in_schema((WEIGHT, "weight"), self._is_edges)
        times = self._names_undeclared_in_schema((TIME, "time"), self._is_timed)
        keys = [(key, "bytes") for key in self._keys if key not in features]
        keys += [(name, dtype_of(feature).wire) for name, feature in features.items()]
        keys += [(name, "float") for name in weights] + [(name, "int64") for name in times]
        reader = ColumnReader(keys)
        # The arrays about a block have an element for each record and key.
        most = max(1, min(self._at_once, CELLS // max(1, len(keys))))
        for block in read_blocks(path, most, self._max_bytes):
            location = FileRows(path, "record", block.first)
            found = reader.read(block.data, block.start_R, block.end_R, location)
            columns = dict(zip(reader.names, found, strict=True))
            num = len(block.start_R)
            values: dict[str, Value] = {
                name: _of_column(columns[name], feature, num, location, name)
                for name, feature in features.items()
            }
            ends = {
                key: _one_each(columns[key], location, key)
                for key in self._keys
                if key not in values
            }
            # Of the two names of weights, and of times, take the first that has values.
            weight, time = (
                next(
                    (_one_each(columns[n], location, n) for n in of if len(columns[n].values)), None
                )
                for of in (weights, times)
            )
            yield self._rows(first, location, num, ends, values, weight, time, {})
            first += num

    def _names_undeclared_in_schema(self, names: tuple[str, ...], is_wanted: bool) -> list[str]:
        """The names in `names` that the schema does not declare; empty if not `is_wanted`."""
        return [name for name in names if is_wanted and name not in self._features]

    def csv_rows(self, path: Path, first: int) -> Iterator[Rows]:
        """Yield the rows of a CSV file with a header. Raises: TFGNNError."""
        for name, feature in self._features.items():
            if shape := shape_of(feature):
                raise TFGNNError(
                    f"{path}: feature {name!r} has the shape {shape}; a cell of CSV "
                    "holds one value.",
                    "write the table as .tfrecord.",
                )
        with ExitStack() as stack:
            reader = csv_reader(path, stack)
            header = next(reader, None)
            if header is None:
                raise TFGNNError(f"{path} is empty.", "write a header.")
            # CSV headers may omit the # of ids.
            names = [IDS.get(name, name) for name in header]
            self._check_header(names, path)
            at = 1
            take = max(1, min(ROWS, self._at_once, CELLS // len(names)))
            while chunk := list(itertools.islice(reader, take)):
                for row, cells in enumerate(chunk, at):
                    if len(cells) != len(names):
                        # Yield the rows before it.
                        if row > at:
                            yield self._of_cells(chunk[: row - at], names, path, at, first)
                        raise TFGNNError(
                            f"{path} row {row} has {len(cells)} cells, the header {len(names)}.",
                            "correct the row.",
                        )
                yield self._of_cells(chunk, names, path, at, first)
                at += len(chunk)
                first += len(chunk)

    def _check_header(self, names: list[str], path: Path) -> None:
        """Check that a header has all columns, each once. Raises: TFGNNError."""
        for name in (*self._keys, *self._features):
            if name not in names:
                near = nearest_of(name, names)
                raise TFGNNError(f"{path} has no column {name!r}{near}.", "add it to the table.")
        if len(set(names)) < len(names):
            name, _ = Counter(names).most_common(1)[0]
            raise TFGNNError(f"{path} has the column {name!r} twice.", "rename one.")

    def _of_cells(
        self, chunk: list[list[str]], names: list[str], path: Path, at: int, first: int
    ) -> Rows:
        """Parse cells. at: number of the first row in the file. Raises: TFGNNError."""
        location = FileRows(path, "row", at)
        values: dict[str, Value] = {}
        ends: dict[str, Array] = {}
        others: dict[str, Array] = {}
        weight = time = None
        for name, cells in zip(names, zip(*chunk, strict=True), strict=True):
            if name in self._features:
                values[name] = _parse_cells(cells, dtype_of(self._features[name]), location, name)
            elif name in self._keys:
                ends[name] = _strings(cells)
            elif self._is_edges and name in (WEIGHT, "weight"):
                weight = _parse_cells(cells, TYPES["DT_FLOAT"], location, name)
            elif self._is_timed and name in (TIME, "time"):
                time = _parse_cells(cells, TYPES["DT_INT64"], location, name)
            else:
                others[name] = _strings(cells)
        return self._rows(first, location, len(chunk), ends, values, weight, time, others)

    def _rows(
        self,
        first: int,
        location: FileRows,
        num: int,
        ends: dict[str, Array],
        values: dict[str, Value],
        weight: Array | None,
        time: Array | None,
        others: dict[str, Array],
    ) -> Rows:
        """Rows, with sources and targets swapped if the table is reversed."""
        # The schema may declare the ids as features too.
        found: list[Any] = [ends.get(k, values.get(k)) for k in ("#id", "#source", "#target")]
        ids, source, target = found
        if self._is_reversed:
            source, target = target, source
        # A declared feature of numbers with one of these names is the weight, or the time, too.
        for name in (WEIGHT, "weight"):
            declared = values.get(name)
            if weight is not None or not self._is_edges or not isinstance(declared, np.ndarray):
                continue
            if declared.ndim == 1 and declared.dtype.kind in "fiu":
                weight = convert(declared, TYPES["DT_FLOAT"], name)
        for name in (TIME, "time"):
            declared = values.get(name)
            if time is not None or not self._is_timed or not isinstance(declared, np.ndarray):
                continue
            if declared.ndim == 1 and declared.dtype.kind in "iu":
                time = _as_dtype(declared, TYPES["DT_INT64"], location, name)
        return Rows(
            first=first,
            num=num,
            ids=ids,
            source=source,
            target=target,
            weight=weight,
            time=time,
            features=values,
            others=others,
            location=location,
        )


def csv_reader(path: Path, stack: ExitStack) -> Iterator[list[str]]:
    """Yield the rows of a CSV file, without blank ones, as lists of cells. Raises: TFGNNError."""
    try:
        file = stack.enter_context(open_file(path))
    except OSError as error:
        raise TFGNNError(f"{path} cannot be read: {error.strerror}.", "check it.") from None
    # utf-8-sig skips a byte order mark; newline="" leaves line ends to the CSV reader, since a cell
    # may contain them.
    text = stack.enter_context(io.TextIOWrapper(file, "utf-8-sig", newline=""))
    return _cells(path, csv.reader(_lines(text), strict=True))


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines. Raises: ValueError for a line of MAX_LINE characters or more."""
    while line := text.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise ValueError(f"a line has {MAX_LINE} characters or more")
        yield line


def _cells(path: Path, rows: Any) -> Iterator[list[str]]:
    """Yield the rows of a CSV reader, without blank ones. Raises: TFGNNError with the line."""
    while True:
        try:
            row = next(rows, None)
        except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
            raise TFGNNError(
                f"{path} cannot be read after line {rows.line_num}: {error}.", "write it again."
            ) from None
        if row is None:
            return
        if row:
            yield row


def _parse_cells(cells: Iterable[str], dtype: DataType, location: Location, name: str) -> Array:
    """Parse a column of cells as a dtype. Raises: TFGNNError with the row."""
    if dtype.wire == "bytes":
        return _strings(cells)
    if dtype.wire == "float":
        numbers = [_number(float, cell, location, row, name) for row, cell in enumerate(cells)]
        return convert(np.array(numbers, np.float64), dtype, name)
    least, most = dtype.bounds
    values: list[int] = []
    for row, cell in enumerate(cells):
        value = _number(int, cell, location, row, name)
        if not least <= value <= most:
            raise TFGNNError(
                f"{location(row)}, column {name!r}: {cell[:40]} is not from {least} to {most}, the "
                f"range of {dtype.name}.",
                "correct it, or the schema's dtype.",
            )
        values.append(value)
    return np.array(values, dtype.numpy)


_DIGITS = re.compile(r"-?[0-9]+")
Number = TypeVar("Number", int, float)


def _number(
    parse: Callable[[str], Number], cell: str, location: Location, row: int, name: str
) -> Number:
    """Parse a cell as a number. Raises: TFGNNError with the row."""
    try:
        # Python would also accept 1_0, digits of other scripts, blanks and a leading +.
        is_plain = _DIGITS.fullmatch(cell) if parse is int else cell.isascii() and "_" not in cell
        if not is_plain:
            raise ValueError
        return parse(cell)
    except ValueError:
        words = "a number" if parse is float else "an integer, which is digits alone"
        raise TFGNNError(
            f"{location(row)}, column {name!r}: {cell[:40]!r} is not {words}.", "correct it."
        ) from None


def _strings(cells: Iterable[str]) -> Array:
    """Cells as an array of bytes."""
    values = [cell.encode() for cell in cells]
    # `np.array` would make strings of fixed width, which lose trailing zero bytes.
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _as_dtype(
    flat: Array, dtype: DataType, location: Location, name: str, count_R: Array | None = None
) -> Array:
    """Convert values to a dtype. count_R: number of values of each row, None for one each. Raises:
    TFGNNError with the row of an integer outside the dtype's range."""
    if (wrong := first_out_of_range(flat, dtype)) is not None:
        row = wrong
        # The row with that value, if rows have different numbers of values.
        if count_R is not None:
            row = int(np.searchsorted(np.cumsum(count_R), wrong, "right"))
        raise TFGNNError(
            f"{location(row)}: feature {name!r} has {flat[wrong]}, which {dtype.name} does not "
            "hold.",
            "correct it, or the schema's dtype.",
        )
    return convert(flat, dtype, name)


def _one_each(column: Column, location: Location, name: str) -> Array:
    """The values of a column with exactly one value per record. Raises: TFGNNError."""
    wrong = np.flatnonzero(column.count_R != 1)
    if len(wrong):
        r = int(wrong[0])
        raise TFGNNError(
            f"{location(r)}: {name} has {int(column.count_R[r])} values; it must have one.",
            "write the table again.",
        )
    return column.values


def _of_column(column: Column, feature: Feature, num: int, location: Location, name: str) -> Value:
    """The values of a feature of all rows. Raises: TFGNNError."""
    inner = 1
    whole = shape_of(feature)
    ragged = ragged_dims(whole)
    trailing = whole[1:] if ragged else whole
    # The number of values of a row, or of an item of a ragged row.
    for size in trailing:
        inner *= size or 0
    wrong = np.flatnonzero(column.count_R % max(inner, 1) if ragged else column.count_R != inner)
    if len(wrong) or (inner == 0 and len(column.values)):
        r = int(wrong[0]) if len(wrong) else int(np.flatnonzero(column.count_R)[0])
        raise TFGNNError(
            f"{location(r)}: feature {name!r} has {int(column.count_R[r])} values, its shape is "
            f"{whole}.",
            "write the value for every row.",
        )
    flat = _as_dtype(column.values, dtype_of(feature), location, name, column.count_R)
    shape = [size or 0 for size in trailing]
    if not ragged:
        return flat.reshape(num, *shape)
    lengths = column.count_R // max(inner, 1)
    return Ragged(whole, flat.reshape(int(lengths.sum()), *shape), (lengths,))
