"""Finds the committed bytes of each file of a snapshot, and which of them no earlier manifest
has."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.eventlog.journal.journal import LogState, SegmentState
from streamd.eventlog.layout import LABELS, ORDER
from streamd.eventlog.tguf.format import PAGE
from streamd.eventlog.tguf.reader import open_tguf
from streamd.store.file_index import FileIndex, FileStat
from streamd.store.file_set import NO_FILE, OBJECT_BYTES, OBJECTS, Piece, StoredFile
from streamd.store.snapshot import Snapshot

Extent = tuple[int, int]
"""Offset and bytes of a range of a file."""
EDGES = ("src", "dst", "time", "msg")
LABEL_ROWS = ("label_n_id", "label_time", "label_target")
LARGE_BYTES = OBJECT_BYTES // 2
"""Size of a piece from which on it is never merged with later bytes of its file."""
DELTAS = 64
"""Maximum number of small pieces of a file. Above it they are stored again as large pieces, since a
restore needs a request for each piece."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingFile:
    """A file of a snapshot that an upload must store.

    path: in the data directory. size, revision: as in `StoredFile`. kept: pieces that are stored
    already. extents: the ranges to send. header: first bytes of the file after the commit, if those
    in the file may be of a later commit.
    """

    path: str
    size: int
    revision: int = 0
    kept: tuple[Piece, ...] = ()
    extents: tuple[Extent, ...] = ()
    header: bytes = b""

    @property
    def num_bytes(self) -> int:
        """Number of bytes to send."""
        return sum(n for _, n in self.extents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """The part of a log that is stored already.

    state, files: state of the log and files by path in an earlier manifest of the same log; None
    and empty if there is none. index: of files that were read before. objects: name of each object
    in the store -> its bytes.
    """

    state: LogState | None
    files: dict[str, StoredFile]
    index: FileIndex
    objects: dict[str, int]

    def file(self, path: str) -> StoredFile:
        """The file at a path in that manifest; NO_FILE if it or one of its objects is missing."""
        return self._if_complete(self.files.get(path))

    def find_unchanged(self, path: str, stat: FileStat) -> StoredFile:
        """The file at a path by the index, if it has not changed and all its objects are stored;
        otherwise NO_FILE."""
        return self._if_complete(self.index.find(path, stat))

    def _if_complete(self, file: StoredFile | None) -> StoredFile:
        has = file is not None and all(self.objects.get(p.object) == p.size for p in file.pieces)
        return file if file is not None and has else NO_FILE


def files_to_store(snapshot: Snapshot, earlier: Earlier) -> Iterator[PendingFile]:
    """Yield the files of a snapshot with the ranges to store of each. Raises: TGUFError,
    CorruptionError."""
    state = snapshot.state
    segments = {s.path: s for s in earlier.state.segments} if earlier.state else {}
    for segment in state.segments:
        known = segments.get(segment.path)
        is_continued = known is not None and known.revision == segment.revision
        yield from _segment_files(snapshot, segment, earlier if is_continued else None)

    # Files that commits append to, and the journal up to the commit.
    for path, file in state.files.items():
        yield append_range(path, file.num_bytes, file.revision, earlier.file(path))
    for path, size in snapshot.journals.items():
        old = earlier.file(path)
        same = earlier.index.find(path, snapshot.stats[path])
        if same is None or same != old:
            old = (
                old
                if old.size <= size and has_stored_bytes(snapshot.folder / path, old)
                else NO_FILE
            )
        yield append_range(path, size, 0, old)

    # Files of trainer, roles and versions are stored whole, and read again only after a change.
    for path in snapshot.learned:
        stat = snapshot.stats[path]
        yield append_range(path, stat.size, 0, earlier.find_unchanged(path, stat))


def append_range(path: str, size: int, revision: int, old: StoredFile) -> PendingFile:
    """A file that only grows. old: as stored; its pieces have the first bytes."""
    is_continued = old.revision == revision and old.size <= size
    kept = _worth_keeping(old.pieces) if is_continued else []
    missing = _without([(0, size)] if size else [], kept)
    return PendingFile(
        path=path, size=size, revision=revision, kept=tuple(kept), extents=tuple(missing)
    )


def _worth_keeping(pieces: list[Piece]) -> list[Piece]:
    """The pieces of a file that stay: all, or only the large ones if there are more than DELTAS
    small ones."""
    large = [piece for piece in pieces if piece.size >= LARGE_BYTES]
    return pieces if len(pieces) - len(large) <= DELTAS else large


def _without(extents: list[Extent], kept: list[Piece]) -> list[Extent]:
    """The parts of some ranges, ascending, that no piece fills."""
    filled = sorted(extent for piece in kept for extent in piece.extents)
    missing = []
    for offset, length in extents:
        at, end = offset, offset + length
        for a, n in filled:
            if a + n <= at or a >= end:
                continue
            if a > at:
                missing.append((at, a - at))
            at = a + n
        if at < end:
            missing.append((at, end - at))
    return missing


def _segment_files(
    snapshot: Snapshot, segment: SegmentState, earlier: Earlier | None
) -> Iterator[PendingFile]:
    """Yield the files of a segment, each with the ranges of its committed rows. earlier: None if
    nothing of this revision of the segment is stored."""
    if not segment.rows_per_set:
        rows = segment.num_edges, segment.num_labels
        yield _tguf(snapshot, segment, segment.path, rows, earlier)
        return

    # The folder of a segment has a file for each set, one for labels if there are any, and the
    # order of events.
    names = snapshot.state.schema.edge_set_names
    for name, num_edges in zip(names, segment.rows_per_set, strict=False):
        yield _tguf(snapshot, segment, f"{segment.path}/{name}.tguf", (num_edges, 0), earlier)
    if (snapshot.folder / segment.path / LABELS).exists():
        path = f"{segment.path}/{LABELS}"
        yield _tguf(snapshot, segment, path, (0, segment.num_labels), earlier)
    path = f"{segment.path}/{ORDER}"
    size = (snapshot.folder / path).stat().st_size
    yield _ranges(path, size, segment, earlier, [(0, 8 * segment.num_edges)], b"")


def _tguf(
    snapshot: Snapshot,
    segment: SegmentState,
    path: str,
    rows: tuple[int, int],
    earlier: Earlier | None,
) -> PendingFile:
    """A TGUF file with the committed rows at its start. rows: numbers of edges and labels."""
    file = open_tguf(snapshot.folder / path, check_rows=False)
    committed = []
    for names, num_rows in ((EDGES, rows[0]), (LABEL_ROWS, rows[1])):
        sections = [file.sections[name] for name in names if name in file.sections]
        committed += [(s.offset, num_rows * s.row_bytes) for s in sections]
    # Later commits may have raised the counts of the file's own header.
    header = replace(file.header, num_edges=rows[0], num_labels=rows[1]).pack().ljust(PAGE, b"\0")
    return _ranges(path, file.file_bytes, segment, earlier, committed, header)


def _ranges(
    path: str,
    size: int,
    segment: SegmentState,
    earlier: Earlier | None,
    committed: list[Extent],
    header: bytes,
) -> PendingFile:
    """A file of a segment with its committed ranges; the header is sent with them."""
    old = earlier.file(path) if earlier is not None else NO_FILE
    kept = _worth_keeping(old.pieces) if old.size == size else []
    extents = _without([extent for extent in committed if extent[1]], kept)
    # Without pieces, the header must be sent too.
    if header and (extents or not kept):
        extents.insert(0, (0, PAGE))
    return PendingFile(
        path=path,
        size=size,
        revision=segment.revision,
        kept=tuple(kept),
        extents=tuple(extents),
        header=header,
    )


def has_stored_bytes(path: Path, file: StoredFile) -> bool:
    """Whether a local file starts with the bytes of a stored one, by the checksums of its
    pieces."""
    if not path.exists() or path.stat().st_size < file.size:
        return False
    with path.open("rb") as local:
        return all(
            crc32c(_read(local.fileno(), path, piece.extents, b"")) == piece.crc
            for piece in file.pieces
        )


def objects_of(folder: Path, wanted: PendingFile) -> Iterator[tuple[Piece, bytes]]:
    """Read the missing bytes of a file as objects of at most OBJECT_BYTES, each with its piece.
    Raises: CorruptionError if the file is too short."""
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
    """Yield groups of ranges, each of at most OBJECT_BYTES; a longer range is divided."""
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
    """Read ranges of a file, one after another; `header` replaces the file's own first bytes."""
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
