"""Follows the journal up to `published`: the log's state after the newest commit that readers may use."""

import os
import weakref
from pathlib import Path

from streamd.errors import JournalError
from streamd.segments.journal import LogState, decode_line, journal_files


class JournalTail:
    """Owner: one thread; it holds no lock and writes nothing. state: None before the first commit."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.state: LogState | None = None
        self._journal: Path | None = None
        self._at = self._inode = 0
        self._taken = -1
        self._file: int | None = None

    def refresh(self) -> bool:
        """Read what was committed since the last call; True if anything was. Raises: JournalError."""
        published = self._published()
        if self.state is None and published is not None:
            self._open_newest(published)
        if self.state is None or published is None:
            return False
        while self.state.seq < published:
            self._read_on(published)
        if self.state.seq == self._taken:
            return False
        self._taken = self.state.seq
        return True

    def is_newest(self) -> bool:
        """Whether no commit was published since the last refresh."""
        return self._published() == self._taken

    def published_at(self) -> float:
        """Wall time of the newest commit, in seconds: when it was shown to readers. 0 before the first."""
        return 0.0 if self._file is None else os.fstat(self._file).st_mtime

    def _published(self) -> int | None:
        if self._file is None:
            try:
                self._file = os.open(self.data_dir / "published", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            weakref.finalize(self, os.close, self._file)
        return int.from_bytes(os.pread(self._file, 8, 0), "little")

    def _open_newest(self, published: int) -> None:
        for path in reversed(journal_files(self.data_dir / "journal")):
            with path.open("rb") as file:
                line, inode = file.readline(), os.fstat(file.fileno()).st_ino
            fields = decode_line(line)
            if fields is not None and fields["checkpoint"] <= published:
                self._journal, self._at, self._inode = path, len(line), inode
                self.state = LogState.restored(fields)
                return
        raise JournalError(f"{self.data_dir}/journal has no checkpoint up to commit {published}.",
                           "restore the data_dir from a backup.")

    def _read_on(self, published: int) -> None:
        assert self.state is not None and self._journal is not None
        start = self.state.seq
        try:
            file = self._journal.open("rb")
        except FileNotFoundError:
            self._open_newest(published)
            return
        with file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                self._open_newest(published)  # a writer that started took the file's place with one of its own
                return
            file.seek(self._at)
            while self.state.seq < published:
                line = file.readline()
                fields = decode_line(line) if line else None
                if fields is None:
                    break
                self._at += len(line)
                self.state = self.state.after(fields)
        if self.state.seq < published and self.state.seq == start:
            following = self.data_dir / "journal" / f"{start + 1:020d}.journal"
            if following == self._journal or not following.exists():
                if self._published() != published or journal_files(self.data_dir / "journal")[0] > self._journal:
                    self._open_newest(published)
                    return
                raise JournalError(f"Commit {start + 1} is published, but {self._journal} does not hold it.",
                                   "restore the data_dir from a backup.")
            with following.open("rb") as file:
                self._journal, self._at = following, len(file.readline())
                self._inode = os.fstat(file.fileno()).st_ino
