"""The mathoverflow stream as three topics, each in a shape of its own, and their mappings.

Answers, comments on questions and comments on answers are three edge sets between users.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.clock import utc
from streamd.events import MICROSECONDS
from streamd.exchange.produce import Outgoing

KINDS = ("answers", "question_comments", "answer_comments")
"""Names of the edge sets, by the number of the kind in the data."""
USER = "user:"
"""What the mappings put before a user's number."""


def topics(topic: str) -> tuple[str, ...]:
    """The topic of each edge set."""
    return tuple(f"{topic}-{kind.replace('_', '-')}" for kind in KINDS)


def as_record(event: Outgoing) -> tuple[int, Outgoing]:
    """One of streamd's own events as a record of one of the topics. Returns: the topic's number,
    and the record."""
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


def declared(topic: str) -> dict[str, Any]:
    """The settings under which the topics' records are the stream's events. As in `as_record`."""

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
