"""What can be asked of the engine, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass

from streamd.events import Key


class Overloaded(Exception):
    """More requests wait than `server.max_queue`; the caller answers 429."""


class NotReady(Exception):
    """The engine cannot answer yet; the caller answers 503."""


class NotFinite(Exception):
    """A version says what is no number; it must not serve."""


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of candidates. time_us: event time of the query, None for now."""

    src: Key
    dst: tuple[Key, ...]
    time_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommend:
    """The best `k` destinations: of likely ones, or where exact of all nodes. kind: only nodes of
    it. time_us: as of `Score`."""

    src: Key
    k: int = 10
    kind: str | None = None
    exclude_seen: bool = False
    exact: bool = False
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of a node, now."""

    node: Key


@dataclass(frozen=True, slots=True)
class Label:
    """What is predicted of a node's labels, now."""

    node: Key


Request = Score | Recommend | Embedding | Label


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the engine said, and as of when. version: the name, or "rule" before there is one. Times
    in microseconds.

    dst, scores, known: of Score and Recommend; embedding: of Embedding, empty without graph layers;
    labels: of Label, None without a head.
    """

    version: str
    trained_until_us: int | None
    edge: int
    as_of_us: int
    newest_us: int
    memory_edge: int
    src_known: bool
    dst: tuple[Key, ...] = ()
    scores: tuple[float, ...] = ()
    known: tuple[bool, ...] = ()
    embedding: tuple[float, ...] = ()
    labels: tuple[float, ...] | None = None


Done = Callable[[list[Answer] | BaseException], None]
"""Told the answers, in the order of what was asked together, or why there are none."""
