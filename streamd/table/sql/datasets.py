"""Tables of a snapshot as datasets that DuckDB scans: it gives each scan the columns and the filter
that it needs."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from streamd.errors import StreamdError
from streamd.table.arrow_columns import TIME
from streamd.table.log_snapshot import EARLIEST_US, LATEST_US, LogSnapshot, Table

ZONES = 1024
"""Ranges of equal length into which the time of a log is divided, to find the bounds of time in a
filter. Testing all of them takes 30 ms, and at most 0.2 % of the events are read in vain."""


class TableScanner(pa.dataset.Scanner):  # type: ignore[misc]
    """One scan of a table. DuckDB reads it through `to_reader`."""

    def __init__(self, reader: Any) -> None:
        """reader: a pyarrow.RecordBatchReader."""
        self._reader = reader

    @property
    def projected_schema(self) -> Any:
        return self._reader.schema

    def to_reader(self) -> Any:
        return self._reader


class TableDataset(pa.dataset.Dataset):  # type: ignore[misc]
    """A table of a snapshot. Several threads may scan it."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        table: Table,
        name: str,
        times: tuple[int, int],
        on_error: Callable[[StreamdError], None],
    ) -> None:
        """name: of the table, for errors. times: of the first and the last event in microseconds,
        which bound `time` in this table. on_error: called with the error of a scan, since DuckDB
        passes on its text only."""
        self._snapshot = snapshot
        self._table = table
        self._name = name
        self._times = times
        self._on_error = on_error

    @property
    def schema(self) -> Any:
        return self._table.schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any
    ) -> TableScanner:
        """Scan some columns of the rows that a filter selects, an Arrow expression; DuckDB does not
        apply it again."""
        names = list(columns or self.schema.names)
        # A filter may name columns that are not read otherwise. Text in it may look like a name,
        # which costs a column at most.
        text = "" if filter is None else str(filter)
        needed = [*names, *(n for n in self.schema.names if n not in names and _names(text, n))]
        bounds = EARLIEST_US, LATEST_US
        if "time" in needed and filter is not None and _has_times(self.schema):
            bounds = self._bounds(filter)
        read = self._snapshot.read(self._table, self._name, needed, *bounds)
        schema = pa.schema([self.schema.field(name) for name in names])
        batches = self._select(read, names, filter)
        return TableScanner(pa.RecordBatchReader.from_batches(schema, batches))

    def _select(self, read: Any, names: Sequence[str], filter: Any) -> Iterator[Any]:
        """The rows and columns of a scan, batch by batch."""
        try:
            for batch in read:
                kept = batch if filter is None else batch.filter(filter).select(names)
                if kept.num_rows:
                    yield kept
        except StreamdError as error:
            self._on_error(error)
            raise

    def _bounds(self, filter: Any) -> tuple[int, int]:
        """The range of time [since, until) outside of which the filter selects nothing."""
        zones = _zones(self.schema, *self._times)
        numbers = [int(one.path) for one in zones.get_fragments(filter)]
        if not numbers:
            return 0, 0
        edges = _edges(*self._times)
        return int(edges[min(numbers)]), int(edges[max(numbers) + 1])


def _names(text: str, column: str) -> bool:
    """Whether the text of a filter names a column."""
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text) is not None


def _has_times(schema: Any) -> bool:
    return bool(schema.field("time").type == TIME)


def _edges(first_us: int, last_us: int) -> Any:
    """Bounds of the zones, int64[ZONES + 1] ascending; the last one is after the last time."""
    return np.linspace(first_us, last_us + 1, ZONES + 1).astype(np.int64)


@lru_cache(maxsize=64)
def _zones(schema: Any, first_us: int, last_us: int) -> Any:
    """A dataset with one fragment for each zone, whose guarantee is the zone's range of time. Arrow
    then finds the fragments that a filter may select; no fragment is ever read."""
    file = ds.ParquetFileFormat()
    system = pa.fs.LocalFileSystem()
    time = ds.field("time")
    edges = _edges(first_us, last_us).tolist()
    fragments = [
        file.make_fragment(
            str(number),
            system,
            (time >= pa.scalar(a, TIME)) & (time <= pa.scalar(b, TIME)),
        )
        for number, (a, b) in enumerate(zip(edges, edges[1:], strict=False))
    ]
    return ds.FileSystemDataset(fragments, schema, file, system)
