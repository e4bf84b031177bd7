"""Writes a data directory from a manifest in a store, completely or not at all."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from streamd.errors import DataDirectoryError, StoreError, StreamdError
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.journal.journal import LogState
from streamd.eventlog.recovery import last_state
from streamd.eventlog.upkeep.verify import verify_log
from streamd.storage import DISK, HOLE_BYTES, SCRATCH, Disk, write_durably
from streamd.store import manifests
from streamd.store.file_set import OBJECT_BYTES, Piece, StoredFile
from streamd.store.manifests import Manifest
from streamd.store.objects import Store

AGAIN = "take another manifest (--seq), or back up again."


def choose(store: Store, seq: int | None = None) -> Manifest:
    """Read the newest undamaged manifest, or that of commit `seq`. Raises: StoreError if there is
    none."""
    found = manifests.names(store)
    if seq is not None:
        found = [name for name in found if manifests.commit_of(name)[1] == seq]
    if not found:
        which = "" if seq is None else f" of commit {seq}"
        raise StoreError(f"{store.shown} holds no manifest{which}.", "check the URL and --seq.")
    newest = None if seq is not None else manifests.newest(store)
    # If all are damaged, reading the newest raises the error.
    return newest or manifests.read(store, found[-1])


def restore(
    store: Store,
    manifest: Manifest,
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    check: Callable[[Path], list[str]] = lambda folder: [],
    disk: Disk = DISK,
) -> None:
    """Write the files of a manifest to a data directory that is empty or missing, and check them.

    1. Write and check the files in a scratch folder next to the directory.
    2. Rename the folder to the directory, so that a killed restore leaves no log.

    Args: progress: called with (bytes written, bytes in all); check: returns the damage outside the
    log, in words. Raises: DataDirectoryError if the target is not empty, StoreError if an object or
    the result is damaged.
    """
    with new_directory(data_dir, disk) as scratch:
        _write_files(store, manifest, scratch, progress, disk)
        what = f"The directory made of {manifest.name} in {store.shown}"
        verify_result(scratch, LogState.restored(manifest.log), check, what, AGAIN)


@contextmanager
def new_directory(data_dir: Path, disk: Disk) -> Iterator[Path]:
    """Yield a scratch folder. At the end of the block it is renamed to the data directory; after an
    error it is removed. Raises: DataDirectoryError if the target is not empty or cannot be
    written."""
    check_free(data_dir)
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    scratch = data_dir.with_name(f".{data_dir.name}.restore{SCRATCH}")
    try:
        disk.remove_folder(scratch)
        disk.make_folder(scratch)
        yield scratch
        disk.replace(scratch, data_dir)
        disk.sync_folder(data_dir.parent)
    except OSError as error:
        disk.remove_folder(scratch)
        raise DataDirectoryError(
            f"{data_dir} cannot be written: {error.strerror}.",
            "free space or mend the volume, and restore again.",
        ) from error
    except StreamdError:
        disk.remove_folder(scratch)
        raise


def check_free(data_dir: Path) -> None:
    """Check that a restore may make a directory at this path. Raises: DataDirectoryError."""
    if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
        raise DataDirectoryError(
            f"{data_dir} is not empty.", "restore into a new directory; nothing is overwritten."
        )
    if data_dir.is_mount():
        raise DataDirectoryError(
            f"{data_dir} is a volume of its own, which no folder can be renamed to.",
            f"restore into a folder of it, such as {data_dir / 'log'}, and set data_dir to that.",
        )


def _write_files(
    store: Store,
    manifest: Manifest,
    folder: Path,
    progress: Callable[[int, int], None],
    disk: Disk,
) -> None:
    """Write every file durably, then `published` and the position, which make them a log."""
    total = sum(piece.size for file in manifest.files for piece in file.pieces)
    done = 0

    def written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    last = LogState.restored(manifest.log).last
    for file in manifest.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        # Commits continue in the last segment, so reserve its disk blocks, as for a new segment.
        reserve = last is not None and file.path == last.path
        write_file(store, folder / file.path, file, reserve, written, disk)
    write_publication(folder, manifest.seq, manifest.position, disk)


def write_publication(
    folder: Path, seq: int, position: ChangelogPosition | None, disk: Disk
) -> None:
    """Write the position in the changelog at which the directory resumes, and last `published`;
    then make the folders durable."""
    if position is not None:
        write_durably(folder / CHANGELOG, position.pack(), disk)
    published = disk.open(folder / "published", os.O_RDWR | os.O_CREAT)
    try:
        disk.write(published, seq.to_bytes(8, "little"), 0)
        disk.sync(published)
    finally:
        disk.close(published)
    for one in sorted([folder, *(path for path in folder.rglob("*") if path.is_dir())]):
        disk.sync_folder(one)


def write_file(
    store: Store,
    path: Path,
    file: StoredFile,
    reserve: bool,
    written: Callable[[int], None],
    disk: Disk,
) -> None:
    """Write a file from its pieces. Raises: StoreError naming the object that differs."""

    def read() -> Iterator[tuple[Piece, bytes]]:
        for piece in file.pieces:
            data = store.get(piece.object, OBJECT_BYTES)
            if len(data) != piece.size or crc32c(data) != piece.crc:
                raise StoreError(
                    f"{piece.object} in {store.shown}, a part of {file.path}, differs from its "
                    "checksum.",
                    AGAIN,
                )
            yield piece, data

    write_pieces(path, file.size, read(), reserve, written, disk)


def write_pieces(
    path: Path,
    size: int,
    pieces: Iterable[tuple[Piece, bytes]],
    reserve: bool,
    written: Callable[[int], None],
    disk: Disk,
) -> None:
    """Write a file of `size` bytes durably. reserve: whether to reserve its disk blocks, for later
    commits. written: called with the bytes of each piece."""
    fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        disk.truncate(fd, size)
        if reserve:
            disk.allocate(fd, size)
        end = 0
        for piece, data in pieces:
            at = 0
            for offset, length in piece.extents:
                part = memoryview(data)[at : at + length]
                _write_extent(fd, part, offset, offset < end, disk)
                end = max(end, offset + length)
                at += length
            written(piece.size)
        disk.sync(fd)
    finally:
        disk.close(fd)


def _write_extent(fd: int, data: memoryview, offset: int, over: bool, disk: Disk) -> None:
    """Write a range of a file. Blocks of zeros in a large new range become holes.

    over: whether the range may have other bytes already, so that zeros must be written.
    """
    if over or len(data) <= HOLE_BYTES:
        disk.write(fd, data, offset)
        return
    zeros = bytes(HOLE_BYTES)
    begin = at = 0
    while at < len(data):
        end = min(at + HOLE_BYTES, len(data))
        if data[at:end] == zeros[: end - at]:
            if at > begin:
                disk.write(fd, data[begin:at], offset + begin)
            begin = end
        at = end
    if begin < len(data):
        disk.write(fd, data[begin:], offset + begin)


def verify_result(
    folder: Path, expected: LogState, check: Callable[[Path], list[str]], what: str, again: str
) -> None:
    """Check a directory as `streamd verify` does, and that its log ends in the expected state.

    `what`: subject of the error's text. again: the operator's action. Raises: StoreError.
    """
    found = last_state(folder, expected.schema)
    damage = [f"{d.path} {d.extent}" for d in verify_log(folder)[1]]
    if found != expected:
        damage.insert(0, f"the journal ends at commit {found.seq} in another state")
    damage += check(folder)
    if damage:
        raise StoreError(f"{what} is damaged: {'; '.join(damage[:10])}.", again)
