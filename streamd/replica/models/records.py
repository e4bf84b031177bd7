"""The records of the models topic: claims and results of trainers, requests and answers of members.

A value is JSON, `{"crc": "8 hex digits", "record": {"type": ..., ...}}`; the CRC32C is of the bytes
of `record`.
"""

from typing import Literal

import msgspec
from crc32c import crc32c

from streamd.errors import ModelsTopicError, StoreError
from streamd.store.checkpoints import NAME as CHECKPOINT_NAME
from streamd.store.versions import NAME, StoredVersion, check

MAX_BYTES = 950_000
"""Maximum size of a record, below Kafka's default of 1 MiB for a message."""
MAX_TEXT = 1000
"""Maximum length of a text that a member sends, in characters."""
SHOWN = 80


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The field of all records. term: of the trainer, as the sender knows it."""

    term: int


class Trained(Record, frozen=True, kw_only=True):
    """A record of the trainer. number: counts the trainer's records in a term from 1 on, so that a
    repeated record is recognized."""

    number: int


class Version(Trained, frozen=True, kw_only=True, tag="version"):
    """A version with all of its bytes in the store."""

    version: StoredVersion


class Moved(Trained, frozen=True, kw_only=True, tag="move"):
    """A line of `models/journal.jsonl`."""

    line: str


class Scored(Trained, frozen=True, kw_only=True, tag="window"):
    """A line of the history. index: of the line, which replaces all lines from this index on."""

    index: int
    line: str


class Kept(Trained, frozen=True, kw_only=True, tag="kept"):
    """The versions that the trainer keeps: name -> whether with memory. It dropped all others."""

    versions: dict[str, bool]


class Refused(Trained, frozen=True, kw_only=True, tag="refused"):
    """The trainer refused a request."""

    request: str
    reason: str


class Released(Trained, frozen=True, kw_only=True, tag="released"):
    """Ingest may compact now. left: the members that compaction no longer waits for. They have not
    answered that their files are free of deleted data, so they rebuild these files."""

    request: str
    event: int
    left: list[str]


class Compacted(Trained, frozen=True, kw_only=True, tag="compacted"):
    """A compaction request is done on the leader."""

    request: str


class Checkpointed(Trained, frozen=True, kw_only=True, tag="checkpointed"):
    """A checkpoint of the trainer is in the store; the trainer of another machine can resume from
    it.

    name: of the object that names its files. size, crc: bytes and CRC32C of that object. edge: id
    of the event at which training resumes. held: the oldest event that this needs. purged: the
    checkpoint contains no data that deletes before this event hide.
    """

    name: str
    size: int
    crc: int
    edge: int
    held: int
    purged: int


class Claimed(Record, frozen=True, kw_only=True, tag="claimed"):
    """A trainer starts. The first claim of the highest term so far plus one wins that term: later
    records of earlier terms do not count.

    `anew`: there was no valid record of a trainer, as in a topic that was created again or lost its
    first records. Then the claim may have any higher term, and no record before it counts.

    member: its machine's host name. id: chosen by the trainer at its start, 32 hex digits. at: wall
    time in seconds.
    """

    member: str
    id: str
    at: float
    anew: bool = False


class Request(Record, frozen=True, kw_only=True, tag="request"):
    """A member's request to the trainer.

    id: chosen by the member, 32 hex digits. version: to promote. event: deletes before it are to
    become physical. seq: the newest commit with one of these deletes. at: wall time in seconds.
    """

    id: str
    action: Literal["promote", "rollback", "compact"]
    who: str
    why: str
    member: str
    at: float
    version: str = ""
    event: int = 0
    seq: int = 0


class Joined(Record, frozen=True, kw_only=True, tag="joined"):
    """A member follows the log from now on; compaction waits for its answer."""

    member: str
    at: float


class Left(Record, frozen=True, kw_only=True, tag="left"):
    """A member stopped. If it returns after a compaction, its roles rebuild their state."""

    member: str


class Answer(Record, frozen=True, kw_only=True, tag="answer"):
    """The files of a member contain no data that was deleted before the request's event. event: the
    oldest event that its roles replay."""

    request: str
    member: str
    event: int


Known = (
    Version
    | Moved
    | Scored
    | Kept
    | Refused
    | Released
    | Compacted
    | Checkpointed
    | Claimed
    | Request
    | Joined
    | Left
    | Answer
)


class _Envelope(msgspec.Struct):
    crc: str
    record: msgspec.Raw


_decoder = msgspec.json.Decoder(Known)


def encode(record: Known) -> bytes:
    """Encode a record. Raises: ModelsTopicError if it is too large."""
    text = msgspec.json.encode(record)
    value = msgspec.json.encode(_Envelope(f"{crc32c(text):08x}", msgspec.Raw(text)))
    if len(value) > MAX_BYTES:
        raise ModelsTopicError(
            f"A record of {len(value):,} bytes is too large for the models topic.",
            "keep a version's memory under 200 GB: see model.dim.",
        )
    return value


def decode(value: bytes | None) -> Known:
    """Decode an untrusted record, and check it. Raises: ModelsTopicError."""
    if value is None or len(value) > MAX_BYTES:
        size = "no value" if value is None else f"{len(value):,} bytes"
        raise ModelsTopicError(f"A record of the models topic has {size}.", _SKIPPED)
    try:
        envelope = msgspec.json.decode(value, type=_Envelope)
        text = bytes(envelope.record)
        if f"{crc32c(text):08x}" != envelope.crc:
            raise ModelsTopicError(
                "A record of the models topic differs from its checksum.", _SKIPPED
            )
        record: Known = _decoder.decode(text)
        if isinstance(record, Version):
            check(record.version)
    except (msgspec.DecodeError, UnicodeDecodeError, StoreError) as error:
        raise ModelsTopicError(
            f"A record of the models topic cannot be read: {error}.", _SKIPPED
        ) from None
    if wrong := _wrong(record):
        raise ModelsTopicError(
            f"A record of the models topic cannot be trusted: {wrong}.", _SKIPPED
        )
    return record


_SKIPPED = "none is needed: the record is skipped. Check which programs write to that topic."


def _wrong(record: Known) -> str:
    """The fault of a record that has the right types, "" if there is none."""
    if record.term < 0 or (isinstance(record, Trained) and record.number < 1):
        return "its term or number is negative"
    if isinstance(record, Scored) and record.index < 0:
        return "its index is negative"
    if isinstance(record, Moved | Scored) and "\n" in record.line:
        return "it holds several lines"
    if isinstance(record, Kept) and not all(map(NAME.fullmatch, record.versions)):
        return "it keeps a name that is not a version's"
    if isinstance(record, Checkpointed) and not CHECKPOINT_NAME.fullmatch(record.name):
        return "it names no checkpoint"
    if isinstance(record, Request) and not _names_a_version(record):
        return f"{record.version[:SHOWN]!r} is no version"
    texts = [
        getattr(record, name, "") for name in ("id", "request", "member", "who", "why", "reason")
    ]
    return "a text is too long" if any(len(text) > MAX_TEXT for text in texts) else ""


def _names_a_version(request: Request) -> bool:
    return request.action != "promote" or NAME.fullmatch(request.version) is not None
