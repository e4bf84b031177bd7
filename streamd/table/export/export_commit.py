"""One commit of an export: the rows of a range of events, and the deletes since the last one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.events import Int64

TAIL_EVENTS = 16
"""Events whose times identify a log: two logs with the same times at the same ids are copies."""
NEW_FOLDER = "export into a new folder, or name the data_dir of the log that was exported here."


class ExportPosition(msgspec.Struct, frozen=True):
    """The position of a table in the log, stored with the table at each commit.

    start_event: first event id that was exported. next_event: the first one that is not yet.
    commit: of the log, as of which the newest rows were read. tail_first, tail_times: id of the
    first of some newest events before `next_event`, and their times in microseconds; they show
    whether a log is the one that was exported.
    """

    start_event: int
    next_event: int
    commit: int = 0
    tail_first: int = 0
    tail_times: tuple[int, ...] = ()

    def after(self, log: LogReader, end_event: int) -> "ExportPosition":
        """The position after the events before `end_event`."""
        # The log may have dropped some of the newest already.
        first = max(log.first_edge, end_event - TAIL_EVENTS)
        times = (
            log.time_of(np.arange(first, end_event)) if first < end_event else np.zeros(0, np.int64)
        )
        return ExportPosition(
            start_event=self.start_event,
            next_event=end_event,
            commit=log.state.seq,
            tail_first=first,
            tail_times=tuple(times.tolist()),
        )

    def check(self, log: LogReader, where: str) -> None:
        """Check that the log continues the table. where: the table. Raises: StreamdError if it is
        another log, is older than the table, or has dropped the next events."""
        # A restored log may lack the newest events.
        if log.num_edges < self.next_event:
            raise StreamdError(
                f"{where} has events up to {self.next_event:,}, but {log.data_dir} only up to "
                f"{log.num_edges:,}: it is another log, or was restored to an older commit.",
                NEW_FOLDER,
            )
        # Compaction keeps the times of events, and retention may have dropped the first ones.
        ids = np.arange(self.tail_first, self.tail_first + len(self.tail_times))
        kept = ids >= log.first_edge
        if (_times(log, ids[kept]) != np.array(self.tail_times, np.int64)[kept]).any():
            raise StreamdError(
                f"{where} has the events of another log than {log.data_dir}: the times of events "
                f"[{self.tail_first:,}, {self.next_event:,}) differ.",
                NEW_FOLDER,
            )
        # A gap in the table would not be seen later.
        if log.first_edge > self.next_event:
            raise StreamdError(
                f"The log dropped the events [{self.next_event:,}, {log.first_edge:,}) before they "
                f"were exported to {where}.",
                "export into a new folder, and let --follow run so that retention waits for it.",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportCommit:
    """The rows of one commit.

    first_event, end_event: range of event ids, all of one day in UTC; empty for deletes alone. day:
    of these, as YYYY-MM-DD. sets: an Arrow table by edge set, without the sets that have no row.
    schemas: the Arrow schema by edge set, of every set. deletes: Arrow table of
    `new_deletes.DELETES`. position: after the commit.
    """

    first_event: int
    end_event: int
    day: str
    sets: Mapping[str, Any]
    schemas: Mapping[str, Any]
    deletes: Any
    position: ExportPosition

    @property
    def num_rows(self) -> int:
        """Number of events."""
        return sum(table.num_rows for table in self.sets.values())


class ExportTables(Protocol):
    """The tables that an export appends to. Owner: the exporter.

    where: their place, for messages. position: None before the first commit.
    """

    @property
    def where(self) -> str: ...

    @property
    def position(self) -> ExportPosition | None: ...

    def deletes(self) -> tuple[Int64, Int64]:
        """The deletes in the table: event ids and node ids, int64 each, in any order."""

    def append(self, commit: ExportCommit) -> None:
        """Append a commit, whole or not at all as readers of the tables' own state see it. Raises:
        StreamdError."""


def _times(log: LogReader, event_ids: Int64) -> Int64:
    """Times of events in microseconds, int64; also of none, in a log without segments."""
    return log.time_of(event_ids) if len(event_ids) else np.zeros(0, np.int64)
