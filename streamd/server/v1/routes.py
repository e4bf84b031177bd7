"""The `/v1` routes. Each converts a body into a request to the engine, and the engine's answer into
a response."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Response
from fastapi.responses import JSONResponse

from streamd.errors import BadEvent, UntakenError
from streamd.events import Key
from streamd.registry.journal import Move
from streamd.registry.outcome import Refusal, Waiting, outcome_of
from streamd.registry.registry import read_manifests
from streamd.server.engine.conditions import RecordToken, headers_of
from streamd.server.engine.set_names import PlainKey, in_set, plain
from streamd.server.http.completion import complete_prefix
from streamd.server.http.fast_routes import DirectRoute
from streamd.server.http.query_names import refuse_unknown_parameters
from streamd.server.page.status import passed_over
from streamd.server.state import (
    AnswerConditions,
    ServerState,
    State,
    require_admin_key,
    require_key,
)
from streamd.server.v1.bodies import (
    check_batch,
    nodes_of,
    to_explain,
    to_recommend,
    to_score,
    to_similar,
)
from streamd.server.v1.contents import (
    as_of,
    explanation_content,
    hint_field,
    recommendation_content,
    scale_of,
    score_content,
)
from streamd.server.v1.schema_response import schema_response
from streamd.server.v1.schemas import (
    EVENT_BODIES,
    CompletionResponse,
    EmbeddingResponse,
    EventsRequest,
    EventsResponse,
    ExplainRequest,
    ExplainResponse,
    LabelsResponse,
    ModelInfo,
    ModelsResponse,
    Moved,
    MoveRequest,
    MoveRequested,
    NodesRequest,
    Produced,
    RecommendBatch,
    RecommendRequest,
    RequestOutcome,
    SchemaResponse,
    ScoreBatch,
    ScoreRequest,
    ScoreResponse,
    SimilarRequest,
    SimilarResponse,
)
from streamd.serving.requests import (
    Answer,
    Embedding,
    Label,
    NotReady,
)

router = APIRouter(
    prefix="/v1", dependencies=[Depends(require_key), Depends(refuse_unknown_parameters)]
)
direct = APIRouter(prefix="/v1", dependencies=[Depends(require_key)], route_class=DirectRoute)
NodeSetQuery = Annotated[
    str | None,
    Query(max_length=256, description="node set of the node; required if several are declared"),
]
SourceInQuery = Annotated[
    str | None,
    Query(max_length=256, description="edge set: only nodes that were a source in it"),
]
NodePath = Annotated[str, Path(min_length=1, max_length=1024, examples=["user:74"])]


# Answers


@direct.post("/score", tags=["answers"], response_model=ScoreResponse)
async def score(body: ScoreRequest, state: State, conditions: AnswerConditions) -> Response:
    """Score candidate destinations of a source with the version that serves now."""
    request = to_score(state, body)
    answer = await state.engine.ask(request, conditions)
    return _json(score_content(state, body, request, answer), answer)


@direct.post("/score/batch", tags=["answers"], response_model=list[ScoreResponse])
async def score_batch(body: ScoreBatch, state: State, conditions: AnswerConditions) -> Response:
    """Several requests of `/v1/score`, answered in their order; if one fails, all do."""
    _check_batch(state, len(body.requests))
    requests = [to_score(state, one) for one in body.requests]
    check_batch(state, requests)
    answers = await state.engine.ask_all(requests, conditions)
    rows = zip(body.requests, requests, answers, strict=True)
    scored = [score_content(state, own, r, a) for own, r, a in rows]
    return _json(scored, answers[0])


@direct.post("/recommend", tags=["answers"], response_model=ScoreResponse)
async def recommend(body: RecommendRequest, state: State, conditions: AnswerConditions) -> Response:
    """The k most likely next destinations of a source, best first."""
    request = to_recommend(state, body)
    answer = await state.engine.ask(request, conditions)
    return _json(recommendation_content(state, body, request, answer), answer)


@direct.post("/recommend/batch", tags=["answers"], response_model=list[ScoreResponse])
async def recommend_batch(
    body: RecommendBatch, state: State, conditions: AnswerConditions
) -> Response:
    """Several requests of `/v1/recommend`, answered in their order; if one fails, all do."""
    _check_batch(state, len(body.requests))
    requests = [to_recommend(state, one) for one in body.requests]
    check_batch(state, requests)
    answers = await state.engine.ask_all(requests, conditions)
    rows = zip(body.requests, requests, answers, strict=True)
    found = [recommendation_content(state, own, r, a) for own, r, a in rows]
    return _json(found, answers[0])


@direct.post("/similar", tags=["answers"], response_model=SimilarResponse)
async def similar(body: SimilarRequest, state: State, conditions: AnswerConditions) -> Response:
    """The k destinations most similar to a given one, by the model's embeddings or by the partners
    that they shared lately."""
    request = to_similar(state, body)
    answer = await state.engine.ask(request, conditions)
    if body.by == "embedding" and not answer.embedding:
        raise HTTPException(
            404, f"version {answer.version} has no embeddings; use by=partners instead"
        )

    # The engine has ordered them, most similar first.
    found = zip(answer.dst, answer.scores, strict=True)
    content = {
        "node": body.node,
        "known": answer.src_known,
        "similar": [{"node": plain(key), "score": score} for key, score in found],
        "as_of": as_of(state, answer).model_dump(),
        **hint_field(state, request.node, answer),
    }
    return _json(content, answer)


@router.get("/nodes", tags=["answers"])
async def nodes(
    state: State,
    prefix: Annotated[str, Query(max_length=1024)] = "",
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
    node_set: NodeSetQuery = None,
    source_in: SourceInQuery = None,
) -> CompletionResponse:
    """Keys of nodes that start with a prefix, newest nodes first. A key that equals the prefix
    comes first."""
    number = None if node_set is None else state.sets.node_set(node_set)
    is_source = None
    if source_in is not None:
        is_source = partial(state.engine.is_source, edge_set=state.sets.edge_set(source_in))
    found, complete = await complete_prefix(state.engine.keys, prefix, number, limit, is_source)
    return CompletionResponse(nodes=found, complete=complete)


@router.get("/embeddings/{node:path}", tags=["answers"], response_model_exclude_unset=True)
async def embedding(
    node: NodePath,
    state: State,
    conditions: AnswerConditions,
    response: Response,
    integer: bool = False,
    node_set: NodeSetQuery = None,
) -> EmbeddingResponse:
    """The embedding of a node; `integer=true` if its key is an integer."""
    key = in_set(state.sets.node_set(node_set), key_of_path(node, integer))
    answer = await state.engine.ask(Embedding(key), conditions)
    response.headers.update(headers_of(answer.seen))
    return _embedding_response(state, key, answer)


@router.post("/embeddings", tags=["answers"], response_model_exclude_unset=True)
async def embeddings(
    body: NodesRequest, state: State, conditions: AnswerConditions, response: Response
) -> list[EmbeddingResponse]:
    """The embeddings of several nodes, in their order."""
    _check_batch(state, len(body.nodes))
    keys = nodes_of(state, body)
    answers = await state.engine.ask_all([Embedding(key) for key in keys], conditions)
    response.headers.update(headers_of(answers[0].seen))
    return [
        _embedding_response(state, key, answer) for key, answer in zip(keys, answers, strict=True)
    ]


@router.get("/labels/{node:path}", tags=["answers"], response_model_exclude_unset=True)
async def labels(
    node: NodePath,
    state: State,
    conditions: AnswerConditions,
    response: Response,
    integer: bool = False,
    node_set: NodeSetQuery = None,
) -> LabelsResponse:
    """The model's prediction of a node's labels; `integer=true` if its key is an integer."""
    key = in_set(state.sets.node_set(node_set), key_of_path(node, integer))
    answer = await state.engine.ask(Label(key), conditions)
    response.headers.update(headers_of(answer.seen))
    return _labels_response(state, key, answer)


@router.post("/labels", tags=["answers"], response_model_exclude_unset=True)
async def labels_of_many(
    body: NodesRequest, state: State, conditions: AnswerConditions, response: Response
) -> list[LabelsResponse]:
    """The model's predictions of several nodes' labels, in their order."""
    _check_batch(state, len(body.nodes))
    keys = nodes_of(state, body)
    answers = await state.engine.ask_all([Label(key) for key in keys], conditions)
    response.headers.update(headers_of(answers[0].seen))
    return [_labels_response(state, key, answer) for key, answer in zip(keys, answers, strict=True)]


@direct.post("/explain", tags=["answers"], response_model=ExplainResponse)
async def explain(body: ExplainRequest, state: State, conditions: AnswerConditions) -> Response:
    """The parts that make up the score of one candidate."""
    request = to_explain(state, body)
    answer = await state.engine.ask(request, conditions)
    return _json(explanation_content(state, request, answer), answer)


# Events


@router.post("/events", tags=["events"], status_code=202, response_model_exclude_unset=True)
async def events(body: EventsRequest, state: State) -> EventsResponse:
    """Send events to the first of `kafka.topics`, for producers without a Kafka client. They are in
    the log and in answers once ingest has read them. If ingest would refuse one of them, the
    request fails and none is sent."""
    if (body.events is None) == (body.records is None):
        raise HTTPException(422, EVENT_BODIES)
    try:
        values = (
            [msgspec.json.encode(event.model_dump(exclude_none=True)) for event in body.events]
            if body.events is not None
            else [msgspec.json.encode(record) for record in body.records or ()]
        )
        places, hint = await state.forwarder.send(values, mapped=body.records is not None)
    except BadEvent as error:
        raise HTTPException(422, f"{error.reason}: {error}") from None
    except OverflowError:
        raise HTTPException(422, "bad_json: a number is out of range") from None
    topic = state.forwarder.topic
    tokens = [RecordToken(topic, partition, offset) for partition, offset in places]
    # Ascending offsets: the dict keeps the last of each partition.
    newest = dict(sorted(places)).items()
    return EventsResponse(
        topic=topic,
        events=[Produced(partition=t.partition, offset=t.offset, position=str(t)) for t in tokens],
        after=", ".join(str(RecordToken(topic, p, o)) for p, o in newest),
        **({"hint": hint} if hint else {}),
    )


@router.get("/schema", tags=["events"])
def schema(state: State) -> SchemaResponse:
    """The declared node sets and edge sets with their features."""
    return schema_response(state.settings)


# Versions
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": MoveRequested,
        "description": "requested from the trainer on another machine, or waiting for ingest",
    }
}


@router.post(
    "/models/rollback",
    tags=["models"],
    dependencies=[Depends(require_admin_key)],
    response_model=Moved,
    responses=ACCEPTED,
)
def rollback(body: MoveRequest, state: State) -> Moved | JSONResponse:
    """Make the last proven version the champion; the trainer continues from it."""
    return _move_or_request(lambda: state.moves.rollback("api", body.why))


@router.post(
    "/models/{version}/promote",
    tags=["models"],
    dependencies=[Depends(require_admin_key)],
    response_model=Moved,
    responses=ACCEPTED,
)
def promote(
    version: Annotated[str, Path(max_length=64)], body: MoveRequest, state: State
) -> Moved | JSONResponse:
    """Make a version the champion; the trainer continues from it."""
    # An unknown version is 404; one that cannot serve raises VersionError, which is 409.
    if version not in state.registry.names():
        raise HTTPException(404, f"there is no version {version!r}; GET /v1/models lists them")
    return _move_or_request(lambda: state.moves.promote(version, "api", body.why))


@router.get("/models/requests/{request}", tags=["models"], responses={404: {}})
def request_outcome(
    request: Annotated[str, Path(min_length=1, max_length=64)], state: State
) -> RequestOutcome:
    """The outcome of a request that was answered with 202."""
    outcome = outcome_of(state.registry, request)
    if isinstance(outcome, Waiting):
        # Without other machines, a move waits for ingest only.
        on_its_way = state.registry.journal.is_on_its_way(request)
        if state.moves is state.registry and not on_its_way:
            raise HTTPException(404, f"there is no request {request!r}")
        return RequestOutcome(state="waiting")
    if isinstance(outcome, Refusal):
        return RequestOutcome(state="refused", reason=outcome.reason)
    return RequestOutcome(state="done", moved=_move_response(outcome))


@router.get("/models", tags=["models"])
def models(state: State) -> ModelsResponse:
    """All stored versions in the order of their windows' ends, and the champion."""
    # The newest move has the names of champion and shadow, the manifests have the rest.
    last = state.registry.shown()
    scale = scale_of(state)
    return ModelsResponse(
        champion=last.champion if last else None,
        shadow=(last.shadow or None) if last else None,
        versions=[
            ModelInfo(
                name=m.name,
                servable=state.registry.is_servable(m),
                parent=m.parent,
                created=m.created,
                trained_until=m.window_end_us // scale,
                edge=m.edge,
                loss=m.loss,
                scores=m.scores,
            )
            for m in read_manifests(state.registry)
        ],
        passed_over=passed_over(state.registry),
    )


# From an answer of the engine to a body


def _embedding_response(state: ServerState, key: Key, answer: Answer) -> EmbeddingResponse:
    if not answer.embedding:
        raise HTTPException(404, f"version {answer.version} has no embeddings")
    return EmbeddingResponse(
        node=plain(key),
        known=answer.src_known,
        embedding=list(answer.embedding),
        memory_edge=answer.memory_edge,
        as_of=as_of(state, answer),
        **hint_field(state, key, answer),
    )


def _labels_response(state: ServerState, key: Key, answer: Answer) -> LabelsResponse:
    if answer.labels is None:
        text = f"version {answer.version} predicts no labels"
        declared = state.settings.model.labels
        if declared != "none" and state.settings.stream.label_dim:
            raise NotReady(f"{text} yet; the next that the trainer learns does ({declared})")
        raise HTTPException(404, f"{text}: set model.labels and stream.label_dim")
    return LabelsResponse(
        node=plain(key),
        known=answer.src_known,
        labels=list(answer.labels),
        memory_edge=answer.memory_edge,
        as_of=as_of(state, answer),
        **hint_field(state, key, answer),
    )


def _check_batch(state: ServerState, count: int) -> None:
    limit = state.settings.server.max_batch
    if count > limit:
        raise HTTPException(422, f"{count} in one batch, at most {limit} (server.max_batch)")


def _move_or_request(move: Callable[[], Move | Waiting]) -> Moved | JSONResponse:
    try:
        done = move()
    except UntakenError as error:
        if not error.request:
            raise
        done = Waiting(error.request)
    if isinstance(done, Waiting):
        return JSONResponse(MoveRequested(request=done.request).model_dump(), 202)
    return _move_response(done)


def _move_response(move: Move) -> Moved:
    return Moved(action=move.action, champion=move.champion, shadow=move.shadow)


def key_of_path(node: str, integer: bool) -> PlainKey:
    """The key in a path. Raises: HTTPException if it should be an integer and is not."""
    if not integer:
        return node
    try:
        key = int(node)
    except ValueError:
        raise HTTPException(422, f"{node!r} is not an integer key") from None
    # Python's integers have no bound, but the log's keys do.
    if abs(key) >= 2**63:
        raise HTTPException(422, f"{node} does not fit int64")
    return key


def _json(content: object, answer: Answer) -> Response:
    """A response with the answers of one request. answer: any of them, for the headers."""
    text = msgspec.json.encode(content)
    return Response(text, media_type="application/json", headers=headers_of(answer.seen))
