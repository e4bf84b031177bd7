"""Removes the dead letters that contain a key from the local files, in any process."""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from streamd.errors import DiskError
from streamd.events import Key
from streamd.ingest.dead_letters.search import SoughtKeys
from streamd.storage import DISK, SCRATCH, Disk, FileWithHoles

FOLDER = "deadletter"
FILES = "previous.jsonl", "current.jsonl"
"""The files of letters in that folder, older letters first."""
PURGED = f".purged{SCRATCH}"
"""Scratch file in that folder: a purge's copy of a file, which then replaces the file."""
PURGE_LOCK = "purge.lock"
"""Lock file in that folder: only one process purges at a time."""
KEYS_PER_STEP = 10_000
"""Keys that one step of a purge adds to the search: some 10 ms."""


@contextmanager
def lock_of(folder: Path) -> Iterator[None]:
    """Lock the files of a folder: no other process writes, renames or replaces one meanwhile. A
    process holds the lock for milliseconds."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def as_disk_error(folder: Path) -> Iterator[None]:
    """Convert an OSError to a DiskError with an action for the operator."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"A dead letter in {folder} could not be written: {error.strerror or error}.",
            "free space or repair the disk; ingest resumes from the last commit by itself.",
        ) from error


class LetterPurge:
    """Removes letters from the local files, while the same or another process adds letters. Owner:
    ingest's housekeeping, or a command.

    num_removed: letters removed so far. is_waiting: whether another process is purging.

    Raises: DiskError if a write or sync fails.
    """

    def __init__(self, folder: Path, prefixes: Collection[str] = (), disk: Disk = DISK) -> None:
        """prefixes: those that mappings put before keys, which are not in the records."""
        self._folder = folder
        self._prefixes = prefixes
        self._disk = disk
        self.num_removed = 0
        self.is_waiting = False

    def remove(self, keys: Collection[Key]) -> Iterator[None]:
        """Remove the letters that contain one of the keys, and those that cannot be searched. A
        step handles one letter or some keys; between steps letters may be added.

        The time is linear in letters + keys: see `SoughtKeys`.
        """
        if not keys or not self._folder.exists():
            return
        sought = SoughtKeys(self._prefixes)
        for number, key in enumerate(keys, 1):
            sought.add(key)
            if number % KEYS_PER_STEP == 0:
                yield
        while (lock := self._try_lock()) < 0:
            self.is_waiting = True
            yield
        self.is_waiting = False
        try:
            yield from self._rewrite_all(sought)
        finally:
            self._disk.close(lock)

    def sweep(self) -> None:
        """Remove the scratch file of a purge that was killed: it contains letters."""
        if (self._folder / PURGED).exists() and (lock := self._try_lock()) >= 0:
            try:
                self._disk.unlink(self._folder / PURGED)
            finally:
                self._disk.close(lock)

    def _try_lock(self) -> int:
        """Take the lock of purges. Returns: its descriptor, -1 if another process has it."""
        with as_disk_error(self._folder):
            fd = self._disk.open(self._folder / PURGE_LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._disk.close(fd)
                return -1
            except OSError:
                self._disk.close(fd)
                raise
        return fd

    def _rewrite_all(self, sought: SoughtKeys) -> Iterator[None]:
        """Rewrite the files without the letters that contain a key."""
        # New letters may fill the current file and so rename it to the previous one: search the
        # files that are opened now, even if they are renamed later.
        files: list[BinaryIO] = []
        try:
            with as_disk_error(self._folder), lock_of(self._folder):
                paths = [self._folder / name for name in FILES]
                files += [path.open("rb") for path in paths if path.exists()]
            for file in files:
                yield from self._rewrite(sought, file)
        finally:
            for file in files:
                file.close()
        # This also makes the renames of an earlier purge that failed durable.
        with as_disk_error(self._folder):
            self._disk.sync_folder(self._folder)

    def _rewrite(self, sought: SoughtKeys, file: BinaryIO) -> Iterator[None]:
        """Replace a file by a copy without the letters that contain a key:

        1. Copy the complete lines, while letters may be added.
        2. Make the copy durable, which takes most of the time, before the lock.
        3. Under the lock: copy the lines that were added since, and rename the copy. A letter that
           is added between these two would be lost.
        """
        scratch = self._folder / PURGED
        with as_disk_error(self._folder):
            copy = FileWithHoles(scratch, self._disk)
            try:
                # 1. A line without its end is being written by another process.
                while (line := file.readline()).endswith(b"\n"):
                    self._copy(sought, line, copy)
                    yield
                file.seek(-len(line), os.SEEK_CUR)
                # 2.
                copy.finish()
                # 3. A line without its end was torn by a crash.
                with lock_of(self._folder):
                    while (line := file.readline()).endswith(b"\n"):
                        self._copy(sought, line, copy)
                    copy.finish()
                    self._replace(file, scratch, copy.num_bytes)
            except OSError:
                self._disk.unlink(scratch)
                raise
            finally:
                self._disk.close(copy.fd)

    def _copy(self, sought: SoughtKeys, line: bytes, copy: FileWithHoles) -> None:
        if sought.are_in(line):
            self.num_removed += 1
        else:
            copy.append(line)

    def _replace(self, file: BinaryIO, scratch: Path, num_bytes: int) -> None:
        """Replace a file by its copy, unless no letter was removed or the file is gone by now."""
        status = os.fstat(file.fileno())
        paths = [self._folder / name for name in FILES]
        same = [p for p in paths if p.exists() and os.path.samestat(p.stat(), status)]
        if not same or num_bytes == status.st_size:
            self._disk.unlink(scratch)
        else:
            self._disk.replace(scratch, same[0])
