"""The queue holds requests until the engine's next pass, which answers many at once."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamd.server.requests import Answer, Done, Explain, Overloaded, Recommend, Request
from streamd.settings import ServerSettings
from streamd.telemetry.spans import Started, current

EXPLAIN_WEIGHT = 8
"""Explanations take about as long as so many scores, and come one a request: a pass of
`server.max_batch` of them would keep others waiting for 50 ms."""


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
    """Of the request that asks, where spans are made."""

    @property
    def weight(self) -> int:
        """How much of a pass it takes: a request counts 1, an explanation EXPLAIN_WEIGHT."""
        more = sum(isinstance(r, Explain) for r in self.requests)
        return len(self.requests) + (EXPLAIN_WEIGHT - 1) * more

    @property
    def searches(self) -> list[Recommend]:
        """All recommendations of the batch, where one of them asks for all nodes; else none."""
        asked = [r for r in self.requests if isinstance(r, Recommend)]
        return asked if any(r.exact for r in asked) else []


class RequestQueue:
    """Batches of requests, oldest first. Owner: the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._waiting: deque[PendingBatch] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Number of requests that wait."""
        return sum(len(w.requests) for w in self._waiting)

    async def answers(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        """Queue requests as one batch and wait for the answers. deadline: seconds of the monotonic
        clock.

        Raises: Overloaded, TimeoutError, and the error that the engine gives in place of answers.
        """
        if len(self) >= self._settings.max_queue:
            raise Overloaded
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        # The caller may have given up by the time the engine answers.
        def done(result: list[Answer] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        # Wait no longer than the deadline, which the engine knows too.
        now = time.monotonic()
        self._waiting.append(PendingBatch(requests, now, deadline, done, current.get()))
        self._wake.set()
        async with asyncio.timeout(deadline - now):
            return await future

    def take(self) -> list[PendingBatch]:
        """Take the batches of the next pass: about `server.max_batch` requests in all.

        Batches whose callers gave up are dropped.
        """
        batch: list[PendingBatch] = []
        weight = 0
        while self._waiting and weight < self._settings.max_batch:
            batch.append(self._waiting.popleft())
            weight += batch[-1].weight
        now = time.monotonic()
        return [w for w in batch if w.deadline > now]

    def wake(self) -> None:
        """End a rest."""
        self._wake.set()

    async def rest(self, seconds: float) -> None:
        """Yield to the event loop, for up to `seconds` while no request waits and nothing wakes
        it."""
        await asyncio.sleep(0)
        # A wake during the line above counts too, so the flag is cleared only after the rest.
        if seconds and not self._waiting:
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        self._wake.clear()
