"""The requests to the engine, and its answers."""

from collections.abc import Callable
from dataclasses import dataclass

from streamd.events import Key
from streamd.serving.node_filter import ALL_NODES, NodeFilter, ValueLimit


class Overloaded(Exception):
    """More requests wait than `server.max_queue`, or more come than can be answered in time; the
    caller answers 429."""


class NotReady(Exception):
    """The engine cannot answer yet; the caller answers 503."""


class TooManyNodes(Exception):
    """An exact recommendation would not end in time; the caller answers 422."""


class NotReached(Exception):
    """The log did not come to what a request must have seen; the caller answers 504."""


class TooOld(Exception):
    """An answer is older than its request allows; the caller answers 503."""


class NotFinite(Exception):
    """A version's output is not finite; the version must not serve."""


@dataclass(frozen=True, slots=True)
class Score:
    """A request for the scores of candidates. time_us: event time of the query, None for now.
    edge_set: number of the set of the edges asked about, whose node sets the keys are of."""

    src: Key
    dst: tuple[Key, ...]
    time_us: int | None = None
    edge_set: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommend:
    """A request for the best `k` destinations of a source.

    filter: of the destinations. exclude_seen: leave out the source's last partners. exact: score
    all nodes instead of likely ones. diversity: of the answer, None for any. reasons: whether each
    score comes with its reason. time_us, edge_set: as in `Score`.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Similar:
    """A request for the `k` destinations of an edge set that are most like one of them, now.

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
    """A request for what the score of one candidate is made of. time_us, edge_set: as in
    `Score`."""

    src: Key
    dst: Key
    time_us: int | None = None
    edge_set: int = 0


Request = Score | Recommend | Similar | Embedding | Label | Explain


@dataclass(frozen=True, slots=True)
class Seen:
    """What the graph had when an answer was begun.

    term, seq: the newest commit that it had whole. complete_until: wall time in seconds up to which
    it had all that was in Kafka, None where that is not known.
    """

    term: int = 0
    seq: int = 0
    complete_until: float | None = None

    def lag_seconds(self, now: float) -> float | None:
        """How old it is. now: wall time, seconds."""
        return None if self.complete_until is None else max(0.0, now - self.complete_until)

    def check_age(self, max_lag_seconds: float, now: float) -> None:
        """Check that it is not older than a request allows. now: wall time, seconds. Raises:
        TooOld."""
        lag_seconds = self.lag_seconds(now)
        if lag_seconds is None:
            raise TooOld("the server does not know yet how old its answers are")
        if lag_seconds > max_lag_seconds:
            raise TooOld(
                f"the answer would be {lag_seconds:.1f} s old, and {max_lag_seconds:g} s are "
                "allowed"
            )


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the pair. all_sets: of all edge sets together, where there are several. value:
    as the model gets it. words: what it says."""

    name: str
    all_sets: bool
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Group:
    """Facts of one kind, or what the graph adds. words: what they come to. share: its Shapley value
    in the score. without: the score with this group alone at its baseline."""

    name: str
    words: str
    share: float
    without: float
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class NeighborShare:
    """A sampled neighbour of one end. of: "src" or "dst". time_us: of the event between them.
    weight: how much it counts among the end's neighbours."""

    node: Key
    of: str
    time_us: int
    weight: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a score is made of: `baseline` and the groups' shares add up to it.

    weights: where the neighbours' weights are from, "attention" or "uniform"; "none" where no
    neighbours are looked at.
    """

    score: float
    baseline: float
    groups: tuple[Group, ...]
    neighbors: tuple[NeighborShare, ...]
    weights: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The group of facts, or what the graph adds, that adds most to a score. words: what its facts
    come to. adds: the score less that with this group at its baseline."""

    group: str
    words: str
    adds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The engine's answer to a request, and what it was computed from. Times are in microseconds.

    version: its name, or "rule" before there is one. trained_until_us: end of its window.
    edge: id of the first event not in the graph. memory_edge: event id up to which memory has seen.
    as_of_us: time of the query. newest_us: time of the newest event. seen: as in `Seen`.
    src_known: whether the source was seen.
    dst, scores, known: of Score, Recommend, Similar and Explain. reasons: of Recommend, if it asks
    for them; None for a node of which no group adds anything. explanation: of Explain.
    embedding: of Embedding and of Similar by it, empty without graph layers. labels: of Label, None
    without a label head.
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
"""Called with the answers, in the order of the requests, or with the error in their place."""
