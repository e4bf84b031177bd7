"""Durable writes: the few system calls they rest on, which tests replace by failing ones, and files
that are written whole or not at all."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

SCRATCH = ".tmp"
"""Ending of a file's or folder's name while it is being written."""

TAIL_BYTES = 8_192
"""Bytes of a file's end that are read in one go: most lines are shorter."""

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)
"""Errors of a volume that has no hard links, or no further ones of a file."""
COPIED_BYTES = 1 << 24
"""Bytes copied at once where a file cannot be linked to."""

BLOCK_BYTES = 512
"""Bytes of a block as `st_blocks` counts them."""

HOLE_BYTES = 4_096
"""Bytes of a block that takes no room on the disk where it was never written: ext4 and XFS have
blocks of this size unless told otherwise."""
SYNCED_BYTES = 1 << 24
"""Bytes that a slow disk, of 100 MB/s, makes durable in 0.2 seconds."""


class ImmutableFile(NamedTuple):
    """A file that is written once and never changed. checksum: CRC32C of its bytes in hex, "" where
    none is known."""

    path: Path
    checksum: str


class Disk:
    """The system calls of every durable write; tests use a disk that stops, tears, refuses or loses
    writes."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file that children do not inherit. Returns: its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def allocate(self, fd: int, num_bytes: int, offset: int = 0) -> None:
        """Reserve real blocks, so that a full disk shows here and not in a later write."""
        os.posix_fallocate(fd, offset, num_bytes)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all bytes at an offset."""
        # pwrite may write a part only, as where a signal comes.
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view = view[written:]
            offset = offset + written

    def truncate(self, fd: int, num_bytes: int) -> None:
        os.ftruncate(fd, num_bytes)

    def sync(self, fd: int) -> None:
        """Make a file's bytes and its size durable."""
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make a directory's entries durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, folder: Path) -> None:
        folder.mkdir()

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder with all that is in it, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a further name on the same volume."""
        os.link(old, new)

    def replace(self, old: Path, new: Path) -> None:
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)


DISK = Disk()
"""The disk of production."""


def stored_bytes(path: Path) -> int:
    """Bytes that a file takes on the disk, or a folder and the files in it."""
    parts = [path, *path.iterdir()] if path.is_dir() else [path]
    return sum(part.stat().st_blocks for part in parts) * BLOCK_BYTES


def write_durably(path: Path, data: bytes, disk: Disk = DISK) -> None:
    """Write a file so that it is there whole or not at all, also after power loss. What fails
    leaves nothing behind."""
    with replace_durably(path, disk) as scratch:
        _write(scratch, data, disk)


@contextlib.contextmanager
def replace_durably(path: Path, disk: Disk = DISK) -> Iterator[Path]:
    """Yield the path of a scratch file for the caller to write and sync; it takes the place of
    `path` durably at the end. What fails leaves nothing behind."""
    scratch = path.with_name(f".{path.name}{SCRATCH}")
    try:
        # Its bytes are durable before the rename shows them under the name.
        yield scratch
        disk.replace(scratch, path)
    except OSError:
        disk.unlink(scratch)
        raise
    disk.sync_folder(path.parent)


def write_folder_durably(
    path: Path, files: Mapping[str, bytes | ImmutableFile], disk: Disk = DISK
) -> None:
    """Write a folder of files so that it exists whole or not at all; the name must be free.

    files: bytes to write, or durable files to link to. A write that fails leaves nothing behind.
    """
    assert not path.exists(), f"{path} is there already"
    scratch = path.with_name(f".{path.name}{SCRATCH}")
    # Files and their folder are durable before the rename shows them.
    try:
        disk.remove_folder(scratch)
        disk.make_folder(scratch)
        for name, data in files.items():
            if isinstance(data, ImmutableFile):
                link_or_copy(data.path, scratch / name, disk)
            else:
                _write(scratch / name, data, disk)
        disk.sync_folder(scratch)
        disk.replace(scratch, path)
    except OSError:
        disk.remove_folder(scratch)
        raise
    disk.sync_folder(path.parent)


def link_or_copy(old: Path, new: Path, disk: Disk = DISK) -> None:
    """Link to a durable file, or copy it durably where its volume has no links."""
    try:
        disk.link(old, new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        fd = disk.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with old.open("rb") as file:
                at = 0
                while piece := file.read(COPIED_BYTES):
                    disk.write(fd, piece, at)
                    at += len(piece)
            disk.sync(fd)
        finally:
            disk.close(fd)


class FileWithHoles:
    """Writes a new file piece by piece, but for its blocks of zeros: what is not written reads as
    zeros and takes no room. Owner: who made it.

    fd: of the file, open. num_bytes, crc: size and CRC32C of all bytes so far, zeros included.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        """Open the file, empty."""
        self._disk = disk
        self._unsynced = 0
        self.fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.num_bytes = self.crc = 0

    def append(self, piece: bytes) -> None:
        # The file's blocks are cut where this piece begins and ends.
        first = -self.num_bytes % HOLE_BYTES or HOLE_BYTES
        unwritten = at = 0
        for end in (*range(first, len(piece), HOLE_BYTES), len(piece)):
            if piece[at:end] == bytes(end - at):
                self._write(piece[unwritten:at], self.num_bytes + unwritten)
                unwritten = end
            at = end
        self._write(piece[unwritten:], self.num_bytes + unwritten)
        self.num_bytes += len(piece)
        self.crc = crc32c(piece, self.crc)

    def _write(self, data: bytes, offset: int) -> None:
        """Write what lies between two holes; it is made durable now and then, so that the sync at
        the end does not take long."""
        if data:
            self._disk.write(self.fd, data, offset)
        self._unsynced += len(data)
        if self._unsynced >= SYNCED_BYTES:
            self._disk.sync(self.fd)
            self._unsynced = 0

    def finish(self) -> None:
        """Make the file durable, with a hole that it may end in."""
        self._disk.truncate(self.fd, self.num_bytes)
        self._disk.sync(self.fd)


def append_durably(path: Path, line: bytes, disk: Disk = DISK) -> int:
    """Append a line to a file durably, over a line that a crash tore.

    Returns: the file's size after it in bytes.
    """
    assert line.endswith(b"\n")
    # A new file's name must be made durable too, below.
    new = not path.exists()
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    # What comes behind the last line end is torn, and nobody has seen it.
    try:
        size = _end_of_lines(fd)
        disk.truncate(fd, size)
        disk.write(fd, line, size)
        disk.sync(fd)
    finally:
        disk.close(fd)
    if new:
        disk.sync_folder(path.parent)
    return size + len(line)


def _end_of_lines(fd: int) -> int:
    """Bytes of a file up to the end of its last whole line."""
    at = os.fstat(fd).st_size
    while at:
        first = max(0, at - TAIL_BYTES)
        line_end = os.pread(fd, at - first, first).rfind(b"\n")
        if line_end >= 0:
            return first + line_end + 1
        at = first
    return 0


def remove_scratch(folder: Path, disk: Disk = DISK) -> None:
    """Remove what a killed process left half written in a folder; its owner calls it before it
    writes."""
    for path in folder.glob(f".*{SCRATCH}"):
        if path.is_dir():
            disk.remove_folder(path)
        else:
            disk.unlink(path)


def _write(path: Path, data: bytes, disk: Disk) -> None:
    """Write a file and make its bytes durable, though not its name."""
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(fd, data, 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
