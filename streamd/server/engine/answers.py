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
class Moment:
    """The state from which an answer is computed.

    view: the server's graph. served: the version with its memory at the query's time, None for a
    rule. as_of_us: time of the query in microseconds, after every event in the graph. seen: the
    position of the graph in the log. rule: its name, if no version answers.
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


def moments_of(
    view: ServerGraph,
    served: LoadedVersion | None,
    requests: Sequence[Request],
    seen: Seen,
    arms: Mapping[str, LoadedVersion] = NO_ARMS,
) -> list[Moment]:
    """The moment of each request: at its own time, or now.

    arms: arm -> its version; `served` answers in the others that no rule answers. If the query's
    time closes a chunk, memory is updated with it for that query only.
    """
    # The query's time is never before the newest event, which the graph already has.
    asked = [(max(view.newest_us + 1, _time_of(r) or 0), _arm_of(r)) for r in requests]
    # Requests with the same time and arm share a moment, and so a pass.
    moments: dict[tuple[int, str], Moment] = {}
    for t, arm in set(asked):
        if arm in RULES:
            moments[t, arm] = Moment(view, None, t, seen, arm)
            continue
        one = arms.get(arm, served)
        moments[t, arm] = Moment(view, one and one.ahead(view.log, view.edge, t), t, seen)
    return [moments[one] for one in asked]


def answer_new_source(
    view: ServerGraph, served: LoadedVersion | None, request: Score | Recommend, seen: Seen
) -> Answer:
    """Compute the answer to a request that supposes a source. Its position is that of the log,
    without supposed events. Raises: NotFinite, KnownSource, NoContext."""
    # Its position is read before the log has supposed events.
    edge, newest_us = view.edge, view.newest_us
    memory_edge = served.memory.edge if served else edge
    with supposing(view, served, request) as one:
        moments = moments_of(view, one, [request], seen)
        answer = answers_of([request], moments)[0]
    return replace(answer, edge=edge, newest_us=newest_us, memory_edge=memory_edge)


@contextmanager
def naming(served: LoadedVersion | None) -> Iterator[None]:
    """Give a NotFinite within the block the name of its version."""
    try:
        yield
    except NotFinite as error:
        error.version = "" if served is None else served.manifest.name
        raise


def answers_of(requests: Sequence[Request], moments: Sequence[Moment]) -> list[Answer]:
    """Compute answers by one version and by rules, in order. Raises: NotFinite.

    There is one pass for each cut of the memory that requests see, and for each rule.
    """
    # Requests that see the same cut of the memory share one `served` object.
    answers: dict[int, Answer] = {}
    for served, rule in {(id(m.served), m.rule): (m.served, m.rule) for m in moments}.values():
        indices = [i for i, m in enumerate(moments) if m.served is served and m.rule == rule]
        with naming(served):
            group = _one_pass([requests[i] for i in indices], [moments[i] for i in indices])
        answers.update(zip(indices, group, strict=True))
    return [answers[i] for i in range(len(requests))]


def scores_of(
    moments: Sequence[Moment], sources: Int64, targets: Sequence[Int64], edge_sets: Sequence[int]
) -> list[Float32]:
    """Score the targets of each source, by one version with its memory at one cut, or one rule.

    sources: int64[S]. targets: S arrays of int64. edge_sets: number of each source's edge set.
    Returns: S arrays of float32. Raises: NotFinite.
    """
    if not len(targets):
        return []
    view = moments[0].view
    served = moments[0].served

    # The facts of all pairs, each at its request's time.
    counts = [len(d) for d in targets]
    rows = np.concatenate(
        [
            view.facts.compute(np.array([s]), np.array([m.as_of_us]), d[None], np.array([n]))[0]
            for s, m, d, n in zip(sources, moments, targets, edge_sets, strict=True)
        ]
    )

    # One call of the model or the rule for all of them.
    if not len(rows):
        scores = np.zeros(0, np.float32)
    elif served is None:
        scores = RULES[moments[0].rule](rows)
    else:
        scores = served.scores(rows, np.repeat(sources, counts), np.concatenate(targets), view.live)
        if not np.isfinite(scores).all():
            raise NotFinite("a score is not finite")
    return np.split(scores, np.cumsum(counts)[:-1])


def best_of(moment: Moment, request: Recommend, pool: Int64, scores: Float32) -> Int64:
    """Indices in a pool of the best `k` nodes within the request's diversity, best first; equal
    scores are ordered by node id. The best of a pool are among the best of its parts."""
    best = np.lexsort((pool, -scores))
    if request.diversity is not None:
        best = best[moment.view.candidates.diverse(request.diversity, pool[best])]
    return best[: request.k]


def make_recommendation(
    moment: Moment, request: Recommend, source: int, pool: Int64, scores: Float32
) -> Answer:
    """Make the answer of a recommendation: the best `k` nodes of a scored pool.

    Equal scores are ordered by node id. Raises: NotFinite.
    """
    view = moment.view
    best = best_of(moment, request, pool, scores)
    nodes = pool[best]
    reasons: tuple[Reason | None, ...] = ()
    if request.reasons:
        pairs = Pairs(source, nodes, request.edge_set, moment.as_of_us)
        reasons = reasons_of(view, moment.served, pairs, scores[best], RULES[moment.rule])
    return moment.answer(
        source,
        dst=tuple(view.log.keys[node] for node in nodes),
        scores=tuple(scores[best].tolist()),
        known=tuple(view.facts.is_known(nodes).tolist()),
        reasons=reasons,
    )


def _one_pass(requests: list[Request], moments: list[Moment]) -> list[Answer]:
    """Answer requests at moments with the same version and the same cut of its memory."""
    view = moments[0].view
    sources = view.ids([_node_of(r) for r in requests])

    # Score all pairs of all requests at once.
    targets = {
        i: _targets(m, r, int(sources[i]))
        for i, (m, r) in enumerate(zip(moments, requests, strict=True))
        if isinstance(r, Score | Recommend)
    }
    asked = [r.edge_set for r in requests if isinstance(r, Score | Recommend)]
    moments_asked = [moments[i] for i in targets]
    found = scores_of(moments_asked, sources[list(targets)], [*targets.values()], asked)
    scores = dict(zip(targets, found, strict=True))

    # Make the answer of each request by its kind.
    answers = []
    for i, (moment, request) in enumerate(zip(moments, requests, strict=True)):
        source = int(sources[i])
        match request:
            case Score():
                answers.append(_answer_score(moment, request, source, targets[i], scores[i]))
            case Recommend():
                answers.append(make_recommendation(moment, request, source, targets[i], scores[i]))
            case Similar():
                answers.append(_answer_similar(moment, request, source))
            case Embedding():
                answers.append(_answer_embedding(moment, source))
            case Label():
                answers.append(_answer_labels(moment, source, request.node))
            case Explain():
                answers.append(_answer_explanation(moment, request, source))
    return answers


def _targets(moment: Moment, request: Score | Recommend, source: int) -> Int64:
    view = moment.view
    if isinstance(request, Score):
        return view.ids(list(request.dst))
    likely = view.candidates.likely(request, source, moment.served)
    unseen = view.candidates.unseen
    return unseen(likely, source, request.edge_set) if request.exclude_seen else likely


def _answer_score(
    moment: Moment, request: Score, source: int, targets: Int64, scores: Float32
) -> Answer:
    known = moment.view.facts.is_known(targets)
    return moment.answer(
        source, dst=request.dst, scores=tuple(scores.tolist()), known=tuple(known.tolist())
    )


def _answer_similar(moment: Moment, request: Similar, node: int) -> Answer:
    """Make the answer with the nodes most similar to a given one. Equal ones are ordered by node
    id."""
    view = moment.view
    served = moment.served
    embedding: tuple[float, ...] = ()

    # Partners need no model. Without embeddings, the answer has neither embedding nor nodes.
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
    return moment.answer(
        node,
        dst=tuple(view.log.keys[one] for one in nodes[best]),
        scores=tuple(scores[best].tolist()),
        known=tuple(view.facts.is_known(nodes[best]).tolist()),
        embedding=embedding,
    )


def _answer_embedding(moment: Moment, source: int) -> Answer:
    if moment.served is None:
        return moment.answer(source)
    z = moment.served.embedding_of(source, moment.view.live).tolist()
    if not np.isfinite(z).all():
        raise NotFinite("an embedding is not finite")
    return moment.answer(source, embedding=tuple(z))


def _answer_labels(moment: Moment, source: int, key: Key) -> Answer:
    # An unknown key also names its node set.
    node_set = key.node_set if isinstance(key, SetKey) else 0
    served, live = moment.served, moment.view.live
    labels = None if served is None else served.labels(source, node_set, live)
    if labels is not None and not np.isfinite(labels).all():
        raise NotFinite("a label is not finite")
    return moment.answer(source, labels=labels)


def _answer_explanation(moment: Moment, request: Explain, source: int) -> Answer:
    target = moment.view.ids([request.dst])
    pair = Pair(source, int(target[0]), request.edge_set, moment.as_of_us)
    explanation = explain(moment.view, moment.served, pair)
    return moment.answer(
        source,
        dst=(request.dst,),
        scores=(explanation.score,),
        known=tuple(moment.view.facts.is_known(target).tolist()),
        explanation=explanation,
    )


def _node_of(request: Request) -> Key:
    return request.src if isinstance(request, Score | Recommend | Explain) else request.node


def _arm_of(request: Request) -> str:
    return request.arm if isinstance(request, Score | Recommend) else ""


def _time_of(request: Request) -> int | None:
    return request.time_us if isinstance(request, Score | Recommend | Explain) else None
