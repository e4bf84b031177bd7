"""Converts bodies of `/v1` into requests to the engine."""

from collections.abc import Sequence

from fastapi import HTTPException

from streamd.events import MICROSECONDS, Key
from streamd.server.engine.queue import SUPPOSED_WEIGHT, weight_of
from streamd.server.engine.set_names import in_set
from streamd.server.state import ServerState
from streamd.server.v1.schemas import (
    ExplainRequest,
    NodesRequest,
    RecommendRequest,
    ScoreRequest,
    SimilarRequest,
)
from streamd.server.v1.trial_answers import no_trial
from streamd.server.v1.trial_unit import TrialUnit
from streamd.serving.requests import Explain, Recommend, Score, Similar, supposes

NOT_EXACT = (
    "exact runs between other requests, but features and context exist for one request only: leave "
    "out one or the other"
)
MAX_REASONS = 100
"""Maximum k of a recommendation with reasons: the reason of each node needs a score for each group
of facts."""


def to_score(state: ServerState, body: ScoreRequest) -> Score:
    """Convert a score request. Raises: HTTPException, as do the other functions here."""
    # Check the length first, since the conversion of a long list would block the event loop.
    limit = state.settings.server.max_candidates
    if len(body.dst) > limit:
        raise HTTPException(
            422, f"{len(body.dst)} candidates, at most {limit} (server.max_candidates)"
        )
    edge_set = state.sets.edge_set(body.edge_set)
    source, target = state.sets.endpoint_sets(edge_set)
    dst = tuple(in_set(target, key) for key in body.dst) if target else tuple(body.dst)
    return Score(
        src=in_set(source, body.src),
        dst=dst,
        time_us=_time_us(state, body.time),
        edge_set=edge_set,
        arm=_arm_of(state, body.trial),
        new=state.new_sources.read(body, edge_set),
    )


def to_recommend(state: ServerState, body: RecommendRequest) -> Recommend:
    """Convert a recommendation request."""
    edge_set = state.sets.edge_set(body.edge_set)
    state.sets.check_kind(body.kind)
    source, target = state.sets.endpoint_sets(edge_set)
    # Refuse parts that exclude one another before the filters are converted.
    if body.reasons and body.k > MAX_REASONS:
        raise HTTPException(422, f"k: {body.k} nodes with reasons, at most {MAX_REASONS}")
    new = state.new_sources.read(body, edge_set)
    if body.exact and new is not None:
        raise HTTPException(422, NOT_EXACT)
    return Recommend(
        src=in_set(source, body.src),
        k=body.k,
        filter=state.filters.read(body, target),
        exclude_seen=body.exclude_seen,
        exact=body.exact,
        diversity=state.filters.diversity(body.diversity, target),
        reasons=body.reasons,
        time_us=_time_us(state, body.time),
        edge_set=edge_set,
        arm=_arm_of(state, body.trial),
        new=new,
    )


def check_batch(state: ServerState, requests: Sequence[Score | Recommend]) -> None:
    """Check the number of requests in a batch. Raises: HTTPException."""
    # The weight of the batch, as the engine's queue counts it.
    limit = state.settings.server.max_batch
    weight = sum(map(weight_of, requests))
    if weight > limit:
        raise HTTPException(
            422,
            f"{weight} in one batch, at most {limit} (server.max_batch); a request with features "
            f"or context counts {SUPPOSED_WEIGHT}",
        )

    # One exact recommendation turns the whole batch into searches.
    is_exact = any(isinstance(request, Recommend) and request.exact for request in requests)
    if is_exact and any(map(supposes, requests)):
        raise HTTPException(422, NOT_EXACT)


def empty_hint(body: RecommendRequest) -> str:
    """The reason why the filters of a request leave no node; empty for a request without
    filters."""
    filters = {
        "kind": body.kind is not None,
        "only": body.only is not None,
        "exclude": bool(body.exclude),
        "where": bool(body.where),
        "exclude_seen": body.exclude_seen,
    }
    # With one filter the cause is known; with several, the hint names them all.
    given = [name for name, is_given in filters.items() if is_given]
    if given == ["kind"]:
        return f"no destination has the kind {body.kind!r} (text before the first ':')"
    if body.only == []:
        return "only has no nodes"
    if given == ["only"]:
        return "no node in only is known"
    return f"no node passes {' and '.join(given)}" if given else ""


def to_similar(state: ServerState, body: SimilarRequest) -> Similar:
    """Convert a request for similar nodes."""
    edge_set = state.sets.edge_set(body.edge_set)
    state.sets.check_kind(body.kind)
    target = state.sets.endpoint_sets(edge_set)[1]
    return Similar(
        node=in_set(target, body.node),
        k=body.k,
        by=body.by,
        filter=state.filters.read(body, target),
        edge_set=edge_set,
    )


def to_explain(state: ServerState, body: ExplainRequest) -> Explain:
    """Convert a request for an explanation."""
    edge_set = state.sets.edge_set(body.edge_set)
    source, target = state.sets.endpoint_sets(edge_set)
    src, dst = in_set(source, body.src), in_set(target, body.dst)
    return Explain(src, dst, _time_us(state, body.time), edge_set)


def nodes_of(state: ServerState, body: NodesRequest) -> list[Key]:
    """The keys of the nodes in a body."""
    node_set = state.sets.node_set(body.node_set)
    return [in_set(node_set, key) for key in body.nodes]


def _arm_of(state: ServerState, trial: TrialUnit | None) -> str:
    """The arm that answers a unit of a trial, empty for the champion."""
    if trial is None:
        return ""
    if state.trial is None:
        raise no_trial()
    return state.trial.arm_of(trial.unit)


def _time_us(state: ServerState, time: int | None) -> int | None:
    scale = MICROSECONDS[state.settings.stream.time_unit]
    return None if time is None else min(time * scale, 2**62)
