"""Reads the lines that entries of the outbox have brought into a log."""

import threading
from pathlib import Path

from streamd.errors import JournalError
from streamd.eventlog.journal.journal import NOTHING, FileState, LogState
from streamd.eventlog.journal.tail import JournalTail
from streamd.schema import Schema


class LearnedLog:
    """Follows the published lines of `layout.LINES`. Safe to use from several threads."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._lock = threading.Lock()
        self._tail: JournalTail | None = None
        self._read: dict[str, tuple[FileState, list[bytes]]] = {}
        """The lines read so far, by path, and the state of the file that has them."""

    def state(self) -> LogState:
        """The log's state after the newest published commit; that of an empty log if there is none.
        Raises: JournalError."""
        with self._lock:
            return self._refresh()

    def num_bytes(self, path: str) -> int:
        """Published bytes of a file. Raises: JournalError."""
        return self.state().files.get(path, NOTHING).num_bytes

    def lines(self, path: str) -> list[bytes]:
        """All published lines of a file, without their ends. The caller must not change the list.
        Raises: JournalError, OSError."""
        with self._lock:
            now = self._refresh().files.get(path, NOTHING)
            before, lines = self._read.get(path, (NOTHING, []))
            if now == before:
                return lines
            # A follower may have replaced the log: then nothing of it is the same.
            if now.num_bytes < before.num_bytes:
                before, lines = NOTHING, []
            with (self.data_dir / path).open("rb") as file:
                file.seek(before.num_bytes)
                data = file.read(now.num_bytes - before.num_bytes)
            # A new list, since others may still use the one before.
            lines = lines + data.split(b"\n")[:-1]
            self._read[path] = now, lines
            return lines

    def _refresh(self) -> LogState:
        """Read the commits since the last call."""
        try:
            if self._tail is not None:
                self._tail.refresh()
        except JournalError:
            # Another log has replaced this one; its own tail starts again.
            self._tail = None
            self._read.clear()
        # A tail ends when the log gets another schema, which means nothing to these files.
        if self._tail is None or self._tail.superseded:
            self._tail = JournalTail.open(self.data_dir)
        return LogState(Schema()) if self._tail is None else self._tail.state
