"""Durable writes: the few system calls they rest on, which tests replace by failing ones, and files
that are written whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

SCRATCH = ".tmp"
"""Ending of a file's or folder's name while it is being written."""

TAIL_BYTES = 8_192
"""Bytes of a file's end that are read in one go: most lines are shorter."""


class Disk:
    """The system calls of every durable write; tests use a disk that stops, tears, refuses or loses
    writes."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file that children do not inherit. Returns: its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Reserve real blocks, so that a full disk shows here and not in a later write."""
        os.posix_fallocate(fd, 0, num_bytes)

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

    def replace(self, old: Path, new: Path) -> None:
        old.replace(new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)


DISK = Disk()
"""The disk of production."""


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


def write_folder_durably(path: Path, files: Mapping[str, bytes], disk: Disk = DISK) -> None:
    """Write a folder of files so that it exists whole or not at all; the name must be free.

    A write that fails leaves nothing behind.
    """
    assert not path.exists(), f"{path} is there already"
    scratch = path.with_name(f".{path.name}{SCRATCH}")
    # Files and their folder are durable before the rename shows them.
    try:
        disk.remove_folder(scratch)
        disk.make_folder(scratch)
        for name, data in files.items():
            _write(scratch / name, data, disk)
        disk.sync_folder(scratch)
        disk.replace(scratch, path)
    except OSError:
        disk.remove_folder(scratch)
        raise
    disk.sync_folder(path.parent)


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
