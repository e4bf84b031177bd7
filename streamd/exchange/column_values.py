"""Converts the values of typed columns, those of Parquet and Arrow files, to the values of JSON."""

import datetime
from typing import Any

from streamd.decode.plain_values import arrow_values, plain_value
from streamd.exchange.times import Misfit

PLAIN = {str, int, bool, datetime.datetime, type(None)}
"""Types of values that need no conversion."""


class OddCell(Misfit):
    """A value of a typed column that no event can have. row: index of its row in the batch."""

    def __init__(self, column: str, row: int, what: str) -> None:
        super().__init__(f"column {column!r}: {what}")
        self.row = row


def column_values(column: Any, name: str) -> list[Any]:
    """Convert the values of one column of an Arrow batch as `plain_value` does.

    Raises: OddCell for the first value that Python cannot represent.
    """
    try:
        values = arrow_values(column)
    except (ValueError, OverflowError) as error:
        raise _odd_cell(column, name, str(error)) from None
    # Most columns are text, integers or times.
    if set(map(type, values)) <= PLAIN:
        return values
    return list(map(plain_value, values))


def _odd_cell(column: Any, name: str, error: str) -> OddCell:
    """Make the error for the first value of a column that Python cannot represent."""
    import pyarrow as pa

    # Arrow's error does not name the row, so try each one.
    for row in range(len(column)):
        try:
            arrow_values(column.slice(row, 1))
        except (ValueError, OverflowError):
            break
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        return OddCell(name, row, error)
    # Arrow casts date32 only to int32.
    is_days = column.type == pa.date32()
    number = column[row].cast(pa.int32() if is_days else pa.int64()).as_py()
    return OddCell(name, row, f"{number} as {column.type} is before the year 1 or after 9999")
