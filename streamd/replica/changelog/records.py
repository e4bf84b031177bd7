"""The formats of the changelog's records: commits, claims to lead, and heartbeats of leaders.

A record without the header `kind` is of a commit: the line of the journal, and the bytes of files
that the line adds. It has headers `term`, `seq`, `part`, `parts` (decimal digits), `line` and
`before` (CRC32C of the line and of the line before it, eight hex digits each) and `crc` (CRC32C of
the value). The value is four bytes, little-endian, with the length of a JSON head, then the head,
then the bytes of its pieces, one after another. A commit that is larger than a record is split into
parts.

A claim has headers `kind`, `term` and `crc`, and a JSON object as value. A heartbeat has headers
`kind`, `term` and `member`, and no value.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from crc32c import crc32c

from streamd.errors import ChangelogError
from streamd.eventlog.line_ranges import FileRange
from streamd.telemetry import replica_metrics
from streamd.telemetry.failure_log import LastingFailures

logger = structlog.get_logger()

CHANGELOG = "changelog"
"""Label of the changelog in the metric of stray records."""
_failures = LastingFailures()
FORMAT = 1
LINE = ""
"""Path of pieces that are bytes of the line."""
PIECE_BYTES = 64
"""Maximum size of a piece's entry in a head, besides its path."""
HEAD_BYTES = 1 << 16
"""Bytes of a part that are reserved for its head and the record around it, besides the entries of
pieces."""
MAX_LINE_BYTES = 1 << 26
"""Maximum size of a line, 64 MiB: enough for positions of a million partitions."""
LENGTH = struct.Struct("<I")
CLAIM = "claim"
HEARTBEAT = "heartbeat"
MAX_NUMBER = (1 << 63) - 1
"""Largest term or commit number: positions store them in eight bytes."""
MAX_CLAIM_BYTES = 4_096
"""Maximum size of a claim's value: a name, an id and a number take some hundred bytes."""
MAX_NAME = 255
"""Maximum length of a member's name and of a claim's id, in characters."""


class StrayRecord(Exception):  # noqa: N818 - it is skipped, so no error
    """A record has no valid headers or checksum."""


class Record(NamedTuple):
    """A part of a commit. line: CRC32C of the commit's line, in hex. before: that of the line
    before it, "" if unknown."""

    offset: int
    term: int
    seq: int
    part: int
    parts: int
    line: str
    crc: int
    value: bytes
    before: str = ""

    @property
    def is_last(self) -> bool:
        return self.part == self.parts - 1

    @property
    def is_whole(self) -> bool:
        """Whether the value matches its checksum."""
        return bool(crc32c(self.value) == self.crc)

    def headers(self) -> list[tuple[str, bytes]]:
        numbers = {"term": self.term, "seq": self.seq, "part": self.part, "parts": self.parts}
        texts = {**numbers, "line": self.line, "crc": self.crc}
        if self.before:
            texts["before"] = self.before
        return _encode_headers(texts)


class Claim(NamedTuple):
    """A member's claim to lead from this record on. The first claim of a term counts.

    member: its name. id: unique, so that the member recognizes its own claim. seq: the newest
    commit before the claim. If the log is older than its changelog, the changelog may lack commits
    up to this one.
    """

    offset: int
    term: int
    member: str
    id: str
    seq: int

    @property
    def is_whole(self) -> bool:
        """True: a claim with a wrong checksum is never decoded."""
        return True

    @property
    def value(self) -> bytes:
        return msgspec.json.encode({"member": self.member, "id": self.id, "seq": self.seq})

    def headers(self) -> list[tuple[str, bytes]]:
        return _encode_headers({"kind": CLAIM, "term": self.term, "crc": crc32c(self.value)})


class Heartbeat(NamedTuple):
    """The leader of a term is alive, and has no commit to send."""

    offset: int
    term: int
    member: str

    @property
    def is_whole(self) -> bool:
        """True: it has no checksum."""
        return True

    @property
    def value(self) -> bytes:
        return b""

    def headers(self) -> list[tuple[str, bytes]]:
        return _encode_headers({"kind": HEARTBEAT, "term": self.term, "member": self.member})


class Stray(NamedTuple):
    """A record without valid headers or checksum, which streamd did not write: for example from a
    console producer or a mirroring tool. Readers skip it.

    may_be_commit: whether its value is that of a commit; then its headers are damaged.
    """

    offset: int
    why: str
    may_be_commit: bool = False

    @property
    def term(self) -> int:
        """0: it has no leader."""
        return 0

    @property
    def is_whole(self) -> bool:
        """False: it has no valid checksum."""
        return False


Entry = Record | Claim | Heartbeat
"""A record of the changelog that streamd wrote."""
Read = Entry | Stray
"""Any record of the changelog."""


def _encode_headers(headers: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(name, str(text).encode()) for name, text in headers.items()]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Describes the bytes of a part.

    line_bytes: size of the whole line. pieces: (path, offset, bytes) of each; the path is LINE for
    bytes of the line. made: in the first part, (path, bytes) of each file with which the commit
    replaces another. schema: in the first part of the log's first commit, its schema.
    """

    format: int
    line_bytes: int
    pieces: list[tuple[str, int, int]]
    made: list[tuple[str, int]]
    schema: dict[str, Any] | None


class Commit(NamedTuple):
    """A commit to publish. ranges: of files, which `encode` reads. before: CRC32C of the line
    before it, in hex; "" if that line is gone or never existed."""

    term: int
    seq: int
    line: bytes
    made: list[tuple[str, int]]
    schema: dict[str, Any] | None
    ranges: Sequence[FileRange]
    before: str = ""


def encode(commit: Commit, read: Callable[[FileRange], bytes], part_bytes: int) -> Iterator[Record]:
    """Yield a commit's records, each with a value of at most about `part_bytes`; offsets are 0.

    With equal `part_bytes`, a commit is always split at the same offsets.
    """
    plan = list(_plan_pieces(commit, part_bytes - HEAD_BYTES))
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
        yield Record(
            offset=0,
            term=commit.term,
            seq=commit.seq,
            part=part,
            parts=len(plan),
            line=line_crc,
            crc=crc32c(value),
            value=value,
            before=commit.before,
        )


def _plan_pieces(commit: Commit, room: int) -> Iterator[list[FileRange]]:
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


def decode_records(
    records: Iterable[tuple[int, Iterable[tuple[str, bytes]], bytes | None]],
) -> list[Read]:
    """Decode records, given as (offset, headers, value). One that streamd did not write becomes a
    `Stray`. Raises: ChangelogError for a record of a newer release."""
    out: list[Read] = []
    for offset, headers, value in records:
        try:
            out.append(decode_record(offset, headers, value or b""))
        except StrayRecord as error:
            out.append(Stray(offset, str(error), _is_of_commit(value or b"")))
            count_stray(offset, str(error))
    return out


def _is_of_commit(value: bytes) -> bool:
    """Whether a value starts with the head of a part of a commit."""
    try:
        (length,) = LENGTH.unpack_from(value)
        msgspec.json.decode(value[LENGTH.size : LENGTH.size + length], type=Head)
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def count_stray(offset: int, why: str) -> None:
    """Count and log a stray record; the caller skips it."""
    replica_metrics.stray_records.labels(CHANGELOG).inc()
    if _failures.is_due(CHANGELOG):
        logger.warning("stray_record_skipped", topic=CHANGELOG, offset=offset, why=why)


def decode_record(offset: int, headers: Iterable[tuple[str, bytes]], value: bytes) -> Entry:
    """Decode a record of the changelog. Raises: StrayRecord if streamd did not write it,
    ChangelogError if it is of a newer release."""
    found = dict(headers)
    try:
        kind = found["kind"].decode() if "kind" in found else ""
        if kind == CLAIM:
            return _claim(offset, found, value)
        if kind == HEARTBEAT:
            member = found["member"].decode()
            _check_name(member)
            return Heartbeat(offset, _number(found["term"]), member)
        if kind:
            why = f"its kind is {kind!r}, which this streamd does not know"
            # With a term and a valid checksum, a newer release of streamd wrote it.
            is_ours = "term" in found and crc32c(value) == _number(found.get("crc", b""))
            raise _damage_error(offset, why) if is_ours else StrayRecord(why)
        term, seq, part, parts, crc = (
            _number(found[name]) for name in ("term", "seq", "part", "parts", "crc")
        )
        line = found["line"].decode()
        before = found.get("before", b"").decode()
        record = Record(offset, term, seq, part, parts, line, crc, value, before)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise StrayRecord("its headers are not those of a commit, claim or heartbeat") from None
    if record.seq < 1 or not 0 <= record.part < record.parts:
        raise StrayRecord("its numbers are out of range")
    return record


class _ClaimValue(msgspec.Struct, frozen=True):
    member: str
    id: str
    seq: int


def _claim(offset: int, headers: dict[str, bytes], value: bytes) -> Claim:
    """Decode a claim. Raises: StrayRecord, KeyError, ValueError."""
    term = _number(headers["term"])
    if len(value) > MAX_CLAIM_BYTES or crc32c(value) != _number(headers["crc"]):
        raise StrayRecord("the claim differs from its checksum")
    try:
        said = msgspec.json.decode(value, type=_ClaimValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StrayRecord(str(error)) from None
    _check_name(said.member)
    _check_name(said.id)
    if not 0 <= said.seq <= MAX_NUMBER:
        raise StrayRecord(f"its commit is {said.seq}")
    return Claim(offset, term, said.member, said.id, said.seq)


def _check_name(name: str) -> None:
    """Check that a name is short and printable: control characters would act on a terminal. Raises:
    ValueError."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise ValueError(name)


def _number(text: bytes) -> int:
    """Decode a header of decimal digits. Raises: ValueError."""
    # Only digits: `int` also accepts signs, blanks and underscores.
    if not text.isdigit() or len(text) > len(str(MAX_NUMBER)) or int(text) > MAX_NUMBER:
        raise ValueError(text)
    return int(text)


def decode_value(record: Record) -> tuple[Head, memoryview]:
    """Decode a record's value into its head and the bytes of the pieces. Raises: ChangelogError."""
    value = record.value
    if not record.is_whole:
        raise _damage_error(record.offset, "its value differs from its checksum")
    try:
        (length,) = LENGTH.unpack_from(value)
        text = value[LENGTH.size : LENGTH.size + length]
        found = msgspec.json.decode(text)[0]
        if found != FORMAT:
            raise _damage_error(
                record.offset, f"its format is {found}, this streamd reads {FORMAT}"
            )
        head = msgspec.json.decode(text, type=Head)
    except (
        struct.error,
        msgspec.DecodeError,
        TypeError,
        IndexError,
        KeyError,
        RecursionError,
    ) as error:
        raise _damage_error(record.offset, str(error)) from None
    data = memoryview(value)[LENGTH.size + length :]
    fits = all(offset >= 0 and size > 0 for _, offset, size in head.pieces)
    if not fits or sum(size for _, _, size in head.pieces) != len(data):
        raise _damage_error(record.offset, "its pieces do not fit its bytes")
    if not 0 < head.line_bytes <= MAX_LINE_BYTES:
        raise _damage_error(record.offset, f"its line has {head.line_bytes} bytes")
    return head, data


def _damage_error(offset: int, why: str) -> ChangelogError:
    return ChangelogError(
        f"The record at offset {offset} of the changelog cannot be used: {why}.",
        "make sure that only this log's streamd writes the topic; then start followers from the "
        "newest manifest.",
    )
