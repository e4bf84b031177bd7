"""The records of a trial's topic: an impression for each answer in the trial, and outcomes.

`docs/trials.md` lists the fields for consumers.
"""

import msgspec

from streamd.events import Key, SetKey
from streamd.serving.requests import Answer

SCHEMA = 1
"""Number of the record's schema. Fields may be added under the same number; a removed field or a
changed meaning raises it."""


class Impression(msgspec.Struct, frozen=True, kw_only=True, tag="impression"):
    """An answer that was given to a unit.

    answer: its id. trial, arm, unit: by name. version: of the answer, or the rule. src, dst: keys,
    dst best first. edge_set: name, of the request. edge: id of the first event that the answer did
    not have. time_us: event time of the request, microseconds.
    """

    answer: str
    trial: str
    arm: str
    unit: str
    version: str
    src: str | int
    dst: list[str | int]
    edge_set: str
    edge: int
    time_us: int
    schema: int = SCHEMA

    def key(self) -> bytes:
        """The key of the Kafka record: the unit."""
        return self.unit.encode()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """An outcome that a program sends to the trial's topic. answer: id of the answer. value: 1 for
    any. time: of the outcome, in `stream.time_unit`."""

    answer: str
    time: int
    value: float = 1.0


def plain_keys(keys: tuple[Key, ...]) -> list[str | int]:
    """Keys without their node sets."""
    return [key.key if isinstance(key, SetKey) else key for key in keys]


def best_first(answer: Answer) -> tuple[Key, ...]:
    """The nodes of an answer by falling score; of equal ones, the first stays first."""
    # Python's sort is stable.
    order = sorted(range(len(answer.dst)), key=lambda i: -answer.scores[i])
    return tuple(answer.dst[i] for i in order)
