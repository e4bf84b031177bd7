"""Arrow IPC streams decoded to events; schema and batches are validated before a value is read."""

import itertools
import struct
from typing import Any

import msgspec
import numpy as np

from streamd.decode.arrow_metadata import check_batches, check_head
from streamd.decode.block import Edges
from streamd.decode.checks import EventChecker, Rules
from streamd.decode.error_texts import to_map
from streamd.decode.notices import named
from streamd.decode.record_items import RecordItems
from streamd.decode.rounding import NOTHING, Rounded, count_rounded
from streamd.decode.wire import FIELDS, converted
from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Float32, Int64

EDGE_COLUMNS = {"src", "dst", "time", "features", "edge_set"}
KEY_COLUMNS = {"src", "dst", "id", "node"}
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of the timestamp units that are taken; nanoseconds would lose digits."""
ROWS = 1_000
"""Rows converted to Python objects at a time, which bounds their memory."""


def read_table(value: bytes, rules: Rules) -> Any:
    """Read an Arrow IPC stream whose columns are the fields of the JSON events.

    Returns: a pyarrow Table of one chunk.
    Raises: BadEvent where the stream cannot be read, holds no rows or too many, or where a column
    has another name or another type than `_expected` takes.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise BadEvent(
            "unknown_content_type", "Arrow needs pyarrow: pip install 'streamd[arrow]'"
        ) from None
    try:
        # Check the schema before pyarrow reads a batch, and each batch before its values are used.
        check_head(value, pa)
        reader = pa.ipc.open_stream(value)
        _check_schema(reader.schema, pa)
        check_batches(value, pa)
        batches = []
        count = 0
        size = 0
        for batch in reader:
            count += batch.num_rows
            rules.check_count(count)
            batch.validate(full=True)
            # Columns that share bytes could make much memory of few.
            size += batch.nbytes
            if size > len(value):
                raise BadEvent("bad_arrow", "its columns share their bytes")
            if batch.num_rows:
                batches.append(batch)
        rules.check_count(count)
        return pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadEvent("bad_arrow", f"not a valid Arrow stream: {str(error)[:300]}") from None


def _check_schema(schema: Any, pa: Any) -> None:
    """Refuse columns that no event has, or of a wrong type. Raises: BadEvent."""
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
        expected = _expected(name, kind, pa)
        if expected:
            actual = _type_name(kind, pa)
            raise BadEvent("bad_arrow", f"column {name} is {actual}: cast it to {expected}")


def _expected(name: str, kind: Any, pa: Any) -> str:
    """The type that a column of this name should have; empty where `kind` is valid.

    Only flat types are valid: their values take no more memory than their bytes in the stream. A
    column of nulls counts as absent.
    """
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    whole = types.is_integer(kind)
    if types.is_null(kind):
        return ""
    if name in KEY_COLUMNS:
        return "" if text or whole else "string or int64"
    if name in ("type", "edge_set", "node_set"):
        return "" if text else "string"
    if name == "time":
        fits = whole or (types.is_timestamp(kind) and kind.unit in UNIT_US)
        return "" if fits else "int64 or timestamp[us]"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    flat = is_list and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))
    return "" if flat else "a list of float32"


def _type_name(kind: Any, pa: Any) -> str:
    """The name of a type, without text that the sender chose, such as an extension's name."""
    if isinstance(kind, pa.BaseExtensionType):
        return "an extension type"
    return f"of type {named([str(kind)])}" if kind.num_fields == 0 else f"a {type(kind).__name__}"


def rows_of(table: Any, record: Any, unit: str) -> RecordItems:
    """The rows of a table one by one. unit: that of its times where they are integers."""
    import pyarrow as pa

    scale = None
    column = table.schema.get_field_index("time")
    if column >= 0 and pa.types.is_timestamp(table.schema.field(column).type):
        # Timestamps have a unit of their own, which may be finer than the stream's.
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
    """The columns of a table of edges; None where a row is not a valid edge."""
    import pyarrow as pa

    names = set(table.column_names)
    if not {"src", "dst", "time"} <= names <= EDGE_COLUMNS or len(names) != table.num_columns:
        return None
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    if any(column.null_count for column in columns.values()):
        return None

    # Convert the columns; None means that some value is not valid.
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
    """Numbers of the edge sets that rows name, int64[n]; None where one names none of them."""
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
    """Times in microseconds, int64[n]; None where the type or a value does not fit."""
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
        # Without features all sets must be without.
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

        # Values beyond float32 become infinite, and so are beyond `max_feature`.
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
        # The lists lie one behind the other.
        return (
            flat.reshape(count, width) if at is None else flat[first_E[at, None] + np.arange(width)]
        )

    sets = checker.sets
    rows = sets.rows(None if sets.is_only else number_E, count, of_set)
    return None if rows is None else (rows, rounded)


def _numbers(
    column: Any, number_E: Int64, end: int, checker: EventChecker, pa: Any
) -> Int64 | None:
    """Numbers of the keys at one end of edges, int64[n]; None where one is not valid."""
    if column.type == pa.uint64():
        return None
    return checker.sets.key_numbers(checker.keys, column.to_pylist(), number_E, end)
