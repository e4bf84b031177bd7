"""The columns of exported events, and their rows by edge set."""

from typing import Any

import pyarrow as pa

from streamd.eventlog.reader import LogReader
from streamd.table.arrow_columns import FEATURES, PREFIX
from streamd.table.event_tables import BASE, EventColumns, SetEvents
from streamd.table.keys import NodeKeys

DAY, EDGE_SET = "day", "edge_set"
"""Columns by which the table is partitioned: they are in the names of folders, not in the files."""


class SetTables:
    """The events of a log by edge set, as they are exported: the columns of every set, and each
    declared feature, or `features` if none is declared. Owner: the exporter.

    seq: commit as of which the keys are read.
    """

    def __init__(self, log: LogReader) -> None:
        self.seq = log.state.seq
        columns = EventColumns(log, NodeKeys(log))
        names = log.state.schema.edge_set_names
        self._sets = {name: SetEvents(columns, number) for number, name in enumerate(names)}
        self._columns = {name: _columns_of(events) for name, events in self._sets.items()}
        self.schemas: dict[str, Any] = {
            name: pa.schema(
                [events.schema.field(column).with_name(new) for column, new in renamed.items()]
            )
            for (name, events), renamed in zip(
                self._sets.items(), self._columns.values(), strict=True
            )
        }

    def read(self, first_event: int, end_event: int) -> dict[str, Any]:
        """The events [first_event, end_event) that are not deleted: an Arrow table by edge set,
        without the sets that have none."""
        # One table for each set: sets have columns of their own.
        out = {}
        for name, events in self._sets.items():
            columns = list(self._columns[name])
            schema = self.schemas[name]
            batches = [
                pa.RecordBatch.from_arrays([arrays[column] for column in columns], schema=schema)
                for _, arrays in events.batches_with_ids(columns, first_event, end_event)
            ]
            if batches:
                out[name] = pa.Table.from_batches(batches)
        return out


def _columns_of(events: SetEvents) -> dict[str, str]:
    """The exported columns of a set -> their names in the files."""
    # `features` has all of them again, so it is for sets without declared ones.
    named = [name for name in events.schema.names if name not in (*BASE.names, FEATURES)]
    columns = [name for name in BASE.names if name != EDGE_SET] + named
    if not named and FEATURES in events.schema.names:
        columns.append(FEATURES)
    # A feature may be called as the partitions are.
    known = {name.lower() for name in columns}
    renamed = {}
    for name in columns:
        new = name
        while new.lower() == DAY or (new != name and new.lower() in known):
            new = PREFIX + new
        renamed[name] = new
    return renamed
