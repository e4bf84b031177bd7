"""The deletes that an exported table lacks, as rows of a table of their own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import read_compacted
from streamd.events import Int64

DELETES = pa.schema(
    [
        ("event", pa.int64()),
        ("edge_set", pa.string()),
        ("node", pa.int64()),
        ("node_set", pa.string()),
        ("before_event", pa.int64()),
        ("commit", pa.int64()),
    ]
)
"""A row has the `event` that was deleted, or the `node`, whose events are all deleted; then
`before_event` is the id of the first event after the delete. commit: of the log, as of which the
delete was exported."""
SCAN_EVENTS = 262_144
"""Events that are read at a time: their endpoints take 4 MiB."""


class NewDeletes:
    """Finds the deletes of a log that are not in a table yet. Owner: the exporter."""

    def __init__(self, event_ids: Int64, nodes: Int64, commit: int) -> None:
        """event_ids, nodes: the deletes in the table. commit: of the log, as of which it was
        written."""
        self._events = np.unique(event_ids)
        self._nodes = np.unique(nodes)
        self._commit = commit

    def read(self, log: LogReader, start_event: int, end_event: int) -> Any:
        """The deletes of events in [start_event, end_event), and of nodes, that are not in the
        table: an Arrow table of `DELETES`."""
        # Deletes of single events; a compaction leaves only the reserved node in their rows.
        events = log.deletions.edges
        done = read_compacted(log.data_dir)
        if done is not None and done.seq > self._commit:
            events = np.concatenate([events, *overwritten_events(log, start_event, end_event)])
        events = np.unique(events[(events >= start_event) & (events < end_event)])
        events = np.setdiff1d(events, self._events, assume_unique=True)
        # Deletes of nodes are never lost.
        gone = log.deletions.of_nodes
        new = ~np.isin(gone.node, self._nodes)
        nodes, before = gone.node[new], gone.edge[new]

        # Events first, then nodes; a column of the other kind is null.
        schema = log.state.schema
        # Sets of events that retention dropped are unknown.
        known = events >= log.first_edge
        numbers = np.zeros(len(events), np.int64)
        numbers[known] = log.edge_sets_of(events[known])
        edge_set = pa.array(schema.edge_set_names).take(pa.array(numbers, mask=~known))
        node_set = pa.array(schema.node_set_names).take(pa.array(log.node_sets_of(nodes)))
        no_event = pa.nulls(len(nodes), pa.int64())
        no_node = pa.nulls(len(events), pa.int64())
        columns = [
            pa.concat_arrays([pa.array(events), no_event]),
            pa.concat_arrays([edge_set, pa.nulls(len(nodes), pa.string())]),
            pa.concat_arrays([no_node, pa.array(nodes)]),
            pa.concat_arrays([pa.nulls(len(events), pa.string()), node_set]),
            pa.concat_arrays([no_node, pa.array(before)]),
            pa.array(np.full(len(events) + len(nodes), log.state.seq)),
        ]
        return pa.Table.from_arrays(columns, schema=DELETES)

    def add(self, deletes: Any, commit: int) -> None:
        """Note deletes that were written. commit: of the log, as of which they were read."""
        for name, known in (("event", self._events), ("node", self._nodes)):
            new = deletes[name].drop_null().to_numpy()
            both = np.union1d(known, new)
            if name == "event":
                self._events = both
            else:
                self._nodes = both
        self._commit = commit


def overwritten_events(log: LogReader, first_event: int, end_event: int) -> Iterator[Int64]:
    """Yield the ids of events in [first_event, end_event) that a compaction has overwritten: their
    endpoints are the reserved node, which was never deleted."""
    deleted = log.deletions.nodes
    for a in range(max(first_event, log.first_edge), end_event, SCAN_EVENTS):
        src = log.edges(a, min(a + SCAN_EVENTS, end_event))[0]
        gone = np.flatnonzero(log.deletions.is_gone(src))
        yield a + gone[~np.isin(src[gone], deleted)]
