"""Requests and answers of the client, with the fields of the server's schemas. Times are integers
in the stream's unit (`stream.time_unit`).

They are msgspec structs: the server's own are pydantic models, which take longer to import than the
whole client.
"""

from typing import Any, Literal

from msgspec import Struct

Key = str | int
"""A node's key."""


class _Answer(Struct, frozen=True, kw_only=True):
    """The base of all answers. Fields that a newer server adds are ignored.

    hint: the reason why a key of the request may have the wrong type; empty otherwise.
    """


# Requests


class TrialUnit(Struct, frozen=True):
    """The unit of a request in a trial, for example a user: it always gets the same arm."""

    unit: str


class ContextEvent(Struct, frozen=True, omit_defaults=True):
    """An event of a source, for one request only.

    Args:
        dst: key of the destination.
        time: int, in `stream.time_unit`. Default None: the time of the log's newest event.
        features: list or dict, features of the edge. Default None.
        edge_set: str. Default None: that of the request.
    """

    dst: Key
    time: int | None = None
    features: list[float] | dict[str, Any] | None = None
    edge_set: str | None = None


class ScoreRequest(Struct, frozen=True, omit_defaults=True):
    """A request to score candidates of a source.

    Args:
        src, dst: keys of the source and of the candidates.
        time: int, time of the query. Default None: now.
        edge_set: str, edge set of the pairs. Default None: the only declared one.
        features: list or dict, features of a source without events in the log. Default None.
        context: list[ContextEvent], events of such a source, oldest first. Default [].
        trial: TrialUnit, the unit whose arm answers. Default None: no trial.
    """

    src: Key
    dst: list[Key]
    time: int | None = None
    edge_set: str | None = None
    features: list[float] | dict[str, Any] | None = None
    context: list[ContextEvent] = []
    trial: TrialUnit | None = None


class Diversity(Struct, frozen=True):
    """A limit on the number of nodes in an answer with the same value of a feature."""

    feature: str
    max_per_value: int


class RecommendRequest(Struct, frozen=True, omit_defaults=True):
    """A request for the best destinations of a source.

    Args:
        src: key of the source.
        k: int, number of destinations, at most 1,000. Default 10.
        kind: str, text before the colon of a destination's key, to which the answer is limited.
            Default None: any.
        exclude_seen: bool, leave out the last partners of the source. Default False.
        exact: bool, score all nodes instead of likely ones. Default False.
        only: list, keys of the nodes that may be in the answer. Default None: all.
        exclude: list, keys of nodes that must not be in the answer. Default [].
        `where`: dict, feature -> its value, a list of values, or a range such as
            `{"gte": 10, "lt": 50}`. Default {}: no filter.
        diversity: Diversity, limit of nodes with the same value of a feature. Default None.
        reasons: bool, return the reason of each score. Default False.
        time, edge_set, features, context, trial: as in `ScoreRequest`.
    """

    src: Key
    k: int = 10
    kind: str | None = None
    exclude_seen: bool = False
    exact: bool = False
    time: int | None = None
    edge_set: str | None = None
    only: list[Key] | None = None
    exclude: list[Key] = []
    where: dict[str, Any] = {}
    diversity: Diversity | None = None
    reasons: bool = False
    features: list[float] | dict[str, Any] | None = None
    context: list[ContextEvent] = []
    trial: TrialUnit | None = None


class Event(Struct, frozen=True, omit_defaults=True):
    """An event in the format of Kafka producers; docs/types.md lists the fields of each type."""

    type: Literal["edge", "node", "label", "delete"] = "edge"
    src: Key | None = None
    dst: Key | None = None
    time: int | None = None
    features: list[float] | dict[str, Any] | None = None
    id: Key | None = None
    node: Key | None = None
    target: list[float] | None = None
    edge_set: str | None = None
    node_set: str | None = None


# Answers


class AsOf(_Answer, frozen=True, kw_only=True):
    """The version that answered, and the events that it used.

    version: its name, or "rule". trained_until: end of its training, event time. last_edge,
    newest_event: id and time of the newest event in the graph. memory_edge: memory and embeddings
    include the events below this id; -1 from a server of an older release. time: of the query.
    """

    version: str
    trained_until: int | None
    last_edge: int
    memory_edge: int = -1
    newest_event: int
    time: int


class ShortReason(_Answer, frozen=True):
    """The group of facts, or the graph, that adds most to a score. adds: the difference between the
    score and the score with this group at its baseline."""

    group: str
    words: str
    adds: float


class Scored(_Answer, frozen=True, omit_defaults=True):
    """One destination. score: higher is likelier, comparable within one answer. known: False for a
    node without events. reason: if it was requested; None if no group adds anything."""

    dst: Key
    score: float
    known: bool
    reason: ShortReason | None = None


class ScoreResponse(_Answer, frozen=True, omit_defaults=True):
    """Scores of destinations, in the order of the request (`score`) or best first (`recommend`).
    known: False for a source without events. answer, arm: the id of this answer and the unit's arm,
    only in a trial."""

    src: Key
    known: bool
    scores: list[Scored]
    as_of: AsOf
    hint: str = ""
    answer: str = ""
    arm: str = ""


class SimilarNode(_Answer, frozen=True):
    """A similar node. score: higher is more similar."""

    node: Key
    score: float


class SimilarResponse(_Answer, frozen=True, omit_defaults=True):
    """The nodes most similar to `node`, most similar first, without itself."""

    node: Key
    known: bool
    similar: list[SimilarNode]
    as_of: AsOf
    hint: str = ""


class EmbeddingResponse(_Answer, frozen=True, omit_defaults=True):
    """The embedding of a node, `model.dim` numbers. memory_edge: it includes the events below this
    id."""

    node: Key
    known: bool
    embedding: list[float]
    memory_edge: int
    as_of: AsOf
    hint: str = ""


class LabelsResponse(_Answer, frozen=True, omit_defaults=True):
    """The model's prediction of a node's labels: probabilities of classes, or quantities,
    depending on `model.labels`. memory_edge: it includes the events below this id."""

    node: Key
    known: bool
    labels: list[float]
    memory_edge: int
    as_of: AsOf
    hint: str = ""


class ExplainedFact(_Answer, frozen=True):
    """A fact about source and destination, and its meaning in words."""

    name: str
    all_sets: bool
    value: float
    words: str


class ExplainedGroup(_Answer, frozen=True):
    """A group of facts of one kind. share: its Shapley value in the score. without: the score with
    this group alone at its baseline."""

    name: str
    words: str
    share: float
    without: float
    facts: list[ExplainedFact]


class ExplainedNeighbor(_Answer, frozen=True):
    """A neighbor from which the embedding of source or destination (`of`) is computed. time: of the
    event between the two. weight: among the neighbors of that node."""

    node: Key
    node_set: str
    of: Literal["src", "dst"]
    time: int
    weight: float


class ExplainResponse(_Answer, frozen=True, omit_defaults=True):
    """The parts of a score: the baseline and the groups' shares add up to it."""

    src: Key
    dst: Key
    edge_set: str
    known: bool
    dst_known: bool
    score: float
    baseline: float
    version: str
    position: str
    groups: list[ExplainedGroup]
    neighbors: list[ExplainedNeighbor]
    weights: Literal["attention", "uniform", "none"]
    as_of: AsOf
    hint: str = ""


class CompletionResponse(_Answer, frozen=True):
    """Keys that begin with a prefix. complete: False if keys that were not searched may have it
    too."""

    nodes: list[Key]
    complete: bool


class Produced(_Answer, frozen=True):
    """The offset of an event in its topic."""

    partition: int
    offset: int
    position: str


class EventsResponse(_Answer, frozen=True):
    """The offsets of events that were sent. after: value of the header `streamd-after` with which
    an answer includes all of them. hint: set if all times look like another unit."""

    topic: str
    events: list[Produced]
    after: str
    hint: str = ""


class Feature(_Answer, frozen=True):
    """A declared feature. width: its columns in the log. missing: default for events without a
    value; None if a value is required."""

    name: str
    kind: str
    width: int
    categories: list[str | int | bool] | None = None
    missing: Any = None


class NodeSetInfo(_Answer, frozen=True):
    """A node set. width: columns of its features in the log."""

    name: str
    width: int
    features: list[Feature]


class EdgeSetInfo(_Answer, frozen=True):
    """An edge set. width: columns of its features in the log. source, target: node sets of its
    endpoints."""

    name: str
    width: int
    features: list[Feature]
    source: str
    target: str


class SchemaResponse(_Answer, frozen=True):
    """The declared sets, in the order of their numbers. label_dim: width of label targets, 0 for
    none."""

    node_sets: list[NodeSetInfo]
    edge_sets: list[EdgeSetInfo]
    label_dim: int
    time_unit: str


class ModelInfo(_Answer, frozen=True):
    """A version. scores: model -> measure -> value over its window, before it was trained on the
    window. servable: whether its memory is still stored."""

    name: str
    servable: bool
    parent: str
    created: float
    trained_until: int
    edge: int
    loss: float
    scores: dict[str, dict[str, float]]


class ModelsResponse(_Answer, frozen=True):
    """The versions in the registry. passed_over: entries of `models/` that are neither a version
    nor a move -> the reason."""

    champion: str | None
    shadow: str | None
    versions: list[ModelInfo]
    passed_over: dict[str, str]


class TrialArm(_Answer, frozen=True, kw_only=True):
    """The figures of an arm, over the answers that are older than the horizon.

    share: of the units. takers: units with an outcome. pending: newer answers, which do not count
    yet. value: sum over the outcomes. difference: value a unit minus that of the champion, None for
    the champion and while it is too early. radius: half the width of the difference's interval.
    is_sure: whether the interval excludes 0.
    """

    arm: str
    share: float
    units: int
    takers: int
    answers: int
    pending: int
    outcomes: int
    outcomes_a_unit: float
    value: float
    value_a_unit: float
    difference: float | None
    radius: float | None
    is_sure: bool


class TrialResponse(_Answer, frozen=True):
    """The figures of the present trial. mismatch: whether the numbers of units contradict the
    shares, so that differences have no meaning. uncounted: reason -> number of records and events
    that do not count."""

    trial: str
    mismatch: bool
    arms: list[TrialArm]
    uncounted: dict[str, int]


class Moved(_Answer, frozen=True):
    """The state of the versions' journal after a promotion or a rollback."""

    action: str
    champion: str
    shadow: str


class MoveRequested(_Answer, frozen=True):
    """The server sent the request to the trainer on another machine, which has not answered yet.
    request: its id, for `move_outcome`."""

    request: str


class RequestOutcome(_Answer, frozen=True):
    """The outcome of a request to move the champion, as far as the server knows it."""

    state: Literal["waiting", "done", "refused"]
    reason: str = ""
    moved: Moved | None = None


class FoundKey(_Answer, frozen=True):
    """A location that still contains a key. node: number of the node in the request, from 1.
    `where`: file, object or record."""

    node: int
    where: str


class ErasureResponse(_Answer, frozen=True):
    """The progress of a request to erase nodes.

    request: its id, for `erasure`. waits_for: the reason why it waits or failed. nodes: their
    number. unknown: nodes that are not in the log, None until they were looked up. asked_at,
    ended_at: wall time in seconds. found: locations that still contain a key. proof: the files and
    topics that were searched, and those that were not.
    """

    request: str
    state: Literal["deleting", "compacting", "proving", "done", "found", "failed"]
    waits_for: str
    nodes: int
    unknown: int | None
    asked_at: float
    ended_at: float | None
    found: list[FoundKey]
    proof: str
