"""Arrow IPC streams as events: judged by their schema, then validated, before a value is used."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Float32, Int64, Key
from streamd.ingest.arrow_metadata import check_batches, check_head
from streamd.ingest.explain import to_map
from streamd.ingest.notices import named
from streamd.ingest.wire import FIELDS, WireEvent, converted

EDGE_COLUMNS = {"src", "dst", "time", "features"}
KEY_COLUMNS = {"src", "dst", "id", "node"}
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
ROWS = 1_000
"""Rows that are Python objects at a time."""


class EventSink(Protocol):
    """What takes the events of a record; the decoder's batch is it."""

    time_unit: str
    dim: int
    max_feature: float

    def check_count(self, count: int) -> None: ...

    def key_numbers(self, keys: Sequence[Key]) -> Int64 | None: ...

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
    """Give the rows of an Arrow IPC stream to `sink`: as columns where all are plain edges, else as
    rows.

    Columns are the fields of the JSON events. Raises: BadEvent where it cannot be read, or where a
    column has another name or another type than `_expected` takes.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise BadEvent(
            "unknown_content_type", "Arrow needs pyarrow: pip install 'streamd[arrow]'"
        ) from None
    try:
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
    """Refuse columns by name and type. Raises: BadEvent."""
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
            found = _type_name(kind, pa)
            raise BadEvent("bad_arrow", f"column {name} is {found}: cast it to {expected}")


def _expected(name: str, kind: Any, pa: Any) -> str:
    """What a column of this name may be where it is not of such a type, else empty.

    Only flat types, whose values take no more memory than their bytes in the stream. A column of
    nulls is one that is absent.
    """
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    whole = types.is_integer(kind)
    if types.is_null(kind):
        return ""
    if name in KEY_COLUMNS:
        return "" if text or whole else "string or int64"
    if name == "type":
        return "" if text else "string"
    if name == "time":
        fits = whole or (types.is_timestamp(kind) and kind.unit in UNIT_US)
        return "" if fits else "int64 or timestamp[us]"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    flat = is_list and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))
    return "" if flat else "a list of float32"


def _type_name(kind: Any, pa: Any) -> str:
    """The name of a type, without what a sender wrote into it."""
    if isinstance(kind, pa.BaseExtensionType):
        return "an extension type"
    return f"of type {named([str(kind)])}" if kind.num_fields == 0 else f"a {type(kind).__name__}"


def _as_rows(table: Any, sink: EventSink, record: Any, pa: Any) -> None:
    """Take the rows one by one, `ROWS` at a time."""
    scale = None
    at = table.schema.get_field_index("time")
    if at >= 0 and pa.types.is_timestamp(table.schema.field(at).type):
        # Its own unit, which may be finer than the stream's.
        scale = UNIT_US[table.schema.field(at).type.unit]
        table = table.set_column(at, "time", table.column(at).cast(pa.int64()))

    def raw(row: dict[str, Any]) -> bytes:
        if scale is not None and row["time"] is not None:
            row = row | {"time": row["time"] * scale // MICROSECONDS[sink.time_unit]}
        return msgspec.json.encode(row)

    for first in range(0, table.num_rows, ROWS):
        sink.events(table.slice(first, ROWS).to_pylist(), converted, record, raw, first, scale)


def _as_columns(table: Any, sink: EventSink, record: Any, pa: Any) -> bool:
    """Take the table by columns; False, and nothing taken, where it holds anything but plain, valid
    edges."""
    names = set(table.column_names)
    if not {"src", "dst", "time"} <= names <= EDGE_COLUMNS or len(names) != table.num_columns:
        return False
    columns = {name: table.column(name).chunk(0) for name in table.column_names}
    if any(column.null_count for column in columns.values()):
        return False
    time = _times(columns["time"], sink.time_unit, pa)
    values = _features(columns.get("features"), sink.dim, table.num_rows, sink.max_feature, pa)
    src = None if time is None or values is None else _numbers(columns["src"], sink, pa)
    dst = None if src is None else _numbers(columns["dst"], sink, pa)
    if time is None or values is None or src is None or dst is None:
        return False
    return sink.add_columns(time, src, dst, values, record)


def _times(column: Any, unit: str, pa: Any) -> Int64 | None:
    if pa.types.is_timestamp(column.type) and column.type.unit in UNIT_US:
        scale = UNIT_US[column.type.unit]
    elif pa.types.is_integer(column.type) and column.type != pa.uint64():
        scale = MICROSECONDS[unit]
    else:
        return None
    time: Int64 = column.cast(pa.int64()).to_numpy()
    if len(time) and max(int(time.max()), -int(time.min())) > (2**63 - 1) // scale:
        return None
    return time * scale


def _features(column: Any, dim: int, count: int, max_feature: float, pa: Any) -> Float32 | None:
    if column is None or not dim:
        return np.zeros((count, 0), np.float32) if column is None and not dim else None
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
    if flat.null_count or not pa.types.is_floating(flat.type):
        return None
    with np.errstate(over="ignore"):
        values: Float32 = flat.to_numpy().astype(np.float32).reshape(count, dim)
    return values if (np.abs(values) <= max_feature).all() else None


def _numbers(column: Any, sink: EventSink, pa: Any) -> Int64 | None:
    """Numbers of keys in the key table."""
    if column.type == pa.uint64():
        return None
    return sink.key_numbers(column.to_pylist())
