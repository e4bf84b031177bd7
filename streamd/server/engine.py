"""The engine: follows the log, follows the registry, answers requests in batches; nothing waits for a swap.

It shares the event loop's thread with HTTP and lets it run between two slices of work. In a thread of its own each of its
many small torch calls gave the interpreter's lock away and waited to get it back: an answer of 0.8 ms took 4.
"""

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog
import torch

from streamd.errors import StreamdError
from streamd.gpu import choose_device
from streamd.models.rule import NAME as RULE
from streamd.registry import Registry
from streamd.registry.registry import Manifest
from streamd.segments.reader import LogReader
from streamd.server.answers import Answer, Asked, Done, NotFinite, NotReady, Overloaded, answers_of
from streamd.server.checkpoint import stored_memory
from streamd.server.freshness import EventRate, Freshness
from streamd.server.search import Searches
from streamd.server.served import Served
from streamd.server.view import LogView
from streamd.settings import ModelSettings, Settings
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.progress import Reading, RoleProgress

log = structlog.get_logger()
IDLE_SECONDS = 0.01
REGISTRY_SECONDS = 0.1
KEEP_SECONDS = 1.0
SLICE_CHUNKS = 1


@dataclass
class _Waiting:
    """Requests that are answered together, by one version."""

    asked: list[Asked]
    since: float
    deadline: float
    done: Done

    @property
    def is_exact(self) -> bool:
        return any(a.exact for a in self.asked)


@dataclass
class EngineStatus:
    """What the status page and health checks read; written by the engine only."""

    ready: bool = False
    why: str = "starting"
    version: str = RULE
    trained_until_us: int | None = None
    edge: int = 0
    newest_us: int = 0
    memory_edge: int = 0
    answered: int = 0
    events_per_second: float = 0.0
    rebuild: Reading | None = None
    """How far it is with graph, facts and memory, until it is ready."""
    beat: float = field(default_factory=time.monotonic)


class Engine:
    """Owner of the server's graph, facts, memory and model, all on the thread of the loop that `run` runs in."""

    def __init__(
        self, settings: Settings, registry: Registry, beat: Heartbeat, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """on_failure: called when `run` ends by an error, so that the process can end with it."""
        self._settings, self._registry, self._beat, self._on_failure = settings, registry, beat, on_failure
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._served: Served | None = None
        self._building: tuple[Served, LogView] | None = None
        self._carried_from: int | None = None
        """Edge from which the first served version's memory is carried to now; None without one."""
        self._rebuild: RoleProgress | None = None
        self._loading: Future[tuple[Served, LogView]] | None = None
        self._noticed = 0.0
        self._refused: set[str] = set()
        """Versions that cannot be served, as far as was tried."""
        self._checked = self._kept = 0.0
        self.status = EngineStatus()
        self._view: LogView | None = None
        self._searches = Searches(settings.server)
        self._rate, self._freshness = EventRate(), Freshness()
        self._stopping = False

    def stop(self) -> None:
        """Let `run` answer what waits, then end."""
        self._stopping = True
        self._wake.set()

    async def ask(self, asked: Asked) -> Answer:
        """Put a request and wait. Raises: Overloaded, NotReady, TimeoutError."""
        return (await self.ask_all([asked]))[0]

    async def ask_all(self, asked: list[Asked]) -> list[Answer]:
        """Put requests that one version answers, and wait. Raises: Overloaded, NotReady, TimeoutError."""
        if not self.status.ready:
            raise NotReady(self.status.why)
        if sum(len(w.asked) for w in self._queue) >= self._settings.server.max_queue:
            raise Overloaded
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        def done(result: list[Answer] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        now, wait = time.monotonic(), self._settings.server.deadline_seconds
        self._queue.append(_Waiting(asked, now, now + wait, done))
        self._wake.set()
        async with asyncio.timeout(wait):
            return await future

    async def run(self) -> None:
        """Until `stop`."""
        torch.set_num_threads(1)
        try:
            while not self._stopping or self._queue or self._searches:
                if self._view is None:
                    self._view = await asyncio.to_thread(self._open)
                busy = self._view is not None and self._step(self._view)
                self._answer()
                self._search()
                await self._rest(0.0 if busy or self._queue or self._searches else IDLE_SECONDS)
        except Exception as error:
            log.exception("engine_failed", error=str(error))
            self.status.ready, self.status.why = False, f"the engine failed: {error}"
            self.status.rebuild = None
            self._on_failure()

    def _search(self) -> None:
        """One slice of the searches over all nodes."""
        try:
            self.status.answered += self._searches.step()
        except NotFinite as error:
            self._stop_serving(str(error))

    async def _rest(self, seconds: float) -> None:
        """Let the loop do what else is due; for longer where nothing waits, until something is asked."""
        await asyncio.sleep(0)
        if seconds and not self._queue:
            self._wake.clear()
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _open(self) -> LogView | None:
        """The log, once ingest has made it, with the facts that were stored of it: read aside, it can take seconds."""
        self.status.beat = time.monotonic()
        reader = LogReader.open(self._settings.data_dir)
        if reader is None:
            self.status.why = "waiting for ingest to make the log"
            self._beat.touch("waiting")
            return None
        self.status.why = "opening the log and what is stored of it"
        manifest, model = self._champion()
        view = LogView(self._settings, reader, model)
        self._carried_from = None if manifest is None else view.memory_edge(manifest)
        return view

    def _step(self, view: LogView) -> bool:
        """One slice of following log and registry. Returns: whether more of it waits."""
        self.status.beat = time.monotonic()
        took = self._follow_log(view)
        self._follow_registry(view)
        building = self._build(view)
        if not self.status.ready and view.caught_up and not self._loading and not self._building:
            self.status.ready, self.status.why, self.status.rebuild = True, "answering", None
            metrics.rebuild_ratio.set(1)
            gc.freeze()  # what lives as long as the server; a full collection through it took 0.2 s without an answer
            log.info("server_ready", edges=view.edge, version=self.status.version)
        elif not self.status.ready:
            self._say_how_far(view)
        self._report(view)
        if view.caught_up and time.monotonic() - self._kept >= KEEP_SECONDS:
            self._kept = time.monotonic()
            view.keep(self._served)
        return took > 0 or building

    def _say_how_far(self, view: LogView) -> None:
        """Until it is ready: edges in graph and facts, and edges that memory was carried over."""
        done, total = view.taken_in
        if self._carried_from is not None:
            total += max(0, view.log.num_edges - self._carried_from)
        if self._building is not None:
            served, own = self._building
            done += served.memory.edge - (self._carried_from or 0)
            if own is not view:
                done, total = done + own.taken_in[0], total + own.taken_in[1]
        if self._rebuild is None:
            self._rebuild = RoleProgress("rebuilding", metrics.rebuild_ratio)
        self.status.rebuild = self._rebuild.at(done, total)
        self.status.why = f"reading the log, {self.status.rebuild.text('edges')}"

    def _champion(self) -> tuple[Manifest | None, ModelSettings]:
        """With its settings, so that its facts are not made twice; where it cannot be read, loading
        it will say so."""
        name = self._registry.champion()
        try:
            manifest = self._registry.manifest(name) if name else None
            return manifest, manifest.model_settings() if manifest else self._settings.model
        except (StreamdError, OSError, ValueError) as error:
            log.error("version_not_served", version=name, error=str(error))
            return None, self._settings.model

    def _follow_log(self, view: LogView) -> int:
        took, deleted = view.follow()
        self._freshness.notice(view.log.num_edges, view.log.committed_at, self.status.ready)
        self._freshness.show(view.edge, time.time())
        if self._served is not None:
            if deleted:
                self._served.forget_embeddings()
            self._served.follow(view.log, view.edge, view.watermark, SLICE_CHUNKS)
        return took

    def _follow_registry(self, view: LogView) -> None:
        now = time.monotonic()
        if self._loading is not None or self._building is not None or now - self._checked < REGISTRY_SECONDS:
            return
        self._checked = now
        name = self._wanted()
        if name is None or (self._served is not None and self._served.manifest.name == name):
            return
        self._noticed = now
        future: Future[tuple[Served, LogView]] = Future()
        self._loading = future

        def load() -> None:
            try:
                device = choose_device(self._settings.server.device)
                served = Served.restored(self._registry.load(name), view.log.state.schema, device)
                served.take_memory(stored_memory(self._settings.data_dir), view.log.num_edges)
                future.set_result((served, view if view.suits(served.model.settings) else self._other_view(served)))
            except Exception as error:  # noqa: BLE001 - raised in `_build`: lost here, nothing would end the wait
                future.set_exception(error)

        self._loading_name = name
        threading.Thread(target=load, name="load-version", daemon=True).start()

    def _wanted(self) -> str | None:
        """The version to serve: the champion, or the last proven one where that cannot be; None where neither can."""
        names = [self._registry.champion(), self._registry.shadow()]
        metrics.champion_not_served.set(names[0] in self._refused)
        return next((name for name in names if name and name not in self._refused), None)

    def _refuse(self, name: str, error: str) -> None:
        """Serve a version no more, nor try to."""
        if name not in self._refused:
            log.error("version_not_served", version=name, error=error,
                      action="promote another version, or restore this one and start the server again")
        self._refused.add(name)

    def _stop_serving(self, error: str) -> None:
        """Answer by the rule until another version is loaded than the one that serves."""
        if self._served is not None:
            self._refuse(self._served.manifest.name, error)
        self._served = None
        self.status.version, self.status.trained_until_us = RULE, None

    def _other_view(self, served: Served) -> LogView:
        """A view with facts as the version's settings have them, which takes the present one's place with the version."""
        log.warning("facts_made_anew", version=served.manifest.name, reason="other model.half_lives_seconds or max_pairs")
        reader = LogReader.open(self._settings.data_dir)
        assert reader is not None, "a view of it serves"
        return LogView(self._settings, reader, served.model.settings)

    def _build(self, view: LogView) -> bool:
        """Carry a loaded version's memory to now, a slice at a time, then swap. Returns: whether more is to do."""
        if self._loading is not None and self._loading.done():
            try:
                self._building = self._loading.result()
                self._carried_from = self._building[0].memory.edge
            except (StreamdError, OSError, RuntimeError, ValueError) as error:
                if self._wanted() == self._loading_name:  # else it was dropped meanwhile, which harms nobody
                    self._refuse(self._loading_name, str(error))
            self._loading = None
        if self._building is None:
            return False
        building, own = self._building
        name = building.manifest.name
        if not view.log.first_edge <= building.manifest.edge <= view.log.num_edges:
            self._refuse(name, "the log does not hold its place")
            self._building = None
            return False
        if own is not view and (own.follow()[0] or not own.caught_up):
            return True
        if building.follow(own.log, own.edge, own.watermark, SLICE_CHUNKS) or building.memory.edge > own.edge:
            return True
        self._served, self._view, self._building = building, own, None
        self.status.version, self.status.trained_until_us = name, building.manifest.window_end_us
        metrics.swaps.inc()
        metrics.swap_seconds.observe(time.monotonic() - self._noticed)
        return False

    def _report(self, view: LogView) -> None:
        status = self.status
        status.edge, status.newest_us = view.edge, view.newest_us
        status.memory_edge = self._served.memory.edge if self._served else view.edge
        self._rate.note(time.monotonic(), view.edge)
        status.events_per_second = self._rate.per_second
        metrics.seen_edges.set(view.edge)
        metrics.memory_lag.set(view.edge - status.memory_edge)
        metrics.queue_requests.set(sum(len(w.asked) for w in self._queue))
        self._beat.touch("ready" if status.ready else "rebuilding", edges=view.edge, version=status.version,
                         newest=view.newest_us, answered=status.answered,
                         **(status.rebuild.fields() if status.rebuild else {}))

    def _answer(self) -> None:
        batch: list[_Waiting] = []
        while self._queue and sum(len(w.asked) for w in batch) < self._settings.server.max_batch:
            batch.append(self._queue.popleft())
        now = time.monotonic()
        live = [w for w in batch if w.deadline > now]
        if not live or self._view is None:
            return
        for waiting in live:
            if waiting.is_exact:
                self._search_all(self._view, waiting)
        self._answer_now(self._view, [w for w in live if not w.is_exact])

    def _answer_now(self, view: LogView, live: list[_Waiting]) -> None:
        begun = time.monotonic()
        try:
            answers: list[Answer] | Exception = self._compute(view, [a for w in live for a in w.asked])
        except Exception as error:  # noqa: BLE001 - a request's failure must reach its caller, not end the engine
            log.exception("answer_failed", error=str(error))
            answers = error
        at, took = 0, time.monotonic() - begun
        for waiting in live:
            metrics.engine_seconds.labels("wait").observe(begun - waiting.since)
            metrics.engine_seconds.labels("answer").observe(took)
            waiting.done(answers if isinstance(answers, Exception) else answers[at: at + len(waiting.asked)])
            at += len(waiting.asked)
        self.status.answered += at

    def _search_all(self, view: LogView, waiting: _Waiting) -> None:
        as_of = [max(view.newest_us + 1, a.time_us or 0) for a in waiting.asked]
        served = [self._served and self._served.ahead(view.log, view.edge, t) for t in as_of]
        self._searches.begin(view, served, waiting.asked, as_of, waiting.deadline, waiting.done)

    def _compute(self, view: LogView, asked: list[Asked]) -> list[Answer]:
        """Answers in order. Those of different times may see memory at different cuts; each such group is one pass."""
        try:
            return self._computed(view, asked)
        except NotFinite as error:
            self._stop_serving(str(error))
            return self._computed(view, asked)

    def _computed(self, view: LogView, asked: list[Asked]) -> list[Answer]:
        as_of = [max(view.newest_us + 1, a.time_us or 0) for a in asked]
        by_time = {t: self._served and self._served.ahead(view.log, view.edge, t) for t in set(as_of)}
        seen_by = [by_time[t] for t in as_of]
        answers: dict[int, Answer] = {}
        limit = self._settings.server.max_candidates
        for served in {id(s): s for s in seen_by}.values():
            places = [i for i, s in enumerate(seen_by) if s is served]
            group = answers_of(view, served, [asked[i] for i in places], [as_of[i] for i in places], limit)
            for i, answer in zip(places, group, strict=True):
                if asked[i].is_search and len(view.of_kind(asked[i].kind)) > limit:
                    self._searches.measure(view, served, asked[i], as_of[i], answer)
            answers.update(zip(places, group, strict=True))
        return [answers[i] for i in range(len(asked))]
