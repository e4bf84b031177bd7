"""Limits on the metadata of an Arrow IPC stream, checked before pyarrow reads it.

A flatbuffer may point to the same table from many places, so a schema of some kilobytes can expand
to millions of fields. A compressed body declares its own size after expansion. Numbers of fields
are those of Arrow's Schema.fbs and Message.fbs (format page, "Encapsulated message format").
"""

import struct
from typing import Any

from streamd.errors import BadEvent

MAX_SCHEMA_BYTES = 65_536
"""Largest schema; pandas writes some kilobytes of metadata about its columns."""
MAX_COLUMNS = 32
"""An event has fewer than ten fields; 3,000 columns of nothing cost gigabytes of rows."""
MAX_INSIDE = 128
MAX_LEVELS = 4
"""Most columns of a mapped record, and levels of them."""
MAX_NOTES = 32
"""Most entries of custom metadata of a message, a schema or a field; pandas writes one."""


def check_head(value: bytes, pa: Any, is_nested: bool = False) -> None:
    """Refuse a stream whose schema is larger than an event needs.

    is_nested: whether columns may lie inside others, as mapped records have them.

    Raises: BadEvent; struct.error, IndexError or pyarrow's errors where it is broken.
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
    """Refuse messages after the schema other than uncompressed record batches.

    Raises: as `check_head`.
    """
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(value)):
        if not number:
            continue
        if message.type != "record batch":
            raise BadEvent("bad_arrow", f"message {number} is a {message.type}, not a record batch")
        data = message.metadata.to_pybytes()
        # RecordBatch: field 3 is the compression of its body.
        top = follow(data, 0)
        _bound(data, top, 4, MAX_NOTES, "notes")
        if field(data, follow(data, field(data, top, 2)), 3):
            raise BadEvent(
                "bad_arrow", "compressed buffers are not taken; let Kafka compress the record"
            )


def _check_column(data: bytes, column: int) -> None:
    """Refuse a column with more than one child, or whose child has children. Raises: BadEvent."""
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
        raise BadEvent("bad_arrow", f"columns inside {MAX_LEVELS} others")


def _bound(data: bytes, table: int, number: int, most: int, what: str) -> list[int]:
    """Positions of the tables in a vector field. Raises: BadEvent for more than `most`."""
    position = field(data, table, number)
    if not position:
        return []
    vector = follow(data, position)
    count = int(struct.unpack_from("<I", data, vector)[0])
    if count > most:
        raise BadEvent("bad_arrow", f"{count} {what}, at most {most} are taken")
    return [follow(data, vector + 4 + 4 * i) for i in range(count)]


def follow(data: bytes, position: int) -> int:
    """The position that the flatbuffer offset at `position` points to."""
    return position + int(struct.unpack_from("<I", data, position)[0])


def field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a flatbuffer table; 0 where it is absent."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else 0
