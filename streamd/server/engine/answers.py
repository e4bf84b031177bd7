"""Computes the answers of many requests in one pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamd.events import Float32, Int64, Key, SetKey
from streamd.models.rule import NAME as RULE
from streamd.models.rule import RULES
from streamd.server.engine.explain import Pair, Pairs, explain, reasons_of
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import UNKNOWN, LoadedVersion
from streamd.serving.requests import (
    Answer,
    Embedding,
    Explain,
    Label,
    NotFinite,
    Reason,
    Recommend,
    Request,
    Score,
    Seen,
    Similar,
)
from streamd.serving.supposition import supposing


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state from which an answer is computed.

    view: the server's graph. served: the version with its memory at the query's time, None for a
    rule. as_of_us: time of the query in microseconds, after every event in the graph. seen: the
    position of the graph in the log. rule: name of the rule that answers if `served` is None.
    """

    view: ServerGraph
    served: LoadedVersion | None
    as_of_us: int
    seen: Seen
    rule: str = RULE

    def answer(self, source: int, **results: Any) -> Answer:
        """Make an answer from the fields that all answers share and from `results`. source: node
        id, or UNKNOWN."""
        view = self.view
        served = self.served
        is_known = source != UNKNOWN and bool(view.facts.is_known(np.array([source]))[0])
        return Answer(
            version=served.manifest.name if served else self.rule,
            trained_until_us=served.manifest.window_end_us if served else None,
            edge=view.edge,
            as_of_us=self.as_of_us,
            newest_us=view.newest_us,
            seen=self.seen,
            memory_edge=served.memory.edge if served else view.edge,
            src_known=is_known,
            **results,
        )


NO_ARMS: Mapping[str, LoadedVersion] = {}


def query_states(
    view: ServerGraph,
    served: LoadedVersion | None,
    requests: Sequence[Request],
    seen: Seen,
    arms: Mapping[str, LoadedVersion] = NO_ARMS,
) -> list[QueryState]:
    """The state for each request, at its query time or now.

    If the query time closes a chunk, memory advances over it for that query only. arms: arm of a
    trial -> its version; in other arms a rule or `served` answers.
    """
    # A query time is after the newest event, since the graph cannot leave events out.
    queries = [(max(view.newest_us + 1, _time_of(r) or 0), _arm_of(r)) for r in requests]
    # Requests with the same time and arm share a state, and so one pass.
    states: dict[tuple[int, str], QueryState] = {}
    for t, arm in set(queries):
        if arm in RULES:
            states[t, arm] = QueryState(view, None, t, seen, arm)
            continue
        one = arms.get(arm, served)
        states[t, arm] = QueryState(view, one and one.ahead(view.log, view.edge, t), t, seen)
    return [states[query] for query in queries]


def answer_new_source(
    view: ServerGraph, served: LoadedVersion | None, request: Score | Recommend, seen: Seen
) -> Answer:
    """Compute the answer to a request with a new source, as if its events were in the log. Raises:
    NotFinite, KnownSource, NoContext."""
    # The answer reports the position of the log without these events.
    edge, newest_us = view.edge, view.newest_us
    memory_edge = served.memory.edge if served else edge
    with supposing(view, served, request) as one:
        states = query_states(view, one, [request], seen)
        answer = answers_of([request], states)[0]
    return replace(answer, edge=edge, newest_us=newest_us, memory_edge=memory_edge)


@contextmanager
def naming(served: LoadedVersion | None) -> Iterator[None]:
    """Give a NotFinite within the block the name of its version."""
    try:
        yield
    except NotFinite as error:
        error.version = "" if served is None else served.manifest.name
        raise


def answers_of(requests: Sequence[Request], states: Sequence[QueryState]) -> list[Answer]:
    """Compute answers with versions and with rules, in order. Raises: NotFinite.

    There is one pass for each cut at which requests need the memory, and one for each rule.
    """
    # Requests that need the memory at the same cut share one `served` object.
    answers: dict[int, Answer] = {}
    for served, rule in {(id(s.served), s.rule): (s.served, s.rule) for s in states}.values():
        indices = [i for i, s in enumerate(states) if s.served is served and s.rule == rule]
        with naming(served):
            group = _one_pass([requests[i] for i in indices], [states[i] for i in indices])
        answers.update(zip(indices, group, strict=True))
    return [answers[i] for i in range(len(requests))]


def scores_of(
    states: Sequence[QueryState], sources: Int64, targets: Sequence[Int64], edge_sets: Sequence[int]
) -> list[Float32]:
    """Score the targets of each source with one version, its memory at one cut, or with one rule.

    states: one for each source, all with the same version or rule. sources: int64[S] node ids.
    targets: S arrays of int64 node ids. edge_sets: number of each source's edge set. Returns: S
    arrays of float32, as long as those of `targets`. Raises: NotFinite.
    """
    if not len(targets):
        return []
    view = states[0].view
    served = states[0].served

    # The facts of all pairs, each at the time of its query.
    counts = [len(d) for d in targets]
    rows = np.concatenate(
        [
            view.facts.compute(np.array([s]), np.array([m.as_of_us]), d[None], np.array([n]))[0]
            for s, m, d, n in zip(sources, states, targets, edge_sets, strict=True)
        ]
    )

    # One call of the model or the rule for all of them.
    if not len(rows):
        scores = np.zeros(0, np.float32)
    elif served is None:
        scores = RULES[states[0].rule](rows)
    else:
        scores = served.scores(rows, np.repeat(sources, counts), np.concatenate(targets), view.live)
        if not np.isfinite(scores).all():
            raise NotFinite("a score is not finite")
    return np.split(scores, np.cumsum(counts)[:-1])


def best_of(state: QueryState, request: Recommend, pool: Int64, scores: Float32) -> Int64:
    """Select the best `k` nodes of a pool within the request's diversity.

    pool: int64[P] node ids. scores: float32[P]. Returns: int64 indices in the pool, best first;
    equal scores are ordered by node id. The best of a pool are among the best of its parts, so a
    search may keep only these.
    """
    best = np.lexsort((pool, -scores))
    if request.diversity is not None:
        best = best[state.view.candidates.diverse(request.diversity, pool[best])]
    return best[: request.k]


def make_recommendation(
    state: QueryState, request: Recommend, source: int, pool: Int64, scores: Float32
) -> Answer:
    """Make the answer of a recommendation from a scored pool: its best `k` nodes, with reasons if
    the request has them.

    source: node id, or UNKNOWN. pool, scores: as in `best_of`. Raises: NotFinite.
    """
    view = state.view
    best = best_of(state, request, pool, scores)
    nodes = pool[best]
    reasons: tuple[Reason | None, ...] = ()
    if request.reasons:
        pairs = Pairs(source, nodes, request.edge_set, state.as_of_us)
        reasons = reasons_of(view, state.served, pairs, scores[best], RULES[state.rule])
    return state.answer(
        source,
        dst=tuple(view.log.keys[node] for node in nodes),
        scores=tuple(scores[best].tolist()),
        known=tuple(view.facts.is_known(nodes).tolist()),
        reasons=reasons,
    )


def _one_pass(requests: list[Request], states: list[QueryState]) -> list[Answer]:
    """Answer requests with one version, its memory at one cut, or with one rule."""
    view = states[0].view
    sources = view.ids([_node_of(r) for r in requests])

    # Score the pairs of all requests in one call.
    targets = {
        i: _targets(m, r, int(sources[i]))
        for i, (m, r) in enumerate(zip(states, requests, strict=True))
        if isinstance(r, Score | Recommend)
    }
    asked = [r.edge_set for r in requests if isinstance(r, Score | Recommend)]
    scored_states = [states[i] for i in targets]
    found = scores_of(scored_states, sources[list(targets)], [*targets.values()], asked)
    scores = dict(zip(targets, found, strict=True))

    # Make the answer of each request by its kind.
    answers = []
    for i, (state, request) in enumerate(zip(states, requests, strict=True)):
        source = int(sources[i])
        match request:
            case Score():
                answers.append(_answer_score(state, request, source, targets[i], scores[i]))
            case Recommend():
                answers.append(make_recommendation(state, request, source, targets[i], scores[i]))
            case Similar():
                answers.append(_answer_similar(state, request, source))
            case Embedding():
                answers.append(_answer_embedding(state, source))
            case Label():
                answers.append(_answer_labels(state, source, request.node))
            case Explain():
                answers.append(_answer_explanation(state, request, source))
    return answers


def _targets(state: QueryState, request: Score | Recommend, source: int) -> Int64:
    view = state.view
    if isinstance(request, Score):
        return view.ids(list(request.dst))
    likely = view.candidates.likely(request, source, state.served)
    unseen = view.candidates.unseen
    return unseen(likely, source, request.edge_set) if request.exclude_seen else likely


def _answer_score(
    state: QueryState, request: Score, source: int, targets: Int64, scores: Float32
) -> Answer:
    known = state.view.facts.is_known(targets)
    return state.answer(
        source, dst=request.dst, scores=tuple(scores.tolist()), known=tuple(known.tolist())
    )


def _answer_similar(state: QueryState, request: Similar, node: int) -> Answer:
    """Make the answer with the nodes most similar to a given one. Equal ones are ordered by node
    id."""
    view = state.view
    served = state.served
    embedding: tuple[float, ...] = ()

    # Similarity by partners needs no model. A version without embeddings gives an empty answer.
    if request.by == "partners":
        nodes, scores = view.candidates.sharing_partners(node, request.edge_set)
        is_allowed = view.candidates.allows(nodes, request)
        nodes, scores = nodes[is_allowed], scores[is_allowed]
    elif served is None or not served.has_embeddings:
        nodes, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
    else:
        embedding = tuple(served.embedding_of(node, view.live).tolist())
        # All unknown nodes share one embedding, which is similar to nothing.
        nodes = view.candidates.alike(request, node, served)
        nodes = nodes if node != UNKNOWN else nodes[:0]
        scores = served.likeness(node, nodes, view.live)

    # Order them and keep the best.
    if not (np.isfinite(scores).all() and np.isfinite(embedding).all()):
        raise NotFinite("an embedding is not finite")
    best = np.lexsort((nodes, -scores))[: request.k]
    return state.answer(
        node,
        dst=tuple(view.log.keys[one] for one in nodes[best]),
        scores=tuple(scores[best].tolist()),
        known=tuple(view.facts.is_known(nodes[best]).tolist()),
        embedding=embedding,
    )


def _answer_embedding(state: QueryState, source: int) -> Answer:
    if state.served is None:
        return state.answer(source)
    z = state.served.embedding_of(source, state.view.live).tolist()
    if not np.isfinite(z).all():
        raise NotFinite("an embedding is not finite")
    return state.answer(source, embedding=tuple(z))


def _answer_labels(state: QueryState, source: int, key: Key) -> Answer:
    # An unknown key also names its node set.
    node_set = key.node_set if isinstance(key, SetKey) else 0
    served, live = state.served, state.view.live
    labels = None if served is None else served.labels(source, node_set, live)
    if labels is not None and not np.isfinite(labels).all():
        raise NotFinite("a label is not finite")
    return state.answer(source, labels=labels)


def _answer_explanation(state: QueryState, request: Explain, source: int) -> Answer:
    target = state.view.ids([request.dst])
    pair = Pair(source, int(target[0]), request.edge_set, state.as_of_us)
    explanation = explain(state.view, state.served, pair)
    return state.answer(
        source,
        dst=(request.dst,),
        scores=(explanation.score,),
        known=tuple(state.view.facts.is_known(target).tolist()),
        explanation=explanation,
    )


def _node_of(request: Request) -> Key:
    return request.src if isinstance(request, Score | Recommend | Explain) else request.node


def _arm_of(request: Request) -> str:
    return request.arm if isinstance(request, Score | Recommend) else ""


def _time_of(request: Request) -> int | None:
    return request.time_us if isinstance(request, Score | Recommend | Explain) else None
