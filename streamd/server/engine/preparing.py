"""Requests whose filter leaves few popular nodes wait here while all nodes are looked through."""

import time
from dataclasses import dataclass

from streamd.server.engine.queue import PendingBatch
from streamd.serving.candidates import Candidates

STEP_SECONDS = 0.002
"""Time of a step, for which no request is answered."""


@dataclass(slots=True)
class _Waiting:
    """A batch that waits. num_prepared: how many of its requests do not, in order."""

    batch: PendingBatch
    num_prepared: int = 0


class Preparing:
    """Batches that wait for the popular nodes of their filters, oldest first. Owner: the engine.

    One batch is worked on at a time: each of many filters would otherwise take the room of another
    before it is looked through.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, batch: PendingBatch) -> None:
        """Let a batch wait that the candidates are not prepared for."""
        self._waiting.append(_Waiting(batch))

    def step(self, candidates: Candidates) -> list[PendingBatch]:
        """Look through some more nodes for the oldest batches. Returns: those that can be answered
        now. Batches whose callers gave up are dropped."""
        now = time.monotonic()
        until = now + STEP_SECONDS
        self._waiting = [one for one in self._waiting if one.batch.deadline > now]
        prepared: list[PendingBatch] = []
        while self._waiting and time.monotonic() < until:
            one = self._waiting[0]
            requests = one.batch.requests
            while one.num_prepared < len(requests):
                if not candidates.prepare(requests[one.num_prepared], until):
                    return prepared
                one.num_prepared += 1
            prepared.append(self._waiting.pop(0).batch)
        return prepared
