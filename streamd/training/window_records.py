"""Writes the records of windows, so that a restart at any moment has each of them once."""

from pathlib import Path

from streamd.eventlog.layout import WINDOWS
from streamd.registry.journal import ModelJournal
from streamd.training.checkpoint import Cursor
from streamd.windows.history import (
    FILE,
    HistoryReader,
    WindowRecord,
    append_record,
    history_until,
    truncate_records,
)


class WindowRecords:
    """The records of windows. Owner: the ledger of the first rank.

    If the records are lines of the log, which cannot be truncated:

    1. `add` keeps the record of a window.
    2. The checkpoint after the window holds it (`waiting`).
    3. `send` puts it into the outbox. Before step 2, a restart would repeat a window that the log
       has already.

    A restart between 2 and 3 sends the records of its checkpoint that the log lacks. Only a trainer
    that has lost its checkpoint repeats windows; `HistoryReader` takes their newest records.

    Otherwise step 1 appends the record to the local file. The checkpoint has the file's valid
    length, and a restart truncates the file to it.
    """

    def __init__(self, learned: Path, journal: ModelJournal) -> None:
        """learned: directory of the local file. journal: of the registry, which has the lock and
        the log."""
        self._learned = learned
        self._journal = journal
        self._lines = journal.lines_of(WINDOWS, learned / FILE)
        self._waiting: list[str] = []
        self._valid_until: int | None = None
        """Records of windows after this event are invalid; None if all records are valid."""
        self.num_bytes = 0
        """Valid length of the local file; 0 if the log has the records."""
        self.was_moved = False
        """Whether the records have moved out of the log since the last checkpoint."""

    @property
    def waiting(self) -> list[str] | None:
        """The records for the next checkpoint, encoded; None if they are in the local file."""
        return None if self._lines.in_log is None else self._waiting

    def add(self, record: WindowRecord) -> None:
        """Add the record of the newest window. It becomes valid with the next checkpoint."""
        if self._lines.in_log is None:
            self.num_bytes = append_record(self._learned, record)
        else:
            self._waiting.append(record.line().decode())

    def send(self) -> None:
        """Put the records of the checkpoint that was just written into the log's next commit; do
        not wait for it."""
        lines, self._waiting = self._waiting, []
        if lines and self._lines.in_log is not None:
            with self._journal.lock:
                self._lines.append_soon([line.encode() for line in lines])

    def restore(self, cursor: Cursor) -> None:
        """Take over the records of a checkpoint."""
        self.num_bytes = cursor.history_bytes
        self._waiting = list(cursor.records or ())
        self.was_moved = cursor.records is not None and self._lines.in_log is None

    def forget(self) -> None:
        """Invalidate all records: training starts over at the log's first event."""
        self.num_bytes = self._valid_until = 0

    def rewind_to(self, event: int) -> None:
        """Invalidate the records of windows after an event: training continues from there without a
        checkpoint."""
        self._valid_until = event
        self.num_bytes = history_until(self._learned, event)

    def resume(self, event: int) -> list[WindowRecord]:
        """Make log or local file hold the valid records. event: from which training continues.
        Returns: the valid records, oldest first."""
        if self._lines.in_log is None:
            self._resume_outside_log(event)
        else:
            self._resume_in_log()
        records = HistoryReader(self._learned).refresh()
        if self._valid_until is None:
            return records
        return [record for record in records if record.end_edge <= self._valid_until]

    def _resume_in_log(self) -> None:
        """Bring the records of the local file and of the checkpoint into the log."""
        with self._journal.lock:
            # An older release, or the time with other machines, has left the local file.
            if (self._learned / FILE).exists():
                truncate_records(self._learned, self.num_bytes)
            self.num_bytes = 0
            self._lines.settle()
            lines = self._lines.missing([line.encode() for line in self._waiting])
            self._waiting = []
            if lines:
                self._lines.append(lines)

    def _resume_outside_log(self, event: int) -> None:
        """Truncate the local file to its valid length. If the log had the records until
        then, first copy them out of it."""
        if self.was_moved:
            with self._journal.lock:
                self._lines.copy_to_local(self._learned)
            known = {record.line() for record in HistoryReader(self._learned).refresh()}
            for line in self._waiting:
                if line.encode() not in known:
                    self._lines.append([line.encode()])
            self._waiting = []
            self.num_bytes = history_until(self._learned, event)
        truncate_records(self._learned, self.num_bytes)
