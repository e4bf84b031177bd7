"""The committed bytes of each file of a snapshot, and what of them an earlier manifest lacks."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.segments.format import PAGE
from streamd.segments.journal import LogState, SegmentState
from streamd.segments.layout import LABELS, ORDER
from streamd.segments.tguf import open_tguf
from streamd.store.manifest import OBJECT_BYTES, OBJECTS, Piece, StoredFile
from streamd.store.snapshot import Snapshot

Extent = tuple[int, int]
"""Offset and bytes of a range of a file."""
EDGES = ("src", "dst", "time", "msg")
LABEL_ROWS = ("label_n_id", "label_time", "label_target")
DELTAS = 64
"""Pieces, beside those that its size takes, after which a file is stored anew: a restore asks for
each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A file of a snapshot that is to be stored.

    path: in the data directory. size, revision: as a `StoredFile`'s. kept: pieces that are stored
    already. extents: what is missing. header: the first bytes as they are after the commit, where
    the file's own may be of a later one.
    """

    path: str
    size: int
    revision: int = 0
    kept: tuple[Piece, ...] = ()
    extents: tuple[Extent, ...] = ()
    header: bytes = b""

    @property
    def num_bytes(self) -> int:
        """Bytes that are missing."""
        return sum(n for _, n in self.extents)


def wanted_files(
    snapshot: Snapshot, before: LogState | None, stored: dict[str, StoredFile]
) -> Iterator[Wanted]:
    """Yield the files of a snapshot with what is to be stored of each.

    before, stored: the log's state and the files, by path, of an earlier manifest of the same log;
    None and empty where there is none. Raises: TGUFError, CorruptionError.
    """
    state = snapshot.state
    segments = {s.path: s for s in before.segments} if before else {}
    for segment in state.segments:
        known = segments.get(segment.path)
        if known is not None and _goes_on(snapshot, segment, known, stored):
            yield from _segment_files(snapshot, segment, known, stored)
        else:
            yield from _segment_files(snapshot, segment, None, {})

    # Files that commits append to, and the journal up to the commit.
    for path, file in state.files.items():
        yield _appended(path, file.num_bytes, file.revision, stored.get(path, NO_FILE))
    for path, size in snapshot.journals.items():
        old = stored.get(path, NO_FILE)
        same = old.size <= size and holds(snapshot.folder / path, old)
        yield _appended(path, size, 0, old if same else NO_FILE)

    # What was learned is stored as it is; objects that are there already are not sent again.
    for path in snapshot.learned:
        yield _appended(path, (snapshot.folder / path).stat().st_size, 0, NO_FILE)


NO_FILE = StoredFile("", 0, [])


def _appended(path: str, size: int, revision: int, old: StoredFile) -> Wanted:
    """A file of which the first bytes may be stored already."""
    goes_on = old.revision == revision and old.size <= size and len(old.pieces) <= _most(size)
    at = old.size if goes_on else 0
    return Wanted(
        path=path,
        size=size,
        revision=revision,
        kept=tuple(old.pieces) if goes_on else (),
        extents=((at, size - at),) if size > at else (),
    )


def _segment_files(
    snapshot: Snapshot,
    segment: SegmentState,
    known: SegmentState | None,
    stored: dict[str, StoredFile],
) -> Iterator[Wanted]:
    """Yield the files of a segment with the committed rows of each."""
    end = segment.num_edges, segment.num_labels
    begin = (known.num_edges, known.num_labels) if known else (0, 0)
    if not segment.rows_per_set:
        yield _tguf(snapshot, segment, segment.path, begin, end, stored)
        return

    # A folder has a file for each set, one for labels where the log has any, and the order.
    names = snapshot.state.schema.edge_set_names
    before = known.rows_per_set if known else (0,) * len(segment.rows_per_set)
    for name, a, b in zip(names, before, segment.rows_per_set, strict=False):
        yield _tguf(snapshot, segment, f"{segment.path}/{name}.tguf", (a, 0), (b, 0), stored)
    if (snapshot.folder / segment.path / LABELS).exists():
        path = f"{segment.path}/{LABELS}"
        yield _tguf(snapshot, segment, path, (0, begin[1]), (0, end[1]), stored)
    path = f"{segment.path}/{ORDER}"
    size = (snapshot.folder / path).stat().st_size
    rows = (8 * begin[0], 8 * end[0])
    yield _ranges(path, size, segment.revision, stored, [rows], b"")


def _tguf(
    snapshot: Snapshot,
    segment: SegmentState,
    path: str,
    begin: tuple[int, int],
    end: tuple[int, int],
    stored: dict[str, StoredFile],
) -> Wanted:
    """A TGUF file of which edges and labels [begin, end) are missing."""
    file = open_tguf(snapshot.folder / path, check_rows=False)
    rows = []
    for names, a, b in ((EDGES, begin[0], end[0]), (LABEL_ROWS, begin[1], end[1])):
        sections = [file.sections[name] for name in names if name in file.sections]
        rows += [(s.offset + a * s.row_bytes, s.offset + b * s.row_bytes) for s in sections]
    # Later commits may have raised the counts of the file's own header.
    header = replace(file.header, num_edges=end[0], num_labels=end[1]).pack().ljust(PAGE, b"\0")
    return _ranges(path, file.file_bytes, segment.revision, stored, rows, header)


def _ranges(
    path: str,
    size: int,
    revision: int,
    stored: dict[str, StoredFile],
    rows: list[tuple[int, int]],
    header: bytes,
) -> Wanted:
    """A file of a segment of which byte ranges [a, b) are missing, and the header with them."""
    old = stored.get(path)
    kept = tuple(old.pieces) if old is not None else ()
    extents = [(a, b - a) for a, b in rows if b > a]
    # Without pieces nothing is known of the file yet: not even its header.
    if header and (extents or not kept):
        extents.insert(0, (0, PAGE))
    return Wanted(
        path=path,
        size=size,
        revision=revision,
        kept=kept,
        extents=tuple(extents),
        header=header,
    )


def _most(size: int) -> int:
    """Most pieces that a file of so many bytes is kept in."""
    return DELTAS + size // OBJECT_BYTES


def _goes_on(
    snapshot: Snapshot, segment: SegmentState, old: SegmentState, stored: dict[str, StoredFile]
) -> bool:
    """Whether a segment's files only grew since they were stored, and are in few pieces."""
    path = snapshot.folder / segment.path
    files = list(path.iterdir()) if segment.rows_per_set else [path]
    known = [(stored.get(str(f.relative_to(snapshot.folder))), f.stat().st_size) for f in files]
    return old.revision == segment.revision and all(
        file is not None and file.size == size and len(file.pieces) <= _most(size)
        for file, size in known
    )


def holds(path: Path, file: StoredFile) -> bool:
    """Whether a file begins with the bytes of a stored one, by the checksums of its pieces."""
    if not path.exists() or path.stat().st_size < file.size:
        return False
    with path.open("rb") as local:
        return all(
            crc32c(_read(local.fileno(), path, piece.extents, b"")) == piece.crc
            for piece in file.pieces
        )


def objects_of(folder: Path, wanted: Wanted) -> Iterator[tuple[Piece, bytes]]:
    """Read the missing bytes of a file as objects of at most OBJECT_BYTES, each with its piece.
    Raises: CorruptionError where the file is too short."""
    if not wanted.extents:
        return
    path = folder / wanted.path
    with path.open("rb") as file:
        for extents in _cut(wanted.extents):
            data = _read(file.fileno(), path, extents, wanted.header)
            digest = hashlib.sha256(data).hexdigest()
            name = f"{OBJECTS}/{digest[:2]}/{digest[2:]}"
            yield Piece(name, len(data), crc32c(data), extents), data


def _cut(extents: tuple[Extent, ...]) -> Iterator[list[Extent]]:
    """Divide ranges into groups of at most OBJECT_BYTES."""
    group: list[Extent] = []
    room = OBJECT_BYTES
    for offset, length in extents:
        at = offset
        while at < offset + length:
            part = min(room, offset + length - at)
            group.append((at, part))
            at += part
            room -= part
            if not room:
                yield group
                group = []
                room = OBJECT_BYTES
    if group:
        yield group


def _read(fd: int, path: Path, extents: list[Extent], header: bytes) -> bytes:
    """Read ranges of a file, one after the other; the header in place of the file's own."""
    out = bytearray()
    for offset, length in extents:
        if header and offset < len(header):
            assert offset + length <= len(header), "the header is a range of its own"
            out += header[offset : offset + length]
            continue
        end = len(out) + length
        while len(out) < end:
            piece = os.pread(fd, end - len(out), offset + length - (end - len(out)))
            if not piece:
                raise CorruptionError(
                    f"{path} ends before its committed bytes do.", "run `streamd verify`."
                )
            out += piece
    return bytes(out)
