"""The queue of requests: each pass of the engine takes and answers several batches."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamd.server.engine.pace import TURN_SECONDS
from streamd.serving.requests import (
    Answer,
    Done,
    Explain,
    Overloaded,
    Recommend,
    Request,
    Score,
    Similar,
    supposes,
)
from streamd.settings.loading import ServerSettings
from streamd.telemetry.spans import Started, current

EXPLAIN_WEIGHT = 8
"""An explanation takes about as long as this many score requests. With weight 1, a pass of
`server.max_batch` explanations would delay other requests by 50 ms."""
SUPPOSED_WEIGHT = 8
"""A request with a new source is answered alone, which takes as long as this many small requests in
one pass."""
REQUEST_PAIRS = 20
"""The overhead of a request, in pairs that could be scored in the same time."""
REASON_PAIRS = 8
"""The cost of a reason, in pairs that could be scored in the same time: it needs a score with each
group of facts at its baseline."""
STANDING_SHARE = 0.05
"""If the queue has not been empty for this share of `server.deadline_seconds`, it is a standing
queue: more requests arrive than can be answered. New requests are then refused until it is empty,
since waits would only grow. A burst, or the backlog of a stall, is answered faster than that."""
MEAN_WEIGHT = 0.1
"""Weight of the newest pass in the moving mean of the time per pair."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Requests that one version answers together.

    since, deadline: monotonic seconds. done: called with the answers or an error.
    """

    requests: Sequence[Request]
    since: float
    deadline: float
    done: Done
    span: Started | None = None
    """The span of the HTTP request, None without tracing."""

    @property
    def weight(self) -> int:
        """Its share of a pass, as in `weight_of`."""
        return sum(map(weight_of, self.requests))

    @property
    def supposes(self) -> bool:
        """Whether a request has a new source."""
        return any(map(supposes, self.requests))

    def trace(self, begun: float, ended: float, version: str) -> None:
        """Record the spans of the batch's wait and of its answer, with tracing. begun, ended:
        monotonic seconds of the answer."""
        if self.span is None:
            return
        self.span.child("wait", self.since, begun)
        num_requests = len(self.requests)
        self.span.child(
            "answer",
            begun,
            ended,
            {"streamd.version": version, "streamd.requests": num_requests},
        )

    def done_with_trace(self, version: str) -> Done:
        """A callback for a search, which records the batch's spans and then calls `done`."""
        if self.span is None:
            return self.done
        begun = time.monotonic()

        def done(result: list[Answer] | BaseException) -> None:
            self.trace(begun, time.monotonic(), version)
            self.done(result)

        return done

    def pairs(self, max_candidates: int) -> int:
        """Approximate number of pairs to score. max_candidates: of a recommendation."""
        of_pairs = (
            len(r.dst)
            if isinstance(r, Score)
            else max_candidates * (not r.exact) + REASON_PAIRS * r.k * r.reasons
            if isinstance(r, Recommend)
            else max_candidates
            if isinstance(r, Similar)
            else 0
            for r in self.requests
        )
        return REQUEST_PAIRS * self.weight + sum(of_pairs)

    @property
    def searches(self) -> list[Recommend]:
        """All recommendations of the batch if one of them is exact, otherwise none."""
        recommendations = [r for r in self.requests if isinstance(r, Recommend)]
        return recommendations if any(r.exact for r in recommendations) else []


def weight_of(request: Request) -> int:
    """The share of a pass: EXPLAIN_WEIGHT for an explanation, SUPPOSED_WEIGHT for a new source,
    otherwise 1."""
    if isinstance(request, Explain):
        return EXPLAIN_WEIGHT
    return SUPPOSED_WEIGHT if supposes(request) else 1


class RequestQueue:
    """Batches of requests, oldest first. Owner: the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._waiting: deque[PendingBatch] = deque()
        self._arrived: deque[asyncio.Future[None]] = deque()
        """HTTP requests that wait for their turn to be parsed, oldest first."""
        self._turns = settings.max_batch
        """Number of requests that may still be parsed before the next pass."""
        self._wake = asyncio.Event()
        self._standing_since: float | None = None
        """Monotonic time since which the queue has not been empty; None if it is empty."""
        self._pair_seconds = 1e-5
        """Seconds per pair, a moving mean over passes."""

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._arrived) + sum(len(w.requests) for w in self._waiting)

    async def turn(self) -> None:
        """Wait until a new request may be parsed. Between two passes, about as many requests are
        parsed as one pass answers: parsing takes about as long as answering, and health checks wait
        meanwhile."""
        if self._turns:
            self._turns -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(future)
        self._wake.set()
        await future

    async def answers(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Queue requests as one batch and wait for the answers. deadline: monotonic seconds.

        Raises: Overloaded, TimeoutError, and the error by which the engine could not answer.
        """
        if len(self) >= self._settings.max_queue:
            raise Overloaded(self._full())
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        # A client may disconnect before the engine answers, which cancels the future.
        def done(result: list[Answer] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        # The engine drops the batch after the deadline too.
        now = time.monotonic()
        self._waiting.append(PendingBatch(requests, now, deadline, done, current.get()))
        self._wake.set()
        async with asyncio.timeout(deadline - now):
            return await future

    def overload(self) -> str | None:
        """The reason to refuse new requests, None if they can be answered in time."""
        if len(self) >= self._settings.max_queue:
            return self._full()
        if self._standing_since is None:
            return None
        standing = time.monotonic() - self._standing_since
        is_over = standing > STANDING_SHARE * self._settings.deadline_seconds
        return "more requests arrive than the server can answer" if is_over else None

    def _full(self) -> str:
        return f"{len(self)} requests are waiting (server.max_queue)"

    def take(self) -> list[PendingBatch]:
        """Take the batches of the next pass: about `server.max_batch` requests at most, and as many
        as can be answered in about TURN_SECONDS, but at least one batch.

        1. Take the oldest batches, and drop those past their deadline.
        2. Record whether the queue is empty. After step 3, requests that are not parsed yet would
           no longer be in it, and overload would never be noticed.
        3. Start the turns of further requests, which are then parsed.
        """
        # 1. Take the oldest batches.
        batch: list[PendingBatch] = []
        weight = 0
        seconds = 0.0
        now = time.monotonic()
        while self._waiting and weight < self._settings.max_batch and seconds < TURN_SECONDS:
            one = self._waiting.popleft()
            if one.deadline > now:
                batch.append(one)
                weight += one.weight
                seconds += one.pairs(self._settings.max_candidates) * self._pair_seconds
        # 2. Record whether the queue is empty.
        if not self._waiting and not self._arrived:
            self._standing_since = None
        elif self._standing_since is None:
            self._standing_since = now
        # 3. Start the turns of further requests.
        self._start_turns()
        return batch

    def _start_turns(self) -> None:
        """Start the turns until the next pass."""
        self._turns = self._settings.max_batch
        while self._turns and self._arrived:
            future = self._arrived.popleft()
            if not future.done():  # else its caller was cancelled
                future.set_result(None)
                self._turns -= 1

    def record_pass(self, batch: Sequence[PendingBatch], seconds: float) -> None:
        """Record the duration of a pass, from which `take` estimates the next one."""
        pairs = sum(one.pairs(self._settings.max_candidates) for one in batch)
        if pairs:
            self._pair_seconds += MEAN_WEIGHT * (seconds / pairs - self._pair_seconds)

    def wake(self) -> None:
        """End a `wait`."""
        self._wake.set()

    async def wait(self, seconds: float) -> None:
        """Wait until a request is in the queue or `wake` is called, but at most `seconds`."""
        await asyncio.sleep(0)
        # Clear the flag only now: a wake-up during the wait must not be lost.
        if seconds and not self._waiting and not self._arrived:
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        self._wake.clear()
