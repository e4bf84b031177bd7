"""Values of typed columns, those of Parquet and Arrow, as the values that JSON has.

docs/types.md lists all types.
"""

import datetime
import decimal
import math
import uuid
from collections.abc import Callable
from typing import Any

from streamd.decode.encoding import whole
from streamd.exchange.times import Misfit

LOST_DIGITS = "cast it to text or to an integer."


def column_values(column: Any, name: str) -> list[Any]:
    """The values of one column of an Arrow batch, as `plain_value` makes them.

    Raises: Misfit with the position of the first row that cannot be read, as `row`.
    """
    import pyarrow as pa

    kind = column.type
    # Extensions are read as their storage, dictionaries as their values.
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name != "arrow.uuid":
        column = column.storage
        kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        try:
            return _dates(column, pa)
        except (pa.ArrowInvalid, ValueError, OverflowError):
            raise _odd_date(column, name, pa) from None
    # Most columns are text or integers, which need no look at each value.
    values: list[Any] = column.to_pylist()
    if _is_plain(kind, pa.types):
        return values
    read = _reader(kind, pa.types)
    for row, value in enumerate(values):
        try:
            values[row] = None if value is None else read(value)
        except ValueError as error:
            raise OddCell(name, row, str(error)) from None
    return values


def _dates(column: Any, pa: Any) -> list[Any]:
    """Timestamps or dates as Python's. Raises: ArrowInvalid, ValueError, OverflowError."""
    # Microseconds in UTC: Python has no finer ones, and then needs no zones.
    finer = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return list(column.cast(pa.timestamp("us"), safe=not finer).to_pylist())


def _odd_date(column: Any, name: str, pa: Any) -> "OddCell":
    """The error for the first timestamp or date of a column that Python has none for."""
    # Arrow's error names no row.
    for row in range(len(column)):
        try:
            _dates(column.slice(row, 1), pa)
        except (pa.ArrowInvalid, ValueError, OverflowError):
            break
    # Arrow casts dates of 32 bits to no other width.
    is_days = column.type == pa.date32()
    number = column[row].cast(pa.int32() if is_days else pa.int64()).as_py()
    what = f"{number} as {column.type} is before the year 1 or after 9999"
    return OddCell(name, row, what, "correct it in the file.")


class OddCell(Misfit):
    """A value of a typed column that no event can have. row: its index in the batch."""

    def __init__(self, column: str, row: int, what: str, action: str = LOST_DIGITS) -> None:
        super().__init__(f"column {column!r}: {what}", action)
        self.row = row


def _is_plain(kind: Any, types: Any) -> bool:
    """Whether Python's values of a type are JSON's."""
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def _reader(kind: Any, types: Any) -> Callable[[Any], Any]:
    """Reads values of a type that are not JSON's."""
    if types.is_floating(kind):
        # NaN is how pandas writes that there is none.
        return lambda value: None if math.isnan(value) else value
    return plain_value


def plain_value(value: Any) -> Any:
    """A Python value as one that JSON has: decimals without a fraction are integers, UUIDs text,
    bytes the text that they hold. Times of day and durations become text, as ISO 8601 has them.

    Raises: ValueError if bytes are not UTF-8, or if a decimal has more digits than a float.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("its bytes are not UTF-8 text") from None
    if isinstance(value, decimal.Decimal):
        number = whole(value)
        return float(number) if isinstance(number, decimal.Decimal) else number
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        # A map is a list of pairs.
        if value and all(type(inner) is tuple for inner in value):
            return {str(plain_value(key)): plain_value(inner) for key, inner in value}
        return [plain_value(inner) for inner in value]
    if isinstance(value, uuid.UUID | datetime.time | datetime.timedelta):
        return str(value)
    return value
