"""Follows the journal up to `published`, so that readers know the log's state after the newest
commit they may use."""

import os
import weakref
from pathlib import Path
from typing import NamedTuple

from streamd.errors import JournalError
from streamd.eventlog.journal.journal import LogState, decode_line, journal_files


class _Position(NamedTuple):
    """The start of the next line to read: byte `at` of a journal file.

    inode: of that file, because a new writer may replace it by another of the same name.
    """

    journal: Path
    at: int
    inode: int


def events_shown(data_dir: Path) -> int:
    """Number of published events of a log, with those that were dropped; 0 if there is no log.
    Raises: JournalError."""
    tail = JournalTail.open(data_dir)
    return 0 if tail is None else tail.state.num_edges


class JournalTail:
    """Follows the journal of a log. Owner: one thread; it takes no lock and writes nothing.

    It ends at a change of the schema, so that all that is derived from the log has one schema.
    state: of the log after the newest commit read. superseded: whether the log continues with
    another schema; then the state no longer changes.
    """

    def __init__(self, data_dir: Path, published: int, until: int | None = None) -> None:
        """published: an open descriptor of the file `published`, owned from here on. until: the
        last commit that the tail ever reads, None for no such bound.

        Use `open` to build a tail. Raises: JournalError.
        """
        self.data_dir = data_dir
        self._file = published
        self._until = until
        # A tail has no `close`: the descriptor is closed with it.
        weakref.finalize(self, os.close, self._file)
        self.superseded = False
        self._is_open = False
        self.state, self._position = self._newest_checkpoint(self._published_seq())
        self.refresh()
        self._is_open = True

    @classmethod
    def open(cls, data_dir: Path, until: int | None = None) -> "JournalTail | None":
        """Open a tail at the newest commit, with `until` at most at that one, for good; None if
        ingest has not made the log yet. Raises: JournalError."""
        try:
            published = os.open(data_dir / "published", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return cls(data_dir, published, until)

    def refresh(self, until: int | None = None) -> bool:
        """Read the commits since the last call, with `until` up to that one. Returns: whether there
        were any. Raises: JournalError, also if another log has replaced the opened one."""
        self._check_same_log()
        published = self._published_seq()
        if until is not None:
            published = min(published, until)
        before = self.state
        while self.state.seq < published and not self.superseded:
            self._read_on(published)
        # Commits before the change may name files that are gone by now: take none of them.
        if self.superseded:
            self.state = before
        return self.state.seq > before.seq

    def _check_same_log(self) -> None:
        """Check that the directory still has the opened log: a follower that lags too far replaces
        it by a newer one."""
        try:
            now = (self.data_dir / "published").stat()
        except FileNotFoundError:
            # The new log is being moved there.
            return
        if not os.path.samestat(now, os.fstat(self._file)):
            raise JournalError(
                f"The log in {self.data_dir} was replaced by a newer one.",
                "none is needed: its readers start again.",
            )

    def published_at(self) -> float:
        """Wall time, in seconds, of the newest commit's publication."""
        return os.fstat(self._file).st_mtime

    def _published_seq(self) -> int:
        published = int.from_bytes(os.pread(self._file, 8, 0), "little")
        return published if self._until is None else min(published, self._until)

    def _newest_checkpoint(self, published: int) -> tuple[LogState, _Position]:
        """Read the newest published checkpoint at the start of a journal file, and the position
        after it."""
        for path in reversed(journal_files(self.data_dir / "journal")):
            with path.open("rb") as file:
                line = file.readline()
                inode = os.fstat(file.fileno()).st_ino
            fields = decode_line(line)
            if fields is not None and fields["checkpoint"] <= published:
                return LogState.restored(fields), _Position(path, len(line), inode)
        raise JournalError(
            f"{self.data_dir}/journal has no checkpoint up to commit {published}.",
            "restore the data_dir from a backup.",
        )

    def _read_on(self, published: int) -> None:
        """Read the published lines of the current file, or move to another file."""
        # Open the file at the position; retention may have dropped it.
        start = self.state.seq
        position = self._position
        try:
            file = position.journal.open("rb")
        except FileNotFoundError:
            self._begin_again(published)
            return

        # Apply its lines as long as they are whole and published.
        with file:
            if os.fstat(file.fileno()).st_ino != position.inode:
                # A writer that started has replaced the file by its own.
                self._begin_again(published)
                return
            file.seek(position.at)
            while self.state.seq < published:
                line = file.readline()
                fields = decode_line(line) if line else None
                if fields is None:
                    break
                after = self.state.after(fields)
                if self._is_other(after):
                    return
                self._position = self._position._replace(at=self._position.at + len(line))
                self.state = after

        # Nothing read, though more is published: the journal continues in another file.
        if self.state.seq < published and self.state.seq == start:
            self._follow_roll(published)

    def _is_other(self, state: LogState) -> bool:
        """Whether a state has another schema than the tail was opened with, which ends the tail."""
        self.superseded = self._is_open and state.schema != self.state.schema
        return self.superseded

    def _begin_again(self, published: int) -> None:
        """Move to the newest file with a published checkpoint."""
        state, position = self._newest_checkpoint(published)
        if not self._is_other(state):
            self.state, self._position = state, position

    def _follow_roll(self, published: int) -> None:
        """Move to the journal file after the one that was read to its end. Raises: JournalError if
        it is missing."""
        journal = self._position.journal
        seq = self.state.seq
        following = self.data_dir / "journal" / f"{seq + 1:020d}.journal"
        if following == journal or not following.exists():
            # The writer committed more meanwhile, or retention dropped the file: begin again.
            if (
                self._published_seq() != published
                or journal_files(self.data_dir / "journal")[0] > journal
            ):
                self._begin_again(published)
                return
            raise JournalError(
                f"Commit {seq + 1} is published, but {journal} does not have it.",
                "restore the data_dir from a backup.",
            )

        # Its first line is a checkpoint of the state that is already known.
        with following.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            self._position = _Position(following, len(file.readline()), inode)
