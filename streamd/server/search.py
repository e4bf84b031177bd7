"""Recommendations from all nodes: scored exactly, a slice at a time between other requests."""

import time
from dataclasses import dataclass, field

import numpy as np
import structlog

from streamd.events import Float32, Int64
from streamd.server.answers import Answer, Asked, Done, NotFinite, NotReady, answer_of, scores_of
from streamd.server.served import Served
from streamd.server.view import LogView
from streamd.settings import ServerSettings
from streamd.telemetry import metrics

log = structlog.get_logger()
MEASURE_EVERY = 50


@dataclass
class _Search:
    view: LogView
    served: Served | None
    asked: Asked
    as_of_us: int
    pool: Int64
    deadline: float
    done: Done
    scores: list[Float32] = field(default_factory=list)
    at: int = 0


class Searches:
    """Those under way, oldest first. Owner: the engine."""

    def __init__(self, settings: ServerSettings) -> None:
        self._slice, self._patience = settings.max_candidates, settings.deadline_seconds
        self._waiting: list[_Search] = []
        self._recommended = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(
        self, view: LogView, served: list[Served | None], asked: list[Asked], as_of: list[int], deadline: float, done: Done
    ) -> None:
        """Search for several requests that are answered together, once all are done."""
        found: list[Answer] = []

        def one_done(result: list[Answer] | BaseException) -> None:
            if isinstance(result, BaseException):
                done(result)
                return
            found.extend(result)
            if len(found) == len(asked):
                done(found)

        for one, by, when in zip(asked, served, as_of, strict=True):
            pool = view.of_kind(one.kind)
            if one.exclude_seen:
                pool = np.setdiff1d(pool, view.facts.partners(int(view.ids([one.src])[0])))
            self._waiting.append(_Search(view, by, one, when, pool, deadline, one_done))

    def measure(self, view: LogView, served: Served | None, asked: Asked, as_of: int, answer: Answer) -> None:
        """Now and then compare a recommendation among likely candidates with the same from all nodes."""
        self._recommended += 1
        if self._recommended % MEASURE_EVERY != 1 or self._waiting or not answer.dst:
            return

        def done(result: list[Answer] | BaseException) -> None:
            if not isinstance(result, BaseException):
                metrics.recommend_recall.observe(len({*answer.dst} & {*result[0].dst}) / max(1, len(result[0].dst)))

        self.begin(view, [served], [asked], [as_of], time.monotonic() + self._patience, done)

    def step(self) -> int:
        """One slice of the oldest. Returns: how many requests that answered. Raises: NotFinite."""
        if not self._waiting:
            return 0
        search = self._waiting[0]
        view = search.view
        part = search.pool[search.at: search.at + self._slice]
        if time.monotonic() > search.deadline:
            self._waiting.pop(0).done(TimeoutError("the search took longer than server.deadline_seconds"))
            return 0
        source = view.ids([search.asked.src])
        try:
            if len(part):
                search.scores += scores_of(view, search.served, source, [part], [search.as_of_us])
                search.at += len(part)
        except NotFinite:
            self._waiting.pop(0).done(NotReady("the version that was asked cannot be served"))
            raise
        except Exception as error:  # noqa: BLE001 - a request's failure must reach its caller, not end the engine
            log.exception("answer_failed", error=str(error))
            self._waiting.pop(0).done(error)
            return 0
        if search.at < len(search.pool):
            return 0
        scores = np.concatenate([*search.scores, np.zeros(0, np.float32)])
        self._waiting.pop(0).done([
            answer_of(view, search.served, search.asked, int(source[0]), search.pool, scores, search.as_of_us)])
        return 1
