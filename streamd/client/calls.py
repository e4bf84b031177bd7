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
    """One request of the API, and the type of its answer.

    Args:
        method: str, of HTTP.
        path: str, with the query.
        answer: type, of the answer.
        accepted: type, of an answer with status 202. Default None: `answer`.
        content: bytes, JSON. Default None: no body.
        idempotent: bool, whether the client may repeat a call that the server may have executed.
            Default True.
        sees_log: bool, whether the server computes the answer from the log, so that the client can
            require a position in the log. Default False.
        max_lag_seconds: float, maximum age of such an answer. Default None: any.
    """

    method: str
    path: str
    answer: type[T]
    accepted: type[T] | None = None
    content: bytes | None = None
    idempotent: bool = True
    sees_log: bool = False
    max_lag_seconds: float | None = None


# Answers from the model


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
    """Score candidate destinations of a source. The scores have the order of the candidates.

    Args:
        src: str | int, key of the source.
        dst: Sequence[str | int], keys of the candidates, at most `server.max_candidates`.
        as_of: int, time of the query in `stream.time_unit`; a time that is not after the newest
            event means now. Default None: now.
        edge_set: str, edge set of the pairs. Default None: the only declared one.
        features: list or dict, features of a source without events in the log. Default None.
        context: Sequence[ContextEvent], events of a source without events in the log, oldest first.
            The answer is as after them; they are not stored. Default ().
        unit: str, a unit of the present trial, whose arm answers. Default None: no trial.
        max_lag_seconds: float, maximum age of the answer. Default None: any.

    Raises:
        Refused: a key, set or feature is invalid.
        TooOld: the answer would be older than `max_lag_seconds`.
    """
    # Structs omit fields at their defaults, since an older server does not know all of them.
    body = ScoreRequest(
        src=src,
        dst=list(dst),
        time=as_of,
        edge_set=edge_set,
        features=features,
        context=list(context),
        trial=None if unit is None else TrialUnit(unit),
    )
    return _read_call("/v1/score", body, ScoreResponse, max_lag_seconds)


def score_batch(
    requests: Sequence[ScoreRequest], *, max_lag_seconds: float | None = None
) -> Call[list[ScoreResponse]]:
    """Send several requests of `score`, at most `server.max_batch`. One version answers all, in
    their order."""
    body = {"requests": list(requests)}
    return _read_call("/v1/score/batch", body, list[ScoreResponse], max_lag_seconds)


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
    """Find the `k` most likely next destinations of a source, best first.

    Arguments from `kind` to `reasons` are the fields of `RecommendRequest`; the others are as in
    `score`.
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
    return _read_call("/v1/recommend", body, ScoreResponse, max_lag_seconds)


def recommend_batch(
    requests: Sequence[RecommendRequest], *, max_lag_seconds: float | None = None
) -> Call[list[ScoreResponse]]:
    """Send several requests of `recommend`, at most `server.max_batch`. One version answers all, in
    their order."""
    body = {"requests": list(requests)}
    return _read_call("/v1/recommend/batch", body, list[ScoreResponse], max_lag_seconds)


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
    """Find the `k` destinations that are most similar to a given one, most similar first.

    Args:
        node: str | int, key of the given destination.
        k: int, number of nodes, at most 1,000. Default 10.
        by: str, "embedding": similarity of the model's embeddings; "partners": number of partners
            that both had lately. Default "embedding".
        kind, only, exclude, `where`: filters of the nodes, as in `RecommendRequest`.
        edge_set: str, edge set of the destinations. Default None: the only declared one.
        max_lag_seconds: float, maximum age of the answer. Default None: any.

    Raises:
        NotFound: the model has no embeddings.
    """
    body = {"node": node, "k": k, "by": by, "exclude": list(exclude), "where": dict(where or {})}
    body |= _without_none(kind=kind, only=None if only is None else list(only), edge_set=edge_set)
    return _read_call("/v1/similar", body, SimilarResponse, max_lag_seconds)


def explain(
    src: Key,
    dst: Key,
    *,
    as_of: int | None = None,
    edge_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[ExplainResponse]:
    """Split the score of one candidate into a baseline and the shares of groups of facts. Arguments
    as in `score`."""
    body = {"src": src, "dst": dst} | _without_none(time=as_of, edge_set=edge_set)
    return _read_call("/v1/explain", body, ExplainResponse, max_lag_seconds)


# Reads of nodes


def embeddings(
    nodes: Sequence[Key],
    *,
    node_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[list[EmbeddingResponse]]:
    """Read the embeddings of several nodes, in their order. node_set: of all nodes; None for the
    only declared one."""
    body = {"nodes": list(nodes)} | _without_none(node_set=node_set)
    return _read_call("/v1/embeddings", body, list[EmbeddingResponse], max_lag_seconds)


def embedding(
    node: Key, *, node_set: str | None = None, max_lag_seconds: float | None = None
) -> Call[EmbeddingResponse]:
    """Read the embedding of one node. Raises: NotFound if the model has no embeddings."""
    path = _of_node("/v1/embeddings", node, node_set)
    return _get_call(path, EmbeddingResponse, max_lag_seconds)


def labels_of(
    nodes: Sequence[Key],
    *,
    node_set: str | None = None,
    max_lag_seconds: float | None = None,
) -> Call[list[LabelsResponse]]:
    """Predict the labels of several nodes, in their order."""
    body = {"nodes": list(nodes)} | _without_none(node_set=node_set)
    return _read_call("/v1/labels", body, list[LabelsResponse], max_lag_seconds)


def labels(
    node: Key, *, node_set: str | None = None, max_lag_seconds: float | None = None
) -> Call[LabelsResponse]:
    """Predict the labels of one node. Raises: NotFound if no labels are declared."""
    return _get_call(_of_node("/v1/labels", node, node_set), LabelsResponse, max_lag_seconds)


def nodes(
    prefix: str = "",
    limit: int = 10,
    *,
    node_set: str | None = None,
    source_in: str | None = None,
) -> Call[CompletionResponse]:
    """Find keys of nodes that begin with a prefix, newest nodes first.

    limit: maximum number of keys, at most 50. source_in: name of an edge set, to find its sources
    only.
    """
    sets = _without_none(node_set=node_set, source_in=source_in)
    query = urlencode({"prefix": prefix, "limit": limit} | sets)
    return Call(method="GET", path=f"/v1/nodes?{query}", answer=CompletionResponse)


# Writes


def events(
    events: Sequence[Event | Mapping[str, Any]], *, at_least_once: bool = False
) -> Call[EventsResponse]:
    """Send events to the first of `kafka.topics`. Later calls of this client include them.

    Args:
        events: Sequence[Event | Mapping], at most 1,000.
        at_least_once: bool, send the events again after a failure although they may have arrived:
            the log would have duplicates. Default False: raise an error with `may_have_happened`.

    Raises:
        Refused: ingest would refuse one of the events; none was sent.
    """
    return _write_call({"events": list(events)}, at_least_once)


def records(
    records: Sequence[Mapping[str, Any]], *, at_least_once: bool = False
) -> Call[EventsResponse]:
    """Send records in the format of the topic's source, otherwise as `events`."""
    return _write_call({"records": list(records)}, at_least_once)


# Declarations, versions, trials and erasures


def schema() -> Call[SchemaResponse]:
    """Read the declared node sets and edge sets with their features."""
    return Call(method="GET", path="/v1/schema", answer=SchemaResponse)


def models() -> Call[ModelsResponse]:
    """Read the versions in the registry with their scores, and the name of the champion."""
    return Call(method="GET", path="/v1/models", answer=ModelsResponse)


def trials() -> Call[TrialResponse]:
    """Read the figures of the present trial. Raises: NotFound if none runs."""
    return Call(method="GET", path="/v1/trials", answer=TrialResponse)


def promote(version: str, why: str) -> Call[Moved | MoveRequested]:
    """Make a version the champion. Requires an admin key.

    The client does not repeat a call that the server may have executed: another caller may have
    moved the champion since.

    Args:
        version: str, name of the version.
        why: str, the reason, which the registry records.

    Returns:
        Moved, or MoveRequested if the trainer runs on another machine and has not answered in time.

    Raises:
        NotFound: there is no such version.
        NotPossible: the version cannot serve.
    """
    return _move_call(f"/v1/models/{quote(version, safe='')}/promote", why)


def rollback(why: str) -> Call[Moved | MoveRequested]:
    """Make the last proven version the champion, otherwise as `promote`."""
    return _move_call("/v1/models/rollback", why)


def move_outcome(request: str) -> Call[RequestOutcome]:
    """Read the outcome of a `MoveRequested`, by its `request`."""
    path = f"/v1/models/requests/{quote(request, safe='')}"
    return Call(method="GET", path=path, answer=RequestOutcome)


def erase(
    nodes: Sequence[Key], *, node_set: str | None = None, topic: str | None = None
) -> Call[ErasureResponse]:
    """Request to erase nodes. Requires an admin key. `erasure` reads the progress.

    Args:
        nodes: Sequence[str | int], keys, at most 1,000.
        node_set: str, node set of all nodes. Default None: the only declared one.
        topic: str, topic for the deletes. Default None: the first of `kafka.topics` without a
            source.
    """
    body = {"nodes": list(nodes)} | _without_none(node_set=node_set, topic=topic)
    return Call(
        method="POST",
        path="/v1/erase",
        answer=ErasureResponse,
        accepted=ErasureResponse,
        content=msgspec.json.encode(body),
        idempotent=False,
    )


def erasure(request: str) -> Call[ErasureResponse]:
    """Read the progress of an erasure, by its `request`: its state, and at the end its proof."""
    return Call(method="GET", path=f"/v1/erase/{quote(request, safe='')}", answer=ErasureResponse)


# Construction of calls


def _read_call(path: str, body: object, answer: type[T], max_lag_seconds: float | None) -> Call[T]:
    """A call with a body that reads the log and changes nothing."""
    return Call(
        method="POST",
        path=path,
        answer=answer,
        content=msgspec.json.encode(body),
        sees_log=True,
        max_lag_seconds=max_lag_seconds,
    )


def _get_call(path: str, answer: type[T], max_lag_seconds: float | None) -> Call[T]:
    return Call(
        method="GET", path=path, answer=answer, sees_log=True, max_lag_seconds=max_lag_seconds
    )


def _write_call(body: object, at_least_once: bool) -> Call[EventsResponse]:
    return Call(
        method="POST",
        path="/v1/events",
        answer=EventsResponse,
        content=msgspec.json.encode(body),
        idempotent=at_least_once,
    )


def _move_call(path: str, why: str) -> Call[Moved | MoveRequested]:
    return Call(
        method="POST",
        path=path,
        answer=Moved,
        accepted=MoveRequested,
        content=msgspec.json.encode({"why": why}),
        idempotent=False,
    )


def _of_node(path: str, node: Key, node_set: str | None) -> str:
    query = _without_none(integer="true" if isinstance(node, int) else None, node_set=node_set)
    return f"{path}/{quote(str(node), safe='')}" + (f"?{urlencode(query)}" if query else "")


def _without_none(**fields: object) -> dict[str, Any]:
    """The fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}
