"""The engine follows the log and the versions, and answers requests in batches.

It shares the event loop's thread with HTTP, and lets HTTP run between two slices of work. In a
separate thread, each of its many small torch calls would release the GIL and wait to get it back:
an answer that takes 0.8 ms here would take 4 ms. No request waits for a swap of versions.
"""

import asyncio
import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import structlog

from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Int64, Key
from streamd.gpu import memory_for
from streamd.graph.jit import compile_notice
from streamd.registry import Registry
from streamd.schema import Schema
from streamd.server.engine.answerer import Answerer
from streamd.server.engine.commit_watch import watch_commits
from streamd.server.engine.conditions import NONE, Conditions
from streamd.server.engine.freshness import EventRate
from streamd.server.engine.log_follower import LogFollower
from streamd.server.engine.pace import let_http_run
from streamd.server.engine.queue import RequestQueue
from streamd.server.engine.recent_activity import Activity, read_activity
from streamd.server.engine.status import EngineState, EngineStatus
from streamd.server.engine.waiting import WaitingRequests
from streamd.server.engine.warm_up import warm_up_requests
from streamd.serving.following_graph import ServerGraph
from streamd.serving.requests import Answer, NotReady, Request
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import ServerSettings
from streamd.telemetry import metrics, spans
from streamd.telemetry.heartbeat import Heartbeat

logger = structlog.get_logger()
T = TypeVar("T")
POLL_SECONDS = 0.01
"""Pause without requests if commits give no notice: answers may lack a commit for this long."""
WATCHED_SECONDS = 0.05
"""The same if commits give notice. Other work, such as loading a new version, waits at most this
long."""
HEARTBEAT_SECONDS = 0.2
"""Interval of heartbeats while another thread compiles kernels or opens the log."""


class Engine:
    """Owns the queue of requests and, once the log exists, the log follower. Owner: the thread of
    the event loop in which `run` runs."""

    def __init__(
        self,
        settings: ServingSettings,
        server: ServerSettings,
        topics: tuple[str, ...],
        registry: Registry,
        beat: Heartbeat,
        on_schema: Callable[[Schema], None],
        on_failure: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """topics: Kafka topics with events. on_schema: called with the log's schema before a new
        graph answers. on_failure: called if the task of `start` fails, so that the process ends.
        prepare: compiles the kernels; called in another thread before the log is opened, so that
        health checks and the status page are answered meanwhile."""
        # Settings, the parts that it reads, and callbacks.
        self._settings = settings
        self._deadline_seconds = server.deadline_seconds
        self._topics = topics
        self._registry = registry
        self._beat = beat
        self._on_schema = on_schema
        self._on_failure = on_failure
        self._prepare = prepare

        # The log follower with graph and version, and the requests that it answers.
        self.status = EngineStatus()
        self._follower: LogFollower | None = None
        """None until ingest has created the log."""
        self._queue = RequestQueue(server)
        self._waiting = WaitingRequests(server.max_queue)
        self._answerer = Answerer(self._queue, server, self.status)
        self._rate = EventRate()
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    @property
    def _view(self) -> ServerGraph | None:
        """The graph that answers, None before the log exists."""
        return None if self._follower is None else self._follower.view

    @property
    def schema(self) -> Schema | None:
        """The log's schema, None before the log exists."""
        return None if self._view is None else self._view.log.state.schema

    @property
    def log(self) -> LogReader | None:
        """The log's reader, owned by the event loop's thread; None before the log exists."""
        return None if self._view is None else self._view.log

    @property
    def keys(self) -> Sequence[Key | None]:
        """Keys of all nodes by id, None for a deleted node; empty before the log exists."""
        return () if self._view is None else self._view.log.keys

    def is_source(self, node_N: Int64, edge_set: int) -> Bools:
        """Whether each node was a source in an edge set: bool[N]. node_N: int64[N] node ids."""
        if self._view is None:
            return np.zeros(len(node_N), np.bool_)
        return self._view.facts.of_set(edge_set).is_source(node_N)

    def lag_seconds(self) -> float | None:
        """The lag of present answers in seconds, None if unknown: the time since they had all
        records of Kafka."""
        return None if self._follower is None else self._follower.seen.lag_seconds(time.time())

    def around(self, node: Key, edge_set: int) -> tuple[int, Callable[[], Activity]]:
        """The number of events in the graph, and a function that reads the recent activity around a
        node. Raises: NotReady."""
        view = self._view
        if view is None or not self.status.ready:
            raise NotReady(self.status.why)
        return view.edge, lambda: read_activity(view, node, edge_set)

    def end_waits(self) -> None:
        """Refuse all requests that wait for a commit, now and later, because the server ends."""
        self._waiting.end()

    def stop(self) -> None:
        """Ask `run` to answer the waiting requests and then end."""
        self._stopping = True
        self._queue.wake()

    def overload(self) -> str | None:
        """The reason to refuse new requests for answers, None to admit them."""
        return self._queue.overload()

    async def turn(self) -> None:
        """Wait until a new request may be parsed, as `RequestQueue.turn` does."""
        if self.status.ready:
            await self._queue.turn()

    async def ask(self, request: Request, conditions: Conditions = NONE) -> Answer:
        """Queue a request and wait for its answer. Raises: like `ask_all`."""
        return (await self.ask_all([request], conditions))[0]

    async def ask_all(
        self, requests: Sequence[Request], conditions: Conditions = NONE
    ) -> list[Answer]:
        """Queue requests that one version must answer, and wait for the answers, in order.

        1. Wait until the graph includes the positions of the conditions. A wait in the queue would
           delay other requests.
        2. Queue the requests and wait for the answers, within the same deadline.
        3. Check the age of the answers by the position from which they were computed: after a check
           in advance, they could still be too old.

        Raises: Overloaded, NotReady, TimeoutError, BadCondition, NotReached, TooOld.
        """
        if not self.status.ready:
            raise NotReady(self.status.why)
        deadline = time.monotonic() + self._deadline_seconds

        # 1. Wait for the positions that the answer must include.
        if conditions.after:
            assert self._view is not None, "it is ready"
            state = self._view.included
            for token in conditions.after:
                token.check(state, self._topics)
            begun = time.monotonic()
            try:
                await self._waiting.reach(conditions.after, state, deadline)
            finally:
                if (span := spans.current.get()) is not None:
                    span.child("reach", begun, time.monotonic())

        # 2. Compute the answers.
        answers = await self._queue.answers(requests, deadline)
        # 3. Check their age.
        if conditions.max_lag_seconds is not None:
            answers[0].seen.check_age(conditions.max_lag_seconds, time.time())
        return answers

    # The loop

    def start(self) -> asyncio.Task[None]:
        """Start `run` as a task. If it fails, no request can be answered any more, so the process
        ends, and the supervisor restarts it."""

        def report(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            logger.error("engine_failed", error=str(error), exc_info=error)
            self.status.fail(error)
            self._on_failure()

        task = asyncio.create_task(self.run(), name="engine")
        task.add_done_callback(report)
        return task

    async def run(self) -> None:
        """Follow the log and the versions, and answer requests, until `stop`."""
        if self._prepare is not None:
            await self._prepare_kernels(self._prepare)
        follower = await self._wait_for_log()
        if follower is None:
            return

        # Follow the log and answer in turns; HTTP runs in between.
        with watch_commits(self._settings.paths.log, self._queue.wake) as is_watched:
            pause = WATCHED_SECONDS if is_watched else POLL_SECONDS
            while not self._stopping or self._answerer:
                is_busy = self._follow(follower)
                await let_http_run()
                self._answerer.step(follower)
                await let_http_run()
                await self._queue.wait(0.0 if is_busy or self._answerer else pause)

    async def _prepare_kernels(self, prepare: Callable[[], None]) -> None:
        """Compile or load the kernels in another thread."""
        self.status.transition(EngineState.PREPARING, compile_notice() or "loading kernels")
        self._beat.touch(self.status.state)
        await self._in_thread(prepare)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Call a function in another thread, and write heartbeats until it returns."""
        task = asyncio.create_task(asyncio.to_thread(work))
        while not (await asyncio.wait([task], timeout=HEARTBEAT_SECONDS))[0]:
            self.status.beat = time.monotonic()
            self._beat.touch(self.status.state)
        return await task

    async def _wait_for_log(self) -> LogFollower | None:
        """Wait until ingest has created the log, and open it. Returns: None if `stop` was called
        first."""
        self.status.transition(EngineState.PREPARING, self.status.why)
        while not self._stopping:
            self._follower = await self._in_thread(self._open)
            if self._follower is not None:
                self._on_schema(self._follower.view.log.state.schema)
                return self._follower
            await self._queue.wait(POLL_SECONDS)
        return None

    def _open(self) -> LogFollower | None:
        """Open the log and its stored facts; runs in another thread since it can take minutes.
        Returns: None before the log exists."""
        reader = LogReader.open(self._settings.paths.log)
        if reader is None:
            self.status.transition(EngineState.WAITING, "waiting for ingest to make the log")
            self._beat.touch(self.status.state)
            return None
        self.status.transition(EngineState.PREPARING, "opening the log and its stored facts")
        return LogFollower(self._settings, self._registry, reader, self.status)

    @memory_for("following the log")
    def _follow(self, follower: LogFollower) -> bool:
        """Do one slice of all work except answering. Returns: whether there is more work, so that
        the next slice should not wait.

        It does not await: HTTP would otherwise parse a request by the schema of the old graph after
        a new graph is in use.
        """
        self.status.beat = time.monotonic()

        # The log and the versions. Another version may come with a graph of another schema.
        view = follower.view
        is_busy = follower.step()
        if follower.view is not view:
            self._on_schema(follower.view.log.state.schema)

        # Release requests that wait for a position which the graph includes now.
        if self._waiting:
            self._waiting.release(follower.view.included)
        if not self.status.ready:
            self._update_ready(follower)
        self._report(follower)
        follower.keep()
        return is_busy

    # Readiness and status

    def _update_ready(self, follower: LogFollower) -> None:
        """Become ready once the log and the version have caught up. The server stays ready unless
        `run` fails."""
        status = self.status
        if status.state is EngineState.PREPARING:
            status.transition(EngineState.REBUILDING, "reading the log")
        if not follower.has_caught_up:
            status.rebuild = follower.progress()
            status.why = f"reading the log, {status.rebuild.text('edges')}"
            return

        # The first answer of each kind is slow: compute it before a client asks.
        self._answerer.compute(follower, warm_up_requests(follower.view))
        status.transition(EngineState.READY, "answering")
        status.rebuild = None
        metrics.rebuild_ratio.set(1)
        # Exclude the present objects from garbage collection, since they live as long as the
        # server: a full collection would stop all answers for 0.2 s.
        gc.freeze()
        logger.info("server_ready", edges=follower.view.edge, version=status.version)

    def _report(self, follower: LogFollower) -> None:
        """Update status, metrics and heartbeat."""
        status = self.status
        view = follower.view
        status.edge = view.edge
        status.newest_us = view.newest_us
        status.memory_edge = follower.memory_edge
        status.next_version = follower.next_version
        self._rate.note(time.monotonic(), view.edge)
        status.events_per_second = self._rate.per_second

        # Metrics, then the heartbeat.
        metrics.seen_edges.set(view.edge)
        metrics.memory_lag.set(view.edge - status.memory_edge)
        metrics.queue_requests.set(len(self._queue))
        metrics.waiting_requests.set(len(self._waiting))
        until = follower.seen.complete_until
        metrics.complete_until.set(math.nan if until is None else until)
        metrics.memory_bytes.set(follower.memory_bytes)
        self._beat.touch(
            status.state,
            edges=view.edge,
            version=status.version,
            newest=view.newest_us,
            answered=status.answered,
            **(status.rebuild.fields() if status.rebuild else {}),
        )
