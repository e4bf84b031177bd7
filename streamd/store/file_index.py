"""An index of stored files: what did not change since it was read is not read again.

An entry says that a file of this inode, size and time of change begins with the bytes of these
pieces. That is about the local file alone, so it stays true whatever the store holds.
"""

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from streamd.eventlog.journal.journal import SETTLED_NS, decode_line, encode_line
from streamd.storage import DISK, Disk, write_durably
from streamd.store.file_set import StoredFile

logger = structlog.get_logger()
FILE = "index"
"""Name of the file that keeps the index of one kind of upload."""


class FileStat(NamedTuple):
    """What changes when a file does: its inode, bytes and time of change in nanoseconds."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileStat":
        """Of a file. Raises: FileNotFoundError."""
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Entry(msgspec.Struct, frozen=True):
    """A file as it was read, and what is stored of it."""

    stat: FileStat
    stored: StoredFile


class FileIndex:
    """Knows which pieces make up files that did not change. Owner: one upload at a time, by the
    lock of its folder."""

    def __init__(self, path: Path | None = None) -> None:
        """path: the file that keeps the index, which may be missing; None for an index that is
        not kept. A damaged one counts as missing: files are read again."""
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._changed = False
        if path is None or not path.exists():
            return
        try:
            fields = decode_line(path.read_bytes())
            self._entries = msgspec.convert(fields, dict[str, Entry])
        except msgspec.MsgspecError as error:
            logger.warning("index_damaged", path=str(path), error=str(error))

    def find(self, path: str, stat: FileStat) -> StoredFile | None:
        """What is stored of a file that is as it was read; None where it has changed since."""
        entry = self._entries.get(path)
        return entry.stored if entry is not None and entry.stat == stat else None

    def note(self, stat: FileStat, stored: StoredFile) -> None:
        """Note what was read of a file, which was as `stat` says before it was read."""
        # A second change within one tick of the clock would not show.
        if time.time_ns() - stat.changed_ns < SETTLED_NS:
            return
        entry = Entry(stat, stored)
        self._changed |= self._entries.get(stored.path) != entry
        self._entries[stored.path] = entry

    def keep(self, paths: set[str], disk: Disk = DISK) -> None:
        """Forget all other files, and write the index where it changed. Raises: OSError."""
        gone = self._entries.keys() - paths
        for path in gone:
            del self._entries[path]
        if self._path is not None and (gone or self._changed):
            write_durably(self._path, encode_line(msgspec.to_builtins(self._entries)), disk)
        self._changed = False
