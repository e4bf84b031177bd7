"""The engine follows the log and the versions, and answers requests in batches.

No request waits for a swap of versions. The engine shares the event loop's thread with HTTP and
lets it run between two slices of work. In a thread of its own, each of its many small torch calls
would release the interpreter's lock and wait to get it back: an answer that takes 0.8 ms here would
take 4 ms.
"""

import asyncio
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.events import Key
from streamd.gpu import memory_for
from streamd.graph.jit import compile_notice
from streamd.models.rule import NAME as RULE
from streamd.registry import Registry
from streamd.registry.manifest import Manifest
from streamd.schema import Schema
from streamd.server.engine.answers import answers_of, moments_of
from streamd.server.engine.commit_watch import CommitWatch
from streamd.server.engine.conditions import NONE, Conditions
from streamd.server.engine.freshness import EventRate, Freshness
from streamd.server.engine.lag import Completeness
from streamd.server.engine.pace import Pace, let_http_run
from streamd.server.engine.queue import PendingBatch, RequestQueue
from streamd.server.engine.rebuild import Rebuild
from streamd.server.engine.recent_activity import Around, look_around
from streamd.server.engine.search import Searches
from streamd.server.engine.waiting import Waiting
from streamd.server.engine.warm_up import warm_up_requests
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.requests import (
    Answer,
    NotFinite,
    NotReady,
    Recommend,
    Request,
    Seen,
)
from streamd.serving.swap import CatchingUp, Swap, Swapped
from streamd.settings.loading import ModelSettings, Settings
from streamd.telemetry import metrics, spans
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.progress import Reading

logger = structlog.get_logger()
POLL_SECONDS = 0.01
"""Rest while nothing waits and commits give no notice: so stale may an answer be after a commit."""
WATCHED_SECONDS = 0.05
"""The same where they do: other work, such as a new version, waits no longer."""
LOOK_SECONDS = 0.2
"""Time between two signs of life while something is done in another thread."""
KEEP_SECONDS = 1.0
"""Time between two looks at what should be stored: each reads whether compaction was asked for."""


@dataclass
class EngineStatus:
    """The state that the status page and the health checks read. Owner: the engine.

    edge: id of the next event to take in. newest_us: event time of the newest one, microseconds.
    memory_edge: event id up to which memory has taken in the log. answered: requests that were
    dealt with, errors and the server's own recall checks included.
    beat: monotonic time of the last slice.
    """

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
    """Progress of rebuilding graph, facts and memory; None once the engine is ready."""
    beat: float = field(default_factory=time.monotonic)


class Engine:
    """Owns the server's graph, facts, memory and model, on the thread of `run`'s event loop."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        beat: Heartbeat,
        on_failure: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """on_failure: called when `run` ends by an error, so that the process can end with it.
        prepare: called in another thread before the log is opened, as to compile kernels, while
        health checks and the status page are answered already."""
        # What it reads and reports to.
        self._settings = settings
        self._registry = registry
        self._beat = beat
        self._on_failure = on_failure
        self._prepare = prepare
        self.on_schema: Callable[[Schema], None] = lambda _: None
        """Called with the log's schema whenever a graph begins to answer."""

        # What answers, and what is to answer next.
        self.status = EngineStatus()
        self._view: ServerGraph | None = None
        """None until ingest has made a log."""
        self._served: LoadedVersion | None = None
        """None while the rule answers."""
        self._seen = Seen()
        self._complete = Completeness(settings.data_dir, settings.log.follows)
        self._swap = Swap(settings, registry)
        self._rebuild = Rebuild(None)

        # What is asked, what is measured, and when it last stored something.
        self._queue = RequestQueue(settings.server)
        self._waiting = Waiting(settings.server.max_queue)
        self._commits: CommitWatch | None = None
        self._searches = Searches(settings.server)
        self._pace = Pace()
        self._rate = EventRate()
        self._freshness = Freshness()
        self._kept_at = 0.0
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether the process ends."""
        return self._stopping

    @property
    def schema(self) -> Schema | None:
        """The log's schema, None before there is a log."""
        return None if self._view is None else self._view.log.state.schema

    @property
    def keys(self) -> Sequence[Key | None]:
        """Keys of all nodes by their ids, None for a deleted one; none before there is a log."""
        return () if self._view is None else self._view.log.keys

    def lag_seconds(self) -> float | None:
        """Seconds by which answers of now may lag behind Kafka, None where it is not known."""
        return self._seen.lag_seconds(time.time())

    def around(self, node: Key, edge_set: int) -> tuple[int, Callable[[], Around]]:
        """The number of events taken in, and what makes a look around a node as of now. Raises:
        NotReady."""
        view = self._view
        if view is None or not self.status.ready:
            raise NotReady(self.status.why)
        return view.edge, lambda: look_around(view, node, edge_set)

    def end_waits(self) -> None:
        """Refuse the requests that wait for a commit, and those that would: the server ends."""
        self._waiting.end()

    def stop(self) -> None:
        """Let `run` answer the requests that wait, then end."""
        self._stopping = True
        self._queue.wake()

    def overload(self) -> str | None:
        """Why new requests for answers are refused, None where they are let in."""
        return self._queue.overload()

    async def turn(self) -> None:
        """Wait until a new request may be parsed, as `RequestQueue.turn`."""
        if self.status.ready:
            await self._queue.turn()

    async def ask(self, request: Request, conditions: Conditions = NONE) -> Answer:
        """Queue a request and wait for its answer. Raises: as `ask_all`."""
        return (await self.ask_all([request], conditions))[0]

    async def ask_all(
        self, requests: Sequence[Request], conditions: Conditions = NONE
    ) -> list[Answer]:
        """Queue requests that one version is to answer, and wait for the answers, in order.

        They are queued once the view has what the conditions name, within the same deadline.
        Raises: Overloaded, NotReady, TimeoutError, BadCondition, NotReached, TooOld.
        """
        if not self.status.ready:
            raise NotReady(self.status.why)
        deadline = time.monotonic() + self._settings.server.deadline_seconds
        if conditions.after:
            assert self._view is not None, "it is ready"
            state = self._view.included
            for token in conditions.after:
                token.check(state, self._settings.kafka.topics)
            begun = time.monotonic()
            try:
                await self._waiting.reach(conditions.after, state, deadline)
            finally:
                if (span := spans.current.get()) is not None:
                    span.child("reach", begun, time.monotonic())
        answers = await self._queue.answers(requests, deadline)
        if conditions.max_lag_seconds is not None:
            answers[0].seen.check_age(conditions.max_lag_seconds, time.time())
        return answers

    async def run(self) -> None:
        """Follow log and versions and answer requests, until `stop`."""
        try:
            await self._made_ready()
            while not self._stopping or self._queue or self._searches:
                # Wait for a log, then follow it and answer, in turn.
                if self._view is None:
                    self._view = await asyncio.to_thread(self._open)
                    if self._view is not None:
                        self._commits = CommitWatch.begin(self._settings.data_dir, self._queue.wake)
                busy = self._view is not None and self._step(self._view)
                await let_http_run()
                self._answer()
                self._search()
                await let_http_run()
                await self._queue.rest(
                    0.0 if busy or self._queue or self._searches else self._longest_rest
                )
        except Exception as error:
            # No request can be answered any more, so the process ends and is started again.
            logger.exception("engine_failed", error=str(error))
            self.status.ready = False
            self.status.why = f"the engine failed: {error}"
            self.status.rebuild = None
            self._on_failure()
        finally:
            if self._commits is not None:
                self._commits.close()

    async def _made_ready(self) -> None:
        """Do what must be done before the log is opened; the loop turns meanwhile."""
        if self._prepare is None:
            return
        self.status.why = compile_notice() or "loading kernels"
        self._beat.touch("preparing")
        work = asyncio.create_task(asyncio.to_thread(self._prepare))
        while not (await asyncio.wait([work], timeout=LOOK_SECONDS))[0]:
            self.status.beat = time.monotonic()
            self._beat.touch("preparing")
        await work

    @property
    def _longest_rest(self) -> float:
        """Seconds until the next step where nothing wakes the engine before."""
        return POLL_SECONDS if self._commits is None else WATCHED_SECONDS

    @memory_for("following the log")
    def _step(self, view: ServerGraph) -> bool:
        """Do one slice of all work but answering. Returns: whether events were taken in or a
        version catches up, so that the next step should follow at once."""
        self.status.beat = time.monotonic()
        # Before the log, so that what is found in it is newer than what ingest said.
        self._complete.look(time.monotonic())
        until = self._pace.begin(self.status.ready)
        behind = self._follow_log(view, until)
        view = self._follow_versions(view, until)
        self._pace.end(behind or self._catching_up)
        self._show(view)
        self._update_ready(view)
        self._report(view)
        self._keep(view)
        return behind or self._catching_up

    # The log and the versions

    def _open(self) -> ServerGraph | None:
        """Open the log, once ingest has made it, and the facts that were stored of it.

        It runs in another thread, since it can take seconds. Returns: None before there is a log.
        """
        self.status.beat = time.monotonic()
        reader = LogReader.open(self._settings.data_dir)
        if reader is None:
            self.status.why = "waiting for ingest to make the log"
            self._beat.touch("waiting")
            return None

        # The champion's settings decide which facts are kept.
        self.status.why = "opening the log and what is stored of it"
        manifest, model = self._champion()
        view = ServerGraph(self._settings, reader, model, self._beat.name)
        self._rebuild = Rebuild(None if manifest is None else view.retention.memory_edge(manifest))
        self.on_schema(reader.state.schema)
        return view

    def _champion(self) -> tuple[Manifest | None, ModelSettings]:
        """Read the champion's manifest and model settings: facts of other settings would have to be
        made again for it.

        Returns: None and this server's settings where there is no champion that can be read; the
        swap, which tries to load it, reports the error again.
        """
        move = self._registry.shown()
        name = move.champion if move else None
        try:
            manifest = self._registry.manifest(name) if name else None
            return manifest, manifest.model_settings() if manifest else self._settings.model
        except (StreamdError, OSError, ValueError) as error:
            logger.warning("champion_not_read", version=name, error=str(error))
            return None, self._settings.model

    @property
    def _catching_up(self) -> bool:
        """Whether a version that will answer still catches up with the log."""
        return isinstance(self._swap.state, CatchingUp)

    def _follow_log(self, view: ServerGraph, until: float) -> bool:
        """Add new events of the log to the graph, then advance memory over closed chunks, until the
        time is up. until: monotonic seconds. Returns: whether anything is left to follow."""
        # The graph gets half of the time, so that a fast-growing log leaves some for memory; both
        # together get half of it while another version catches up.
        now = time.monotonic()
        if self._catching_up:
            until = (now + until) / 2
        while True:
            num_taken, deleted = view.follow(answering=self.status.ready)
            self._freshness.notice(view.log.num_edges, view.log.committed_at, self.status.ready)
            # Embeddings made before a delete may hold what was deleted.
            if deleted and self._served is not None:
                self._served.forget_embeddings()
            if not num_taken or time.monotonic() >= (now + until) / 2:
                break
        self._freshness.show(view.edge, time.time())

        # Memory follows the graph, also one that is still behind the log.
        served = self._served
        memory_behind = served is not None and served.follow_until(
            until, view.log, view.edge, view.watermark
        )
        if num_taken or memory_behind:
            return True
        metrics.caught_up_at.set(time.time())
        return False

    def _show(self, view: ServerGraph) -> None:
        """Say what answers have seen from now on, and let those go on that waited for it."""
        included = view.included
        self._complete.show(included, view.looked_at)
        self._seen = Seen(included.term, included.seq, self._complete.until)
        if self._waiting:
            self._waiting.show(included)

    def _follow_versions(self, view: ServerGraph, until: float) -> ServerGraph:
        """Advance the swap of versions. until: monotonic seconds. Returns: the graph that answers
        from now on."""
        state = self._swap.step(view, self._served.manifest.name if self._served else None, until)
        if not isinstance(state, Swapped):
            return view

        # One assignment each, between two passes of answers: no request sees half a swap.
        self._served = state.served
        self._view = state.view
        manifest = None if state.served is None else state.served.manifest
        self.status.version = RULE if manifest is None else manifest.name
        self.status.trained_until_us = None if manifest is None else manifest.window_end_us
        self.on_schema(state.view.log.state.schema)
        return state.view

    def _stop_serving(self, error: NotFinite) -> None:
        """Answer by the rule until another version is loaded; this one is not tried again."""
        if self._served is not None:
            self._swap.refuse(self._served.manifest.name, error)
        self._served = None
        self.status.version = RULE
        self.status.trained_until_us = None

    def _keep(self, view: ServerGraph) -> None:
        """Let the graph store what a restart needs, once every KEEP_SECONDS."""
        if view.caught_up and time.monotonic() - self._kept_at >= KEEP_SECONDS:
            self._kept_at = time.monotonic()
            view.retention.keep(self._served)

    # Readiness and status

    def _update_ready(self, view: ServerGraph) -> None:
        """Become ready once log and version have caught up, and stay so unless `run` fails."""
        status = self.status
        if status.ready:
            return
        if view.caught_up and not self._swap.is_under_way:
            # What is slow the first time is done before anybody waits for it.
            self._tried(view, warm_up_requests(view))
            status.ready = True
            status.why = "answering"
            status.rebuild = None
            self._rebuild.done()
            # Keep the garbage collector off what lives as long as the server: a full collection
            # takes 0.2 s, in which nothing is answered.
            gc.freeze()
            logger.info("server_ready", edges=view.edge, version=status.version)
        else:
            status.rebuild = self._rebuild.at(view, self._swap.state)
            status.why = f"reading the log, {status.rebuild.text('edges')}"

    def _report(self, view: ServerGraph) -> None:
        """Bring status, metrics and heartbeat up to date."""
        status = self.status
        status.edge = view.edge
        status.newest_us = view.newest_us
        status.memory_edge = self._served.memory.edge if self._served else view.edge
        self._rate.note(time.monotonic(), view.edge)
        status.events_per_second = self._rate.per_second
        metrics.seen_edges.set(view.edge)
        metrics.memory_lag.set(view.edge - status.memory_edge)
        metrics.queue_requests.set(len(self._queue))
        metrics.waiting_requests.set(len(self._waiting))
        until = self._seen.complete_until
        metrics.complete_until.set(math.nan if until is None else until)
        metrics.memory_bytes.set(self._served.memory.rows.pool.num_bytes if self._served else 0)
        self._beat.touch(
            "ready" if status.ready else "rebuilding",
            edges=view.edge,
            version=status.version,
            newest=view.newest_us,
            answered=status.answered,
            **(status.rebuild.fields() if status.rebuild else {}),
        )

    # Requests

    def _answer(self) -> None:
        """Answer the requests that wait, in one pass. Searches of all nodes only begin here."""
        taken = self._queue.take()
        if not taken or self._view is None:
            return

        # Searches are spread over many slices; the rest is answered at once.
        for batch in taken:
            if searches := batch.searches:
                moments = moments_of(self._view, self._served, searches, self._seen)
                done = batch.traced_done(self.status.version)
                self._searches.begin(searches, moments, batch.deadline, done)
        self._answer_now(self._view, [b for b in taken if not b.searches])

    @memory_for("a search of all nodes")
    def _search(self) -> None:
        """Do one slice of the searches of all nodes."""
        try:
            self.status.answered += self._searches.step()
        except NotFinite as error:
            self._stop_serving(error)

    def _answer_now(self, view: ServerGraph, taken: list[PendingBatch]) -> None:
        """Answer batches in one pass, and hand each its share of the answers."""
        # All requests of all batches at once.
        begun = time.monotonic()
        answers = self._tried(view, [r for batch in taken for r in batch.requests])

        # Each batch gets its own answers, or the error.
        at = 0
        took = time.monotonic() - begun
        self._queue.answered(taken, took)
        for batch in taken:
            metrics.engine_seconds.labels("wait").observe(begun - batch.since)
            metrics.engine_seconds.labels("answer").observe(took)
            batch.trace(begun, begun + took, self.status.version)
            batch.done(
                answers
                if isinstance(answers, Exception)
                else answers[at : at + len(batch.requests)]
            )
            at += len(batch.requests)
        self.status.answered += at

    def _tried(self, view: ServerGraph, requests: list[Request]) -> list[Answer] | Exception:
        """The answers to requests, or the error in their place, which is logged."""
        try:
            return self._compute(view, requests)
        except Exception as error:  # noqa: BLE001 - a request's failure must reach its caller, not end the engine
            logger.exception("answer_failed", error=str(error))
            return error

    @memory_for("answers")
    def _compute(self, view: ServerGraph, requests: list[Request]) -> list[Answer]:
        """Answer by the version that serves, or by the rule where its answers are not finite."""
        try:
            return self._computed(view, requests)
        except NotFinite as error:
            self._stop_serving(error)
            return self._computed(view, requests)

    def _computed(self, view: ServerGraph, requests: list[Request]) -> list[Answer]:
        """Answer by what serves now; some answers to callers are measured against a search of all
        nodes."""
        moments = moments_of(view, self._served, requests, self._seen)
        answers = answers_of(requests, moments)
        for request, moment, answer in zip(requests, moments, answers, strict=True):
            if self.status.ready and isinstance(request, Recommend):
                self._searches.measure(request, moment, answer)
        return answers
