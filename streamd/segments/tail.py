"""Follows the journal up to `published`: the log's state after the newest commit that readers may
use."""

import os
import weakref
from pathlib import Path
from typing import NamedTuple

from streamd.errors import JournalError
from streamd.segments.journal import LogState, decode_line, journal_files


class _Place(NamedTuple):
    """Where the line after those read begins. inode: of the file, whose place another may take."""

    journal: Path
    at: int
    inode: int


class JournalTail:
    """Owner: one thread; it holds no lock and writes nothing. state: after the newest commit taken
    in."""

    def __init__(self, data_dir: Path, published: int) -> None:
        """published: a descriptor of the file of that name, owned from here on; `open` has it.

        Raises: JournalError.
        """
        self.data_dir = data_dir
        self._file = published
        weakref.finalize(self, os.close, self._file)
        self.state, self._place = self._newest_checkpoint(self._published())
        self.refresh()

    @classmethod
    def open(cls, data_dir: Path) -> "JournalTail | None":
        """A tail at the newest commit; None where ingest has not made the log yet. Raises:
        JournalError."""
        try:
            published = os.open(data_dir / "published", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        return cls(data_dir, published)

    def refresh(self) -> bool:
        """Read what was committed since the last call; True if anything was. Raises: JournalError."""
        published = self._published()
        before = self.state.seq
        while self.state.seq < published:
            self._read_on(published)
        return self.state.seq > before

    def published_at(self) -> float:
        """Wall time of the newest commit, in seconds: when it was shown to readers."""
        return os.fstat(self._file).st_mtime

    def _published(self) -> int:
        return int.from_bytes(os.pread(self._file, 8, 0), "little")

    def _newest_checkpoint(self, published: int) -> tuple[LogState, _Place]:
        """The newest state that a journal file begins with, and the place behind it."""
        for path in reversed(journal_files(self.data_dir / "journal")):
            with path.open("rb") as file:
                line = file.readline()
                inode = os.fstat(file.fileno()).st_ino
            fields = decode_line(line)
            if fields is not None and fields["checkpoint"] <= published:
                return LogState.restored(fields), _Place(path, len(line), inode)
        raise JournalError(
            f"{self.data_dir}/journal has no checkpoint up to commit {published}.",
            "restore the data_dir from a backup.",
        )

    def _read_on(self, published: int) -> None:
        start = self.state.seq
        place = self._place
        try:
            file = place.journal.open("rb")
        except FileNotFoundError:
            self.state, self._place = self._newest_checkpoint(published)
            return
        with file:
            if os.fstat(file.fileno()).st_ino != place.inode:
                # A writer that started took the file's place with one of its own.
                self.state, self._place = self._newest_checkpoint(published)
                return
            file.seek(place.at)
            while self.state.seq < published:
                line = file.readline()
                fields = decode_line(line) if line else None
                if fields is None:
                    break
                self._place = self._place._replace(at=self._place.at + len(line))
                self.state = self.state.after(fields)
        if self.state.seq < published and self.state.seq == start:
            self._follow_roll(published)

    def _follow_roll(self, published: int) -> None:
        """Go on in the file behind the one that was read to its end."""
        place = self._place
        seq = self.state.seq
        following = self.data_dir / "journal" / f"{seq + 1:020d}.journal"
        if following == place.journal or not following.exists():
            if (
                self._published() != published
                or journal_files(self.data_dir / "journal")[0] > place.journal
            ):
                self.state, self._place = self._newest_checkpoint(published)
                return
            raise JournalError(
                f"Commit {seq + 1} is published, but {place.journal} does not hold it.",
                "restore the data_dir from a backup.",
            )
        with following.open("rb") as file:
            self._place = _Place(following, len(file.readline()), os.fstat(file.fileno()).st_ino)
