"""The mathoverflow stream as three topics, each with its own schema, and their mappings.

Answers, comments on questions and comments on answers are three edge sets between users.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.clock import utc
from streamd.events import MICROSECONDS
from streamd.exchange.produce import Outgoing

KINDS = ("answers", "question_comments", "answer_comments")
"""Names of the edge sets; the column `kind` of the data is an index into them."""
USER = "user:"
"""Prefix of user ids, added by the mappings."""


def topics(topic: str) -> tuple[str, ...]:
    """The topic of each edge set. topic: their common prefix."""
    return tuple(f"{topic}-{kind.replace('_', '-')}" for kind in KINDS)


def as_record(event: Outgoing) -> tuple[int, Outgoing]:
    """Convert an event in streamd's own schema to a record of one of the topics. Returns: the
    topic's index, and the record."""
    own = msgspec.json.decode(event.value)
    number = KINDS.index(own["edge_set"])
    src, dst = (int(own[end].removeprefix(USER)) for end in ("src", "dst"))
    seconds: int = own["time"]
    shapes: Sequence[dict[str, Any]] = (
        {"answer": {"by": src, "at": utc(seconds * MICROSECONDS["s"])}, "question": {"by": dst}},
        {"commenter": src, "on": {"kind": "question", "author": dst}, "epoch": seconds},
        {"who": {"id": src}, "answerer": dst, "ms": seconds * 1000, "v": 2},
    )
    return number, Outgoing(event.key, msgspec.json.encode(shapes[number]), event.time)


def stream_settings(topic: str) -> dict[str, Any]:
    """The settings that map the topics' records to the stream's events: the inverse of
    `as_record`."""

    def user(path: str) -> dict[str, str]:
        return {"path": path, "prefix": USER}

    fields: Sequence[dict[str, Any]] = (
        {"src": user("answer.by"), "dst": user("question.by"), "time": "answer.at"},
        {"src": user("commenter"), "dst": user("on.author"), "time": "epoch"},
        {"src": user("who.id"), "dst": user("answerer"), "time": "ms"},
    )
    sources = [
        {"topic": own, "edge_set": kind, "time": unit, "fields": paths}
        for own, kind, unit, paths in zip(
            topics(topic), KINDS, ("iso8601", "s", "ms"), fields, strict=True
        )
    ]
    return {
        "sources": tuple(sources),
        "graph.node_sets": {"user": {}},
        "graph.edge_sets": {kind: {} for kind in KINDS},
    }
