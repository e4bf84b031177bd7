"""The `/v1` routes: each translates a request for the engine and its answer back."""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from streamd.events import MICROSECONDS, Key
from streamd.registry.registry import read_manifests
from streamd.server.engine import Answer, Asked
from streamd.server.schemas import (
    AsOf,
    EmbeddingResponse,
    LabelsResponse,
    ModelInfo,
    ModelsResponse,
    Problem,
    RecommendRequest,
    Scored,
    ScoreRequest,
    ScoreResponse,
)
from streamd.server.state import ServerState

bearer = HTTPBearer(auto_error=False)
header_key = APIKeyHeader(name="X-API-Key", auto_error=False)


async def state_of(request: Request) -> ServerState:
    """What the routes share; async, as all dependencies here are, because a plain one costs a hop to another thread."""
    state: ServerState = request.app.state.streamd
    return state


State = Annotated[ServerState, Depends(state_of)]


async def require_key(
    state: State, token: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)] = None,
    key: Annotated[str | None, Security(header_key)] = None
) -> None:
    """Refuse a request without one of `server.api_keys`; with none set, all may ask."""
    if not state.allows(token.credentials if token else key):
        raise HTTPException(401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
                            {"WWW-Authenticate": "Bearer"})


router = APIRouter(prefix="/v1", dependencies=[Depends(require_key)], responses={
    401: {"model": Problem}, 429: {"model": Problem}, 503: {"model": Problem}})


@router.post("/score")
async def score(body: ScoreRequest, state: State) -> ScoreResponse:
    """Score candidate destinations of a source with the model of this moment."""
    limit = state.settings.server.max_candidates
    if len(body.dst) > limit:
        raise HTTPException(422, f"{len(body.dst)} candidates, at most {limit} (server.max_candidates)")
    asked = Asked(body.src, tuple(body.dst), _time_us(state, body.time))
    return _scored(state, body.src, await state.engine.ask(asked))


@router.post("/recommend")
async def recommend(body: RecommendRequest, state: State) -> ScoreResponse:
    """The k likeliest next destinations of a source, best first."""
    asked = Asked(body.src, None, _time_us(state, body.time), body.k, body.kind, body.exclude_seen)
    return _scored(state, body.src, await state.engine.ask(asked))


@router.get("/embeddings/{node:path}")
async def embedding(
    node: Annotated[str, Path(min_length=1, max_length=1024)], state: State, integer: bool = False
) -> EmbeddingResponse:
    """The embedding of a node; `integer=true` where its key is an integer."""
    key = _key(node, integer)
    answer = await state.engine.ask(Asked(key, embedding=True))
    return EmbeddingResponse(node=key, known=answer.src_known, embedding=list(answer.embedding),
                             memory_edge=answer.memory_edge, as_of=_as_of(state, answer))


@router.get("/labels/{node:path}", responses={404: {"model": Problem}})
async def labels(
    node: Annotated[str, Path(min_length=1, max_length=1024)], state: State, integer: bool = False
) -> LabelsResponse:
    """What the model predicts of a node's labels; `integer=true` where its key is an integer."""
    key = _key(node, integer)
    answer = await state.engine.ask(Asked(key, labels=True))
    if answer.labels is None:
        raise HTTPException(404, f"version {answer.version} predicts no labels: set model.labels and stream.label_dim")
    return LabelsResponse(node=key, known=answer.src_known, labels=list(answer.labels),
                          memory_edge=answer.memory_edge, as_of=_as_of(state, answer))


@router.get("/models")
def models(state: State) -> ModelsResponse:
    """All versions kept, oldest first, and which one serves."""
    last = state.registry.journal.last()
    scale = _scale(state)
    return ModelsResponse(
        champion=last.champion if last else None, shadow=(last.shadow or None) if last else None,
        versions=[ModelInfo(name=m.name, parent=m.parent, created=m.created, trained_until=m.window_end_us // scale,
                            edge=m.edge, loss=m.loss, scores=m.scores) for m in read_manifests(state.registry)])


def _key(node: str, integer: bool) -> Key:
    if not integer:
        return node
    try:
        key = int(node)
    except ValueError:
        raise HTTPException(422, f"{node!r} is not an integer key") from None
    if abs(key) >= 2**63:
        raise HTTPException(422, f"{node} does not fit int64")
    return key


def _scale(state: ServerState) -> int:
    return MICROSECONDS[state.settings.stream.time_unit]


def _time_us(state: ServerState, time: int | None) -> int | None:
    return None if time is None else min(time * _scale(state), 2**62)


def _as_of(state: ServerState, answer: Answer) -> AsOf:
    scale = _scale(state)
    until = answer.trained_until_us
    return AsOf(version=answer.version, trained_until=None if until is None else until // scale,
                last_edge=answer.edge - 1, newest_event=answer.newest_us // scale, time=answer.as_of_us // scale)


def _scored(state: ServerState, src: Key, answer: Answer) -> ScoreResponse:
    rows = zip(answer.dst, answer.scores, answer.known, strict=True)
    return ScoreResponse(src=src, known=answer.src_known, as_of=_as_of(state, answer),
                         scores=[Scored(dst=d, score=s, known=k) for d, s, k in rows])
