"""The calls of the API: the request of each, and the type of its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from streamd.client.answers import (
    CompletionResponse,
    ContextEvent,
    Diversity,
    EmbeddingResponse,
    ErasureResponse,
    Event,
    EventsResponse,
    ExplainResponse,
    Key,
    LabelsResponse,
    ModelsResponse,
    Moved,
    MoveRequested,
    RecommendRequest,
    RequestOutcome,
    SchemaResponse,
    ScoreRequest,
    ScoreResponse,
    SimilarResponse,
    TrialResponse,
    TrialUnit,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[T]):
    """One call. path: with its query. content: JSON, or None. accepted: type of the answer if the
    server answers 202 with another one.

    idempotent: whether the client may send it again after a failure that leaves open whether it was
    executed. sees_log: whether its answer is computed from the log, so that the client can demand a
    position in it. max_lag_seconds: the greatest age of that answer.
    """

    method: str
    path: str
    answer: type[T]
    accepted: type[T] | None = None
    content: bytes | None = None
    idempotent: bool = True
    sees_log: bool = False
    max_lag_seconds: float | None = None


def score(
    src: Key,
    dst: Sequence[Key],
    *,
    as_of: int | None = None,
    edge_set: str | None = None,
    features: list[float] | dict[str, Any] | None = None,
    context: Sequence[ContextEvent] = (),
    unit: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[ScoreResponse]:
    """Score candidate destinations of a source, in their order.

    as_of: the time that the answer is for; None, or one not after the newest event, means now.
    edge_set: required if several are declared. features, context: of a source without events in
    the log; the answer is as after the events of the context, oldest first, which are not stored.
    unit: let its arm in the present trial answer. max_lag_seconds: the greatest age of the answer.
    """
    # Fields at their defaults are not sent: an older server does not know all of them.
    body = ScoreRequest(
        src=src,
        dst=list(dst),
        time=as_of,
        edge_set=edge_set,
        features=features,
        context=list(context),
        trial=None if unit is None else TrialUnit(unit),
    )
    return _asked("/v1/score", body, ScoreResponse, max_lag_seconds)


def score_batch(
    requests: Sequence[ScoreRequest], *, max_lag_seconds: float | None = None
) -> Call[list[ScoreResponse]]:
    """Several of `score`, answered by one version, in their order."""
    body = {"requests": list(requests)}
    return _asked("/v1/score/batch", body, list[ScoreResponse], max_lag_seconds)


def recommend(
    src: Key,
    k: int = 10,
    *,
    kind: str | None = None,
    exclude_seen: bool = False,
    exact: bool = False,
    only: Sequence[Key] | None = None,
    exclude: Sequence[Key] = (),
    where: Mapping[str, Any] | None = None,
    diversity: Diversity | None = None,
    reasons: bool = False,
    as_of: int | None = None,
    edge_set: str | None = None,
    features: list[float] | dict[str, Any] | None = None,
    context: Sequence[ContextEvent] = (),
    unit: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[ScoreResponse]:
    """The k likeliest next destinations of a source, best first.

    kind: only destinations with this before their key's colon. exclude_seen: leave out the source's
    last partners. exact: score all nodes rather than likely ones. only: keys of the nodes that may
    be in the answer. exclude: keys of nodes that may not. `where`: feature -> its value, a list of
    values, or a range as `{"gte": 10, "lt": 50}`. diversity: of the answer. reasons: give the
    reason of each score. Other arguments are as of `score`.
    """
    body = RecommendRequest(
        src=src,
        k=k,
        kind=kind,
        exclude_seen=exclude_seen,
        exact=exact,
        time=as_of,
        edge_set=edge_set,
        only=None if only is None else list(only),
        exclude=list(exclude),
        where=dict(where or {}),
        diversity=diversity,
        reasons=reasons,
        features=features,
        context=list(context),
        trial=None if unit is None else TrialUnit(unit),
    )
    return _asked("/v1/recommend", body, ScoreResponse, max_lag_seconds)


def recommend_batch(
    requests: Sequence[RecommendRequest], *, max_lag_seconds: float | None = None
) -> Call[list[ScoreResponse]]:
    """Several of `recommend`, answered by one version, in their order."""
    body = {"requests": list(requests)}
    return _asked("/v1/recommend/batch", body, list[ScoreResponse], max_lag_seconds)


def similar(
    node: Key,
    k: int = 10,
    *,
    by: Literal["embedding", "partners"] = "embedding",
    kind: str | None = None,
    only: Sequence[Key] | None = None,
    exclude: Sequence[Key] = (),
    where: Mapping[str, Any] | None = None,
    edge_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[SimilarResponse]:
    """The k destinations that are most similar to one of them, most similar first.

    by: the model's embeddings, or the partners that they lately share. Other arguments are as of
    `recommend`.
    """
    body = {"node": node, "k": k, "by": by, "exclude": list(exclude), "where": dict(where or {})}
    body |= _given(kind=kind, only=None if only is None else list(only), edge_set=edge_set)
    return _asked("/v1/similar", body, SimilarResponse, max_lag_seconds)


def explain(
    src: Key,
    dst: Key,
    *,
    as_of: int | None = None,
    edge_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[ExplainResponse]:
    """The parts of one candidate's score. Arguments are as of `score`."""
    body = {"src": src, "dst": dst} | _given(time=as_of, edge_set=edge_set)
    return _asked("/v1/explain", body, ExplainResponse, max_lag_seconds)


def embeddings(
    nodes: Sequence[Key],
    *,
    node_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[list[EmbeddingResponse]]:
    """The embeddings of nodes, in their order. node_set: required if several are declared."""
    body = {"nodes": list(nodes)} | _given(node_set=node_set)
    return _asked("/v1/embeddings", body, list[EmbeddingResponse], max_lag_seconds)


def embedding(
    node: Key, *, node_set: str | None = None, max_lag_seconds: float | None = None
) -> Call[EmbeddingResponse]:
    """The embedding of one node."""
    path = _of_node("/v1/embeddings", node, node_set)
    return _looked_up(path, EmbeddingResponse, max_lag_seconds)


def labels_of(
    nodes: Sequence[Key],
    *,
    node_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[list[LabelsResponse]]:
    """The model's predictions of several nodes' labels, in their order."""
    body = {"nodes": list(nodes)} | _given(node_set=node_set)
    return _asked("/v1/labels", body, list[LabelsResponse], max_lag_seconds)


def labels(
    node: Key, *, node_set: str | None = None, max_lag_seconds: float | None = None
) -> Call[LabelsResponse]:
    """The model's predictions of one node's labels."""
    return _looked_up(_of_node("/v1/labels", node, node_set), LabelsResponse, max_lag_seconds)


def nodes(
    prefix: str = "",
    limit: int = 10,
    *,
    node_set: str | None = None,
    source_in: str | None = None,
) -> Call[CompletionResponse]:
    """Keys of nodes that begin with a prefix, at most 50, newest nodes first. source_in: an edge
    set; then only its sources."""
    given = _given(node_set=node_set, source_in=source_in)
    query = urlencode({"prefix": prefix, "limit": limit} | given)
    return Call(method="GET", path=f"/v1/nodes?{query}", answer=CompletionResponse)


def events(
    events: Sequence[Event | Mapping[str, Any]], *, at_least_once: bool = False
) -> Call[EventsResponse]:
    """Send events to the first of `kafka.topics`, at most 1,000; later calls see them.

    An event that is sent twice counts twice, because the log does not recognize it. So the client
    does not send events again that may have arrived; it raises an error with `may_have_happened`.
    at_least_once: send them again nevertheless, if duplicates do no harm.
    """
    return _sent({"events": list(events)}, at_least_once)


def records(
    records: Sequence[Mapping[str, Any]], *, at_least_once: bool = False
) -> Call[EventsResponse]:
    """Send records in the format of the topic's source. As `events`."""
    return _sent({"records": list(records)}, at_least_once)


def schema() -> Call[SchemaResponse]:
    """The declared sets of nodes and edges, and their features."""
    return Call(method="GET", path="/v1/schema", answer=SchemaResponse)


def models() -> Call[ModelsResponse]:
    """The versions in the registry, the one that serves, and the scores of each."""
    return Call(method="GET", path="/v1/models", answer=ModelsResponse)


def trials() -> Call[TrialResponse]:
    """The figures of the trial that runs; `NotFound` without one."""
    return Call(method="GET", path="/v1/trials", answer=TrialResponse)


def promote(version: str, why: str) -> Call[Moved | MoveRequested]:
    """Make a version champion; needs an admin key. The client does not send it again if it may have
    been executed: another caller may have moved the champion since.

    A replica whose trainer does not answer in time returns a `MoveRequested`.
    """
    return _moved(f"/v1/models/{quote(version, safe='')}/promote", why)


def rollback(why: str) -> Call[Moved | MoveRequested]:
    """Make the last proven version champion; otherwise as `promote`."""
    return _moved("/v1/models/rollback", why)


def move_outcome(request: str) -> Call[RequestOutcome]:
    """The outcome of a `MoveRequested`."""
    path = f"/v1/models/requests/{quote(request, safe='')}"
    return Call(method="GET", path=path, answer=RequestOutcome)


def erase(
    nodes: Sequence[Key], *, node_set: str | None = None, topic: str | None = None
) -> Call[ErasureResponse]:
    """Erase nodes, at most 1,000; needs an admin key. `erasure` returns its progress."""
    body = {"nodes": list(nodes)} | _given(node_set=node_set, topic=topic)
    return Call(
        method="POST",
        path="/v1/erase",
        answer=ErasureResponse,
        accepted=ErasureResponse,
        content=msgspec.json.encode(body),
        idempotent=False,
    )


def erasure(request: str) -> Call[ErasureResponse]:
    """The progress of an erasure: the reason that it waits, and at last its proof."""
    return Call(method="GET", path=f"/v1/erase/{quote(request, safe='')}", answer=ErasureResponse)


# Construction of calls


def _asked(path: str, body: object, answer: type[T], max_lag_seconds: float | None) -> Call[T]:
    """Make a call that reads the log and changes nothing."""
    return Call(
        method="POST",
        path=path,
        answer=answer,
        content=msgspec.json.encode(body),
        sees_log=True,
        max_lag_seconds=max_lag_seconds,
    )


def _looked_up(path: str, answer: type[T], max_lag_seconds: float | None) -> Call[T]:
    return Call(
        method="GET", path=path, answer=answer, sees_log=True, max_lag_seconds=max_lag_seconds
    )


def _sent(body: object, at_least_once: bool) -> Call[EventsResponse]:
    return Call(
        method="POST",
        path="/v1/events",
        answer=EventsResponse,
        content=msgspec.json.encode(body),
        idempotent=at_least_once,
    )


def _moved(path: str, why: str) -> Call[Moved | MoveRequested]:
    return Call(
        method="POST",
        path=path,
        answer=Moved,
        accepted=MoveRequested,
        content=msgspec.json.encode({"why": why}),
        idempotent=False,
    )


def _of_node(path: str, node: Key, node_set: str | None) -> str:
    query = _given(integer="true" if isinstance(node, int) else None, node_set=node_set)
    return f"{path}/{quote(str(node), safe='')}" + (f"?{urlencode(query)}" if query else "")


def _given(**fields: object) -> dict[str, Any]:
    """The fields with a value."""
    return {name: value for name, value in fields.items() if value is not None}
