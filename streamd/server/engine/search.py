"""Exact recommendations score all nodes, a slice at a time between other requests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamd.events import Float32, Int64
from streamd.server.engine.answers import Moment, recommended, scores_of
from streamd.serving.requests import (
    Answer,
    Done,
    NotFinite,
    NotReady,
    Overloaded,
    Recommend,
    Request,
)
from streamd.settings.loading import ServerSettings
from streamd.telemetry import metrics

MEASURE_EVERY = 50
"""One in so many recommendations, if it is among likely nodes, is compared with the exact one:
often enough for a metric, seldom enough to cost little."""
LEARNING = 0.1
"""Weight of the newest slice in the mean time of a node: a slice that a stall made long is
forgotten after a few dozen others."""
SURE_SHARE = 0.8
"""A search begins only if it should end within this share of the time to its deadline, since the
estimate is rough and requests that come meanwhile slow it down."""


@dataclass
class _Search:
    """A request under way. pool: int64 ids of all nodes to score. at: how many are scored."""

    moment: Moment
    request: Recommend
    pool: Int64
    deadline: float
    done: Done
    scores: list[Float32] = field(default_factory=list)
    at: int = 0


class Searches:
    """The exact recommendations under way, oldest first. Owner: the engine."""

    def __init__(self, settings: ServerSettings) -> None:
        self._slice = settings.max_candidates
        self._deadline_seconds = settings.deadline_seconds
        self._searches: list[_Search] = []
        self._recommended = 0
        self._node_seconds = 0.0
        """Mean time of a node, seconds, with the work between two slices: a moving mean."""
        self._stepped_at: float | None = None
        """Monotonic time of the end of the last slice; None where nothing was searched since."""

    def __bool__(self) -> bool:
        return bool(self._searches)

    def begin(
        self, requests: list[Recommend], moments: list[Moment], deadline: float, done: Done
    ) -> None:
        """Begin the searches of several requests, which are answered together at the end. If the
        searches under way leave them too little time, they get Overloaded at once."""
        # Answers are collected until the last search is done; an error ends them all.
        answers: list[Answer] = []

        def one_done(result: list[Answer] | BaseException) -> None:
            if isinstance(result, BaseException):
                done(result)
                return
            answers.extend(result)
            if len(answers) == len(requests):
                done(answers)

        # A search a request, over all nodes of its kind.
        begun: list[_Search] = []
        for request, moment in zip(requests, moments, strict=True):
            view = moment.view
            pool = view.candidates.of_request(request)
            if request.exclude_seen:
                source = int(view.ids([request.src])[0])
                pool = view.candidates.unseen(pool, source, request.edge_set)
            begun.append(_Search(moment, request, pool, deadline, one_done))
        wait = sum(len(s.pool) - s.at for s in (*self._searches, *begun)) * self._node_seconds
        if self._searches and wait > SURE_SHARE * (deadline - time.monotonic()):
            done(Overloaded("more searches of all nodes come than can be answered"))
            return
        self._searches += begun

    def measure(
        self, requests: Sequence[Request], moments: Sequence[Moment], answers: Sequence[Answer]
    ) -> None:
        """Compare one in MEASURE_EVERY recommendations, if it is among likely nodes, with the exact
        one."""
        for request, moment, answer in zip(requests, moments, answers, strict=True):
            if not isinstance(request, Recommend):
                continue
            # Not while callers' own searches wait.
            self._recommended += 1
            if self._recommended % MEASURE_EVERY != 1 or self._searches or not answer.dst:
                continue
            candidates = moment.view.candidates
            if len(candidates.of_request(request)) > candidates.limit:
                self._compare(request, moment, answer)

    def _compare(self, request: Recommend, moment: Moment, answer: Answer) -> None:
        """Begin the search that tells which share of the best nodes an answer has."""

        def done(result: list[Answer] | BaseException) -> None:
            if not isinstance(result, BaseException):
                metrics.recommend_recall.observe(
                    len({*answer.dst} & {*result[0].dst}) / max(1, len(result[0].dst))
                )

        self.begin([request], [moment], time.monotonic() + self._deadline_seconds, done)

    def step(self) -> int:
        """Do one slice of the oldest search. Returns: number of requests answered by it.

        Raises: NotFinite and others; then `fail` ends that search.
        """
        if not self._searches:
            self._stepped_at = None
            return 0
        since = self._stepped_at or time.monotonic()
        search = self._searches[0]
        moment = search.moment
        request = search.request
        part = search.pool[search.at : search.at + self._slice]
        if time.monotonic() > search.deadline:
            self.fail(TimeoutError("the search took longer than server.deadline_seconds"))
            return 0

        # Score the next part of its nodes.
        source = moment.view.ids([request.src])
        # A kind without nodes has no part.
        if len(part):
            search.scores += scores_of([moment], source, [part], [request.edge_set])
            search.at += len(part)
            self._stepped_at = time.monotonic()
            seconds = (self._stepped_at - since) / len(part)
            self._node_seconds += LEARNING * (seconds - self._node_seconds)

        # Answer once all nodes are scored.
        if search.at < len(search.pool):
            return 0
        scores = np.concatenate([*search.scores, np.zeros(0, np.float32)])
        answer = recommended(moment, request, int(source[0]), search.pool, scores)
        self._searches.pop(0).done([answer])
        return 1

    def fail(self, error: Exception) -> None:
        """End the oldest search by an error."""
        if isinstance(error, NotFinite):
            error = NotReady("the version that was asked cannot be served")
        self._searches.pop(0).done(error)
