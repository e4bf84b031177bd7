"""Searches all nodes for the popular nodes that pass the filters of requests; the requests wait
until the search is done."""

import time
from dataclasses import dataclass

from streamd.server.engine.queue import PendingBatch
from streamd.serving.candidates import Candidates

STEP_SECONDS = 0.002
"""Time of a step, in which the server answers nothing."""


@dataclass(slots=True)
class _Waiting:
    """A batch that waits. num_prepared: number of its requests with a finished search, from the
    first on."""

    batch: PendingBatch
    num_prepared: int = 0


class FilterPreparation:
    """The batches that wait for the popular nodes of their filters, oldest first. Owner: the
    engine.

    It prepares one batch at a time: several searches at once could evict each other's incomplete
    pools from the cache.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, batch: PendingBatch) -> None:
        """Add a batch whose popular nodes are not known yet."""
        self._waiting.append(_Waiting(batch))

    def step(self, candidates: Candidates) -> list[PendingBatch]:
        """Search some more nodes for the oldest batches, and drop batches past their deadline.
        Returns: the batches that can be answered now."""
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
