"""Exports a log to tables, commit by commit, once or as it grows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import DataDirectoryError, JournalError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import read_compacted
from streamd.table.export.export_commit import ExportCommit, ExportPosition, ExportTables
from streamd.table.export.new_deletes import NewDeletes
from streamd.table.export.set_tables import SetTables
from streamd.table.lease import Lease

DAY_US = 86_400_000_000
DELETES_SECONDS = 10.0
"""Least time between two commits of deletes alone, so that many deletes do not make as many
files."""
LEASE_SECONDS = 600.0
"""Time for which retention waits for an exporter that was killed."""


@dataclass(frozen=True)
class EventRange:
    """Events [first, end) of one day. day_us: start of the day in microseconds. is_whole: whether
    the day has ended, or the range has as many events as a commit may have."""

    first: int
    end: int
    day_us: int
    is_whole: bool


def next_range(log: LogReader, first: int, most_events: int) -> EventRange | None:
    """The next range of at most `most_events` events from an event id on; None at the log's end."""
    if first >= log.num_edges:
        return None
    time_us = int(log.time_of(np.array([first]))[0])
    day_us = time_us // DAY_US * DAY_US
    day_end = log.lower_bound(day_us + DAY_US)
    end = min(first + most_events, day_end)
    # Every later event is at or after the watermark.
    has_ended = log.watermark >= day_us + DAY_US
    return EventRange(first, end, day_us, has_ended or end == first + most_events)


class Exporter:
    """Appends a log's new events and deletes to tables. Owner: the command.

    It is a lease on the events that are not exported yet: retention keeps them, but not longer than
    LEASE_SECONDS after it was killed.
    """

    def __init__(
        self,
        data_dir: Path,
        tables: ExportTables,
        most_events: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """most_events: of a commit, which are in memory at once. Raises: StreamdError if the tables
        are of another log."""
        self._data_dir = data_dir
        self._tables = tables
        self._most = most_events
        self._now = now
        self._log = self._open()
        first = self._log.first_edge
        position = tables.position or ExportPosition(first, first)
        position.check(self._log, tables.where)
        self._position = position
        self._compacted = read_compacted(data_dir)
        self._lease = Lease(data_dir, position.next_event, self._log.state.seq, LEASE_SECONDS)
        # A segment may have been dropped before the lease was there.
        self._log.refresh()
        position.check(self._log, tables.where)
        self._new_deletes = NewDeletes(*tables.deletes(), position.commit)
        self._set_tables: SetTables | None = None
        self._num_deletes = -1
        self._deletes_at = -DELETES_SECONDS

    @property
    def position(self) -> ExportPosition:
        return self._position

    @property
    def num_left(self) -> int:
        """Number of events of the log that are not exported yet, as of the newest read."""
        return self._log.num_edges - self._position.next_event

    def close(self) -> None:
        """End the lease."""
        self._lease.close()

    def refresh(self) -> None:
        """Read the log's new commits. Raises: StreamdError."""
        try:
            self._log.refresh()
        except JournalError:
            # A replica may have replaced the log by a newer one.
            self._log = self._open()
            self._position.check(self._log, self._tables.where)
        # A log with further sets or features is read by another reader.
        if self._log.superseded:
            self._log = self._open()
        self._renew()

    def step(self, *, whole: bool) -> ExportCommit | None:
        """Append one commit: of the next events, and all new deletes. whole: leave events of a day
        that has not ended, if they are fewer than a commit may have. Returns: the commit; None if
        there is nothing to append. Raises: StreamdError."""
        log = self._log
        self._lease.use()
        events = next_range(log, self._position.next_event, self._most)
        # The rest of a day waits for its end.
        if events is not None and whole and not events.is_whole:
            events = None
        has_deletes = log.deletions.count != self._num_deletes
        if events is None and (not has_deletes or self._waits_with_deletes(whole)):
            return None

        # Read the rows, and the deletes of all events up to them.
        first = self._position.next_event
        end = events.end if events else first
        if self._set_tables is None or self._set_tables.seq != log.state.seq:
            self._set_tables = SetTables(log)
        tables = self._set_tables
        deletes = self._new_deletes.read(log, self._position.start_event, end)
        if events is None and not deletes.num_rows:
            self._num_deletes = log.deletions.count
            return None
        commit = ExportCommit(
            first_event=first,
            end_event=end,
            day=str(np.datetime64(events.day_us, "us").astype("datetime64[D]")) if events else "",
            sets=tables.read(first, end),
            schemas=tables.schemas,
            deletes=deletes,
            position=self._position.after(log, end),
        )

        # Only after the commit is durable may retention drop its events.
        self._tables.append(commit)
        self._position = commit.position
        self._lease.move(self._position.next_event, log.state.seq)
        self._new_deletes.add(deletes, log.state.seq)
        self._num_deletes = log.deletions.count
        if deletes.num_rows:
            self._deletes_at = self._now()
        return commit

    def _renew(self) -> None:
        """Renew the lease. A proof of erasure must see at once that no file from before a
        compaction is mapped any more."""
        done = read_compacted(self._data_dir)
        is_new = done is not None and done != self._compacted
        self._compacted = done
        self._lease.move(self._position.next_event, self._log.state.seq, at_once=is_new)

    def _waits_with_deletes(self, whole: bool) -> bool:
        """Whether deletes alone wait for others, because some were just written."""
        return whole and self._now() - self._deletes_at < DELETES_SECONDS

    def _open(self) -> LogReader:
        log = LogReader.open(self._data_dir, keep_keys=False)
        if log is None:
            raise DataDirectoryError(
                f"{self._data_dir} holds no log.", "name the data_dir of a log."
            )
        return log
