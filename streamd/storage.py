"""Durable and atomic writes of files, and the interface of their system calls, which tests replace
by failing ones."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

SCRATCH = ".tmp"
"""Suffix of the name of a file or folder while it is being written."""

TAIL_BYTES = 8_192
"""Bytes per read from the end of a file: most lines are shorter."""

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)
"""Errors of a volume without hard links, or with too many links to a file."""
COPIED_BYTES = 1 << 24
"""Bytes per read when a file is copied because it cannot be linked."""

BLOCK_BYTES = 512
"""Unit of `st_blocks`."""

HOLE_BYTES = 4_096
"""Bytes of a file system's block, which takes no disk space if it is never written: the default of
ext4 and XFS."""
SYNCED_BYTES = 1 << 24
"""Bytes per sync; a slow disk of 100 MB/s takes 0.2 seconds for them."""


class ImmutableFile(NamedTuple):
    """A file that is written once and never changed. checksum: CRC32C of its bytes in hex, "" if
    unknown."""

    path: Path
    checksum: str


class Disk:
    """The system calls of durable writes; tests use a disk that stops, tears, refuses or loses
    writes."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file that child processes do not inherit. Returns: its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def allocate(self, fd: int, num_bytes: int, offset: int = 0) -> None:
        """Allocate blocks, so that a full disk fails here rather than in a later write."""
        os.posix_fallocate(fd, offset, num_bytes)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all bytes at an offset."""
        # pwrite may write only a part, for example if a signal arrives.
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
        """Remove a folder with its contents, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def link(self, old: Path, new: Path) -> None:
        """Make a hard link to a file, on the same volume."""
        os.link(old, new)

    def replace(self, old: Path, new: Path) -> None:
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)


DISK = Disk()
"""The disk in production."""


def stored_bytes(path: Path) -> int:
    """Disk space in bytes of a file, or of a folder and the files in it."""
    parts = [path, *path.iterdir()] if path.is_dir() else [path]
    return sum(part.stat().st_blocks for part in parts) * BLOCK_BYTES


def write_durably(path: Path, data: bytes, disk: Disk = DISK) -> None:
    """Write a file durably and atomically, as `replace_durably` does. Raises: OSError."""
    with replace_durably(path, disk) as scratch:
        _write(scratch, data, disk)


@contextlib.contextmanager
def replace_durably(path: Path, disk: Disk = DISK) -> Iterator[Path]:
    """Replace a file durably and atomically:

    1. Yield the path of a scratch file; the caller writes and syncs it.
    2. Rename it to `path`. If step 1 did not sync, a crash could leave an empty file there.
    3. Sync the folder. Without this a crash could bring the old file back.

    An OSError before 3 deletes the scratch file and leaves `path` as it was.
    """
    scratch = path.with_name(f".{path.name}{SCRATCH}")
    try:
        # 1. to 3., with the scratch file's bytes durable before the rename.
        yield scratch
        disk.replace(scratch, path)
    except OSError:
        disk.unlink(scratch)
        raise
    disk.sync_folder(path.parent)


def write_folder_durably(
    path: Path, files: Mapping[str, bytes | ImmutableFile], disk: Disk = DISK
) -> None:
    """Write a folder of files durably and atomically; `path` must not exist:

    1. Write the files into a scratch folder, and sync each.
    2. Sync the scratch folder. Without 1 and 2 a crash after 3 could leave incomplete files.
    3. Rename it to `path`.
    4. Sync the parent folder. Without this a crash could lose the rename.

    files: bytes to write, or durable files to link to. An OSError before 4 leaves no files.
    """
    assert not path.exists(), f"{path} is there already"
    scratch = path.with_name(f".{path.name}{SCRATCH}")
    # 1. Start with an empty scratch folder: a killed process may have left one.
    try:
        disk.remove_folder(scratch)
        disk.make_folder(scratch)
        for name, data in files.items():
            if isinstance(data, ImmutableFile):
                link_or_copy(data.path, scratch / name, disk)
            else:
                _write(scratch / name, data, disk)
        # 2. and 3. Make the names durable, then rename.
        disk.sync_folder(scratch)
        disk.replace(scratch, path)
    except OSError:
        disk.remove_folder(scratch)
        raise
    # 4. Make the rename durable.
    disk.sync_folder(path.parent)


def link_or_copy(old: Path, new: Path, disk: Disk = DISK) -> None:
    """Link to a durable file, or copy it durably if its volume has no links."""
    try:
        disk.link(old, new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # The volume has no links: copy the file.
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
    """Writes a new file piece by piece, but skips its blocks of zeros: as holes they read as zeros
    and take no disk space. Owner: its creator, which closes `fd`.

    fd: descriptor of the open file. num_bytes, crc: size and CRC32C of all bytes so far, with
    zeros.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        """Create the file, or truncate it."""
        self._disk = disk
        self._unsynced = 0
        self.fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.num_bytes = self.crc = 0

    def append(self, piece: bytes) -> None:
        # Split the piece at the file's block boundaries.
        first = -self.num_bytes % HOLE_BYTES or HOLE_BYTES
        unwritten = at = 0
        for end in (*range(first, len(piece), HOLE_BYTES), len(piece)):
            # A block of zeros: write the data before it, and leave a hole.
            if piece[at:end] == bytes(end - at):
                self._write(piece[unwritten:at], self.num_bytes + unwritten)
                unwritten = end
            at = end
        self._write(piece[unwritten:], self.num_bytes + unwritten)
        self.num_bytes += len(piece)
        self.crc = crc32c(piece, self.crc)

    def _write(self, data: bytes, offset: int) -> None:
        """Write the data between two holes, and sync every SYNCED_BYTES, so that the last sync is
        short."""
        if data:
            self._disk.write(self.fd, data, offset)
        self._unsynced += len(data)
        if self._unsynced >= SYNCED_BYTES:
            self._disk.sync(self.fd)
            self._unsynced = 0

    def finish(self) -> None:
        """Make the file durable, with a hole at its end if there is one."""
        # A hole at the end has not changed the size yet.
        self._disk.truncate(self.fd, self.num_bytes)
        self._disk.sync(self.fd)


def append_durably(path: Path, line: bytes, disk: Disk = DISK) -> int:
    """Append a line to a file durably:

    1. Cut off a line without end, which a crash left; it was never acknowledged.
    2. Write the line.
    3. Sync the file.
    4. Sync the folder if the file is new. Without this a crash could lose the whole file.

    Returns: the file's new size in bytes. Raises: OSError.
    """
    assert line.endswith(b"\n")
    # Checked before the file exists, for step 4.
    new = not path.exists()
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    # 1. to 3.
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
    """Size of a file up to the end of its last complete line, in bytes."""
    at = os.fstat(fd).st_size
    # Search backwards in pieces: the file may be large.
    while at:
        first = max(0, at - TAIL_BYTES)
        line_end = os.pread(fd, at - first, first).rfind(b"\n")
        if line_end >= 0:
            return first + line_end + 1
        at = first
    return 0


def remove_scratch(folder: Path, disk: Disk = DISK) -> None:
    """Remove the scratch files and folders that a killed process left in a folder; its owner calls
    it before it writes."""
    for path in folder.glob(f".*{SCRATCH}"):
        if path.is_dir():
            disk.remove_folder(path)
        else:
            disk.unlink(path)


def _write(path: Path, data: bytes, disk: Disk) -> None:
    """Write a file and sync its bytes, but not its folder."""
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(fd, data, 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
