"""Rows of CSV, NDJSON and Parquet files read as JSON events, each checked as it is read."""

import csv
import gzip
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

import msgspec

from streamd.errors import SettingsError
from streamd.exchange.produce import Outgoing
from streamd.exchange.times import Misfit, Times, shown_value
from streamd.settings.loading import Settings, edge_sets
from streamd.settings.sets import nearest_of

OWN_TYPES = ("node", "label", "delete")
"""NDJSON lines of these types are streamd's own events, unless columns are named."""
OWN_TYPES_HINT = (
    "name a column that is there; if lines of type node, label and delete are streamd's own "
    "events, add --own-types."
)
INTEGER_KEY = re.compile(r"0|-?[1-9][0-9]{0,18}")
"""Text in a table that is an integer key: as Python writes it, so that 007 stays text."""
KINDS = (".csv", ".ndjson", ".jsonl", ".parquet")
"""Suffixes of files of events, before .gz."""
NAME_COLUMNS = (
    "name the columns with --src, --dst, --time and --features, or a topic of `sources`, which has "
    "their names, with --source."
)
EDGE_SET = "edge_set"
"""The column that names the edge set of a row."""
# Parquet has values that JSON has not, such as decimals.
_json = json.JSONEncoder(separators=(",", ":"), default=str).encode
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that make an edge.

    features: in this order, or one column of lists or mappings; where no column is named at all,
    that is `features`. source: the topic whose source in the settings reads the rows instead; empty
    for none. edge_set: of all rows; where it is empty, a row may name its own in a column
    `edge_set`. by_name: where the columns of features have declared names, whether each is a
    number. own_types: NDJSON lines of `OWN_TYPES` are streamd's own also next to named columns.
    """

    src: str = "src"
    dst: str = "dst"
    time: str = "time"
    features: tuple[str, ...] = ()
    source: str = ""
    edge_set: str = ""
    by_name: tuple[bool, ...] = ()
    own_types: bool = False

    @property
    def has_names(self) -> bool:
        """Whether any column is named: then the names of streamd's own events mean nothing."""
        return (*self.names, self.source) != (*Columns().names, "")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return self.src, self.dst, self.time, *self.features


def resolved(columns: Columns, settings: Settings) -> Columns:
    """Resolve columns that name declared features.

    Raises: SettingsError if the edge set is not declared, or only some of the features are.
    """
    sets = edge_sets(settings)
    if columns.edge_set and columns.edge_set not in sets:
        raise SettingsError(
            f"There is no edge set {columns.edge_set}{nearest_of(columns.edge_set, sets)}.",
            "declare it in graph.edge_sets, or name another.",
        )
    asked = [sets[columns.edge_set]] if columns.edge_set else list(sets.values())
    kinds = [[one.features[n] for one in asked if n in one.features] for n in columns.features]
    if not any(kinds):
        return columns
    if not all(kinds):
        name = columns.features[kinds.index([])]
        declared = dict.fromkeys(name for one in asked for name in one.features)
        raise SettingsError(
            f"There is no declared feature {name}{nearest_of(name, declared)}.",
            "name only features declared in graph.edge_sets, or none of them.",
        )
    by_name = tuple(all(feature.type == "number" for feature in of_name) for of_name in kinds)
    return replace(columns, by_name=by_name)


def count_rows(path: Path) -> int:
    """Estimate the number of events for `read_events`: lines, or what Parquet declares."""
    if path.suffix == ".parquet":
        with _parquet_file(path) as table:
            return int(table.metadata.num_rows)
    # Lines end in either mark; a table has a header.
    lines = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while piece := file.read(1 << 20):
            lines += max(piece.count(b"\n"), piece.count(b"\r"))
    return max(1, lines - (".csv" in path.suffixes))


def read_events(path: Path, columns: Columns, times: Times) -> Iterator[Outgoing]:
    """Read the events of a .csv, .ndjson/.jsonl or .parquet file, the first two also with .gz.

    The columns and the first row are checked by the call, the others as they are read.
    Raises: SettingsError naming file, row and column where a row is not an event.
    """
    kind = _kind_of(path)

    # The suffix says how to read it.
    if kind == ".csv":
        events = _from_rows(path, _csv_rows(path, columns.names), columns, times)
    elif kind in (".ndjson", ".jsonl"):
        events = _from_lines(path, columns, times)
    else:
        events = _from_rows(path, _parquet_rows(path, columns.names), columns, times)
    return _read_first(events)


def read_rows(path: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[int, bytes]]:
    """Read the rows of a file with custom columns as JSON objects, with their numbers from 1.

    wanted: columns that CSV and Parquet must have; NDJSON is not checked. In CSV an empty cell is
    null, and the text of an integer becomes an integer. Timestamps of Parquet become ISO 8601. The
    call checks the columns. Raises: SettingsError if the file cannot be read.
    """
    return _read_first(_rows_as_json(path, wanted))


def _read_first(rows: Iterator[T]) -> Iterator[T]:
    """The same rows. Reads the first one now, so that an error comes before any side effect."""
    first = list(itertools.islice(rows, 1))
    return itertools.chain(first, rows)


def _rows_as_json(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    kind = _kind_of(path)
    if kind in (".ndjson", ".jsonl"):
        for number, line in _counted(path, _lines(path), "line"):
            if line.strip():
                yield number, line.strip().encode()
        return
    rows = _csv_rows(path, wanted) if kind == ".csv" else _parquet_rows(path, wanted)
    for number, row in _counted(path, rows, "row"):
        if kind == ".csv":
            row = {name: _text_key(cell) if cell else None for name, cell in row.items()}
        yield number, msgspec.json.encode(row, enc_hook=str)


def _kind_of(path: Path) -> str:
    """The suffix that says what a file holds. Raises: SettingsError."""
    suffixes = [s for s in path.suffixes if s != ".gz"]
    if not path.is_file():
        raise SettingsError(f"{path} is not a file.", "check the path.")
    if not suffixes or suffixes[-1] not in KINDS:
        raise SettingsError(
            f"{path} is neither .csv, .ndjson, .jsonl nor .parquet.",
            "name the file by what it holds.",
        )
    return suffixes[-1]


def _open(path: Path, newline: str) -> TextIO:
    """Open a file as text, without the byte order mark that some programs write."""
    encoding = "utf-8-sig"
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline=newline)
    return path.open(encoding=encoding, newline=newline)


def _counted(path: Path, rows: Iterator[T], word: str) -> Iterator[tuple[int, T]]:
    """Yield rows with their numbers from 1. Raises: SettingsError where the file is broken."""
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield number, row
    except Misfit as misfit:
        raise misfit.at(f"{path}") from None
    except (OSError, ValueError, EOFError, OverflowError, csv.Error, zlib.error) as error:
        where = f"behind {word} {number}" if number else "from its start"
        is_encoding = isinstance(error, UnicodeDecodeError)
        action = "save it as UTF-8." if is_encoding else "write the file again."
        raise SettingsError(f"{path} cannot be read {where}: {error}.", action) from None


def _check_columns(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a table that lacks a column, or has it twice. Raises: Misfit."""
    for column in wanted:
        if column not in found:
            raise Misfit(f"no column {column!r}{nearest_of(column, found)}", NAME_COLUMNS)
        if found.count(column) > 1:
            raise Misfit(
                f"{found.count(column)} columns {column!r}", "give each a name of its own."
            )


def _csv_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a CSV file. Raises: Misfit, ValueError or csv.Error."""
    with _open(path, "") as file:
        reader = csv.DictReader(file, strict=True)
        header = reader.fieldnames or ()
        if len(header) == 1 and (other := re.search(r"[;\t|]", header[0])):
            raise Misfit(f"the header has {other[0]!r} and no comma", "separate cells by commas.")
        _check_columns(header, wanted)
        for row in reader:
            # The reader puts cells beyond the header under None.
            if None in row:
                raise ValueError("the next row has more cells than the header")
            yield row


def _parquet_file(path: Path) -> Any:
    """Open a Parquet file. Raises: SettingsError without pyarrow, ValueError."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingsError("Parquet needs pyarrow.", "pip install 'streamd[arrow]'.") from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _parquet_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises: Misfit, SettingsError or ValueError."""
    file = _parquet_file(path)
    import pyarrow as pa

    try:
        with file:
            _check_columns(file.schema_arrow.names, wanted)
            for batch in file.iter_batches():
                for at, column in enumerate(batch.schema):
                    kind = column.type
                    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
                        # Microseconds in UTC: Python has no finer ones, and then needs no zones.
                        finer = pa.types.is_timestamp(kind) and kind.unit == "ns"
                        cast = batch.column(at).cast(pa.timestamp("us"), safe=not finer)
                        batch = batch.set_column(at, column.name, cast)
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file."""
    with _open(path, "\n") as file:
        yield from file


def _from_rows(
    path: Path, rows: Iterator[Row], columns: Columns, times: Times
) -> Iterator[Outgoing]:
    """Events of a table's rows. Raises: SettingsError naming the row."""
    for number, row in _counted(path, rows, "row"):
        try:
            event = _edge(row, columns, times, _text_key)
        except Misfit as misfit:
            raise misfit.at(f"{path} row {number}") from None
        yield Outgoing(str(event["src"]).encode(), _json(event).encode(), event["time"], number)


def _from_lines(path: Path, columns: Columns, times: Times) -> Iterator[Outgoing]:
    """Events of NDJSON lines that are not blank. Raises: SettingsError naming the line."""
    for number, line in _counted(path, _lines(path), "line"):
        if not line.strip():
            continue
        try:
            parsed = _parsed(line)
            event = _of_object(parsed, columns, times)
        except Misfit as misfit:
            raise misfit.at(f"{path} line {number}") from None
        # An event that is unchanged is sent as it was written.
        key = event.get("src", event.get("id", event.get("node", "")))
        value = line.strip() if event is parsed else _json(event)
        yield Outgoing(str(key).encode(), value.encode(), event.get("time"), number)


def _parsed(line: str) -> Row:
    """The object on an NDJSON line. Raises: Misfit."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Misfit(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Misfit("not an object", "write one event a line.")
    return parsed


def _of_object(parsed: Row, columns: Columns, times: Times) -> Row:
    """Make an event of an NDJSON object; the same object where nothing changes. Raises: Misfit."""
    # Named columns win: a `type` of the rows' own is then a column like any other.
    is_typed = parsed.get("type") in OWN_TYPES
    is_own = is_typed and (columns.own_types or not columns.has_names)
    is_delete = parsed.get("type") == "delete" and "src" in parsed
    if columns.edge_set and EDGE_SET not in parsed and (is_delete or not is_own):
        parsed = parsed | {EDGE_SET: columns.edge_set}
    if not is_own and columns.has_names:
        try:
            _check_columns(list(parsed), columns.names)
        except Misfit as misfit:
            raise Misfit(str(misfit), OWN_TYPES_HINT if is_typed else misfit.action) from None
        return _edge(parsed, columns, times, _typed_key)
    if not is_own:
        # An edge may lack a time: it gets that of its record.
        _check_columns(list(parsed), ("src", "dst"))
        for name in ("src", "dst"):
            _cell(name, _typed_key, parsed[name])

    # Times are written in the unit of the stream; that of a delete does not count for the range.
    if parsed.get("time") is None:
        return parsed
    time = _cell(
        "time",
        lambda value: times.read(value, parsed["type"] != "delete" if is_own else True),
        parsed["time"],
    )
    return parsed if time == parsed["time"] else parsed | {"time": time}


def _edge(row: Row, columns: Columns, times: Times, key: Callable[[Any], int | str]) -> Row:
    """Make an edge event of a row's columns. Raises: Misfit."""
    # Other columns are ignored.
    event: Row = {
        "src": _cell(columns.src, key, row[columns.src]),
        "dst": _cell(columns.dst, key, row[columns.dst]),
        "time": _cell(columns.time, times.read, row[columns.time]),
    }
    edge_set = columns.edge_set or row.get(EDGE_SET)
    if edge_set:
        event[EDGE_SET] = edge_set
    # Features are several columns, or one of lists or mappings; by name an empty cell has none.
    if columns.by_name:
        cells = {
            name: _cell(name, _number if is_number else _feature, row[name])
            for name, is_number in zip(columns.features, columns.by_name, strict=True)
        }
        event["features"] = {name: cell for name, cell in cells.items() if cell is not None}
        return event
    column = columns.features[0] if columns.features else "features"
    may_be_whole = len(columns.features) == 1 or not columns.has_names
    whole = row.get(column) if may_be_whole else None
    if isinstance(whole, list):
        event["features"] = [_cell(column, _finite, value) for value in whole]
    elif isinstance(whole, dict):
        event["features"] = {k: _cell(column, _feature, v) for k, v in whole.items()}
    elif columns.features:
        event["features"] = [_cell(name, _finite, row[name]) for name in columns.features]
    return event


def _cell(column: str, read: Callable[[Any], T], value: Any) -> T:
    """Read one cell. Raises: Misfit naming the column."""
    try:
        return read(value)
    except Misfit as misfit:
        raise Misfit(f"column {column!r}: {misfit}", misfit.action) from None


def _feature(value: Any) -> Any:
    """The value of a feature by name, None for an empty cell. Raises: Misfit."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit(f"{shown_value(value)} is not finite")
    return None if value == "" else value


def _number(value: Any) -> float | None:
    """The value of a feature that is a number, None for an empty cell. Raises: Misfit."""
    return None if value is None or value == "" else _finite(value)


def _finite(value: Any) -> float:
    """A finite number. Raises: Misfit."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Misfit(f"{shown_value(value)} is not a number") from None
    if not math.isfinite(number):
        raise Misfit(f"{shown_value(value)} is not finite")
    return number


def _typed_key(value: Any) -> int | str:
    """A key as it is, text or integer. Raises: Misfit."""
    if type(value) is int or type(value) is str:
        return value
    if value is None:
        raise Misfit("there is no value")
    raise Misfit(f"{shown_value(value)} is not a key: keys are text or integers")


def _text_key(value: Any) -> int | str:
    """A key of a table that holds only text, where integers become integers. Raises: Misfit."""
    if type(value) is str and is_integer_key(value):
        return int(value)
    return _typed_key(value)


def is_integer_key(text: str) -> bool:
    """Whether text in a table is an integer key."""
    return INTEGER_KEY.fullmatch(text) is not None and abs(int(text)) < 2**63
