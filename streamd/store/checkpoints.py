"""Stores and reads a trainer's checkpoint: its files as objects named by their content, and one
object, written last, that lists them."""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from crc32c import crc32c

from streamd.errors import StoreError
from streamd.storage import DISK, Disk
from streamd.store.file_index import FileIndex, FileStat
from streamd.store.file_set import (
    FORMAT,
    NO_FILE,
    OBJECTS,
    FileSetKind,
    StoredFile,
    check_objects_exist,
    wrong_in,
)
from streamd.store.leases import upload_lease
from streamd.store.objects import Store
from streamd.store.ranges import Earlier, append_range, has_stored_bytes
from streamd.store.restore import write_file
from streamd.store.sender import FileSender
from streamd.store.versions import StoredVersion, check

FOLDER = "checkpoints"
NAME = re.compile(rf"{FOLDER}/\d{{10}}-[0-9a-f]{{32}}\.json")
"""Name of a checkpoint: the trainer's term, and random digits so that no name is used twice. The
models topic has the name of the newest one."""
CHECKPOINT_BYTES = 1 << 28
"""Maximum size of the object that lists a checkpoint's files; 100,000 files take about 30 MB."""
HISTORY = "history"
MOVES = "moves"
APPENDED = (HISTORY, MOVES)
"""Files that only grow, so that an earlier checkpoint has stored their first bytes."""
FILE = re.compile(
    rf"{HISTORY}|{MOVES}|attempt\.json|bootstrap\.json"
    r"|(checkpoint|nightly|replay|facts)/[a-z0-9][a-z0-9.-]*"
)
"""Path of a file of a checkpoint: in one of four folders, or at the top."""
FOLDER_NAME = re.compile(r"[0-9][0-9.]*")
"""Name of the folder of a checkpoint or nightly baseline."""
AGAIN = "none is needed: the trainer stores a checkpoint after each window."


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's state after a window, with its files in a store.

    term: of the trainer. checkpoint, nightly: names of the folders of checkpoint and nightly
    baseline; nightly is "" if there is none. edge: id of the event at which training resumes. held:
    id of the oldest event that this needs. purged_before: event id; the state has no data that
    deletes before it hide. files: with paths as in `FILE`. versions: all versions of the trainer.
    """

    format: int = FORMAT
    term: int
    checkpoint: str
    nightly: str
    edge: int
    held: int
    purged_before: int
    files: list[StoredFile]
    versions: list[StoredVersion]

    def file(self, path: str) -> StoredFile:
        """The file with a path; NO_FILE if there is none."""
        return next((file for file in self.files if file.path == path), NO_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCheckpoint:
    """A trainer's state after a window, as files under a folder that do not change.

    files: path as in `FILE` -> its bytes. Other fields: as in `StoredCheckpoint`.
    """

    folder: Path
    checkpoint: str
    nightly: str
    edge: int
    held: int
    purged_before: int
    files: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadedCheckpoint:
    """Result of an upload. name, data: of the object that lists the files. objects, num_bytes:
    number and bytes of the other objects that were sent; the rest was stored already."""

    name: str
    data: bytes
    stored: StoredCheckpoint
    objects: int
    num_bytes: int


def newest_term(store: Store) -> int:
    """The highest trainer term among the stored checkpoints, 0 if there are none. Raises:
    StoreError."""
    names = (name for name in store.sizes(FOLDER) if NAME.fullmatch(name))
    return max((int(name.removeprefix(f"{FOLDER}/").split("-")[0]) for name in names), default=0)


def upload_checkpoint(
    local: LocalCheckpoint,
    term: int,
    versions: list[StoredVersion],
    store: Store,
    earlier: StoredCheckpoint | None,
    index: FileIndex,
) -> UploadedCheckpoint:
    """Upload a checkpoint.

    1. Send the objects that the store lacks, under the lease of an upload.
    2. Write the object that lists them.
    3. Check that all objects exist: a machine with a wrong clock may ignore the lease. Only then
       the caller may publish the checkpoint's name.

    Args: versions: with all files in the store. earlier: of the same trainer, with the first bytes
    of history and moves. index: of files that were read before. Raises: StoreError, OSError.
    """
    files = []
    with upload_lease(store) as lease:
        known = store.sizes(OBJECTS)
        sender = FileSender(store, lease, known)
        there = {file.path: file for file in earlier.files} if earlier is not None else {}
        past = Earlier(state=None, files=there, index=index, objects=known)
        for path, size in sorted(local.files.items()):
            stat = FileStat.of(local.folder / path)
            old = past.find_unchanged(path, stat)
            if path in APPENDED:
                old = past.file(path)
                is_continued = old.size <= size and has_stored_bytes(local.folder / path, old)
                old = old if is_continued else NO_FILE
            wanted = append_range(path, size, 0, old)
            files.append(sender.send(local.folder, wanted))
            if path not in APPENDED:
                index.note(stat, files[-1])
        index.keep(set(local.files))
        stored = StoredCheckpoint(
            term=term,
            checkpoint=local.checkpoint,
            nightly=local.nightly,
            edge=local.edge,
            held=local.held,
            purged_before=local.purged_before,
            files=files,
            versions=versions,
        )

        # 2. Write the list.
        data = KIND.encode(stored)
        name = f"{FOLDER}/{term:010d}-{uuid.uuid4().hex}.json"
        store.put(name, data)
        # 3. Check the objects.
        check_objects_exist(store, files_of(stored), AGAIN)
    return UploadedCheckpoint(
        name=name,
        data=data,
        stored=stored,
        objects=sender.objects,
        num_bytes=sender.num_bytes,
    )


def files_of(stored: StoredCheckpoint) -> Iterable[StoredFile]:
    """The files of a checkpoint and of its versions."""
    yield from stored.files
    for version in stored.versions:
        yield from version.files


def download_checkpoint(
    store: Store,
    stored: StoredCheckpoint,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, of: None,
    disk: Disk = DISK,
) -> None:
    """Write a checkpoint's files durably under a folder, which must be empty or missing.

    progress: called with (bytes written, bytes in all). Raises: StoreError if an object is missing
    or differs, OSError.
    """
    total = sum(file.size for file in stored.files)
    done = 0

    def written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    for file in stored.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        write_file(store, folder / file.path, file, False, written, disk)
    for one in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        disk.sync_folder(one)


def read_checkpoint(store: Store, name: str, size: int, crc: int) -> StoredCheckpoint:
    """Read the object that lists a checkpoint's files. size, crc: that it must have. Raises:
    StoreError."""
    data = store.get(name, CHECKPOINT_BYTES)
    if len(data) != size or crc32c(data) != crc:
        raise StoreError(f"{name} in {store.shown} differs from its checksum.", AGAIN)
    return KIND.decode(name, data)


def stored_checkpoints(store: Store) -> dict[str, StoredCheckpoint]:
    """Read the checkpoints of a store, by name. Raises: StoreError if one cannot be read."""
    found = {}
    for name in store.sizes(FOLDER):
        if not NAME.fullmatch(name):
            # A file of a local store that a killed process left incomplete.
            continue
        try:
            found[name] = KIND.read(store, name)
        except StoreError:
            # The trainer may have removed it since it was listed.
            if name in store.sizes(FOLDER):
                raise
    return found


def _wrong_in(stored: StoredCheckpoint) -> str:
    """Describe the first fault of a checkpoint; "" if there is none."""
    # Its versions come from the same store, and are as untrusted.
    for version in stored.versions:
        check(version)
    for folder in filter(None, (stored.checkpoint, stored.nightly)):
        if not FOLDER_NAME.fullmatch(folder):
            return f"{folder[:80]!r} is no name of a folder of a checkpoint"

    def is_path(path: str) -> bool:
        has_folder = bool(stored.nightly) or not path.startswith("nightly/")
        return has_folder and bool(FILE.fullmatch(path))

    return wrong_in(stored.files, is_path, "a checkpoint", full=True)


KIND = FileSetKind(
    name="checkpoint",
    struct=StoredCheckpoint,
    max_bytes=CHECKPOINT_BYTES,
    check=_wrong_in,
    action=AGAIN,
)
