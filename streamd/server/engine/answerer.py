"""Answers the queued requests in passes of many: take, compute, reply."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from streamd.gpu import memory_for
from streamd.server.engine.answers import answer_new_source, answers_of, query_states
from streamd.server.engine.filter_preparation import FilterPreparation
from streamd.server.engine.log_follower import LogFollower
from streamd.server.engine.queue import PendingBatch, RequestQueue
from streamd.server.engine.search import Searches
from streamd.server.engine.status import EngineStatus
from streamd.serving.requests import (
    Answer,
    KnownSource,
    NoContext,
    NotFinite,
    Recommend,
    Request,
    Score,
    supposes,
)
from streamd.settings.loading import ServerSettings
from streamd.settings.trials import MAX_VERSIONS
from streamd.telemetry import metrics

logger = structlog.get_logger()
Result = TypeVar("Result")


class Answerer:
    """Answers requests with the graph and the version of a `LogFollower`. Owner: the engine."""

    def __init__(self, queue: RequestQueue, settings: ServerSettings, status: EngineStatus) -> None:
        """queue: of the requests. status: counts the answered requests."""
        self._queue = queue
        self._status = status
        self._searches = Searches(settings)
        self._preparing = FilterPreparation()
        self._supposing: list[PendingBatch] = []
        """Batches with new sources, which wait until the graph has the whole log."""

    def __bool__(self) -> bool:
        """Whether requests wait, or searches are in progress."""
        return bool(self._queue or self._searches or self._preparing or self._supposing)

    def step(self, follower: LogFollower) -> None:
        """Answer the waiting requests in one pass, then run one slice of the searches of all nodes.

        1. Take the batches of a pass from the queue.
        2. Compute all their answers, with one graph and one version: the log follower changes these
           between two steps only.
        3. Reply to each batch, or give all the same error: a request that gets neither would wait
           until its deadline.
        4. Advance the oldest search by one slice, after the short requests.
        """
        # 1. Take.
        for batches in self._take(follower):
            begun = time.monotonic()
            # 2. Compute.
            answers = self.compute(follower, [r for batch in batches for r in batch.requests])
            # 3. Reply.
            self._reply(batches, answers, begun)
        # 4. Search.
        self._search(follower)

    def _take(self, follower: LogFollower) -> list[list[PendingBatch]]:
        """Take the batches of a pass from the queue.

        Returns: groups of batches. The first group is answered together; a batch with new sources
        is a group of its own, since it may be refused. Three kinds of batches are in no group yet:
        searches of all nodes, which are started here and take many slices; filters without a pool
        of popular nodes, which wait in `FilterPreparation`; and new sources, until the graph has
        the whole log.
        """
        candidates = follower.view.candidates
        now = time.monotonic()
        batches = [one for one in self._supposing if one.deadline > now]
        self._supposing = []
        batches += self._preparing.step(candidates)
        for batch in self._queue.take():
            if searches := batch.searches:
                arms = follower.arms
                arms.count_fallbacks(searches)
                states = query_states(
                    follower.view, follower.served, searches, follower.seen, arms.by_arm
                )
                done = batch.done_with_trace(self._status.version)
                self._searches.begin(searches, states, batch.deadline, done)
            elif all(candidates.is_ready_for(request) for request in batch.requests):
                batches.append(batch)
            else:
                self._preparing.add(batch)

        # Batches with new sources.
        supposing = [batch for batch in batches if batch.supposes]
        if not follower.view.caught_up:
            self._supposing, supposing = supposing, []
        together = [batch for batch in batches if not batch.supposes]
        return [group for group in (together, *([one] for one in supposing)) if group]

    def compute(self, follower: LogFollower, requests: list[Request]) -> list[Answer] | Exception:
        """Answer requests with the version that serves, or with the rule if the version computes
        infinite or NaN values. Returns: the answers in order, or one error for all requests."""

        def answers() -> list[Answer]:
            plain = [r for r in requests if not supposes(r)]
            states = query_states(
                follower.view, follower.served, plain, follower.seen, follower.arms.by_arm
            )
            found = answers_of(plain, states)
            if self._status.ready:
                self._searches.measure(plain, states, found)

            # Requests with new sources are answered one after the other.
            left = iter(found)
            return [answer_alone(r) if supposes(r) else next(left) for r in requests]

        def answer_alone(request: Score | Recommend) -> Answer:
            served = follower.arms.by_arm.get(request.arm, follower.served)
            return answer_new_source(follower.view, served, request, follower.seen)

        result = self._attempt(follower, "answers", answers)
        # That version no longer serves, so the rule or, in an arm, the champion answers now.
        for _ in range(1 + MAX_VERSIONS):
            if isinstance(result, NotFinite):
                result = self._attempt(follower, "answers", answers)
        if not isinstance(result, Exception):
            follower.arms.count_fallbacks(requests)
        return result

    def _reply(
        self, batches: list[PendingBatch], answers: list[Answer] | Exception, begun: float
    ) -> None:
        """Give each batch its answers, or the error. begun: monotonic time at which the batches
        were taken from the queue."""
        # The queue derives the size of the next pass from the time of this one.
        at = 0
        took = time.monotonic() - begun
        self._queue.record_pass(batches, took)

        # Each batch gets its own answers, in the order of its requests.
        for batch in batches:
            end = at + len(batch.requests)
            metrics.engine_seconds.labels("wait").observe(begun - batch.since)
            metrics.engine_seconds.labels("answer").observe(took)
            batch.trace(begun, begun + took, self._status.version)
            batch.done(answers if isinstance(answers, Exception) else answers[at:end])
            at = end
        self._status.answered += at

    def _search(self, follower: LogFollower) -> None:
        """Run one slice of the searches of all nodes."""
        result = self._attempt(follower, "a search of all nodes", self._searches.step)
        if isinstance(result, Exception):
            self._searches.fail(result)
        else:
            self._status.answered += result

    def _attempt(
        self, follower: LogFollower, work: str, compute: Callable[[], Result]
    ) -> Result | Exception:
        """Compute a result. Returns: the result, or the error, which is logged. A version that
        computes infinite or NaN values stops serving."""
        try:
            with memory_for(work):
                return compute()
        except (KnownSource, NoContext) as error:
            return error
        except Exception as error:  # noqa: BLE001 - the callers by HTTP get it; it must not end the engine
            if isinstance(error, NotFinite) and follower.served is not None:
                follower.stop_serving(error)
            else:
                logger.exception("answer_failed", error=str(error))
            return error
