"""Arrow IPC streams as events: each batch validated fully before a value of it is used."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from streamd.errors import BadEvent
from streamd.events import MICROSECONDS, Float32, Int64, Key
from streamd.ingest.wire import WireEvent, converted

EDGE_COLUMNS = {"src", "dst", "time", "features"}
UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


class EventSink(Protocol):
    """What takes the events of a record; the decoder's batch is it."""

    time_unit: str
    dim: int
    max_feature: float

    def check_count(self, count: int) -> None: ...

    def key_numbers(self, keys: Sequence[Key]) -> Int64 | None: ...

    def add_columns(self, time_E: Int64, src: Int64, dst: Int64, values_ED: Float32, record: Any) -> bool: ...

    def events(
        self, items: Sequence[Any], read: Callable[[Any], WireEvent], record: Any, raw: Callable[[Any], bytes]
    ) -> None: ...


def decode_arrow(value: bytes, sink: EventSink, record: Any) -> None:
    """Give the rows of an Arrow IPC stream to `sink`: as columns where all are plain edges, else one by one.

    Columns are the fields of the JSON events; `src` and `dst` strings or integers (dictionaries too), `time` an integer
    in the stream's unit or a timestamp, `features` a list of floats. Raises: BadEvent where it cannot be read.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise BadEvent("unknown_content_type", "Arrow needs pyarrow: pip install 'streamd[arrow]'") from None
    try:
        _refuse_compressed(value, pa)
        reader = pa.ipc.open_stream(value)
        batches, count = [], 0
        for batch in reader:
            count += batch.num_rows
            sink.check_count(count)
            batch.validate(full=True)
            batches.append(batch)
        sink.check_count(count)
        table = pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadEvent("bad_arrow", f"not a valid Arrow stream: {str(error)[:300]}") from None
    if not _as_columns(table, sink, record, pa):
        rows = table.to_pylist()
        sink.events(rows, converted, record, lambda row: msgspec.json.encode(row, enc_hook=str))


def _as_columns(table: Any, sink: EventSink, record: Any, pa: Any) -> bool:
    """Take the table by columns; False, and nothing taken, where it holds anything but plain, valid edges."""
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
    """Numbers of keys in the key table, each looked up once where the sender made a dictionary of them."""
    if pa.types.is_dictionary(column.type):
        if column.dictionary.null_count:
            return None
        numbers = sink.key_numbers(column.dictionary.to_pylist())
        return None if numbers is None else numbers[column.indices.to_numpy()]
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)
            or (pa.types.is_integer(kind) and kind != pa.uint64())):
        return None
    return sink.key_numbers(column.to_pylist())


def _refuse_compressed(value: bytes, pa: Any) -> None:
    """Refuse compressed bodies: their size is a claim of the sender.

    Reads from each message's flatbuffer whether its record batch has the field `compression`, number 3 (Arrow's format
    page, "Encapsulated message format").
    """
    for message in pa.ipc.MessageReader.open_stream(value):
        if message.type not in ("record batch", "dictionary"):
            continue
        data = message.metadata.to_pybytes()
        header = _follow(data, _field(data, _follow(data, 0), 2))
        if message.type == "dictionary":
            header = _follow(data, _field(data, header, 1))
        if _field(data, header, 3):
            raise BadEvent("bad_arrow", "compressed Arrow buffers are not taken; let Kafka compress the record")


def _follow(data: bytes, at: int) -> int:
    """Position that the flatbuffer offset at `at` points to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Position of a field of a flatbuffer table, 0 where it is absent."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0
