"""A manifest says which objects make up the files of a data directory after one commit.

It is a JSON object `{"crc": "8 hex digits", "manifest": {...}}`; the CRC32C is of the bytes of its
second value. It is written when all objects it names are there, so that one that exists is whole.
"""

import re
from pathlib import PurePosixPath
from typing import Any

import msgspec
import structlog
from crc32c import crc32c

from streamd.errors import ManifestError, StoreError
from streamd.eventlog.layout import APPENDED, EDGE_FOLDERS
from streamd.roles import FOLDER as ROLES_FOLDER
from streamd.store.objects import Store

logger = structlog.get_logger()
FORMAT = 1
FOLDER = "manifests"
OBJECTS = "objects"
NAME = re.compile(rf"{FOLDER}/(\d{{10}})-(\d{{20}})\.json")
"""Name of a manifest: term and commit, padded with zeros, so that names sort as numbers do."""
OBJECT_NAME = re.compile(rf"{OBJECTS}/[0-9a-f]{{2}}/[0-9a-f]{{62}}")
OBJECT_BYTES = 1 << 25
"""Most bytes of an object, 32 MiB: what an interrupted upload does again at most."""
MANIFEST_BYTES = 1 << 30
"""Most bytes of a manifest that is read: that of 1,000,000 files takes about 0.3 GB."""
FILE_BYTES = 1 << 50
"""Most bytes of a file; a manifest that says more is damaged."""
PARTS = {"models", "train", "journal", EDGE_FOLDERS, ROLES_FOLDER}
"""First parts of the paths that a manifest may name, besides the append-only files."""
OTHER_MANIFEST = "take another one (--seq), or back up again."


class Piece(msgspec.Struct, frozen=True):
    """An object and where its bytes belong in a file.

    object: its name in the store. size: its bytes. crc: their CRC32C. extents: [offset, bytes] of
    the ranges that it fills one after the other; a later piece of a file overwrites an earlier one.
    """

    object: str
    size: int
    crc: int
    extents: list[tuple[int, int]]


class StoredFile(msgspec.Struct, frozen=True):
    """A file of the data directory: its path, size in bytes and pieces; what none fills is zeros.

    revision: commit that last replaced it, 0 for none and for files that are not of the log.
    """

    path: str
    size: int
    pieces: list[Piece]
    revision: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a data directory after a commit.

    term, seq: of the commit. created_at: wall time in seconds. log: `LogState.checkpoint` after it.
    changelog_seq, changelog_offset: a commit up to this one, and the offset in the changelog behind
    it: whoever has the files reads on from there; 0 and None where there is no changelog.
    changelog: which one, a `ChangelogId`; changelog_term: the term in force there.
    compacted: commit after which a compaction was done that nothing in the files is older than, 0
    for none. versions: names of the model versions. checkpoint: name of the trainer's checkpoint,
    "" where there is none.
    """

    format: int = FORMAT
    term: int
    seq: int
    created_at: float
    log: dict[str, Any]
    changelog_seq: int = 0
    changelog_offset: int | None
    changelog: tuple[str, str, str] = ("", "", "")
    changelog_term: int = 0
    compacted: int = 0
    versions: list[str]
    checkpoint: str
    files: list[StoredFile]

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{FOLDER}/{self.term:010d}-{self.seq:020d}.json"

    @property
    def objects(self) -> dict[str, Piece]:
        """The objects that it names, each once."""
        return {piece.object: piece for file in self.files for piece in file.pieces}


class _Envelope(msgspec.Struct):
    crc: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct):
    format: int


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest with its checksum."""
    text = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(f"{crc32c(text):08x}", msgspec.Raw(text)))


def decode(name: str, data: bytes) -> Manifest:
    """Decode and check a manifest. name: its name in the store. Raises: StoreError."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        text = bytes(envelope.manifest)
        if f"{crc32c(text):08x}" != envelope.crc:
            raise ManifestError(f"{name} differs from its checksum.", OTHER_MANIFEST)
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise StoreError(
                f"{name} has format {found}, this streamd reads {FORMAT}.",
                "use the streamd that wrote it.",
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{name} is damaged: {error}.", OTHER_MANIFEST) from None
    _check(name, manifest)
    return manifest


def _check(name: str, manifest: Manifest) -> None:
    """Check what a manifest says, of which nothing is trusted. Raises: StoreError."""
    wrong = ""
    if manifest.name != name:
        wrong = f"it is that of term {manifest.term}, commit {manifest.seq}"
    paths = {file.path for file in manifest.files}
    if len(paths) != len(manifest.files):
        wrong = "it names a file twice"
    for file in manifest.files:
        if not _is_path(file.path):
            wrong = f"{file.path!r} is no path in a data directory"
        elif not 0 <= file.size <= FILE_BYTES:
            wrong = f"{file.path} has {file.size} bytes"
        for piece in file.pieces:
            inside = all(a >= 0 and n > 0 and a + n <= file.size for a, n in piece.extents)
            filled = sum(n for _, n in piece.extents)
            if not inside or filled != piece.size or not 0 < filled <= OBJECT_BYTES:
                wrong = f"a piece of {file.path} does not fit"
            elif not OBJECT_NAME.fullmatch(piece.object):
                wrong = f"{piece.object!r} is no name of an object"
    if wrong:
        raise StoreError(f"{name} cannot be trusted: {wrong}.", OTHER_MANIFEST)


def _is_path(path: str) -> bool:
    """Whether a path is one that a manifest may write to: inside the data directory, and of what
    belongs there."""
    parts = path.split("/")
    plain = all(p and not p.startswith(".") and "\\" not in p and p.isprintable() for p in parts)
    return plain and str(PurePosixPath(path)) == path and (path in APPENDED or parts[0] in PARTS)


def names(store: Store) -> list[str]:
    """Names of the store's manifests, oldest first. Raises: StoreError."""
    return sorted(name for name in store.sizes(FOLDER) if NAME.fullmatch(name))


def commit_of(name: str) -> tuple[int, int]:
    """Term and commit of a manifest, by its name."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1]), int(match[2])


def read(store: Store, name: str) -> Manifest:
    """Read a manifest. Raises: StoreError."""
    return decode(name, store.get(name, MANIFEST_BYTES))


def newest(store: Store) -> Manifest | None:
    """Read the newest manifest that is whole, None where there is none. Raises: StoreError where
    the store fails, or a manifest is of another format."""
    for name in reversed(names(store)):
        try:
            return read(store, name)
        except ManifestError as error:
            logger.warning("manifest_damaged", store=store.shown, manifest=name, error=str(error))
    return None
