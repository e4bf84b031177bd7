"""The records of the models topic: who trains, what the trainer did, and what others ask of it.

A value is JSON, `{"crc": "8 hex digits", "record": {"type": ..., ...}}`; the CRC32C is of the bytes
of its second value.
"""

from typing import Literal

import msgspec
from crc32c import crc32c

from streamd.errors import ModelsTopicError, StoreError
from streamd.store.checkpoints import NAME as CHECKPOINT_NAME
from streamd.store.versions import NAME, StoredVersion, check

MAX_BYTES = 950_000
"""Most bytes of a record, below Kafka's default of 1 MiB for a message."""
MAX_TEXT = 1000
"""Most characters of a text that a member sends."""
SHOWN = 80


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all records have. term: of the trainer as the sender knows it."""

    term: int


class Trained(Record, frozen=True, kw_only=True):
    """A record of the trainer. number: counts its records from 1 on; a record that comes again has
    a number that is no news."""

    number: int


class Version(Trained, frozen=True, kw_only=True, tag="version"):
    """A version whose bytes are in the store."""

    version: StoredVersion


class Moved(Trained, frozen=True, kw_only=True, tag="move"):
    """A line of `models/journal.jsonl`."""

    line: str


class Scored(Trained, frozen=True, kw_only=True, tag="window"):
    """A line of the history. index: of the line; those from there on are replaced by it."""

    index: int
    line: str


class Kept(Trained, frozen=True, kw_only=True, tag="kept"):
    """The versions that the trainer keeps: name -> whether with memory. It dropped the others."""

    versions: dict[str, bool]


class Refused(Trained, frozen=True, kw_only=True, tag="refused"):
    """The trainer did not do what a request asks for."""

    request: str
    reason: str


class Released(Trained, frozen=True, kw_only=True, tag="released"):
    """Compaction goes on. left: the members that it no longer waits for; they have not said that
    their files are rid of what was deleted, and start anew."""

    request: str
    event: int
    left: list[str]


class Compacted(Trained, frozen=True, kw_only=True, tag="compacted"):
    """What a compaction request asks for is done on the leader."""

    request: str


class Checkpointed(Trained, frozen=True, kw_only=True, tag="checkpointed"):
    """A checkpoint of the trainer is in the store, from which another machine's trainer goes on.

    name: of the object that names its files. size, crc: bytes and CRC32C of that object. edge:
    event id at which learning goes on. held: the oldest event that going on there needs. purged: it
    holds nothing that deletes before this event hide.
    """

    name: str
    size: int
    crc: int
    edge: int
    held: int
    purged: int


class Claimed(Record, frozen=True, kw_only=True, tag="claimed"):
    """A trainer begins. The first claim of the highest term so far and one wins that term: records
    of earlier ones that come behind it do not count.

    anew: there was no valid record of a trainer, as in a topic that was created again or lost its
    first records. Then the claim may have any higher term, and no record before it counts.

    member: its machine's host name. id: chosen by the trainer at its start, 32 hex digits. at:
    wall time in seconds.
    """

    member: str
    id: str
    at: float
    anew: bool = False


class Request(Record, frozen=True, kw_only=True, tag="request"):
    """What a member asks of the trainer.

    id: chosen by the member, 32 hex digits. version: to promote. event: deletes before it are to
    become physical. seq: the newest commit with one of them. at: wall time in seconds.
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
    """A member follows the log from now on: compaction waits for its answer."""

    member: str
    at: float


class Left(Record, frozen=True, kw_only=True, tag="left"):
    """A member stopped, and starts anew if it returns behind a compaction."""

    member: str


class Answer(Record, frozen=True, kw_only=True, tag="answer"):
    """No file of a member holds what was deleted before the request's event. event: the oldest that
    its roles replay."""

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
    """Encode a record. Raises: ModelsTopicError where it is too large."""
    text = msgspec.json.encode(record)
    value = msgspec.json.encode(_Envelope(f"{crc32c(text):08x}", msgspec.Raw(text)))
    if len(value) > MAX_BYTES:
        raise ModelsTopicError(
            f"A record of {len(value):,} bytes is too large for the models topic.",
            "keep a version's memory under 200 GB: see model.dim.",
        )
    return value


def decode(value: bytes | None) -> Known:
    """Decode and check a record, of which nothing is trusted. Raises: ModelsTopicError."""
    if value is None or len(value) > MAX_BYTES:
        size = "no value" if value is None else f"{len(value):,} bytes"
        raise ModelsTopicError(f"A record of the models topic has {size}.", _PASSED_OVER)
    try:
        envelope = msgspec.json.decode(value, type=_Envelope)
        text = bytes(envelope.record)
        if f"{crc32c(text):08x}" != envelope.crc:
            raise ModelsTopicError(
                "A record of the models topic differs from its checksum.", _PASSED_OVER
            )
        record: Known = _decoder.decode(text)
        if isinstance(record, Version):
            check(record.version)
    except (msgspec.DecodeError, UnicodeDecodeError, StoreError) as error:
        raise ModelsTopicError(
            f"A record of the models topic cannot be read: {error}.", _PASSED_OVER
        ) from None
    if wrong := _wrong(record):
        raise ModelsTopicError(
            f"A record of the models topic cannot be trusted: {wrong}.", _PASSED_OVER
        )
    return record


_PASSED_OVER = "none is needed: it is passed over. Look at who writes to that topic."


def _wrong(record: Known) -> str:
    """What is wrong with a record that has the right types, "" for nothing."""
    if record.term < 0 or (isinstance(record, Trained) and record.number < 1):
        return "its term or number is negative"
    if isinstance(record, Scored) and record.index < 0:
        return "its index is negative"
    if isinstance(record, Moved | Scored) and "\n" in record.line:
        return "it holds several lines"
    if isinstance(record, Kept) and not all(map(NAME.fullmatch, record.versions)):
        return "it keeps what is no version"
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
