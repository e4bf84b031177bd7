"""Exact recommendations score all nodes, one slice at a time between other requests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.events import Float32, Int64
from streamd.number_texts import span
from streamd.server.engine.answers import (
    QueryState,
    best_of,
    make_recommendation,
    naming,
    scores_of,
)
from streamd.serving.requests import (
    Answer,
    Done,
    NotFinite,
    NotReady,
    Overloaded,
    Recommend,
    Request,
    TooManyNodes,
)
from streamd.settings.loading import ServerSettings
from streamd.telemetry import metrics

MEASURE_EVERY = 50
"""One in this many recommendations among likely nodes is compared with the exact one: often enough
for a metric, rarely enough to cost little."""
MEASURE_PAUSE = 50.0
"""Minimum pause after such a comparison, as a multiple of its duration: with many nodes it takes
seconds."""
MEAN_WEIGHT = 0.1
"""Weight of the newest slice in the moving mean of the time per node: a slice that a stall
prolonged has little weight after a few dozen others."""
MAX_DEADLINE_SHARE = 0.8
"""A search starts only if its estimated time is within this share of the time to its deadline:
the estimate is rough, and other requests slow the search down."""

SLICE_SECONDS = 0.003
"""Time of a slice, in which the server answers no other request."""
FIRST_SLICE = 64
"""Nodes of the first slice, before the time per node is known."""
MIN_SLICES = 10
"""Slices after which the estimate is good enough to end a search early that would be too late."""


@dataclass
class _Search:
    """A search in progress.

    source: node id. nodes: int64, the nodes to search; some may not pass the request's filter. at:
    number of nodes that were searched, in num_slices slices. best: int64, the best nodes so far, as
    many as the answer has; scores: float32, their scores. deadline: monotonic seconds. done: called
    with the answer.
    """

    state: QueryState
    request: Recommend
    source: int
    nodes: NDArray[Any]
    deadline: float
    done: Done
    at: int = 0
    num_slices: int = 0
    best: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    scores: Float32 = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def num_remaining(self) -> int:
        return len(self.nodes) - self.at

    def select(self, nodes: Int64) -> Int64:
        """The nodes that the request's filter allows now, in their order: int64."""
        request = self.request
        candidates = self.state.view.candidates
        nodes = nodes[candidates.allows(nodes, request)]
        if not request.exclude_seen:
            return nodes
        return candidates.unseen(nodes, self.source, request.edge_set)

    def take(self, count: int) -> None:
        """Score the next `count` nodes, and keep the best. Raises: NotFinite."""
        # Nodes that the filter allows, of the next `count`.
        part = np.sort(self.nodes[self.at : self.at + count].astype(np.int64))
        self.at += len(part)
        self.num_slices += 1
        part = self.select(part)
        if not len(part):
            return

        # The best of them and of the best so far.
        sources, edge_sets = np.array([self.source]), [self.request.edge_set]
        with naming(self.state.served):
            scores = scores_of([self.state], sources, [part], edge_sets)[0]
        nodes = np.concatenate([self.best, part])
        scores = np.concatenate([self.scores, scores])
        order = best_of(self.state, self.request, nodes, scores)
        self.best, self.scores = nodes[order], scores[order]

    def answer(self) -> Answer:
        """Make the answer, without nodes that were deleted, or no longer pass the filter, since
        they were scored."""
        still = np.isin(self.best, self.select(self.best))
        best, scores = self.best[still], self.scores[still]
        return make_recommendation(self.state, self.request, self.source, best, scores)


class Searches:
    """The exact recommendations in progress, oldest first. Owner: the engine."""

    def __init__(self, settings: ServerSettings) -> None:
        self._largest_slice = settings.max_candidates
        self._deadline_seconds = settings.deadline_seconds
        self._searches: list[_Search] = []
        self._recommended = 0
        self._measure_from = 0.0
        """Monotonic seconds before which no recommendation is compared with the exact one."""
        self._node_seconds = 0.0
        """Moving mean of the seconds per node, with the other work between two slices; 0 before the
        first slice."""
        self._num_slices = 0
        self._own_seconds = SLICE_SECONDS / FIRST_SLICE
        """Moving mean of the seconds per node within slices."""
        self._stepped_at: float | None = None
        """Monotonic seconds at the end of the last slice; None if no search followed."""

    def __bool__(self) -> bool:
        return bool(self._searches)

    def begin(
        self, requests: list[Recommend], states: list[QueryState], deadline: float, done: Done
    ) -> None:
        """Start the searches of several requests, which are answered together at the end.

        If they would not end before the deadline, `done` gets TooManyNodes at once, or Overloaded
        if they would end in time without the searches in progress. deadline: monotonic seconds.
        """
        # Collect answers until the last search is done; an error ends them all.
        answers: list[Answer] = []

        def add_answer(result: list[Answer] | BaseException) -> None:
            if isinstance(result, BaseException):
                done(result)
                return
            answers.extend(result)
            if len(answers) == len(requests):
                done(answers)

        # One search for each request, over all destinations of its node set.
        begun: list[_Search] = []
        for request, state in zip(requests, states, strict=True):
            view = state.view
            source = int(view.ids([request.src])[0])
            nodes = view.candidates.nodes_of(request)
            begun.append(_Search(state, request, source, nodes, deadline, add_answer))
        seconds = deadline - time.monotonic()
        own = sum(s.num_remaining for s in begun)
        if 0 < seconds < own * self._node_seconds:
            done(self._too_many(own))

            # Each refusal lowers the estimate, which a stall may have raised: so after some
            # refusals a search is tried again.
            self._node_seconds *= 1 - MEAN_WEIGHT
            return
        wait = (own + sum(s.num_remaining for s in self._searches)) * self._node_seconds
        if self._searches and wait > MAX_DEADLINE_SHARE * seconds:
            done(Overloaded("more exact recommendations arrive than the server can answer"))
            return
        self._searches += begun

    def _too_many(self, num_nodes: int) -> TooManyNodes:
        seconds = num_nodes * self._node_seconds
        return TooManyNodes(
            f"exact: {num_nodes:,} nodes would take about {span(seconds)}, and "
            f"server.deadline_seconds is {self._deadline_seconds:g}; raise it, or ask without exact"
        )

    def measure(
        self, requests: Sequence[Request], states: Sequence[QueryState], answers: Sequence[Answer]
    ) -> None:
        """Compare one in MEASURE_EVERY recommendations among likely nodes with the exact one,
        unless clients' searches are in progress or MEASURE_PAUSE has not passed."""
        for request, state, answer in zip(requests, states, answers, strict=True):
            if not isinstance(request, Recommend):
                continue
            # Clients' searches come first, and comparisons get a small share of the time.
            self._recommended += 1
            if self._recommended % MEASURE_EVERY != 1 or self._searches or not answer.dst:
                continue
            if time.monotonic() < self._measure_from:
                continue
            candidates = state.view.candidates
            if len(candidates.nodes_of(request)) > candidates.limit:
                self._compare(request, state, answer)

    def _compare(self, request: Recommend, state: QueryState, answer: Answer) -> None:
        """Start the search that measures the recall of an answer."""
        begun = time.monotonic()

        def done(result: list[Answer] | BaseException) -> None:
            now = time.monotonic()
            self._measure_from = now + MEASURE_PAUSE * (now - begun)
            if not isinstance(result, BaseException):
                metrics.recommend_recall.observe(
                    len({*answer.dst} & {*result[0].dst}) / max(1, len(result[0].dst))
                )

        self.begin([request], [state], time.monotonic() + self._deadline_seconds, done)

    def step(self) -> int:
        """Do one slice of the oldest search. Returns: number of requests that it answered.

        Raises: NotFinite and others; the caller then ends that search with `fail`.
        """
        if not self._searches:
            self._stepped_at = None
            return 0
        begun = time.monotonic()
        since = self._stepped_at or begun
        search = self._searches[0]
        if begun > search.deadline:
            self.fail(
                TimeoutError("the exact recommendation took longer than server.deadline_seconds")
            )
            return 0

        # Score as many nodes as a slice has time for.
        count = int(SLICE_SECONDS / max(self._own_seconds, 1e-9))
        count = min(max(count, FIRST_SLICE), self._largest_slice, search.num_remaining)
        if count:
            search.take(count)
            self._stepped_at = time.monotonic()
            self._update_estimates(since, begun, self._stepped_at, count)

        # Answer once all nodes are scored; end early if they cannot be scored in time.
        if search.num_remaining:
            left = search.deadline - time.monotonic()
            is_estimate_known = search.num_slices >= MIN_SLICES
            if is_estimate_known and search.num_remaining * self._node_seconds > left:
                self.fail(self._too_many(len(search.nodes)))
            return 0
        self._searches.pop(0).done([search.answer()])
        return 1

    def _update_estimates(self, since: float, begun: float, ended: float, count: int) -> None:
        """Add a slice to the mean times per node. since: end of the previous slice; begun, ended:
        of this one, monotonic seconds. count: nodes that it scored."""
        # The first slices have equal weights.
        self._num_slices += 1
        weight = max(MEAN_WEIGHT, 1 / self._num_slices)
        self._node_seconds += weight * ((ended - since) / count - self._node_seconds)
        self._own_seconds += weight * ((ended - begun) / count - self._own_seconds)

    def fail(self, error: Exception) -> None:
        """End the oldest search with an error."""
        if isinstance(error, NotFinite):
            error = NotReady("the version that computed this answer can no longer serve")
        self._searches.pop(0).done(error)
