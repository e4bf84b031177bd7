"""Arrow IPC streams decoded to events; schema and batches are validated before a value is read."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Float32, Int64
from streamd.ingest.arrow_metadata import check_batches, check_head
from streamd.ingest.event_sets import EventSets
from streamd.ingest.explain import to_map
from streamd.ingest.notices import named
from streamd.ingest.wire import FIELDS, WireEvent, converted

EDGE_COLUMNS = {"src", "dst", "time", "features", "edge_set"}
KEY_COLUMNS = {"src", "dst", "id", "node"}
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of the timestamp units that are taken; nanoseconds would lose digits."""
ROWS = 1_000
"""Rows converted to Python objects at a time, which bounds their memory."""


class EventSink(Protocol):
    """Takes the events of a record; the decoder's batch implements it."""

    time_unit: str
    sets: EventSets
    max_feature: float

    def check_count(self, count: int) -> None: ...

    def key_numbers(self, keys: Sequence[str | int], node_set: int = 0) -> Int64 | None: ...

    def add_columns(
        self, time_E: Int64, src: Int64, dst: Int64, values_ED: Float32, record: Any
    ) -> bool: ...

    def events(
        self,
        items: Sequence[Any],
        read: Callable[[Any], WireEvent],
        record: Any,
        raw: Callable[[Any], bytes],
        first: int = 0,
        scale: int | None = None,
    ) -> None: ...


def decode_arrow(value: bytes, sink: EventSink, record: Any) -> None:
    """Decode an Arrow IPC stream whose columns are the fields of the JSON events.

    A table of valid edges goes to `sink` as columns, any other row by row.

    Raises: BadEvent where the stream cannot be read, or where a column has another name or another
    type than `_expected` takes.
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
            sink.check_count(count)
            batch.validate(full=True)
            # Columns that share bytes could make much memory of few.
            size += batch.nbytes
            if size > len(value):
                raise BadEvent("bad_arrow", "its columns share their bytes")
            if batch.num_rows:
                batches.append(batch)
        sink.check_count(count)
        table = pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadEvent("bad_arrow", f"not a valid Arrow stream: {str(error)[:300]}") from None
    if not _as_columns(table, sink, record, pa):
        _as_rows(table, sink, record, pa)


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


def _as_rows(table: Any, sink: EventSink, record: Any, pa: Any) -> None:
    """Pass the rows to `sink` one by one, `ROWS` at a time."""
    scale = None
    column = table.schema.get_field_index("time")
    if column >= 0 and pa.types.is_timestamp(table.schema.field(column).type):
        # Timestamps have a unit of their own, which may be finer than the stream's.
        scale = UNIT_US[table.schema.field(column).type.unit]
        table = table.set_column(column, "time", table.column(column).cast(pa.int64()))

    def raw(row: dict[str, Any]) -> bytes:
        if scale is not None and row["time"] is not None:
            row = row | {"time": row["time"] * scale // MICROSECONDS[sink.time_unit]}
        return msgspec.json.encode(row)

    for first in range(0, table.num_rows, ROWS):
        sink.events(table.slice(first, ROWS).to_pylist(), converted, record, raw, first, scale)


def _as_columns(table: Any, sink: EventSink, record: Any, pa: Any) -> bool:
    """Pass a table of edges to `sink` as columns.

    Returns: False where a row is not a valid edge; then nothing was passed.
    """
    names = set(table.column_names)
    if not {"src", "dst", "time"} <= names <= EDGE_COLUMNS or len(names) != table.num_columns:
        return False
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    if any(column.null_count for column in columns.values()):
        return False

    # Convert the columns; None means that some value is not valid.
    time = _times(columns["time"], sink.time_unit, pa)
    number_E = _set_numbers(columns.get("edge_set"), sink.sets.edge_names, table.num_rows)
    if time is None or number_E is None:
        return False
    edges = _Edges(
        np.empty(len(time), np.int64),
        np.empty(len(time), np.int64),
        np.empty((len(time), sink.sets.schema.edge_feature_dim), np.float32),
    )
    for number in np.unique(number_E).tolist():
        if not _fill_set(columns, number, np.flatnonzero(number_E == number), edges, sink, pa):
            return False
    return sink.add_columns(time, edges.src, edges.dst, edges.values, record)


class _Edges(NamedTuple):
    """Columns of n edges: int64[n] key numbers, float32[n, D] rows of features."""

    src: Int64
    dst: Int64
    values: Float32


def _fill_set(
    columns: dict[str, Any], number: int, at: Int64, edges: _Edges, sink: EventSink, pa: Any
) -> bool:
    """Fill in the edges of one set, which are the rows `at`.

    Returns: False where one of them is not valid.
    """
    # One set of all rows, which is the usual case, needs no copies.
    if len(at) < len(edges.src):
        columns = {name: column.take(pa.array(at)) for name, column in columns.items()}
    width = sink.sets.of_edges[number].width
    values = _features(columns.get("features"), width, len(at), sink.max_feature, pa)
    of_src, of_dst = sink.sets.ends[number]
    src = None if values is None else _numbers(columns["src"], sink, of_src, pa)
    dst = None if src is None else _numbers(columns["dst"], sink, of_dst, pa)
    if values is None or src is None or dst is None:
        return False
    edges.src[at] = src
    edges.dst[at] = dst
    edges.values[at] = sink.sets.schema.edge_rows(number, values)
    return True


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


def _features(column: Any, dim: int, count: int, max_feature: float, pa: Any) -> Float32 | None:
    """Edge features, float32[count, dim]; None where a width, type or value does not fit."""
    if column is None or not dim:
        return np.zeros((count, 0), np.float32) if column is None and not dim else None
    # Every list must have `dim` values.
    if pa.types.is_fixed_size_list(column.type):
        if column.type.list_size != dim:
            return None
        flat = column.flatten()
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        if (np.diff(column.offsets.to_numpy()) != dim).any():
            return None
        flat = column.flatten()
    else:
        return None

    # Values beyond float32 become infinite, and so are beyond `max_feature`.
    if flat.null_count or not pa.types.is_floating(flat.type):
        return None
    with np.errstate(over="ignore"):
        values: Float32 = flat.to_numpy().astype(np.float32).reshape(count, dim)
    return values if (np.abs(values) <= max_feature).all() else None


def _numbers(column: Any, sink: EventSink, node_set: int, pa: Any) -> Int64 | None:
    """Numbers of the keys of a node set in the key table, int64[n]; None where one is not valid."""
    if column.type == pa.uint64():
        return None
    return sink.key_numbers(column.to_pylist(), node_set)
