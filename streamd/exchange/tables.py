"""Reads rows of CSV, NDJSON, Parquet and Arrow files as JSON events, checking each as it is
read."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from streamd.decode.encoding import as_key, float_of, key_hint
from streamd.decode.plain_values import as_id
from streamd.decode.sources.paths import NO_TEXT
from streamd.errors import SettingsError
from streamd.exchange.decimal_commas import COMMA
from streamd.exchange.event_files import CSV, EventFile
from streamd.exchange.key_cells import KeyCells
from streamd.exchange.produce import Outgoing
from streamd.exchange.sorting import TimedRow, sort_rows
from streamd.exchange.text_files import Row, TextForm, check_columns
from streamd.exchange.times import Misfit, Times, shown_value
from streamd.settings.loading import Settings, edge_sets
from streamd.settings.sets import nearest_of
from streamd.settings.sources import KeyType

OWN_TYPES = ("node", "label", "delete")
"""NDJSON lines of these types are streamd's own events, unless columns are named."""
OWN_TYPES_HINT = (
    "name an existing column; if lines of type node, label and delete are streamd's own "
    "events, add --own-types."
)
KEYS_HINT = "add --keys text, and read all other files of these nodes so too."
EDGE_SET = "edge_set"
"""The default column that names the edge set of a row."""
_CONSTANTS = {"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}
_json = json.JSONEncoder(separators=(",", ":")).encode
T = TypeVar("T")


class _NoKeyError(Misfit):
    """When a row has no value in a column of keys."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table that make an edge.

    features: in this order, or one column of lists or mappings; if no column is named at all, that
    is `features`. source: topic of the source in the settings that maps the rows instead; "" for
    none. edge_set: of all rows; if "", each row may name its own in `edge_set_column`. by_name: for
    each column of features, whether the declared feature of this name is a number; empty if they
    are not declared. own_types: read NDJSON lines of `OWN_TYPES` as streamd's own events even if
    columns are named. keys: the type of all keys; None keeps the types of typed files, and converts
    text of integers in CSV. form: how CSV is written. sort: sort the rows by time. published: the
    public data set of the file, "" for none. time_unit: of numeric times, "" for
    `stream.time_unit`.
    """

    src: str = "src"
    dst: str = "dst"
    time: str = "time"
    features: tuple[str, ...] = ()
    source: str = ""
    edge_set: str = ""
    by_name: tuple[bool, ...] = ()
    own_types: bool = False
    keys: KeyType | None = None
    form: TextForm | None = None
    sort: bool = False
    published: str = ""
    edge_set_column: str = EDGE_SET
    time_unit: str = ""

    @property
    def has_names(self) -> bool:
        """Whether any column is named; then `type` and the like are ordinary columns."""
        return (*self.names, self.source) != (*Columns().names, "")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns that must exist; the default column of edge sets may be
        absent."""
        of_sets = () if self.edge_set_column in ("", EDGE_SET) else (self.edge_set_column,)
        return self.src, self.dst, self.time, *self.features, *of_sets


def resolved(columns: Columns, settings: Settings) -> Columns:
    """Resolve columns that are declared features.

    Raises: SettingsError if the edge set is not declared, or only some of the features are.
    """
    sets = edge_sets(settings)
    # With one set and named columns, a column `edge_set` is an ordinary one.
    if len(sets) == 1 and columns.has_names and columns.edge_set_column == EDGE_SET:
        columns = replace(columns, edge_set_column="")
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


def read_events(
    file: EventFile,
    columns: Columns,
    times: Times,
    doubt: Callable[[str], None] = lambda _: None,
) -> Iterator[Outgoing]:
    """Read the events of a file.

    The call itself checks the columns and the first row; other rows are checked as they are read.
    doubt: called with a sentence on cells that may be wrong.
    Raises: SettingsError naming file, row and column if a row is not an event.
    """
    events = _read_events(file, columns, times, doubt)
    return read_first(_sort_events(events, times.unit_us) if columns.sort else events)


def read_first(rows: Iterator[T]) -> Iterator[T]:
    """Return the same rows, but read the first one now, so that an error comes before any side
    effect."""
    first = list(itertools.islice(rows, 1))
    return itertools.chain(first, rows)


def _sort_events(events: Iterator[Outgoing], unit_us: int) -> Iterator[Outgoing]:
    """Sort events by time; one without a time stays after the event before it."""
    # Runs on disk contain only bytes, so the key is stored with the value.
    last_us = 0

    def with_times() -> Iterator[TimedRow]:
        nonlocal last_us
        for index, event in enumerate(events):
            last_us = last_us if event.time is None else event.time * unit_us
            yield TimedRow(last_us, index, event.row, _with_key(event))

    for row in sort_rows(with_times()):
        key, has_time, value = row.value.split(b"\0", 2)
        time = row.time_us // unit_us if has_time else None
        yield Outgoing(key, value, time, row.number)


def _with_key(event: Outgoing) -> bytes:
    """Join key and value of an event; a zero byte separates them, because JSON has none."""
    key = event.key.replace(b"\0", b"")
    return b"\0".join((key, b"" if event.time is None else b"1", event.value))


def _read_events(
    file: EventFile, columns: Columns, times: Times, doubt: Callable[[str], None]
) -> Iterator[Outgoing]:
    readers: tuple[Callable[[Any], int | str], ...] = (_typed_key, _typed_key)
    if columns.keys == "text":
        readers = (_key_as_text, _key_as_text)
    is_csv: bool | None = None
    for number, row in file.rows(columns.names):
        try:
            if isinstance(row, str):
                if row.strip():
                    yield _from_line(row, number, columns, times)
                continue
            # The kind of a pipe is known only after reading starts.
            if is_csv is None:
                is_csv = file.kind == CSV
                if is_csv:
                    names = (columns.src, columns.dst)
                    cells = [KeyCells(n, columns.keys, KEYS_HINT, doubt) for n in names]
                    readers = (_csv_key(cells[0]), _csv_key(cells[1]))
            # An empty cell of CSV has no key.
            if is_csv and not (row[columns.src] and row[columns.dst]):
                row = row | {name: row[name] or None for name in (columns.src, columns.dst)}
            event = _edge(row, columns, times, readers)
        except Misfit as misfit:
            raise misfit.at(file.position(number)) from None
        yield Outgoing(_record_key(event["src"]), _json(event).encode(), event["time"], number)


def _from_line(line: str, number: int, columns: Columns, times: Times) -> Outgoing:
    """Make the event of an NDJSON line. Raises: Misfit."""
    parsed = _parse_line(line)
    event = _of_object(parsed, columns, times)
    # An unchanged event is sent as it is written in the file.
    key = event.get("src", event.get("id", event.get("node", "")))
    value = line.strip() if event is parsed else _json(event)
    return Outgoing(_record_key(key), value.encode(), event.get("time"), number)


def _record_key(key: Any) -> bytes:
    """The key of a record. JSON may contain lone surrogates; the decoder refuses such an event."""
    return str(key).encode(errors="replace")


def _parse_line(line: str) -> Row:
    """Parse the object on an NDJSON line. Raises: Misfit."""
    try:
        parsed = _read_json(line)
    except (ValueError, RecursionError) as error:
        # Some programs write one object over several lines, or a list of objects.
        if line.strip() in ("{", "[", "[{"):
            raise Misfit(
                "JSON of several lines", "write one event a line, as jq -c does."
            ) from None
        raise Misfit(f"not JSON: {error}") from None
    if isinstance(parsed, list):
        raise Misfit("a list, not an object", "write one event a line, as jq -c '.[]' does.")
    if not isinstance(parsed, dict):
        raise Misfit("not an object", "write one event a line.")
    return parsed


def _read_json(line: str) -> Any:
    """Parse a line of JSON. Python's NaN for a missing number, which JSON lacks, becomes null."""
    return json.loads(line, parse_constant=lambda name: _CONSTANTS.get(name))


def without_nan(line: str) -> str:
    """Replace NaN by null in a line of JSON; a line that cannot be parsed is unchanged."""
    try:
        return _json(_read_json(line)) if "NaN" in line else line
    except (ValueError, RecursionError):
        return line


def _of_object(parsed: Row, columns: Columns, times: Times) -> Row:
    """Make an event from an NDJSON object; returns the same object if nothing changes. Raises:
    Misfit."""
    # Named columns win: `type` is then an ordinary column.
    is_typed = parsed.get("type") in OWN_TYPES
    is_own = is_typed and (columns.own_types or not columns.has_names)
    is_delete = parsed.get("type") == "delete" and "src" in parsed
    if columns.edge_set and EDGE_SET not in parsed and (is_delete or not is_own):
        parsed = parsed | {EDGE_SET: columns.edge_set}
    read_key = _key_as_text if columns.keys == "text" else _typed_key
    if not is_own and columns.has_names:
        try:
            check_columns(list(parsed), columns.names)
        except Misfit as misfit:
            raise Misfit(str(misfit), OWN_TYPES_HINT if is_typed else misfit.action) from None
        return _edge(parsed, columns, times, (read_key, read_key))
    if not is_own:
        # An edge may lack a time: its record's timestamp is its time then.
        check_columns(list(parsed), ("src", "dst"))
        for name in ("src", "dst"):
            key = _key(name, name, read_key, parsed[name])
            # Without --keys an edge stays as it is in the file.
            if columns.keys and key != parsed[name]:
                parsed = parsed | {name: key}

    # Write times in the stream's unit. A delete's time does not extend the range.
    if parsed.get("time") is None:
        return parsed
    time = _cell(
        "time",
        lambda value: times.read(value, parsed["type"] != "delete" if is_own else True),
        parsed["time"],
    )
    return parsed if time == parsed["time"] else parsed | {"time": time}


def _edge(
    row: Row, columns: Columns, times: Times, keys: tuple[Callable[[Any], int | str], ...]
) -> Row:
    """Make an edge event from a row's columns. keys: readers of source and destination. Raises:
    Misfit."""
    # Other columns are ignored.
    event: Row = {
        "src": _key("src", columns.src, keys[0], row[columns.src]),
        "dst": _key("dst", columns.dst, keys[1], row[columns.dst]),
        "time": _cell(columns.time, times.read, row[columns.time]),
    }
    # The name "" may be pandas' index column, which contains no sets.
    of_column = columns.edge_set_column and row.get(columns.edge_set_column)
    edge_set = columns.edge_set or of_column
    if edge_set:
        event[EDGE_SET] = edge_set
    # Features are several columns, or one of lists or mappings. A declared feature may be absent.
    if columns.by_name:
        cells = {
            name: _cell(name, _number if is_number else _feature, row[name])
            for name, is_number in zip(columns.features, columns.by_name, strict=True)
        }
        event["features"] = {name: cell for name, cell in cells.items() if cell is not None}
        return event
    column = columns.features[0] if columns.features else "features"
    may_be_whole = len(columns.features) == 1 or not columns.has_names
    given = _cell(column, _list_or_object, row.get(column)) if may_be_whole else None
    if isinstance(given, list):
        event["features"] = [_cell(column, _finite, value) for value in given]
    elif isinstance(given, dict):
        event["features"] = {k: _cell(column, _feature, v) for k, v in given.items()}
    elif may_be_whole and not columns.features and given is not None:
        raise Misfit(
            f"column {column!r}: {shown_value(given)} is neither a list nor an object",
            "write it as JSON, or name the columns of features with --features.",
        )
    elif columns.features:
        event["features"] = [_cell(name, _finite, row[name]) for name in columns.features]
    return event


def _cell(column: str, read: Callable[[Any], T], value: Any) -> T:
    """Read one cell. Raises: Misfit naming the column."""
    try:
        return read(value)
    except _NoKeyError:
        raise
    except Misfit as misfit:
        raise Misfit(f"column {column!r}: {misfit}", misfit.action) from None


def _key(field: str, column: str, read: Callable[[Any], T], value: Any) -> T:
    """Read one key. field: of the event. Raises: Misfit naming the column."""
    try:
        return _cell(column, read, value)
    except _NoKeyError:
        # The reason is that of ingest for such an event.
        raise Misfit(f"column {column!r}: {field} is missing (missing_field)") from None


def _feature(value: Any) -> Any:
    """Read the value of a feature by name; None for an empty cell. Raises: Misfit."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit(f"{shown_value(value)} is not finite")
    if isinstance(value, bytes):
        raise Misfit(f"{shown_value(value)} is {NO_TEXT}", "cast it to text.")
    # A time as a category becomes text.
    return None if value == "" else as_id(value)


def _number(value: Any) -> float | None:
    """Read the value of a numeric feature; None for an empty cell. Raises: Misfit."""
    return None if value is None or value == "" else _finite(value)


def _finite(value: Any) -> float:
    """Read a finite number. Raises: Misfit."""
    number = float_of(value)
    # Features without names must be numbers.
    if number is None:
        way_out = "correct it in the file."
        if type(value) is bool:
            way_out = "declare the feature as bool."
        elif type(value) is str and COMMA.fullmatch(value.strip()):
            way_out = "write decimals with a point, not with a comma."
        raise Misfit(f"{shown_value(value)} is not a number", way_out)
    if not math.isfinite(number):
        raise Misfit(f"{shown_value(value)} is not finite")
    return number


def _list_or_object(value: Any) -> Any:
    """Parse text of a list or an object, as CSV has it; other values are unchanged, "" is None."""
    if type(value) is str and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return None if value == "" else value


def _typed_key(value: Any) -> int | str:
    """Read a key, text or integer; whole floats become integers. Raises: Misfit."""
    key = _any_key(value)
    if type(key) is int and not -(2**63) <= key < 2**63:
        raise Misfit(f"{key} does not fit int64", KEYS_HINT)
    return key


def _any_key(value: Any) -> int | str:
    """Read a key as `_typed_key`, also an integer beyond int64. Raises: Misfit."""
    value = as_key(value, None)
    if type(value) is int or type(value) is str:
        return value
    if value is None:
        raise _NoKeyError("there is no value")
    hint = key_hint(value)
    raise Misfit(f"{shown_value(value)} is not a key: keys are text or integers{hint}")


def _key_as_text(value: Any) -> str:
    """Read a key as text. Raises: Misfit."""
    return str(_any_key(value))


def _csv_key(cells: KeyCells) -> Callable[[Any], int | str]:
    """Make a function that reads a key of CSV."""
    return lambda cell: _typed_key(cell) if type(cell) is not str else cells.read(cell)
