"""A commit as records of the changelog: the line of the journal, and the bytes that it is about.

A record has headers `term`, `seq`, `part`, `parts` (decimal digits), `line` (the line's own CRC32C,
eight hex digits) and `crc` (CRC32C of the value). The value is four bytes, little-endian: the
length of a JSON head, then the head, then the bytes of its pieces, one behind the other. A commit
that is larger than a record is cut into parts.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from streamd.errors import ChangelogError
from streamd.segments.line_ranges import FileRange

FORMAT = 1
LINE = ""
"""Path of the pieces that are bytes of the line."""
PIECE_BYTES = 64
"""Most bytes that a piece takes in a head, besides its path."""
HEAD_BYTES = 1 << 16
"""Bytes kept free in a part for its head and the record around it, but for the pieces."""
MAX_LINE_BYTES = 1 << 26
"""Most bytes of a line, 64 MiB: one with positions of a million partitions."""
LENGTH = struct.Struct("<I")


class Record(NamedTuple):
    """A record of the changelog. line: the CRC32C of the commit's line, in hex."""

    offset: int
    term: int
    seq: int
    part: int
    parts: int
    line: str
    crc: int
    value: bytes

    @property
    def is_last(self) -> bool:
        return self.part == self.parts - 1

    def headers(self) -> list[tuple[str, bytes]]:
        numbers = {"term": self.term, "seq": self.seq, "part": self.part, "parts": self.parts}
        texts = {**numbers, "line": self.line, "crc": self.crc}
        return [(name, str(text).encode()) for name, text in texts.items()]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What the bytes of a part are.

    line_bytes: of the whole line. pieces: (path, offset, bytes) of each, the path LINE for bytes of
    the line. made: in the first part, (path, bytes) of each file that the commit puts in the place
    of another. schema: in the first part of the log's first commit, its schema.
    """

    format: int
    line_bytes: int
    pieces: list[tuple[str, int, int]]
    made: list[tuple[str, int]]
    schema: dict[str, Any] | None


class Commit(NamedTuple):
    """A commit that is to be published. ranges: of files, which `read` reads."""

    term: int
    seq: int
    line: bytes
    made: list[tuple[str, int]]
    schema: dict[str, Any] | None
    ranges: Sequence[FileRange]


def encode(commit: Commit, read: Callable[[FileRange], bytes], part_bytes: int) -> Iterator[Record]:
    """Yield a commit's records, each of a value of at most about `part_bytes`; offsets are 0.

    A commit is cut in the same places whenever it is published.
    """
    plan = list(_planned(commit, part_bytes - HEAD_BYTES))
    line_crc = commit.line[:8].decode()
    for part, pieces in enumerate(plan):
        first = part == 0
        head = Head(
            FORMAT,
            len(commit.line),
            [(p.path, p.offset, p.num_bytes) for p in pieces],
            commit.made if first else [],
            commit.schema if first else None,
        )
        text = msgspec.json.encode(head)
        data = [
            commit.line[p.offset : p.offset + p.num_bytes] if p.path == LINE else read(p)
            for p in pieces
        ]
        value = b"".join([LENGTH.pack(len(text)), text, *data])
        yield Record(0, commit.term, commit.seq, part, len(plan), line_crc, crc32c(value), value)


def _planned(commit: Commit, room: int) -> Iterator[list[FileRange]]:
    """Yield the pieces of each part."""
    pieces: list[FileRange] = []
    free = room - len(msgspec.json.encode((commit.made, commit.schema)))
    for piece in (FileRange(LINE, 0, len(commit.line)), *commit.ranges):
        at, left = piece.offset, piece.num_bytes
        cost = PIECE_BYTES + len(piece.path)
        while left:
            if free <= cost:
                yield pieces
                pieces, free = [], room
            taken = min(left, free - cost)
            pieces.append(FileRange(piece.path, at, taken))
            free -= cost + taken
            at += taken
            left -= taken
    yield pieces


def decode_record(offset: int, headers: Iterable[tuple[str, bytes]], value: bytes) -> Record:
    """Decode a record of the changelog. Raises: ChangelogError where it is none."""
    found = dict(headers)
    try:
        term, seq, part, parts, crc = (
            int(found[name]) for name in ("term", "seq", "part", "parts", "crc")
        )
        record = Record(offset, term, seq, part, parts, found["line"].decode(), crc, value)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise _damaged(offset, "its headers are not those of a commit") from None
    if record.term < 0 or record.seq < 1 or not 0 <= record.part < record.parts:
        raise _damaged(offset, "its numbers are out of range")
    return record


def decode_value(record: Record) -> tuple[Head, memoryview]:
    """Decode what a record holds: its head, and the bytes of the pieces. Raises: ChangelogError."""
    value = record.value
    if crc32c(value) != record.crc:
        raise _damaged(record.offset, "its value differs from its checksum")
    try:
        (length,) = LENGTH.unpack_from(value)
        text = value[LENGTH.size : LENGTH.size + length]
        found = msgspec.json.decode(text)[0]
        if found != FORMAT:
            raise _damaged(record.offset, f"its format is {found}, this streamd reads {FORMAT}")
        head = msgspec.json.decode(text, type=Head)
    except (
        struct.error,
        msgspec.DecodeError,
        TypeError,
        IndexError,
        KeyError,
        RecursionError,
    ) as error:
        raise _damaged(record.offset, str(error)) from None
    data = memoryview(value)[LENGTH.size + length :]
    fits = all(offset >= 0 and size > 0 for _, offset, size in head.pieces)
    if not fits or sum(size for _, _, size in head.pieces) != len(data):
        raise _damaged(record.offset, "its pieces do not fit its bytes")
    if not 0 < head.line_bytes <= MAX_LINE_BYTES:
        raise _damaged(record.offset, f"its line has {head.line_bytes} bytes")
    return head, data


def _damaged(offset: int, why: str) -> ChangelogError:
    return ChangelogError(
        f"The record at offset {offset} of the changelog cannot be used: {why}.",
        "see that only the streamd of this log writes the topic; then start followers from the "
        "newest manifest.",
    )
