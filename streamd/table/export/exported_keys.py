"""Finds the exported tables that hold a key: a table that was written stays as it is, so an erasure
has to name it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamd.events import Key, split_key
from streamd.number_texts import count_noun
from streamd.schema import Schema
from streamd.store.deleted_keys import Found
from streamd.store.objects import Store
from streamd.table.export.iceberg_tables import CATALOG, IcebergTables
from streamd.table.export.parquet_tables import ParquetTables
from streamd.table.export.registered import Registered

NO_BYTE = -1
"""`Found.at` of a key in a table, which has rows instead of bytes."""
ENDS = ("src", "dst")


def find_in_export(one: Registered, schema: Schema, numbers: Mapping[Key, int]) -> Iterator[Found]:
    """Search an export for keys. schema: of the log. numbers: key -> the number that `Found`
    reports for it. Yields: one finding for each key and table that has it. Raises: StreamdError."""
    tables: ParquetTables | IcebergTables
    if one.format == "iceberg":
        # A catalog that is gone must not be created again.
        if not (Path(one.to) / CATALOG).exists():
            return
        tables = IcebergTables(Path(one.to))
    else:
        tables = ParquetTables(Store(one.to), is_reader=True)
    rows: dict[tuple[int, str], int] = {}
    columns = [f"{end}_{column}" for end in ENDS for column in ("key", "key_int")]
    for edge_set, table in tables.read_columns(columns):
        if edge_set not in schema.edge_set_names:
            continue
        ends = schema.ends_of(schema.edge_set_names.index(edge_set))
        # An end has keys of one node set only.
        for key, number in numbers.items():
            has = [
                _has_key(table, end, key)
                for end, node_set in zip(ENDS, ends, strict=True)
                if node_set == split_key(key)[0]
            ]
            count = sum(pc.sum(one).as_py() or 0 for one in has)
            if count:
                at = number, edge_set
                rows[at] = rows.get(at, 0) + count
    # One finding for each key and edge set, however many files have it.
    for (number, edge_set), count in rows.items():
        where = f"{count_noun(count, 'cell')} of edge set {edge_set} in the table exported to "
        yield Found(where + one.to, NO_BYTE, number)


def _has_key(table: Any, end: str, key: Key) -> Any:
    """Whether each row has a key at one end, as an Arrow array of booleans."""
    plain = split_key(key)[1]
    if isinstance(plain, int):
        return pc.equal(table[f"{end}_key_int"], pa.scalar(plain, pa.int64()))
    # The keys 1 and "1" have the same text.
    return pc.and_(
        pc.equal(table[f"{end}_key"], pa.scalar(plain)), pc.is_null(table[f"{end}_key_int"])
    )
