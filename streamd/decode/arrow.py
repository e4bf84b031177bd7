"""Decodes Arrow IPC streams to events; schema and batches are validated before a value is read."""

import itertools
from typing import Any

import msgspec
import numpy as np

from streamd.decode.arrow_metadata import is_list, is_scalar, read_batches
from streamd.decode.block import Edges
from streamd.decode.checks import EventChecker, Rules
from streamd.decode.encoding import as_key
from streamd.decode.error_texts import to_map
from streamd.decode.notices import named
from streamd.decode.plain_values import arrow_values
from streamd.decode.record_items import RecordItems
from streamd.decode.rounding import NOTHING, Rounded, count_rounded
from streamd.decode.wire import FIELDS, converted
from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Float32, Int64

EDGE_COLUMNS = {"src", "dst", "time", "features", "edge_set"}
WORDS = {"src", "dst", "id", "node", "type", "edge_set", "node_set"}
"""Columns of keys, types and names of sets."""
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds in each timestamp unit that is accepted; nanoseconds would lose digits."""
ROWS = 1_000
"""Rows that are converted to Python objects at a time, which bounds their memory."""


def read_table(value: bytes, rules: Rules) -> Any:
    """Read an Arrow IPC stream with the fields of JSON events as columns.

    Returns: a pyarrow Table of one chunk.
    Raises: BadEvent if the stream cannot be read, has no rows or too many, or if a column has
    another name or another type than `_expected_type` accepts.
    """
    count = 0
    batches = []
    for batch in read_batches(value, _check_schema, rules.check_count):
        count += batch.num_rows
        if batch.num_rows:
            batches.append(batch)
    rules.check_count(count)
    import pyarrow as pa

    # `edges_of` reads one chunk of each column.
    return _as_events(pa.Table.from_batches(batches).combine_chunks(), pa)


def _as_events(table: Any, pa: Any) -> Any:
    """Convert the keys and words of a table to integers or text.

    Raises: BadEvent if a column mixes types.
    """
    for at, name in enumerate(table.column_names):
        kind = table.schema.field(at).type
        if name not in WORDS or _is_usual(kind, pa):
            continue
        # `edges_of` reads columns of one type only.
        values = [as_key(value, None) for value in arrow_values(table.column(at).chunk(0))]
        kinds = set(map(type, values)) - {type(None)}
        try:
            wanted = {frozenset({str}): pa.string(), frozenset({int}): pa.int64()}[
                frozenset(kinds or {str})
            ]
            table = table.set_column(at, name, pa.array(values, wanted))
        except (KeyError, OverflowError):
            raise BadEvent(
                "bad_arrow",
                f"column {name} is {_type_name(kind, pa)} with values that are neither text nor "
                "integers: cast it to string or int64",
            ) from None
    return table


def _check_schema(schema: Any, pa: Any) -> None:
    """Refuse columns that no event has, or columns of a wrong type. Raises: BadEvent."""
    names = schema.names
    for name, kind in zip(names, schema.types, strict=True):
        if name not in FIELDS:
            raise BadEvent(
                "bad_arrow",
                f"no event has {named([name])}; "
                f"has {named(names)}{to_map(names) or ': leave it out'}",
            )
        if names.count(name) > 1:
            raise BadEvent("bad_arrow", f"two columns are named {name}")
        expected = _expected_type(name, kind, pa)
        if expected:
            actual = _type_name(kind, pa)
            raise BadEvent("bad_arrow", f"column {name} is {actual}: cast it to {expected}")


def _expected_type(name: str, kind: Any, pa: Any) -> str:
    """The type that a column of this name should have, in words; "" if `kind` is valid.

    Only flat types are valid: their values take no more memory than their bytes in the stream. A
    column of nulls counts as absent.
    """
    types = pa.types
    if types.is_null(kind):
        return ""
    if name in WORDS:
        of = kind.value_type if types.is_dictionary(kind) else kind
        is_other = types.is_temporal(of) or types.is_boolean(of)
        return "" if is_scalar(kind, pa) and not is_other else "string or int64"
    if name == "time":
        is_time = types.is_timestamp(kind) and kind.unit in UNIT_US
        return "" if types.is_integer(kind) or is_time else "int64 or timestamp[us]"
    of = kind.value_type if is_list(kind, pa) else kind
    flat = of is not kind and (types.is_floating(of) or types.is_integer(of))
    return "" if flat else "a list of float32"


def _is_usual(kind: Any, pa: Any) -> bool:
    """Whether `edges_of` can read a type without conversion: text, integers or nulls."""
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_integer(kind) or types.is_null(kind))


def _type_name(kind: Any, pa: Any) -> str:
    """The name of a type, without text that the sender chose, such as an extension's name."""
    if isinstance(kind, pa.BaseExtensionType):
        return "an extension type"
    return f"of type {named([str(kind)])}" if kind.num_fields == 0 else f"a {type(kind).__name__}"


def rows_of(table: Any, record: Any, unit: str) -> RecordItems:
    """The rows of a table as items, to be decoded one by one. unit: of its times if they are
    integers."""
    import pyarrow as pa

    scale = None
    column = table.schema.get_field_index("time")
    if column >= 0 and pa.types.is_timestamp(table.schema.field(column).type):
        # Timestamps have their own unit, which may be finer than the stream's.
        scale = UNIT_US[table.schema.field(column).type.unit]
        table = table.set_column(column, "time", table.column(column).cast(pa.int64()))

    def raw(row: dict[str, Any]) -> bytes:
        if scale is not None and row["time"] is not None:
            row = row | {"time": row["time"] * scale // MICROSECONDS[unit]}
        return msgspec.json.encode(row)

    slices = (table.slice(first, ROWS).to_pylist() for first in range(0, table.num_rows, ROWS))
    items = itertools.chain.from_iterable(slices)
    return RecordItems(
        record=record, items=items, read=lambda item: [converted(item)], raw=raw, scale=scale
    )


def edges_of(table: Any, checker: EventChecker) -> Edges | None:
    """Convert a table of edges to columns; None if a row is not a valid edge."""
    import pyarrow as pa

    names = set(table.column_names)
    if not {"src", "dst", "time"} <= names <= EDGE_COLUMNS or len(names) != table.num_columns:
        return None
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    if any(column.null_count for column in columns.values()):
        return None

    # Convert the columns; None means that a value is not valid.
    time = _times(columns["time"], checker.rules.time_unit, pa)
    number_E = _set_numbers(columns.get("edge_set"), checker.sets.edge_names, table.num_rows)
    if time is None or number_E is None:
        return None
    src = _numbers(columns["src"], number_E, 0, checker, pa)
    dst = None if src is None else _numbers(columns["dst"], number_E, 1, checker, pa)
    found = None if dst is None else _rows(columns.get("features"), number_E, checker, pa)
    if src is None or dst is None or found is None:
        return None
    values, rounded = found
    return Edges(time, src, dst, values, rounded)


def _set_numbers(column: Any, names: tuple[str, ...], count: int) -> Int64 | None:
    """Numbers of the rows' edge sets, int64[n]; None if a row names no declared set."""
    if column is None:
        return np.zeros(count, np.int64) if len(names) == 1 else None
    distinct = column.dictionary_encode()
    number = {name: i for i, name in enumerate(names)}
    found = [number.get(name) for name in distinct.dictionary.to_pylist()]
    if None in found:
        return None
    numbers: Int64 = np.array(found, np.int64)[distinct.indices.to_numpy()]
    return numbers


def _times(column: Any, unit: str, pa: Any) -> Int64 | None:
    """Times in microseconds, int64[n]; None if the type or a value does not fit."""
    if pa.types.is_timestamp(column.type) and column.type.unit in UNIT_US:
        scale = UNIT_US[column.type.unit]
    elif pa.types.is_integer(column.type) and column.type != pa.uint64():
        scale = MICROSECONDS[unit]
    else:
        return None
    # Compare before scaling, which could overflow.
    time: Int64 = column.cast(pa.int64()).to_numpy()
    if len(time) and max(int(time.max()), -int(time.min())) > (2**63 - 1) // scale:
        return None
    return time * scale


def _rows(
    column: Any, number_E: Int64, checker: EventChecker, pa: Any
) -> tuple[Float32, Rounded] | None:
    """Rows of edge features, float32[n, D], and the rounded values among them; None if a width,
    type or value does not fit."""
    count = len(number_E)
    rounded = NOTHING
    if column is None:
        # Without a column, every set must have no features.
        length_E = first_E = np.zeros(count, np.int64)
        flat = np.zeros(0, np.float32)
    else:
        if pa.types.is_fixed_size_list(column.type):
            length_E = np.full(count, column.type.list_size, np.int64)
            first_E = np.arange(count) * column.type.list_size
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            offsets = column.offsets.to_numpy().astype(np.int64)
            length_E = np.diff(offsets)
            first_E = offsets[:-1] - offsets[0]
        else:
            return None

        # Values beyond float32 become infinite, which is beyond `max_feature`.
        values = column.flatten()
        if values.null_count or not pa.types.is_floating(values.type):
            return None
        with np.errstate(over="ignore"):
            flat = values.to_numpy().astype(np.float32)
        if not (np.abs(flat) <= checker.rules.max_feature).all():
            return None
        rounded = count_rounded(values.to_numpy().reshape(-1, 1), ["features"])

    def of_set(number: int, at: Int64 | None) -> Float32 | None:
        width = checker.sets.of_edges[number].width
        if (length_E[slice(None) if at is None else at] != width).any():
            return None
        # The lists are stored one after the other.
        return (
            flat.reshape(count, width) if at is None else flat[first_E[at, None] + np.arange(width)]
        )

    sets = checker.sets
    rows = sets.rows(None if sets.is_only else number_E, count, of_set)
    return None if rows is None else (rows, rounded)


def _numbers(
    column: Any, number_E: Int64, end: int, checker: EventChecker, pa: Any
) -> Int64 | None:
    """Numbers of the keys at one end of edges, int64[n]; None if a key is not valid."""
    # Keys are int64; the check of single events names the row.
    if column.type == pa.uint64():
        return None
    return checker.sets.key_numbers(checker.keys, column.to_pylist(), number_E, end)
