"""Writes results of SQL as tables, CSV, JSON or Parquet, batch by batch."""

import csv
import datetime
import decimal
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

Write = Callable[[Any, BinaryIO], None]
"""Writes all batches of a result, a pyarrow.RecordBatchReader, to a file of bytes."""


def rows_of(result: Any) -> Iterator[dict[str, Any]]:
    """The rows of a result as plain values for JSON: times are ISO 8601 in UTC, maps are objects,
    and numbers that JSON lacks are null."""
    names = result.schema.names
    types = [field.type for field in result.schema]
    for batch in result:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            # Columns of a join may have the same name: the first has it alone.
            yield {
                name: plain(value, of_type)
                for name, value, of_type in zip(_apart(names), row, types, strict=True)
            }


def _apart(names: list[str]) -> list[str]:
    """The names, with a number at the end of each that came before."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return out


def plain(value: Any, of_type: Any) -> Any:
    """A value of an Arrow type as a value that JSON has."""
    if value is None or isinstance(value, str | bool | int):
        return value
    # JSON has neither infinity nor NaN.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # Times and decimals.
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    # Nested values, and bytes.
    if pa.types.is_map(of_type):
        return {str(key): plain(one, of_type.item_type) for key, one in value}
    if isinstance(value, list):
        return [plain(one, of_type.value_type) for one in value]
    if isinstance(value, dict):
        return {name: plain(one, of_type.field(name).type) for name, one in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)


def as_text(value: Any) -> str:
    """A plain value as text for a cell: "" for null, lists and objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_json(result: Any, file: BinaryIO) -> None:
    """Write one JSON object a line."""
    for row in rows_of(result):
        file.write(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n")


def write_csv(result: Any, file: BinaryIO) -> None:
    """Write CSV with a line of names; lists and objects are JSON in a cell."""
    text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_apart(result.schema.names))
    for row in rows_of(result):
        writer.writerow([as_text(value) for value in row.values()])
    text.flush()
    text.detach()


def write_parquet(result: Any, file: BinaryIO) -> None:
    """Write one Parquet file, with the types of the result."""
    import pyarrow.parquet

    schema = pa.schema(
        [
            field.with_name(name)
            for name, field in zip(_apart(result.schema.names), result.schema, strict=True)
        ]
    )
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for batch in result:
            writer.write_batch(batch.rename_columns(schema.names))


FORMATS: dict[str, Write] = {"csv": write_csv, "json": write_json, "parquet": write_parquet}
"""Name of a format -> function that writes it. The format `table` is for people: the command prints
it."""
