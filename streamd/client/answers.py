"""What a client sends and gets, as the server's schemas have it. Times are integers in the stream's
unit (`stream.time_unit`).

They are msgspec's structs: the server's own are pydantic's, which take longer to import than all of
the client.
"""

from typing import Any, Literal

from msgspec import Struct

Key = str | int
"""A node's key."""


class _Answer(Struct, frozen=True, kw_only=True):
    """Fields that a newer server adds are passed over. hint: why an asked key may be the wrong one;
    empty if every key is a node, or no node is written alike."""


# What is sent


class ScoreRequest(Struct, frozen=True, omit_defaults=True):
    """Candidates to be scored for a source. time: of the query, None for now."""

    src: Key
    dst: list[Key]
    time: int | None = None
    edge_set: str | None = None


class Diversity(Struct, frozen=True):
    """At most so many nodes of an answer have the same value of a feature."""

    feature: str
    max_per_value: int


class RecommendRequest(Struct, frozen=True, omit_defaults=True):
    """A source for which the best `k` destinations are wanted.

    kind: only destinations with this before their key's colon. exclude_seen: leave out the source's
    last partners. exact: score all nodes. only: only these nodes. exclude: none of these. `where`:
    feature of the nodes -> its value, a list of values, or a range as `{"gte": 10, "lt": 50}`.
    reasons: give the reason of each score.
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


class Event(Struct, frozen=True, omit_defaults=True):
    """An event as producers send it to Kafka; the README says which fields belong to which type."""

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


# What is answered


class AsOf(_Answer, frozen=True, kw_only=True):
    """The model that answered, the end of its training, and the newest data it used. memory_edge:
    -1 from a server of an older release."""

    version: str
    trained_until: int | None
    last_edge: int
    memory_edge: int = -1
    newest_event: int
    time: int


class ShortReason(_Answer, frozen=True):
    """The facts of one kind, or the share of the graph, that add most to a score."""

    group: str
    words: str
    adds: float


class Scored(_Answer, frozen=True, omit_defaults=True):
    """One destination. score: higher is likelier, comparable within one answer. known: False for a
    node never seen. reason: if it was asked for, None if no group adds anything."""

    dst: Key
    score: float
    known: bool
    reason: ShortReason | None = None


class ScoreResponse(_Answer, frozen=True, omit_defaults=True):
    """Scores of a source's destinations: in the order asked, or best first."""

    src: Key
    known: bool
    scores: list[Scored]
    as_of: AsOf
    hint: str = ""


class SimilarNode(_Answer, frozen=True):
    """One node that is like the asked one. score: higher is more alike."""

    node: Key
    score: float


class SimilarResponse(_Answer, frozen=True, omit_defaults=True):
    """The nodes that are most like another, most similar first."""

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
    """What the model predicts of a node's labels."""

    node: Key
    known: bool
    labels: list[float]
    memory_edge: int
    as_of: AsOf
    hint: str = ""


class ExplainedFact(_Answer, frozen=True):
    """A fact about the two, and what it says in words."""

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
    """A neighbour that the embedding of one end is made of."""

    node: Key
    node_set: str
    of: Literal["src", "dst"]
    time: int
    weight: float


class ExplainResponse(_Answer, frozen=True, omit_defaults=True):
    """What a score is made of: the baseline and the groups' shares add up to it."""

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
    """Keys that begin with a prefix. complete: whether all keys were looked at."""

    nodes: list[Key]
    complete: bool


class Produced(_Answer, frozen=True):
    """Where in the topic an event is."""

    partition: int
    offset: int
    position: str


class EventsResponse(_Answer, frozen=True):
    """Where events were sent. after: what a request must see that is to know all of them. hint: if
    all times look like another unit."""

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
    """What events hold."""

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
    """The versions kept, and which one serves."""

    champion: str | None
    shadow: str | None
    versions: list[ModelInfo]
    passed_over: dict[str, str]


class Moved(_Answer, frozen=True):
    """What the journal of versions now says."""

    action: str
    champion: str
    shadow: str


class MoveRequested(_Answer, frozen=True):
    """A replica asked the trainer, on another machine, which has not answered yet."""

    request: str


class RequestOutcome(_Answer, frozen=True):
    """What became of a request to move the champion, as far as the server knows."""

    state: Literal["waiting", "done", "refused"]
    reason: str = ""
    moved: Moved | None = None


class FoundKey(_Answer, frozen=True):
    """A location that still holds a key. node: number of the node in the request, from 1."""

    node: int
    where: str


class ErasureResponse(_Answer, frozen=True):
    """How far a request to erase nodes is.

    waits_for: why it is not further, or why it failed. unknown: nodes that the log did not hold,
    None until they were looked up. asked_at, ended_at: wall time in seconds. found: locations that
    still hold a key. proof: what was searched, and what was not.
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
