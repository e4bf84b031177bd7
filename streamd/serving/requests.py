"""The requests to the engine, and its answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from streamd.events import Key
from streamd.serving.node_filter import ALL_NODES, NodeFilter, ValueLimit


class Overloaded(Exception):
    """More requests wait than `server.max_queue`, or more arrive than can be answered in time.
    Answered with 429."""


class NotReady(Exception):
    """The engine cannot answer yet. Answered with 503."""


class TooManyNodes(Exception):
    """An exact recommendation would not end in time. Answered with 422."""


class NotReached(Exception):
    """The log did not reach the position that a request requires. Answered with 504."""


class TooOld(Exception):
    """An answer is older than its request allows. Answered with 503."""


class NotFinite(Exception):
    """A version's output is not finite, so it must not serve. version: its name, "" if unknown."""

    version: str = ""


class KnownSource(Exception):
    """A request supposes the first events of a source that has events. Answered with 422."""


class NoContext(Exception):
    """This server cannot suppose events. Answered with 422."""


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """A supposed event of a source. time_us: None for the newest time in the log. edge_set: its
    number. features: of its edge set."""

    dst: Key
    time_us: int | None
    edge_set: int
    features: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NewSource:
    """A source as a request supposes it: its features, None for none, then its events, in their
    order."""

    features: tuple[float, ...] | None
    events: tuple[SourceEvent, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """A request for the scores of candidates. time_us: event time of the query, None for now.
    edge_set: its number; src and dst are keys of its node sets. arm: of a trial that answers,
    empty for the champion. new: the source as it is supposed, None for the
    source in the log."""

    src: Key
    dst: tuple[Key, ...]
    time_us: int | None = None
    edge_set: int = 0
    arm: str = ""
    new: NewSource | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommend:
    """A request for the best `k` destinations of a source.

    filter: of the destinations. exclude_seen: whether to leave out the source's last partners.
    exact: whether to score all nodes instead of likely ones. diversity: of the answer, None for
    any. reasons: whether to give the reason of each score. time_us, edge_set, arm, new: as in
    `Score`.
    """

    src: Key
    k: int = 10
    filter: NodeFilter = ALL_NODES
    exclude_seen: bool = False
    exact: bool = False
    diversity: ValueLimit | None = None
    reasons: bool = False
    time_us: int | None = None
    edge_set: int = 0
    arm: str = ""
    new: NewSource | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Similar:
    """A request for the `k` destinations of an edge set that are most similar to a given one, now.

    by: "embedding" or "partners". filter: of the answer.
    """

    node: Key
    k: int = 10
    by: str = "embedding"
    filter: NodeFilter = ALL_NODES
    edge_set: int = 0


@dataclass(frozen=True, slots=True)
class Embedding:
    """A request for a node's embedding, now."""

    node: Key


@dataclass(frozen=True, slots=True)
class Label:
    """A request for the prediction of a node's labels, now."""

    node: Key


@dataclass(frozen=True, slots=True)
class Explain:
    """A request for the explanation of a candidate's score. time_us, edge_set: as in `Score`."""

    src: Key
    dst: Key
    time_us: int | None = None
    edge_set: int = 0


Request = Score | Recommend | Similar | Embedding | Label | Explain


def supposes(request: Request) -> TypeGuard[Score | Recommend]:
    """Whether a request supposes its source."""
    return isinstance(request, Score | Recommend) and request.new is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """The position of the graph in the log when an answer was computed.

    term, seq: leader's epoch and number of the newest commit that the graph had completely.
    complete_until: wall time in seconds up to which it had all records of Kafka, None if unknown.
    """

    term: int = 0
    seq: int = 0
    complete_until: float | None = None

    def lag_seconds(self, now: float) -> float | None:
        """The age of the answer in seconds, None if unknown. now: wall time in seconds."""
        return None if self.complete_until is None else max(0.0, now - self.complete_until)

    def check_age(self, max_lag_seconds: float, now: float) -> None:
        """Check that the answer is not older than a request allows. now: wall time in seconds.
        Raises: TooOld."""
        lag_seconds = self.lag_seconds(now)
        if lag_seconds is None:
            raise TooOld(
                "the age of answers is unknown: ingest has not reported yet, or the server has not "
                "caught up"
            )
        if lag_seconds > max_lag_seconds:
            raise TooOld(
                f"the answer would be {lag_seconds:.1f} s old, and {max_lag_seconds:g} s are "
                "allowed"
            )


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the pair. all_sets: whether it is over all edge sets together, if there are
    several. value: the input of the model. words: the fact as text."""

    name: str
    all_sets: bool
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Group:
    """Facts of one kind, or the graph's contribution. words: a summary of its facts. share: its
    Shapley value in the score. without: the score with this group alone at its baseline."""

    name: str
    words: str
    share: float
    without: float
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class NeighborShare:
    """A sampled neighbor of source or candidate. of: "src" or "dst". time_us: of the event between
    them. weight: its share among the neighbors of that node."""

    node: Key
    of: str
    time_us: int
    weight: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The parts of a score: `baseline` and the groups' shares add up to it.

    weights: origin of the neighbors' weights, "attention" or "uniform"; "none" if the model uses no
    neighbors.
    """

    score: float
    baseline: float
    groups: tuple[Group, ...]
    neighbors: tuple[NeighborShare, ...]
    weights: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The group of facts, or the graph, that adds most to a score. words: a summary of its facts.
    adds: the score minus the score with this group at its baseline."""

    group: str
    words: str
    adds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The engine's answer to a request, with the state from which it was computed. Times are in
    microseconds.

    version: its name, or that of a rule if no version answers. trained_until_us: end of its window.
    edge: id of the first event not in the graph. memory_edge: event id up to which the memory has
    advanced. as_of_us: time of the query. newest_us: time of the newest event. seen: as in `Seen`.
    src_known: whether the source is known. dst, scores, known: for Score, Recommend, Similar and
    Explain. reasons: for Recommend, if requested; None for a node to which no group adds anything.
    explanation: for Explain. embedding: for Embedding, and for Similar by embedding; empty without
    graph layers. labels: for Label, None without a label head.
    """

    version: str
    trained_until_us: int | None
    edge: int
    as_of_us: int
    newest_us: int
    seen: Seen
    memory_edge: int
    src_known: bool
    dst: tuple[Key, ...] = ()
    scores: tuple[float, ...] = ()
    known: tuple[bool, ...] = ()
    reasons: tuple[Reason | None, ...] = ()
    embedding: tuple[float, ...] = ()
    labels: tuple[float, ...] | None = None
    explanation: Explanation | None = None


Done = Callable[[list[Answer] | BaseException], None]
"""Called with the answers in the order of the requests, or with an error instead."""
