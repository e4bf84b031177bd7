"""The conditions of a request on its answer: positions that it must include, and its maximum age.

They are HTTP headers, since bodies of the Open Inference Protocol have no fields for them.
"""

import re
import time
from dataclasses import dataclass

from starlette.datastructures import Headers

from streamd.eventlog.journal.journal import LogState
from streamd.serving.requests import Seen

AFTER = "streamd-after"
MAX_LAG = "streamd-max-lag"
POSITION = "streamd-position"
LAG = "streamd-lag-seconds"
MAX_TOKENS = 256
"""Maximum number of positions in one request: more than the partitions to which a producer usually
writes."""
INT64 = 2**63 - 1
SHOWN_CHARACTERS = 80
"""Maximum number of characters of a token in an error."""
# Commit numbers and offsets have 64 bits, so at most 19 digits. Kafka allows only these characters
# in the name of a topic.
COMMIT = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
RECORD = re.compile(r"([A-Za-z0-9._-]{1,249}):([0-9]{1,10}):([0-9]{1,19})")
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class BadCondition(Exception):
    """A condition is invalid, or this log can never meet it. Answered with 400."""


@dataclass(frozen=True, slots=True)
class CommitToken:
    """A commit of the log, by the leader's epoch (`term`) and the commit's number."""

    term: int
    seq: int

    def __str__(self) -> str:
        return f"{self.term}.{self.seq}"

    def is_in(self, state: LogState) -> bool:
        """Whether a state of the log includes the commit."""
        return (state.term, state.seq) >= (self.term, self.seq)

    def check(self, state: LogState, topics: tuple[str, ...]) -> None:
        """Accept any commit: the log may reach it later."""


@dataclass(frozen=True, slots=True)
class RecordToken:
    """A record in Kafka, by the fields of its acknowledgement."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    def is_in(self, state: LogState) -> bool:
        """Whether a state of the log includes all events of the record.

        Only records before the position's offset are complete. Events of the record at that offset
        may not be in the log yet, nor those of a later record in `ahead`, which ingest holds back.
        """
        position = state.progress.positions.get(self.topic, {}).get(self.partition)
        return position is not None and self.offset < position.offset

    def check(self, state: LogState, topics: tuple[str, ...]) -> None:
        """Check that ingest reads the topic and partition. topics: `kafka.topics`, of which some
        may not have been read yet. Raises: BadCondition."""
        partitions = state.progress.positions.get(self.topic)
        if partitions is None and self.topic not in topics:
            raise BadCondition(f"{AFTER}: this log does not read topic {self.topic}")
        if partitions is not None and self.partition not in partitions:
            raise BadCondition(
                f"{AFTER}: this log does not read partition {self.partition} of {self.topic}"
            )


Token = CommitToken | RecordToken


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions on an answer. after: the positions that it must include. max_lag_seconds: its
    maximum age, None for any."""

    after: tuple[Token, ...] = ()
    max_lag_seconds: float | None = None


NONE = Conditions()


def read_conditions(headers: Headers) -> Conditions:
    """Read the conditions in the headers of a request. Raises: BadCondition."""
    # Most requests have none; for them this is two lookups.
    if AFTER not in headers and MAX_LAG not in headers:
        return NONE
    return Conditions(_tokens(headers.getlist(AFTER)), _seconds(headers.getlist(MAX_LAG)))


def _tokens(values: list[str]) -> tuple[Token, ...]:
    """Parse the tokens of all headers `streamd-after`, each with one or more, separated by
    commas."""
    texts = [text.strip(" \t") for value in values for text in value.split(",")]
    if len(texts) > MAX_TOKENS:
        raise BadCondition(f"{AFTER} has {len(texts)} positions, at most {MAX_TOKENS} are allowed")
    return tuple(_token(text) for text in texts)


def _token(text: str) -> Token:
    token: Token
    if match := COMMIT.fullmatch(text):
        token = CommitToken(int(match[1]), int(match[2]))
        largest = max(token.term, token.seq)
    elif match := RECORD.fullmatch(text):
        token = RecordToken(match[1], int(match[2]), int(match[3]))
        largest = token.offset
    else:
        raise BadCondition(
            f"{AFTER}: {_quote(text)} is neither TERM.SEQ, the form of {POSITION}, "
            "nor TOPIC:PARTITION:OFFSET"
        )
    # The log's numbers have 64 bits; Python's integers have no bound.
    if largest > INT64:
        raise BadCondition(f"{AFTER}: a number in {_quote(text)} does not fit 64 bits")
    return token


def _seconds(values: list[str]) -> float | None:
    if not values:
        return None
    if len(values) > 1 or not SECONDS.fullmatch(values[0]):
        raise BadCondition(f"{MAX_LAG}: {_quote(', '.join(values))} is not a number of seconds")
    return float(values[0])


def _quote(text: str) -> str:
    """A text for an error: shortened, and with control characters escaped, which could change a
    terminal."""
    return ascii(text[:SHOWN_CHARACTERS]) + ("..." if len(text) > SHOWN_CHARACTERS else "")


def headers_of(seen: Seen) -> dict[str, str]:
    """The headers with the position of an answer, and its age if known."""
    headers = {POSITION: f"{seen.term}.{seen.seq}"}
    lag_seconds = seen.lag_seconds(time.time())
    if lag_seconds is not None:
        headers[LAG] = f"{lag_seconds:.3f}"
    return headers
