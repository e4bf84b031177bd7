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
from streamd.server.engine.recent_activity import Around, look_around
from streamd.server.engine.status import EngineStatus
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
"""Pause while no request waits and commits give no notice: so stale may an answer be after a
commit."""
WATCHED_SECONDS = 0.05
"""The same while commits give notice: other work, such as a new version, waits no longer."""
LOOK_SECONDS = 0.2
"""Time between two heartbeats while another thread prepares."""


class Engine:
    """Owns the queue of requests, and the follower of the log once there is one, on the thread of
    `run`'s event loop."""

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
        """topics: of events in Kafka. on_schema: called with the log's schema whenever a graph
        begins to answer. on_failure: called when the task of `start` ends by an error, so that the
        process can end with it. prepare: called in another thread before the log is opened, as to
        compile kernels, while health checks and the status page are answered already."""
        # Its settings, the parts that it reads, and its callbacks.
        self._settings = settings
        self._deadline_seconds = server.deadline_seconds
        self._topics = topics
        self._registry = registry
        self._beat = beat
        self._on_schema = on_schema
        self._on_failure = on_failure
        self._prepare = prepare

        # The graph and the version that answer, and the requests that they answer.
        self.status = EngineStatus()
        self._follower: LogFollower | None = None
        """None until ingest has made a log."""
        self._queue = RequestQueue(server)
        self._waiting = WaitingRequests(server.max_queue)
        self._answerer = Answerer(self._queue, server, self.status)
        self._rate = EventRate()
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether the process ends."""
        return self._stopping

    @property
    def _view(self) -> ServerGraph | None:
        """The graph that answers, None before there is a log."""
        return None if self._follower is None else self._follower.view

    @property
    def schema(self) -> Schema | None:
        """The log's schema, None before there is a log."""
        return None if self._view is None else self._view.log.state.schema

    @property
    def log(self) -> LogReader | None:
        """The log's reader, which belongs to the event loop's thread; None before there is a
        log."""
        return None if self._view is None else self._view.log

    @property
    def keys(self) -> Sequence[Key | None]:
        """Keys of all nodes by their ids, None for a deleted one; none before there is a log."""
        return () if self._view is None else self._view.log.keys

    def is_source(self, node_N: Int64, edge_set: int) -> Bools:
        """Whether each node was a source in an edge set, by its id: bool[N], int64[N]."""
        if self._view is None:
            return np.zeros(len(node_N), np.bool_)
        return self._view.facts.of_set(edge_set).is_source(node_N)

    def lag_seconds(self) -> float | None:
        """Seconds by which answers of now may lag behind Kafka, None if that is not known."""
        return None if self._follower is None else self._follower.seen.lag_seconds(time.time())

    def around(self, node: Key, edge_set: int) -> tuple[int, Callable[[], Around]]:
        """The number of events taken in, and a function that looks around a node as of now. Raises:
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
        """Why new requests for answers are refused, None if they are let in."""
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
        deadline = time.monotonic() + self._deadline_seconds

        # Wait for the commits that the answer must have seen, outside of the queue.
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

        # An answer is checked by the position at which it was computed.
        answers = await self._queue.answers(requests, deadline)
        if conditions.max_lag_seconds is not None:
            answers[0].seen.check_age(conditions.max_lag_seconds, time.time())
        return answers

    # The loop

    def start(self) -> asyncio.Task[None]:
        """Run in a task of its own, whose error ends the process: no request can be answered any
        more, so the process is started again."""

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
        """Follow log and versions and answer requests, until `stop`."""
        if self._prepare is not None:
            await self._wait_for(self._prepare)
        follower = await self._wait_for_log()
        if follower is None:
            return

        # Follow and answer in turn; HTTP runs between the two.
        with watch_commits(self._settings.paths.log, self._queue.wake) as is_watched:
            pause = WATCHED_SECONDS if is_watched else POLL_SECONDS
            while not self._stopping or self._answerer:
                is_busy = self._follow(follower)
                await let_http_run()
                self._answerer.step(follower)
                await let_http_run()
                await self._queue.rest(0.0 if is_busy or self._answerer else pause)

    async def _wait_for(self, prepare: Callable[[], None]) -> None:
        """Call what makes the kernels ready."""
        self.status.why = compile_notice() or "loading kernels"
        self._beat.touch("preparing")
        await self._in_thread(prepare)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Call a function in another thread, and turn the loop meanwhile."""
        task = asyncio.create_task(asyncio.to_thread(work))
        while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
            self.status.beat = time.monotonic()
            self._beat.touch("preparing")
        return await task

    async def _wait_for_log(self) -> LogFollower | None:
        """Wait until ingest has made a log, and open it. Returns: None if `stop` came first."""
        while not self._stopping:
            self._follower = await self._in_thread(self._open)
            if self._follower is not None:
                self._on_schema(self._follower.view.log.state.schema)
                return self._follower
            await self._queue.rest(POLL_SECONDS)
        return None

    def _open(self) -> LogFollower | None:
        """Open the log and its stored facts, in another thread since it can take minutes. Returns:
        None before there is a log."""
        reader = LogReader.open(self._settings.paths.log)
        if reader is None:
            self.status.why = "waiting for ingest to make the log"
            self._beat.touch("waiting")
            return None
        self.status.why = "opening the log and what is stored of it"
        return LogFollower(self._settings, self._registry, reader, self.status)

    @memory_for("following the log")
    def _follow(self, follower: LogFollower) -> bool:
        """Do one slice of all work but answering. Returns: whether the next slice should follow at
        once."""
        self.status.beat = time.monotonic()

        # Log and versions; a graph of another version may have another schema.
        view = follower.view
        is_busy = follower.step()
        if follower.view is not view:
            self._on_schema(follower.view.log.state.schema)

        # Requests that wait for the position which answers report from here on.
        if self._waiting:
            self._waiting.release(follower.view.included)
        if not self.status.ready:
            self._update_ready(follower)
        self._report(follower)
        follower.keep()
        return is_busy

    # Readiness and status

    def _update_ready(self, follower: LogFollower) -> None:
        """Become ready once log and version have caught up, and stay so unless `run` fails."""
        status = self.status
        if not follower.has_caught_up:
            status.rebuild = follower.progress()
            status.why = f"reading the log, {status.rebuild.text('edges')}"
            return

        # The first answer of each kind is slow, so it goes to no caller.
        self._answerer.compute(follower, warm_up_requests(follower.view))
        status.ready = True
        status.why = "answering"
        status.rebuild = None
        metrics.rebuild_ratio.set(1)
        # Keep the garbage collector off objects that live as long as the server: a full collection
        # takes 0.2 s, in which nothing is answered.
        gc.freeze()
        logger.info("server_ready", edges=follower.view.edge, version=status.version)

    def _report(self, follower: LogFollower) -> None:
        """Bring status, metrics and heartbeat up to date."""
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
            "ready" if status.ready else "rebuilding",
            edges=view.edge,
            version=status.version,
            newest=view.newest_us,
            answered=status.answered,
            **(status.rebuild.fields() if status.rebuild else {}),
        )
