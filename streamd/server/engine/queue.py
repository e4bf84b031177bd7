"""The queue holds requests until the engine's next pass, which answers many at once."""

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
"""An explanation takes about as long as this many scores, and each request has one: a pass of
`server.max_batch` of them would delay the others by 50 ms."""
SUPPOSED_WEIGHT = 8
"""A request that supposes its source is answered alone, which takes as long as this many small ones
in one pass."""
REQUEST_PAIRS = 20
"""The overhead of a request, in pairs that could be scored in the same time."""
REASON_PAIRS = 8
"""The cost of a reason in pairs: a score with each group of facts at its baseline."""
STANDING_SHARE = 0.05
"""If the queue has not been empty within this share of `server.deadline_seconds`, new requests are
refused until it is empty: more arrive than can be answered, and waits would only grow. A burst, or
the requests that arrived during a stall, are answered sooner and so are not refused."""
LEARNING = 0.1
"""Weight of the newest pass in the moving mean of the time per pair."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Requests that one version answers together.

    since, deadline: seconds of the monotonic clock. done: called with the answers.
    """

    requests: Sequence[Request]
    since: float
    deadline: float
    done: Done
    span: Started | None = None
    """The span of the HTTP request, None without tracing."""

    @property
    def weight(self) -> int:
        """Its share of a pass, as of `weight_of`."""
        return sum(map(weight_of, self.requests))

    @property
    def supposes(self) -> bool:
        """Whether a request supposes its source."""
        return any(map(supposes, self.requests))

    def trace(self, begun: float, ended: float, version: str) -> None:
        """Record the spans of the batch's wait and of its answer, if its request has one. begun,
        ended: of the answer, seconds of the monotonic clock."""
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
        """The callback of a search: records the batch's spans, then calls `done`."""
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
        asked = [r for r in self.requests if isinstance(r, Recommend)]
        return asked if any(r.exact for r in asked) else []


def weight_of(request: Request) -> int:
    """The share of a pass: 1, of an explanation EXPLAIN_WEIGHT, of a supposed source
    SUPPOSED_WEIGHT."""
    if isinstance(request, Explain):
        return EXPLAIN_WEIGHT
    return SUPPOSED_WEIGHT if supposes(request) else 1


class RequestQueue:
    """Batches of requests, oldest first. Owner: the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._waiting: deque[PendingBatch] = deque()
        self._arrived: deque[asyncio.Future[None]] = deque()
        """Requests that are not parsed yet, oldest first."""
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
        """Wait until a new request may be parsed. Between two passes, only about as many are parsed
        as one pass answers: parsing takes about as long as answering, and health checks wait
        meanwhile."""
        if self._turns:
            self._turns -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append(future)
        self._wake.set()
        await future

    async def answers(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Queue requests as one batch and wait for the answers. deadline: seconds of the monotonic
        clock.

        Raises: Overloaded, TimeoutError, and the error that the engine returns instead of answers.
        """
        if len(self) >= self._settings.max_queue:
            raise Overloaded(self._full())
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        # The caller may have been cancelled before the engine answers.
        def done(result: list[Answer] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        # The engine also knows the deadline, and drops the batch after it.
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
        """Take the batches of the next pass: at least one, about `server.max_batch` requests at
        most, and no more than can be answered in about TURN_SECONDS.

        1. Take the oldest batches; those past their deadline are dropped.
        2. Record whether the queue is empty. After step 3, a queue of requests that are not parsed
           yet would look empty, and overload would never be noticed.
        3. Let further requests be parsed.
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
        # 3. Let further requests be parsed.
        self._let_parse()
        return batch

    def _let_parse(self) -> None:
        """Start the turns until the next pass."""
        self._turns = self._settings.max_batch
        while self._turns and self._arrived:
            future = self._arrived.popleft()
            if not future.done():  # else its caller was cancelled
                future.set_result(None)
                self._turns -= 1

    def record_pass(self, batch: Sequence[PendingBatch], seconds: float) -> None:
        """Record the time of a pass."""
        pairs = sum(one.pairs(self._settings.max_candidates) for one in batch)
        if pairs:
            self._pair_seconds += LEARNING * (seconds / pairs - self._pair_seconds)

    def wake(self) -> None:
        """End a rest."""
        self._wake.set()

    async def rest(self, seconds: float) -> None:
        """Yield to the event loop, for up to `seconds` while no request waits and `wake` is not
        called."""
        await asyncio.sleep(0)
        # A wake during the line above counts too, so the flag is cleared only after the rest.
        if seconds and not self._waiting and not self._arrived:
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        self._wake.clear()
