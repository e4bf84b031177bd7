"""Converts values of typed formats to values of JSON. docs/types.md lists all types.

Arrow, Parquet, Avro and Protobuf have types that JSON lacks. Every reader converts them here, so a
type means the same in each format.
"""

import datetime
import decimal
import uuid
from typing import Any

MAX_EXACT_FLOAT = 2**53
"""Below it a float is exact for every integer; a larger float may differ from the id that was
written."""


def plain_scalar(value: Any) -> Any:
    """Convert a Python value to one that JSON has. Times stay `datetime`; bytes that are not text,
    lists and objects are unchanged, with their elements.

    NaN becomes None, as in pandas. Decimals without a fraction become integers, UUIDs text, and
    bytes the text that they encode. Times of day and durations become text.
    """
    # Check the types of JSON first, since most values have these.
    kind = type(value)
    if kind in (str, int, bool, list, dict):
        return value
    if kind is float:
        return None if value != value else value
    if kind is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, decimal.Decimal):
        # Databases use decimals as ids.
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, uuid.UUID | datetime.time | datetime.timedelta):
        return str(value)
    return value


def plain_value(value: Any) -> Any:
    """Convert a value as `plain_scalar` does, with the values in lists and objects too."""
    if type(value) is dict:
        return {name: plain_value(inner) for name, inner in value.items()}
    if type(value) is list:
        # Arrow's map is a list of pairs.
        if value and all(type(inner) is tuple for inner in value):
            return {str(plain_value(key)): plain_value(inner) for key, inner in value}
        return list(map(plain_value, value))
    return plain_scalar(value)


def as_id(value: Any) -> Any:
    """Convert a plain value to one for keys and categories: whole floats to integers, times to
    text.

    Floats from `MAX_EXACT_FLOAT` on are unchanged: the integer may differ from the one that was
    written.
    """
    if type(value) is float and value.is_integer() and abs(value) < MAX_EXACT_FLOAT:
        return int(value)
    if isinstance(value, datetime.datetime):
        return time_text(value)
    return value


def time_text(when: datetime.datetime) -> str:
    """A time as text in ISO 8601, in UTC and without a zone."""
    if when.tzinfo is not None:
        when = when.astimezone(datetime.UTC).replace(tzinfo=None)
    return when.isoformat()


def batch_rows(batch: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow batch as objects. Raises: as `arrow_values`."""
    names = batch.schema.names
    columns = map(arrow_values, batch.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def arrow_values(column: Any) -> list[Any]:
    """The Python values of an Arrow array: of a dictionary its values, of an extension its storage.

    Times and durations are in microseconds and UTC, since Python has no finer ones.
    Raises: ArrowException; ValueError or OverflowError for a time that Python cannot represent.
    """
    import pyarrow as pa
    import pyarrow.compute

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name != "arrow.uuid":
        return arrow_values(column.storage)
    if pa.types.is_dictionary(kind):
        # Rows share the objects of the dictionary.
        values = arrow_values(column.dictionary)
        return [None if at is None else values[at] for at in column.indices.to_pylist()]
    if pa.types.is_run_end_encoded(kind):
        return arrow_values(pa.compute.run_end_decode(column))
    # Digits below a microsecond are cut.
    wanted = _in_microseconds(kind, pa)
    if wanted != kind:
        options = pa.compute.CastOptions(target_type=wanted, allow_time_truncate=True)
        column = column.cast(options=options)
    found: list[Any] = column.to_pylist()
    return found


def _in_microseconds(kind: Any, pa: Any) -> Any:
    """A type in which timestamps and dates are microseconds without a zone, and times of day and
    durations are microseconds if they were finer; also inside other types."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind):
        return pa.timestamp("us")
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([one.with_type(_in_microseconds(one.type, pa)) for one in fields])
    if types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type, pa), _in_microseconds(kind.item_type, pa))
    # Arrow casts views of lists wrongly, so they are not cast.
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inside = _in_microseconds(kind.value_type, pa)
        return kind if inside == kind.value_type else pa.list_(inside)
    return kind
