"""What can be asked and what is answered, computed for many requests in one pass."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamd.events import Float32, Int64, Key
from streamd.models.rule import NAME as RULE
from streamd.models.rule import rule_scores
from streamd.server.served import UNKNOWN, Served
from streamd.server.view import LogView


class Overloaded(Exception):
    """More requests wait than `server.max_queue`; the caller answers 429."""


class NotReady(Exception):
    """The engine cannot answer yet; the caller answers 503."""


class NotFinite(Exception):
    """A version says what is no number; it must not serve."""


@dataclass(frozen=True)
class Asked:
    """A request. dst: candidate keys, or None to let the engine choose `k` of a `kind`, from all nodes where exact.
    time_us: None for now."""

    src: Key
    dst: tuple[Key, ...] | None = None
    time_us: int | None = None
    k: int = 10
    kind: str | None = None
    exclude_seen: bool = False
    exact: bool = False
    embedding: bool = False
    labels: bool = False

    @property
    def is_search(self) -> bool:
        """Whether the engine chooses the destinations."""
        return self.dst is None and not self.embedding and not self.labels


@dataclass(frozen=True)
class Answer:
    """What the engine said, and as of when. version: the name, or "rule" before there is one. Times in microseconds."""

    version: str
    trained_until_us: int | None
    edge: int
    as_of_us: int
    newest_us: int
    src_known: bool
    dst: tuple[Key, ...] = ()
    scores: tuple[float, ...] = ()
    known: tuple[bool, ...] = ()
    embedding: tuple[float, ...] = ()
    memory_edge: int = 0
    labels: tuple[float, ...] | None = None


Done = Callable[[list[Answer] | BaseException], None]
"""Told the answers, in the order of what was asked together, or why there are none."""


def answers_of(
    view: LogView, served: Served | None, asked: list[Asked], as_of: list[int], limit: int
) -> list[Answer]:
    """Answers in order, by one version. as_of: microseconds, one each. limit: most destinations of a search."""
    sources = view.ids([a.src for a in asked])
    targets = [_targets(view, served, a, int(s), limit) for a, s in zip(asked, sources, strict=True)]
    scores = scores_of(view, served, sources, targets, as_of)
    answers = []
    for i, a in enumerate(asked):
        z = served.embedding_of(int(sources[i]), view.live).tolist() if a.embedding and served is not None else ()
        labels = served.labels(int(sources[i]), view.live) if a.labels and served is not None else None
        if not np.isfinite([*z, *(labels or ())]).all():
            raise NotFinite("an embedding or label is not finite")
        answers.append(answer_of(view, served, a, int(sources[i]), targets[i], scores[i], as_of[i], tuple(z), labels))
    return answers


def scores_of(view: LogView, served: Served | None, sources: Int64, targets: list[Int64], as_of: list[int]) -> list[Float32]:
    """Scores of each source's targets."""
    counts = [len(d) for d in targets]
    rows = np.concatenate([view.facts.rows(np.array([s]), np.array([t]), d[None])[0]
                           for s, t, d in zip(sources, as_of, targets, strict=True)])
    if not len(rows):
        scores = np.zeros(0, np.float32)
    elif served is None:
        scores = rule_scores(rows)
    else:
        scores = served.scores(rows, np.repeat(sources, counts), np.concatenate(targets), view.live)
        if not np.isfinite(scores).all():
            raise NotFinite("a score is not finite")
    return np.split(scores, np.cumsum(counts)[:-1])


def answer_of(
    view: LogView, served: Served | None, asked: Asked, source: int, targets: Int64, scores: Float32, as_of: int,
    embedding: tuple[float, ...] = (), labels: tuple[float, ...] | None = None
) -> Answer:
    """The answer to a request whose targets have these scores; of a search, the best k."""
    known = view.facts.is_known(targets)
    keys = asked.dst or ()
    if asked.is_search:
        best = np.lexsort((targets, -scores))[: asked.k]
        targets, scores, known = targets[best], scores[best], known[best]
        keys = tuple(view.log.keys[t] for t in targets)
    return Answer(
        served.manifest.name if served else RULE, served.manifest.window_end_us if served else None, view.edge, as_of,
        view.newest_us, source != UNKNOWN and bool(view.facts.is_known(np.array([source]))[0]), keys,
        tuple(scores.tolist()), tuple(known.tolist()), embedding, served.memory.edge if served else view.edge, labels)


def _targets(view: LogView, served: Served | None, asked: Asked, source: int, limit: int) -> Int64:
    if asked.dst is not None:
        return view.ids(list(asked.dst))
    if not asked.is_search:
        return np.zeros(0, np.int64)
    found = view.candidates(source, asked.kind, limit, served)
    return np.setdiff1d(found, view.facts.partners(source)) if asked.exclude_seen else found
