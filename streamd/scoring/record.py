"""The records of the score topic: JSON, one for each event that was scored.

`docs/scores.md` lists the fields for consumers.
"""

from dataclasses import asdict, dataclass

import msgspec

SCHEMA = 1
"""Number of the record's schema. Fields may be added under the same number; a removed field or a
changed meaning raises it."""
HEADERS = [("content-type", b"application/json")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRecord:
    """A scored event.

    event: its id. src, dst: keys. edge_set: name. time_us: event time, microseconds. version: the
    one that scored it. memory_event: memory and neighborhoods had the events with lower ids.
    known: whether the destination had been a destination before. score: logit of the event's own
    destination. rank: of it among itself and `candidates` others, 1 is best. scored_at: wall clock,
    seconds. complete_before: every event with a lower id, since scoring started, is in the topic or
    was skipped. surprise, p_value: as in `Rarity`; None in records of older releases.
    """

    event: int
    src: str | int
    dst: str | int
    edge_set: str
    time_us: int
    version: str
    memory_event: int
    known: bool
    score: float
    rank: float
    candidates: int
    scored_at: float
    complete_before: int = 0
    surprise: float | None = None
    p_value: float | None = None
    schema: int = SCHEMA

    def key(self) -> bytes:
        """The key of the Kafka record: the source's, as text."""
        return str(self.src).encode()

    def encode(self, complete_before: int) -> bytes:
        """Encode the record for the topic."""
        return msgspec.json.encode({**asdict(self), "complete_before": complete_before})


def decode(value: bytes | None) -> ScoreRecord | None:
    """Decode a record's value. Returns: None if it is no record of this schema."""
    try:
        record = msgspec.json.decode(value or b"", type=ScoreRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if record.schema == SCHEMA else None
