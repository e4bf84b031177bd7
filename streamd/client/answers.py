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
    """The base of all answers. Fields that a newer server adds are ignored. hint: why an asked key
    may be wrong; empty if every key is a node, or if no node has a similar key."""


# Requests


class TrialUnit(Struct, frozen=True):
    """The unit of a request in a trial, for example a user: it always gets the same arm."""

    unit: str


class ContextEvent(Struct, frozen=True, omit_defaults=True):
    """An event of a source that the log does not have. time: None for the newest time in the log.
    edge_set: None for that of the request."""

    dst: Key
    time: int | None = None
    features: list[float] | dict[str, Any] | None = None
    edge_set: str | None = None


class ScoreRequest(Struct, frozen=True, omit_defaults=True):
    """A request to score candidates of a source. time: of the query, None for now. features,
    context: of a source without events in the log."""

    src: Key
    dst: list[Key]
    time: int | None = None
    edge_set: str | None = None
    features: list[float] | dict[str, Any] | None = None
    context: list[ContextEvent] = []
    trial: TrialUnit | None = None


class Diversity(Struct, frozen=True):
    """A limit on the nodes of an answer that share a value of a feature."""

    feature: str
    max_per_value: int


class RecommendRequest(Struct, frozen=True, omit_defaults=True):
    """A request for the best `k` destinations of a source.

    kind: only destinations with this before their key's colon. exclude_seen: leave out the source's
    last partners. exact: score all nodes. only: only these nodes. exclude: none of these. `where`:
    feature of the nodes -> its value, a list of values, or a range as `{"gte": 10, "lt": 50}`.
    reasons: give the reason of each score. features, context: as of `ScoreRequest`. trial: let the
    arm of a unit answer.
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
    """An event as producers send it to Kafka; the README lists the fields of each type."""

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
    """The model that answered, the end of its training, and the newest data that it used.
    memory_edge: -1 from a server of an older release."""

    version: str
    trained_until: int | None
    last_edge: int
    memory_edge: int = -1
    newest_event: int
    time: int


class ShortReason(_Answer, frozen=True):
    """The kind of facts, or the share of the graph, that adds most to a score."""

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
    """Scores of a source's destinations, in the order of the request or best first. answer, arm:
    the id of this answer and the unit's arm, only in a trial."""

    src: Key
    known: bool
    scores: list[Scored]
    as_of: AsOf
    hint: str = ""
    answer: str = ""
    arm: str = ""


class SimilarNode(_Answer, frozen=True):
    """One node that is similar to the asked one. score: higher is more similar."""

    node: Key
    score: float


class SimilarResponse(_Answer, frozen=True, omit_defaults=True):
    """The nodes that are most similar to another, most similar first."""

    node: Key
    known: bool
    similar: list[SimilarNode]
    as_of: AsOf
    hint: str = ""


class EmbeddingResponse(_Answer, frozen=True, omit_defaults=True):
    """The embedding of a node."""

    node: Key
    known: bool
    embedding: list[float]
    memory_edge: int
    as_of: AsOf
    hint: str = ""


class LabelsResponse(_Answer, frozen=True, omit_defaults=True):
    """The model's prediction of a node's labels."""

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
    """Facts of one kind. share: of the score. without: the score with this group alone at its
    baseline."""

    name: str
    words: str
    share: float
    without: float
    facts: list[ExplainedFact]


class ExplainedNeighbor(_Answer, frozen=True):
    """A neighbor that one end's embedding is computed from."""

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
    """Keys that begin with a prefix. complete: whether the search covered all keys."""

    nodes: list[Key]
    complete: bool


class Produced(_Answer, frozen=True):
    """The offset of an event in its topic."""

    partition: int
    offset: int
    position: str


class EventsResponse(_Answer, frozen=True):
    """The offsets of events that were sent. after: the position that a request must have seen to
    include all of them. hint: if all times look like another unit."""

    topic: str
    events: list[Produced]
    after: str
    hint: str = ""


class Feature(_Answer, frozen=True):
    """A declared feature."""

    name: str
    kind: str
    width: int
    categories: list[str | int | bool] | None = None
    missing: Any = None


class NodeSetInfo(_Answer, frozen=True):
    """A kind of nodes."""

    name: str
    width: int
    features: list[Feature]


class EdgeSetInfo(_Answer, frozen=True):
    """A kind of edges. source, target: node sets of its ends."""

    name: str
    width: int
    features: list[Feature]
    source: str
    target: str


class SchemaResponse(_Answer, frozen=True):
    """The fields of events."""

    node_sets: list[NodeSetInfo]
    edge_sets: list[EdgeSetInfo]
    label_dim: int
    time_unit: str


class ModelInfo(_Answer, frozen=True):
    """A version. scores: model -> measure -> value over its window."""

    name: str
    servable: bool
    parent: str
    created: float
    trained_until: int
    edge: int
    loss: float
    scores: dict[str, dict[str, float]]


class ModelsResponse(_Answer, frozen=True):
    """The versions in the registry, and the one that serves."""

    champion: str | None
    shadow: str | None
    versions: list[ModelInfo]
    passed_over: dict[str, str]


class TrialArm(_Answer, frozen=True, kw_only=True):
    """The figures of an arm, over the answers that are older than the horizon. difference: of the
    value a unit from the champion's, None for the champion and while it is too early. radius: half
    the width of its interval. is_sure: whether that excludes 0."""

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
    """The figures of the trial that runs. mismatch: whether the numbers of units contradict the
    shares. uncounted: reason -> records and events that do not count."""

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
    """A replica sent the request to the trainer, on another machine, which has not answered yet."""

    request: str


class RequestOutcome(_Answer, frozen=True):
    """The outcome of a request to move the champion, as far as the server knows it."""

    state: Literal["waiting", "done", "refused"]
    reason: str = ""
    moved: Moved | None = None


class FoundKey(_Answer, frozen=True):
    """A location that still holds a key. node: number of the node in the request, from 1."""

    node: int
    where: str


class ErasureResponse(_Answer, frozen=True):
    """The progress of a request to erase nodes.

    waits_for: the reason that it waits, or that it failed. unknown: nodes that the log did not
    hold, None until they were looked up. asked_at, ended_at: wall time in seconds. found: locations
    that still hold a key. proof: the files and topics that were searched, and those that were not.
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
