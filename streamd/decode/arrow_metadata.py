"""Limits on Arrow IPC streams from unknown senders: on metadata, before pyarrow reads it, and on
the memory of their values.

A flatbuffer may point to the same table many times, so a schema of some kilobytes can expand to
millions of fields. A compressed body declares its own size after expansion. Numbers of fields are
those of Arrow's Schema.fbs and Message.fbs (format page, "Encapsulated message format").
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from streamd.decode.wire import EMPTY_VALUE
from streamd.errors import BadEvent
from streamd.events import Int64

MAX_SCHEMA_BYTES = 65_536
"""Maximum size of a schema; pandas writes some kilobytes of metadata about its columns."""
MAX_COLUMNS = 32
"""Maximum columns. An event has fewer than ten fields; rows of 3,000 empty columns take
gigabytes."""
MAX_INSIDE = 128
MAX_LEVELS = 4
"""Maximum columns of a mapped record with those inside others, and maximum levels of them."""
MAX_NOTES = 32
"""Maximum entries of custom metadata in a message, schema or field; pandas writes one."""

MAX_TEXT_BYTES = 64_000_000
"""Maximum bytes of text in a record, counted as if each row of a dictionary or view had its own
copy."""
OBJECT = 64
"""Bytes of a Python object in addition to its text."""


def read_batches(
    value: bytes,
    check_schema: Callable[[Any, Any], None],
    check_count: Callable[[int], None],
    is_nested: bool = False,
) -> Iterator[Any]:
    """Yield the batches of a stream, each validated.

    1. Check the schema's metadata before pyarrow reads it: it could expand to gigabytes.
    2. Check the columns, then the metadata of all batches. A compressed body could expand too.
    3. Check each batch before it is yielded: its number of rows, its values and their memory.

    Args: check_schema: refuses a schema, called with pyarrow too; check_count: refuses a number of
    rows; is_nested: as for `check_head`.
    Raises: BadEvent.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise BadEvent(
            "unknown_content_type", "Arrow needs pyarrow: pip install 'streamd-gnn[arrow]'"
        ) from None
    try:
        if not value:
            raise BadEvent("bad_arrow", EMPTY_VALUE)
        # 1. The schema's metadata.
        check_head(value, pa, is_nested)
        reader = pa.ipc.open_stream(value)
        # 2. The columns, and the metadata of all batches.
        check_schema(reader.schema, pa)
        check_batches(value, pa)
        count = size = text = 0
        # 3. Each batch.
        for batch in reader:
            count += batch.num_rows
            check_count(count)
            batch.validate(full=True)
            # Columns that share bytes could expand a few bytes to much memory.
            size += sum(_num_bytes(column, pa) for column in batch.columns)
            if size > len(value):
                raise BadEvent("bad_arrow", "its columns share their bytes, which is not allowed")
            text += sum(_num_text_bytes(column, pa) for column in batch.columns)
            if text > MAX_TEXT_BYTES:
                raise BadEvent(
                    "bad_arrow",
                    f"its dictionaries or views hold {text} bytes of text in all rows, at most "
                    f"{MAX_TEXT_BYTES} are taken",
                )
            yield batch
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadEvent("bad_arrow", f"not a valid Arrow stream: {str(error)[:300]}") from None


def _num_bytes(column: Any, pa: Any) -> int:
    """The bytes of a column without its dictionary, which several batches may share."""
    if pa.types.is_struct(column.type):
        return sum(_num_bytes(column.field(at), pa) for at in range(column.type.num_fields))
    return int((column.indices if pa.types.is_dictionary(column.type) else column).nbytes)


def _num_text_bytes(column: Any, pa: Any) -> int:
    """The bytes of text in all rows of dictionaries and views; 0 for other types."""
    types = pa.types
    if types.is_struct(column.type):
        return sum(_num_text_bytes(column.field(at), pa) for at in range(column.type.num_fields))
    if types.is_dictionary(column.type):
        # A dictionary of numbers also takes memory, once for each column that uses it.
        lengths = _text_lengths(column.dictionary, pa) + OBJECT
        return int(lengths.sum() + lengths[column.indices.drop_null().to_numpy()].sum())
    is_view = types.is_string_view(column.type) or types.is_binary_view(column.type)
    return int(_text_lengths(column, pa).sum()) if is_view else 0


def _text_lengths(column: Any, pa: Any) -> Int64:
    """The length of each text of a column in bytes, int64[n]; 0 for a null and for other values."""
    types, kind = pa.types, column.type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view has 16 bytes; the first four are the length.
        views = np.frombuffer(column.buffers()[1] or b"", np.int32).reshape(-1, 4)
        lengths = views[column.offset : column.offset + len(column), 0].astype(np.int64)
        return np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    if is_text(kind, pa) and not types.is_decimal(kind):
        found = pa.compute.fill_null(pa.compute.binary_length(column), 0)
        return np.asarray(found, np.int64)
    return np.zeros(len(column), np.int64)


def is_list(kind: Any, pa: Any) -> bool:
    """Whether a type is a list that has its own bytes for each row."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: Any, pa: Any) -> bool:
    """Whether a type is text, bytes or decimals with their own bytes for each row."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_decimal(kind)
    )


def is_scalar(kind: Any, pa: Any) -> bool:
    """Whether a type has at most one text, number, time or boolean a row. Values of such a type
    take no more memory than their bytes, except those that `read_batches` counts."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return bool(kind.extension_name == "arrow.uuid")
    if types.is_dictionary(kind):
        return not types.is_dictionary(kind.value_type) and is_scalar(kind.value_type, pa)
    is_view = types.is_string_view(kind) or types.is_binary_view(kind)
    is_plain = types.is_primitive(kind) and not types.is_interval(kind)
    return bool(is_view or is_plain or types.is_null(kind) or is_text(kind, pa))


def check_head(value: bytes, pa: Any, is_nested: bool = False) -> None:
    """Refuse a stream with a larger schema than an event needs.

    is_nested: whether columns may be inside others, as in mapped records.

    Raises: BadEvent; struct.error, IndexError or pyarrow's errors if the stream is broken.
    """
    for message in pa.ipc.MessageReader.open_stream(value):
        data = message.metadata.to_pybytes()
        if message.type != "schema" or len(data) > MAX_SCHEMA_BYTES:
            raise BadEvent(
                "bad_arrow",
                f"begins with a {message.type} of {len(data)} bytes, "
                f"not with a schema of at most {MAX_SCHEMA_BYTES}",
            )
        # Message: field 2 is the header, here a Schema, and field 4 custom metadata.
        top = follow(data, 0)
        header = follow(data, field(data, top, 2))
        _bound(data, top, 4, MAX_NOTES, "notes")
        _bound(data, header, 2, MAX_NOTES, "notes")
        columns = _bound(data, header, 1, MAX_COLUMNS, "columns")
        if is_nested:
            _check_levels(data, columns)
        else:
            for column in columns:
                _check_column(data, column)
        return


def check_batches(value: bytes, pa: Any) -> None:
    """Refuse messages after the schema, except uncompressed record batches and dictionaries.

    Raises: as `check_head`.
    """
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(value)):
        if not number:
            continue
        if message.type not in ("record batch", "dictionary"):
            raise BadEvent("bad_arrow", f"message {number} is a {message.type}, not a record batch")
        data = message.metadata.to_pybytes()
        # DictionaryBatch: field 1 is a RecordBatch; field 3 of that is the body's compression.
        top = follow(data, 0)
        _bound(data, top, 4, MAX_NOTES, "notes")
        batch = follow(data, field(data, top, 2))
        if message.type == "dictionary":
            batch = follow(data, field(data, batch, 1))
        if field(data, batch, 3):
            raise BadEvent(
                "bad_arrow", "compressed buffers are not taken; let Kafka compress the record"
            )


def _check_column(data: bytes, column: int) -> None:
    """Refuse a column with more than one child, or with a child that has children. Raises:
    BadEvent."""
    # Field: field 5 is its children, field 6 custom metadata.
    _bound(data, column, 6, MAX_NOTES, "notes")
    for child in _bound(data, column, 5, 1, "columns inside a column"):
        _bound(data, child, 6, MAX_NOTES, "notes")
        _bound(data, child, 5, 0, "columns inside a list")


def _check_levels(data: bytes, columns: list[int]) -> None:
    """Refuse more columns or levels than a record needs, before their tables are followed.

    Raises: BadEvent.
    """
    count = len(columns)
    for _ in range(MAX_LEVELS):
        inside: list[int] = []
        for column in columns:
            _bound(data, column, 6, MAX_NOTES, "notes")
            inside += _bound(data, column, 5, MAX_INSIDE - count, "columns inside a column")
            count = len(columns) + len(inside)
        columns = inside
    if columns:
        raise BadEvent("bad_arrow", f"columns are nested more than {MAX_LEVELS} levels deep")


def _bound(data: bytes, table: int, number: int, most: int, what: str) -> list[int]:
    """Positions of the tables in a vector field. what: name of the tables, for the error. Raises:
    BadEvent if there are more than `most`."""
    position = field(data, table, number)
    if not position:
        return []
    vector = follow(data, position)
    count = int(struct.unpack_from("<I", data, vector)[0])
    # Check before the tables are followed: a vector may repeat one table.
    if count > most:
        raise BadEvent("bad_arrow", f"{count} {what}, at most {most} are taken")
    return [follow(data, vector + 4 + 4 * i) for i in range(count)]


def follow(data: bytes, position: int) -> int:
    """The position that the flatbuffer offset at `position` points to."""
    return position + int(struct.unpack_from("<I", data, position)[0])


def field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a flatbuffer table; 0 if it is absent."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0
