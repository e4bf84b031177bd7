"""A trainer's checkpoint in a store: its files as objects named by their content, and one object
that names them all, written last."""

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
from streamd.store.manifest import FILE_BYTES, OBJECT_BYTES, OBJECT_NAME, OBJECTS, StoredFile
from streamd.store.objects import Store
from streamd.store.ranges import NO_FILE, Earlier, appended, holds, objects_of
from streamd.store.restore import write_file
from streamd.store.upload import check_there
from streamd.store.upload_locks import under_way
from streamd.store.versions import StoredVersion, check

FORMAT = 1
FOLDER = "checkpoints"
NAME = re.compile(rf"{FOLDER}/\d{{10}}-[0-9a-f]{{32}}\.json")
"""Name of a checkpoint: the trainer's term, and digits of its own, so that none is written twice.
Which one is the newest, the models topic says."""
CHECKPOINT_BYTES = 1 << 28
"""Most bytes of what names a checkpoint; that of 100,000 files takes about 30 MB."""
HISTORY = "history"
MOVES = "moves"
APPENDED = (HISTORY, MOVES)
"""Files that only grow, of which the first bytes are stored already."""
FILE = re.compile(
    rf"{HISTORY}|{MOVES}|attempt\.json|bootstrap\.json"
    r"|(checkpoint|nightly|replay|facts)/[a-z0-9][a-z0-9.-]*"
)
"""A file of a checkpoint: of one of four folders, or by itself."""
FOLDER_NAME = re.compile(r"[0-9][0-9.]*")
"""Name of the folder of checkpoint or nightly twin."""
AGAIN = "none is needed: the trainer stores a checkpoint after each window."


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's state after a window, whose files are in a store.

    term: of the trainer. checkpoint, nightly: names of the folders of checkpoint and nightly twin;
    nightly is "" where there is none. edge: event id at which learning goes on. held: the oldest
    event that going on there needs. purged_before: it holds nothing that deletes before this event
    hide. files: by paths as of `FILE`. versions: all
    that the trainer had.
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
        """A file of it; one without bytes where it has none of that path."""
        return next((file for file in self.files if file.path == path), NO_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCheckpoint:
    """A trainer's state after a window, as files under a folder that do not change.

    files: path as of `FILE` -> its bytes. The rest as of `StoredCheckpoint`.
    """

    folder: Path
    checkpoint: str
    nightly: str
    edge: int
    held: int
    purged_before: int
    files: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """What an upload did. name, data: of the object that names the files. objects, num_bytes: what
    was sent beside it; the rest was there."""

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


class _Envelope(msgspec.Struct):
    crc: str
    checkpoint: msgspec.Raw


def upload_checkpoint(
    local: LocalCheckpoint,
    term: int,
    versions: list[StoredVersion],
    store: Store,
    earlier: StoredCheckpoint | None,
    index: FileIndex,
) -> Uploaded:
    """Upload the files of a checkpoint that the store lacks, and name them all.

    Args: versions: whose files are in the store already. earlier: a checkpoint of the same trainer,
    whose history and moves this one's may go on from. index: of files that were read before; it is
    kept up to date.
    Raises: StoreError, OSError.
    """
    objects = num_bytes = 0
    files = []
    with under_way(store) as mark:
        known = store.sizes(OBJECTS)
        there = {file.path: file for file in earlier.files} if earlier is not None else {}
        past = Earlier(state=None, files=there, index=index, objects=known)
        for path, size in sorted(local.files.items()):
            stat = FileStat.of(local.folder / path)
            old = past.unchanged(path, stat)
            if path in APPENDED:
                old = past.file(path)
                goes_on = old.size <= size and holds(local.folder / path, old)
                old = old if goes_on else NO_FILE
            wanted = appended(path, size, 0, old)
            pieces = list(wanted.kept)
            for piece, data in objects_of(local.folder, wanted):
                if known.get(piece.object) != piece.size:
                    store.put(piece.object, data)
                    known[piece.object] = piece.size
                    objects += 1
                    num_bytes += piece.size
                pieces.append(piece)
                mark.renew()
            files.append(StoredFile(path, size, pieces))
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

        data = encode(stored)
        name = f"{FOLDER}/{term:010d}-{uuid.uuid4().hex}.json"
        store.put(name, data)
        # Before others are told of it all that it names must be there, whatever a sweep removed.
        check_there(store, files_of(stored), AGAIN)
    return Uploaded(name=name, data=data, stored=stored, objects=objects, num_bytes=num_bytes)


def files_of(stored: StoredCheckpoint) -> Iterable[StoredFile]:
    """All files that a checkpoint names, those of its versions too."""
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

    progress: called with (bytes written, bytes in all). Raises: StoreError where an object is not
    there or differs, OSError.
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
    """Read what names a checkpoint, which must have this size and CRC32C. Raises: StoreError."""
    data = store.get(name, CHECKPOINT_BYTES)
    if len(data) != size or crc32c(data) != crc:
        raise StoreError(f"{name} in {store.shown} differs from its checksum.", AGAIN)
    return decode(name, data)


def stored_checkpoints(store: Store) -> dict[str, StoredCheckpoint]:
    """The checkpoints that a store has, by name. Raises: StoreError where one cannot be read."""
    found = {}
    for name in store.sizes(FOLDER):
        if not NAME.fullmatch(name):
            # A half written one of a local store.
            continue
        try:
            found[name] = decode(name, store.get(name, CHECKPOINT_BYTES))
        except StoreError:
            # The trainer may have removed it since it was listed.
            if name in store.sizes(FOLDER):
                raise
    return found


def encode(stored: StoredCheckpoint) -> bytes:
    """Encode what names a checkpoint, with its checksum."""
    text = msgspec.json.encode(stored)
    return msgspec.json.encode(_Envelope(f"{crc32c(text):08x}", msgspec.Raw(text)))


def decode(name: str, data: bytes) -> StoredCheckpoint:
    """Decode and check what names a checkpoint, of which nothing is trusted. Raises: StoreError."""
    wrong = ""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if f"{crc32c(bytes(envelope.checkpoint)):08x}" != envelope.crc:
            raise StoreError(f"{name} differs from its checksum.", AGAIN)
        stored = msgspec.json.decode(envelope.checkpoint, type=StoredCheckpoint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{name} is damaged: {error}.", AGAIN) from None
    if stored.format != FORMAT:
        raise StoreError(
            f"{name} has format {stored.format}, this streamd reads {FORMAT}.",
            "use the streamd that wrote it.",
        )
    for version in stored.versions:
        check(version)
    if len({file.path for file in stored.files}) != len(stored.files):
        wrong = "it names a file twice"
    for folder in filter(None, (stored.checkpoint, stored.nightly)):
        if not FOLDER_NAME.fullmatch(folder):
            wrong = f"{folder[:80]!r} is no name of a checkpoint or twin"
    for file in stored.files:
        if not FILE.fullmatch(file.path) or (file.path[:8] == "nightly/" and not stored.nightly):
            wrong = f"{file.path[:80]!r} is no file of a checkpoint"
        elif not 0 <= file.size <= FILE_BYTES or not _fills(file):
            wrong = f"the pieces of {file.path} do not make it up"
    if wrong:
        raise StoreError(f"{name} cannot be trusted: {wrong}.", AGAIN)
    return stored


def _fills(file: StoredFile) -> bool:
    """Whether the pieces of a file are objects that make it up."""
    at = 0
    for piece in sorted(file.pieces, key=lambda p: p.extents[:1]):
        plain = OBJECT_NAME.fullmatch(piece.object) and 0 < piece.size <= OBJECT_BYTES
        if not plain or sum(n for _, n in piece.extents) != piece.size:
            return False
        for offset, length in piece.extents:
            if offset != at or length <= 0:
                return False
            at += length
    return at == file.size
