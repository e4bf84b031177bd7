"""Converts answers of the engine into the contents of `/v1` responses."""

from dataclasses import asdict
from typing import Any

from streamd.events import MICROSECONDS, Key
from streamd.server.engine.conditions import POSITION, headers_of
from streamd.server.engine.set_names import plain
from streamd.server.state import ServerState
from streamd.server.v1.bodies import empty_hint
from streamd.server.v1.schemas import AsOf, RecommendRequest, ScoreRequest
from streamd.serving.requests import Answer, Explain, Recommend, Score


def scale_of(state: ServerState) -> int:
    return MICROSECONDS[state.settings.stream.time_unit]


def as_of(state: ServerState, answer: Answer) -> AsOf:
    scale = scale_of(state)
    until = answer.trained_until_us
    return AsOf(
        version=answer.version,
        trained_until=None if until is None else until // scale,
        last_edge=answer.edge - 1,
        memory_edge=answer.memory_edge,
        newest_event=answer.newest_us // scale,
        time=answer.as_of_us // scale,
    )


def hint_field(state: ServerState, node: Key, answer: Answer) -> dict[str, str]:
    """The field `hint` of a response, if a key of the request may have the wrong type, or its time
    another unit; empty otherwise. node: as in `ServerState.key_hint`."""
    hint = state.key_hint(node, answer) or state.time_hint(answer)
    return {"hint": hint} if hint else {}


def score_content(
    state: ServerState,
    body: ScoreRequest | RecommendRequest,
    request: Score | Recommend,
    answer: Answer,
) -> dict[str, Any]:
    """The content of a `ScoreResponse` as a dict: it takes longer to make and validate a hundred
    small pydantic models than to score the nodes. In a trial, this also sends the impression."""
    rows = zip(answer.dst, answer.scores, answer.known, strict=True)
    scores: list[dict[str, Any]] = [{"dst": plain(d), "score": s, "known": k} for d, s, k in rows]
    # Only an answer with reasons has the field `reason`.
    for one, reason in zip(scores, answer.reasons, strict=False):
        one["reason"] = reason
    content = {
        "src": plain(request.src),
        "known": answer.src_known,
        "scores": scores,
        "as_of": as_of(state, answer).model_dump(),
        **hint_field(state, request.src, answer),
    }
    if body.trial is not None:
        assert state.trial is not None, "it was checked when the request was made"
        edge_set = state.sets.edge_set_name(request.edge_set)
        content |= state.trial.record(body.trial.unit, request, answer, edge_set)
    return content


def recommendation_content(
    state: ServerState, body: RecommendRequest, request: Recommend, answer: Answer
) -> dict[str, Any]:
    """As `score_content`, with a hint if the filters of the request leave no node."""
    content = score_content(state, body, request, answer)
    hint = "" if answer.dst or "hint" in content else empty_hint(body)
    return content | ({"hint": hint} if hint else {})


def explanation_content(state: ServerState, request: Explain, answer: Answer) -> dict[str, Any]:
    """The content of an `ExplainResponse`, a dict for the same reason as in `score_content`."""
    explanation = answer.explanation
    assert explanation is not None
    return {
        "src": plain(request.src),
        "dst": plain(request.dst),
        "edge_set": state.sets.edge_set_name(request.edge_set),
        "known": answer.src_known,
        "dst_known": answer.known[0],
        "score": explanation.score,
        "baseline": explanation.baseline,
        "version": answer.version,
        "position": headers_of(answer.seen)[POSITION],
        "groups": [asdict(group) for group in explanation.groups],
        "neighbors": [
            {
                "node": plain(one.node),
                "node_set": state.sets.node_set_name(one.node),
                "of": one.of,
                "time": one.time_us // scale_of(state),
                "weight": one.weight,
            }
            for one in explanation.neighbors
        ],
        "weights": explanation.weights,
        "as_of": as_of(state, answer).model_dump(),
        **hint_field(state, request.src, answer),
    }
