"""The table of scores that the scoring role wrote about the log's events.

They are in a topic or a file, not in the log: a row is an event of the log with its record.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.events import Bools, Int64
from streamd.scoring.record import ScoreRecord
from streamd.scoring.stored_scores import ScoreSource
from streamd.table.arrow_columns import TIME
from streamd.table.event_tables import BASE, MAPPED, EventColumns, Events

OF_RECORD: dict[str, tuple[Any, Callable[[ScoreRecord], Any]]] = {
    "version": (pa.string(), lambda one: one.version),
    "memory_event": (pa.int64(), lambda one: one.memory_event),
    "known": (pa.bool_(), lambda one: one.known),
    "score": (pa.float64(), lambda one: one.score),
    "rank": (pa.float64(), lambda one: one.rank),
    "candidates": (pa.int64(), lambda one: one.candidates),
    "surprise": (pa.float64(), lambda one: one.surprise),
    "p_value": (pa.float64(), lambda one: one.p_value),
    "scored_at": (TIME, lambda one: round(one.scored_at * 1e6)),
}
"""Column -> its Arrow type, and its value in a record; docs/scores.md describes them."""


class ScoreRows:
    """The events of a log that have a score, each once, in the order of their records.

    Records of deleted and of dropped events, and of other logs, are left out. A batch of the source
    is in memory at a time.
    """

    schema = pa.schema([*BASE, *((name, kind) for name, (kind, _) in OF_RECORD.items())])
    default_columns = ("event", "edge_set", *MAPPED, *OF_RECORD)

    def __init__(self, columns: EventColumns, source: ScoreSource) -> None:
        self._columns = columns
        self._log = columns.log
        self._source = source
        self._names = pa.array(self._log.state.schema.edge_set_names)

    def batches(
        self, columns: Sequence[str], since_us: int, until_us: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of rows, Arrow arrays by name) of the events with times in [since_us,
        until_us). Raises: StreamdError if the source cannot be read."""
        first, end = self._log.first_edge, self._log.num_edges
        # An event that was scored again has several records, of which one is kept.
        seen = np.zeros(end - first, np.bool_)
        for found in self._source.batches():
            records = [
                one
                for one in found
                if first <= one.event < end and since_us <= one.time_us < until_us
            ]
            if not records:
                continue
            ids = np.array([one.event for one in records], np.int64)
            rows = np.flatnonzero(self._matches(records, ids) & ~seen[ids - first])
            # A batch may have several records of an event too.
            rows = np.sort(rows[np.unique(ids[rows], return_index=True)[1]])
            seen[ids[rows] - first] = True
            if len(rows):
                kept = [records[row] for row in rows.tolist()]
                yield len(rows), self._arrays(columns, kept, ids[rows])

    def _matches(self, records: Sequence[ScoreRecord], ids_R: Int64) -> Bools:
        """Whether each record is about the log's event with its id, which is not deleted:
        bool[R]."""
        log = self._log
        matches: Bools = log.time_of(ids_R) == [one.time_us for one in records]
        matches &= ~log.deletions.hides_edges(ids_R)
        names = self._names.take(pa.array(log.edge_sets_of(ids_R)))
        matches &= _equal(names, [one.edge_set for one in records])
        # A deleted node has no key.
        for end, keys in (
            ("src", [str(one.src) for one in records]),
            ("dst", [str(one.dst) for one in records]),
        ):
            matches &= _equal(self._columns.keys.texts(log.gather(end, ids_R)), keys)
        return matches

    def _arrays(
        self, columns: Sequence[str], records: Sequence[ScoreRecord], ids_R: Int64
    ) -> dict[str, Any]:
        events = Events(lambda: ids_R, lambda name: self._log.gather(name, ids_R))
        return {name: self._make(name, records, events) for name in columns}

    def _make(self, name: str, records: Sequence[ScoreRecord], events: Events) -> Any:
        if name in OF_RECORD:
            kind, value_of = OF_RECORD[name]
            return pa.array(map(value_of, records), kind)
        if name == "edge_set":
            return self._names.take(pa.array(self._log.edge_sets_of(events.ids())))
        return self._columns.make(name, events)


def _equal(left: Any, right: Sequence[str]) -> Bools:
    """Whether the texts of an Arrow array equal others, bool of its length; null equals none."""
    same: Bools = pc.fill_null(pc.equal(left, pa.array(right)), False).to_numpy(
        zero_copy_only=False
    )
    return same
