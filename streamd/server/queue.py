"""Requests that wait for the engine's next pass, which answers many at once."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamd.server.requests import Answer, Done, Overloaded, Recommend, Request
from streamd.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Requests that one version answers together. since, deadline: of the monotonic clock."""

    requests: Sequence[Request]
    since: float
    deadline: float
    done: Done

    @property
    def searches(self) -> list[Recommend]:
        """All of them, where one asks for the best of all nodes; else none."""
        asked = [r for r in self.requests if isinstance(r, Recommend)]
        return asked if any(r.exact for r in asked) else []


class RequestQueue:
    """Oldest first. Owner: the event loop's thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._waiting: deque[PendingBatch] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many requests wait."""
        return sum(len(w.requests) for w in self._waiting)

    async def answers(self, requests: Sequence[Request]) -> list[Answer]:
        """Put requests and wait. Raises: Overloaded, TimeoutError, and what they are told instead
        of answers."""
        if len(self) >= self._settings.max_queue:
            raise Overloaded
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def done(result: list[Answer] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        now = time.monotonic()
        deadline_seconds = self._settings.deadline_seconds
        self._waiting.append(PendingBatch(requests, now, now + deadline_seconds, done))
        self._wake.set()
        async with asyncio.timeout(deadline_seconds):
            return await future

    def take(self) -> list[PendingBatch]:
        """The next pass: some `server.max_batch` requests, less those whose callers gave up."""
        batch: list[PendingBatch] = []
        while self._waiting and sum(len(w.requests) for w in batch) < self._settings.max_batch:
            batch.append(self._waiting.popleft())
        now = time.monotonic()
        return [w for w in batch if w.deadline > now]

    def wake(self) -> None:
        """End a rest."""
        self._wake.set()

    async def rest(self, seconds: float) -> None:
        """Let the loop do what else is due; for longer where nothing waits, until something is
        asked."""
        await asyncio.sleep(0)
        if seconds and not self._waiting:
            self._wake.clear()
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
