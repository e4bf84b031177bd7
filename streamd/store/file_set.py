"""Sets of files in a store: manifests, versions and checkpoints. The bytes of the files are objects
named by their content, and one more object lists the files of a set.

That object is JSON, `{"crc": "8 hex digits", "KIND": {...}}`, with the CRC32C of the bytes of its
second value. It is written once all listed objects are stored, so a set that exists is complete.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from streamd.errors import StoreError
from streamd.store.objects import Store

FORMAT = 1
OBJECTS = "objects"
OBJECT_NAME = re.compile(rf"{OBJECTS}/[0-9a-f]{{2}}/[0-9a-f]{{62}}")
OBJECT_BYTES = 1 << 25
"""Maximum size of an object, 32 MiB: an interrupted upload repeats at most this much."""
FILE_BYTES = 1 << 50
"""Maximum size of a file; a set with a larger one is damaged."""


class Piece(msgspec.Struct, frozen=True):
    """An object and the ranges of a file that its bytes fill.

    object: its name in the store. size: its bytes. crc: their CRC32C. extents: [offset, bytes] of
    the ranges that it fills one after another; a later piece of a file overwrites an earlier one.
    """

    object: str
    size: int
    crc: int
    extents: list[tuple[int, int]]


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a set: its path, size in bytes and pieces; bytes that no piece fills are zero.

    revision: commit that last replaced it, 0 for none and for files that are not of the log.
    """

    path: str
    size: int
    pieces: list[Piece]
    revision: int = 0


NO_FILE = StoredFile("", 0, [])


class FileSet(Protocol):
    """A struct of msgspec with the files of a set."""

    @property
    def files(self) -> list[StoredFile]: ...


Set = TypeVar("Set", bound=FileSet)


class _Format(msgspec.Struct):
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSetKind(Generic[Set]):
    """Encodes, decodes and checks the sets of one kind.

    name: the kind's key in JSON. struct: its class. max_bytes: of JSON. check: describes the first
    fault of a set, "" if there is none. action: for the operator, if a set is damaged. error: class
    of the error about a damaged set.
    """

    name: str
    struct: type[Set]
    max_bytes: int
    check: Callable[[Set], str]
    action: str
    error: type[StoreError] = StoreError

    def encode(self, files: Set) -> bytes:
        """Encode a set with its checksum."""
        text = msgspec.json.encode(files)
        return msgspec.json.encode({"crc": f"{crc32c(text):08x}", self.name: msgspec.Raw(text)})

    def decode(self, name: str, data: bytes) -> Set:
        """Decode and check an untrusted set. name: of its object. Raises: `error` if it is damaged;
        StoreError if it is of another format or fails the check."""
        try:
            envelope = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            text = bytes(envelope[self.name])
            if f"{crc32c(text):08x}" != msgspec.json.decode(envelope["crc"], type=str):
                raise self.error(f"{name} differs from its checksum.", self.action)
            # Check the format first: the fields of another one may not fit the struct.
            found = msgspec.json.decode(text, type=_Format).format
            if found != FORMAT:
                raise StoreError(
                    f"{name} has format {found}, this streamd reads {FORMAT}.",
                    "use the streamd that wrote it.",
                )
            files = msgspec.json.decode(text, type=self.struct)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.error(f"{name} is damaged: {error}.", self.action) from None
        except KeyError as error:
            raise self.error(f"{name} is damaged: it has no {error}.", self.action) from None
        if wrong := self.check(files):
            raise StoreError(f"{name} cannot be trusted: {wrong}.", self.action)
        return files

    def read(self, store: Store, name: str) -> Set:
        """Read a set. Raises: StoreError."""
        return self.decode(name, store.get(name, self.max_bytes))


def wrong_in(files: list[StoredFile], is_path: Callable[[str], bool], of: str, full: bool) -> str:
    """Describe the first fault in the paths and pieces of files; "" if there is none.

    is_path: whether a path may be in such a set. of: kind of the set, for the text. full: whether
    the pieces must fill each file, each byte once; otherwise they may leave ranges out and
    overwrite others.
    """
    if len({file.path for file in files}) != len(files):
        return "it names a file twice"
    for file in files:
        if not is_path(file.path):
            return f"{file.path[:80]!r} is no path in {of}"
        if not 0 <= file.size <= FILE_BYTES:
            return f"{file.path} has {file.size} bytes"
        for piece in file.pieces:
            if not OBJECT_NAME.fullmatch(piece.object):
                return f"{piece.object[:80]!r} is no name of an object"
            if not _fits(piece, file.size):
                return f"a piece of {file.path} does not fit"
        if full and not _is_filled(file):
            return f"the pieces of {file.path} do not fill it"
    return ""


def _fits(piece: Piece, size: int) -> bool:
    """Whether the ranges of a piece are inside a file and as long as its object."""
    inside = all(a >= 0 and n > 0 and a + n <= size for a, n in piece.extents)
    return (
        inside and sum(n for _, n in piece.extents) == piece.size and 0 < piece.size <= OBJECT_BYTES
    )


def _is_filled(file: StoredFile) -> bool:
    """Whether the pieces of a file fill all of it, each byte once."""
    # Sorted by offset, each range must begin at the end of the one before.
    end = 0
    for offset, length in sorted(extent for piece in file.pieces for extent in piece.extents):
        if offset != end:
            return False
        end += length
    return end == file.size


def object_names(files: Iterable[StoredFile]) -> set[str]:
    """Names of all objects of files."""
    return {piece.object for file in files for piece in file.pieces}


def check_objects_exist(store: Store, files: Iterable[StoredFile], again: str) -> None:
    """Check that the store has every object of some files, with its size.

    again: the operator's action if one is missing. Raises: StoreError with the name of one missing
    object.
    """
    # List the store once instead of a request for each object.
    sizes = store.sizes(OBJECTS)
    for file in files:
        for piece in file.pieces:
            if sizes.get(piece.object) != piece.size:
                raise StoreError(
                    f"{store.shown} has {sizes.get(piece.object, 'nothing')} for {piece.object}, a "
                    f"part of {file.path} of {piece.size} bytes.",
                    again,
                )
