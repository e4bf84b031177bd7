"""An index of files by which an upload need not read unchanged files again.

An entry records that a local file with this inode, size and modification time starts with the bytes
of certain pieces. It does not depend on the content of the store.
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
"""Name of the file with the index of one kind of upload."""


class FileStat(NamedTuple):
    """Values that change with a file: its inode, size in bytes, and modification time in
    nanoseconds."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileStat":
        """The values of a file. Raises: FileNotFoundError."""
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Entry(msgspec.Struct, frozen=True):
    """A file as it was read, and its stored pieces."""

    stat: FileStat
    stored: StoredFile


class FileIndex:
    """The pieces of files as they were last read. Owner: one upload at a time, by the lock of its
    folder."""

    def __init__(self, path: Path | None = None) -> None:
        """path: the index's file, which may be missing; None for an index in memory only. If the
        file is damaged, the index is empty, and all files are read again."""
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._changed = False
        if path is None or not path.exists():
            return
        try:
            fields = decode_line(path.read_bytes())
            self._entries = msgspec.convert(fields, dict[str, Entry])
        except msgspec.MsgspecError as error:
            logger.warning(
                "index_damaged",
                path=str(path),
                error=str(error),
                meaning="this upload reads all files again, and writes a new index",
            )

    def find(self, path: str, stat: FileStat) -> StoredFile | None:
        """Look up the pieces of a file; None if it has changed since it was read."""
        entry = self._entries.get(path)
        return entry.stored if entry is not None and entry.stat == stat else None

    def note(self, stat: FileStat, stored: StoredFile) -> None:
        """Record the pieces of a file. stat: of the file before it was read."""
        # Do not record a file that has just changed: its modification time may stay the same at
        # another change within the same tick of the clock.
        if time.time_ns() - stat.changed_ns < SETTLED_NS:
            return
        entry = Entry(stat, stored)
        self._changed |= self._entries.get(stored.path) != entry
        self._entries[stored.path] = entry

    def keep(self, paths: set[str], disk: Disk = DISK) -> None:
        """Forget all other files, and write the index if it changed. Raises: OSError."""
        gone = self._entries.keys() - paths
        for path in gone:
            del self._entries[path]
        if self._path is not None and (gone or self._changed):
            write_durably(self._path, encode_line(msgspec.to_builtins(self._entries)), disk)
        self._changed = False
