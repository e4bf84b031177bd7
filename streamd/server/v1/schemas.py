"""The request and response bodies of the REST API. Times are integers in the stream's unit
(`stream.time_unit`)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictInt, model_validator

from streamd.server.v1.request_parts import (
    Context,
    Diversity,
    EdgeSetName,
    ExcludeFilter,
    KindFilter,
    NodeKey,
    NodeSetName,
    OnlyFilter,
    RequestBody,
    SourceFeatures,
    WhereFilter,
)
from streamd.server.v1.trial_unit import Trial
from streamd.server.v1.trial_unit import TrialUnit as TrialUnit

# Request bodies. An unknown field is an error.


class ScoreRequest(RequestBody):
    """Candidates to score for a source."""

    src: NodeKey = Field(description="the source node", examples=["user:74"])
    dst: list[NodeKey] = Field(
        min_length=1, description="candidate destinations", examples=[["page:1", "page:2"]]
    )
    time: StrictInt | None = Field(
        None, ge=0, le=2**62, description="query time; one not after the newest event means now"
    )
    edge_set: EdgeSetName = None
    features: SourceFeatures = None
    context: Context = []
    trial: Trial = None


class RecommendRequest(RequestBody):
    """A source for which to find the best destinations."""

    src: NodeKey = Field(description="the source node", examples=["user:74"])
    k: int = Field(10, ge=1, le=1000, description="how many")
    kind: KindFilter = None
    exclude_seen: bool = Field(False, description="leave out the source's last partners")
    exact: bool = Field(
        False, description="score all nodes instead of server.max_candidates likely ones; slower"
    )
    time: StrictInt | None = Field(
        None, ge=0, le=2**62, description="query time; one not after the newest event means now"
    )
    edge_set: EdgeSetName = None
    only: OnlyFilter = None
    exclude: ExcludeFilter = []
    where: WhereFilter = {}
    diversity: Diversity | None = None
    reasons: bool = Field(
        False, description="return the reason of each score; k is then at most 100"
    )
    features: SourceFeatures = None
    context: Context = []
    trial: Trial = None


class SimilarRequest(RequestBody):
    """A destination of an edge set for which to find similar ones."""

    node: NodeKey = Field(description="the node", examples=["page:1"])
    k: int = Field(10, ge=1, le=1000, description="how many")
    by: Literal["embedding", "partners"] = Field(
        "embedding", description="by the model's embeddings, or by partners that they shared lately"
    )
    edge_set: EdgeSetName = None
    kind: KindFilter = None
    only: OnlyFilter = None
    exclude: ExcludeFilter = []
    where: WhereFilter = {}


class ExplainRequest(RequestBody):
    """A source and a candidate, for an explanation of the candidate's score."""

    src: NodeKey = Field(description="the source node", examples=["user:74"])
    dst: NodeKey = Field(description="the candidate destination", examples=["page:1"])
    time: StrictInt | None = Field(
        None, ge=0, le=2**62, description="query time; one not after the newest event means now"
    )
    edge_set: EdgeSetName = None


class ScoreBatch(RequestBody):
    """Several score requests, at most server.max_batch."""

    requests: list[ScoreRequest] = Field(min_length=1)


class RecommendBatch(RequestBody):
    """Several recommendation requests, at most server.max_batch."""

    requests: list[RecommendRequest] = Field(min_length=1)


class NodesRequest(RequestBody):
    """Nodes, at most server.max_batch."""

    nodes: list[NodeKey] = Field(min_length=1, examples=[["user:74", "page:1"]])
    node_set: NodeSetName = None


class Event(RequestBody):
    """An event in the format in which producers send it to Kafka. The README lists the fields of
    each type."""

    type: Literal["edge", "node", "label", "delete"] = "edge"
    src: NodeKey | None = Field(None, examples=["user:74"])
    dst: NodeKey | None = Field(None, examples=["page:1"])
    time: StrictInt | None = Field(
        None,
        description="in stream.time_unit; the record's timestamp if absent",
        examples=[1700000000000],
    )
    features: list[float] | dict[str, Any] | None = Field(
        None, description="the columns of the log as numbers, or values by their declared names"
    )
    id: NodeKey | None = None
    node: NodeKey | None = None
    target: list[float] | None = None
    edge_set: str | None = Field(
        None, description="edge set of an edge or its delete, if several are declared"
    )
    node_set: str | None = Field(
        None, description="node set of a node, a label or its delete, if several are declared"
    )


EVENT_BODIES = (
    'send events as {"events": [{"src": ..., "dst": ...}, ...]}, and records of a topic that has '
    'a source as {"records": [...]}'
)
"""The two forms of the body of an EventsRequest."""


class EventsRequest(RequestBody):
    """Events, sent in their order; or records in the format of the topic's source."""

    @model_validator(mode="before")
    @classmethod
    def _check_wrapper(cls, content: Any) -> Any:
        """Refuse a bare event or list of events, and show the right form of the body."""
        is_bare = isinstance(content, dict) and content and not {"events", "records"} & {*content}
        if is_bare or isinstance(content, list):
            raise ValueError(EVENT_BODIES)
        return content

    events: list[Event] | None = Field(None, min_length=1, max_length=1000)
    records: list[dict[str, Any]] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="JSON objects that the topic's source in the settings maps to events",
    )


# Response bodies, and the request bodies about versions.


class Produced(BaseModel):
    """The position of an event in the topic. position: the same in the form of the header
    `streamd-after`."""

    partition: int
    offset: int
    position: str


class EventsResponse(BaseModel):
    topic: str
    events: list[Produced]
    after: str = Field(
        description="positions of the last event in each partition: sent as the header "
        "`streamd-after`, they make a request wait until its answer includes all these events"
    )
    hint: str = Field("", description="only if all times look like another unit")


class CompletionResponse(BaseModel):
    """Keys that start with a prefix. complete: false if there may be more among keys that were not
    searched."""

    nodes: list[str | int]
    complete: bool


class Feature(BaseModel):
    """A declared feature. kind: number, bool, categories, hash, text or vector. width: number of
    its columns in the log. missing: the default if an event has no value; null if the value is
    required."""

    name: str
    kind: str
    width: int
    categories: list[str | int | bool] | None = None
    missing: Any = None


class NodeSetInfo(BaseModel):
    """A kind of nodes. width: of its features in the log; if `features` is empty, they have no
    names."""

    name: str
    width: int
    features: list[Feature]


class EdgeSetInfo(NodeSetInfo):
    """A kind of edges. source, target: node sets of its endpoints."""

    source: str
    target: str


class SchemaResponse(BaseModel):
    """The node sets and edge sets of the log, in the order of their numbers."""

    node_sets: list[NodeSetInfo]
    edge_sets: list[EdgeSetInfo]
    label_dim: int
    time_unit: str


class MoveRequest(RequestBody):
    """The reason for a change of the champion."""

    why: str = Field(min_length=1, max_length=500, examples=["scores fell after the import"])


class Moved(BaseModel):
    """The newest move in the journal of versions."""

    action: str
    champion: str
    shadow: str


class MoveRequested(BaseModel):
    """The request waits: for the trainer on another machine, or for ingest to commit it."""

    request: str = Field(description="GET /v1/models/requests/{request} returns its outcome")


class RequestOutcome(BaseModel):
    """The outcome of a request to change the champion, as far as this machine knows it."""

    state: Literal["waiting", "done", "refused"]
    reason: str = Field("", description="reason of the refusal")
    moved: Moved | None = Field(None, description="the move that was made")


class AsOf(BaseModel):
    """The version that answered, the end of its training, and the newest events that it used."""

    version: str = Field(description='model version, or "rule" before there is one')
    trained_until: int | None = Field(description="event time up to which the version was trained")
    last_edge: int = Field(description="id of the newest event in the graph, -1 before the first")
    memory_edge: int = Field(
        description="memory and embeddings include the events below this id; while they catch up, "
        "the graph includes more"
    )
    newest_event: int = Field(description="time of that event")
    time: int = Field(description="event time of the query")


class ShortReason(BaseModel):
    """The facts of one kind, or the graph's share, that add most to a score."""

    group: str = Field(description="as in /v1/explain, without source")
    words: str = Field(description="summary of its facts", examples=["they met 3 times"])
    adds: float = Field(description="the score minus the score with this group at its baseline")


class Scored(BaseModel):
    """One destination. score: higher is more likely; comparable within one answer only."""

    dst: NodeKey
    score: float
    known: bool = Field(description="false for a node never seen")
    reason: ShortReason | None = Field(
        None, description="if the request has reasons; null if no group adds anything"
    )


Hint = Annotated[
    str,
    Field(
        "",
        description="only if a key is no node but the key of the other type is (the text "
        '"5" for the integer 5, or the reverse); or if the filters of a recommendation leave '
        "no node",
    ),
]


class ScoreResponse(BaseModel):
    src: NodeKey
    known: bool = Field(description="false for a source never seen")
    scores: list[Scored]
    as_of: AsOf
    hint: Hint
    answer: str = Field("", description="only in a trial: id of this answer")
    arm: str = Field("", description="only in a trial: the unit's arm")


class SimilarNode(BaseModel):
    """A similar node. score: the cosine similarity of both embeddings, or the Adamic-Adar index
    over the last partners of both."""

    node: NodeKey
    score: float


class SimilarResponse(BaseModel):
    node: NodeKey
    known: bool = Field(description="false for a node never seen")
    similar: list[SimilarNode] = Field(description="most similar first, without the node itself")
    as_of: AsOf
    hint: Hint


class EmbeddingResponse(BaseModel):
    node: NodeKey
    known: bool
    embedding: list[float] = Field(description="the vector, of model.dim numbers")
    memory_edge: int = Field(description="embeddings include the events below this id")
    as_of: AsOf
    hint: Hint


class LabelsResponse(BaseModel):
    node: NodeKey
    known: bool
    labels: list[float] = Field(
        description="probability of each class, or quantities, depending on model.labels"
    )
    memory_edge: int = Field(description="the prediction includes the events below this id")
    as_of: AsOf
    hint: Hint


class ExplainedFact(BaseModel):
    """A fact about source and candidate."""

    name: str = Field(description="name of the fact in the table of facts")
    all_sets: bool = Field(
        description="whether it is over all edge sets together, not only the one of the request"
    )
    value: float = Field(description="input of the model")
    words: str = Field(
        description="the fact in words", examples=["the source's last event was 2 h ago"]
    )


class ExplainedGroup(BaseModel):
    """Facts of one kind, or the graph's contribution."""

    name: str = Field(
        description="frequency, recency, popularity, source, candidate, paths, sequence, hour or "
        "graph"
    )
    words: str = Field(description="summary of its facts", examples=["they met 3 times"])
    share: float = Field(description="its Shapley value in the score")
    without: float = Field(description="the score with this group alone at its baseline")
    facts: list[ExplainedFact]


class ExplainedNeighbor(BaseModel):
    """A neighbor from which the embedding of source or candidate was computed."""

    node: NodeKey
    node_set: str
    of: Literal["src", "dst"] = Field(description="the node that it is a neighbor of")
    time: int = Field(description="of the event between the two")
    weight: float = Field(description="its weight among the neighbors of that node")


class ExplainResponse(BaseModel):
    """The parts of a score: the baseline and the shares add up to it."""

    src: NodeKey
    dst: NodeKey
    edge_set: str
    known: bool = Field(description="false for a source never seen")
    dst_known: bool = Field(description="false for a candidate never seen")
    score: float = Field(description="as in /v1/score")
    baseline: float = Field(description="the score with all groups at their baseline")
    version: str = Field(description='model version, or "rule" before there is one')
    position: str = Field(description="position of the answer, as in the header streamd-position")
    groups: list[ExplainedGroup] = Field(description="largest shares first")
    neighbors: list[ExplainedNeighbor] = Field(
        description="those of the source first, then those of the candidate, by weight"
    )
    weights: Literal["attention", "uniform", "none"] = Field(
        description="origin of the neighbors' weights; none if the model uses no neighbors"
    )
    as_of: AsOf
    hint: Hint


class ModelInfo(BaseModel):
    """A version. scores: model -> measure -> value over its window, measured before it was trained
    on that window. servable: whether its memory is still stored, as for the champion, the shadow
    and the newest version."""

    name: str
    servable: bool
    parent: str
    created: float
    trained_until: int
    edge: int
    loss: float
    scores: dict[str, dict[str, float]]


class ModelsResponse(BaseModel):
    champion: str | None
    shadow: str | None
    versions: list[ModelInfo]
    passed_over: dict[str, str] = Field(
        description="ignored entries of models/, neither version nor move, with the reason"
    )


class Problem(BaseModel):
    """An error as defined by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
