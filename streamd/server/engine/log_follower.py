"""The server's graph and the version that serves follow the log, one slice at a time."""

import time

from streamd.eventlog.reader import LogReader
from streamd.registry import Registry
from streamd.server.engine.arm_versions import ArmVersions
from streamd.server.engine.freshness import Freshness
from streamd.server.engine.lag import Completeness
from streamd.server.engine.pace import STARTING_SECONDS, Pace
from streamd.server.engine.rebuild import Rebuild, share_caught_up
from streamd.server.engine.status import EngineStatus, NextVersion
from streamd.serving.champion import read_champion
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.requests import NotFinite, Seen
from streamd.serving.serving_settings import ServingSettings
from streamd.serving.swap import CatchingUp, Loading, Swap, Swapped
from streamd.settings.loading import ModelSettings
from streamd.telemetry import metrics
from streamd.telemetry.progress import Reading

SLOW_SECONDS = 5.0
"""A version that loads and catches up faster is not reported, since each window brings one."""
COVER_SECONDS = 0.002
"""Time of one step of the search for popular nodes, while requests wait."""
KEEP_SECONDS = 1.0
"""Interval of the checks whether data must be stored: each reads the compaction request."""


class LogFollower:
    """Owns the graph, the version that serves, and the position that answers report. Owner: the
    engine.

    view: the graph that answers. served: the version that serves, None for the rule. arms: versions
    of the trial's arms. seen: the position in the log that answers report.
    """

    def __init__(
        self,
        settings: ServingSettings,
        registry: Registry,
        reader: LogReader,
        status: EngineStatus,
    ) -> None:
        """Load the stored facts, which can take seconds. status: gets the name of the version that
        serves."""

        def make_view(reader: LogReader, model: ModelSettings) -> ServerGraph:
            return ServerGraph(settings, reader, model)

        # The champion's settings determine the facts.
        manifest, model = read_champion(registry, settings.model)
        self.view = make_view(reader, model)
        self.served: LoadedVersion | None = None
        self.seen = Seen()
        self._status = status
        self._swap = Swap(settings, registry, make_view)
        self.arms = ArmVersions(settings, registry)
        memory_edge = None if manifest is None else self.view.retention.memory_edge(manifest)
        self._rebuild = Rebuild(memory_edge)

        # The position that answers report, and the division of time between log and answers.
        self._complete = Completeness(settings.paths.log, settings.follows)
        self._freshness = Freshness()
        self._pace = Pace()
        self._kept_at = 0.0

    @property
    def _serving(self) -> str:
        """Name of the version that serves, "" for the rule."""
        return "" if self.served is None else self.served.manifest.name

    @property
    def memory_edge(self) -> int:
        """Event id up to which the memory has advanced; the graph's without a version."""
        return self.view.edge if self.served is None else self.served.memory.edge

    @property
    def memory_bytes(self) -> int:
        """Size of the memory of the version that serves, and of those of arms."""
        versions = (*self.arms.versions, *([] if self.served is None else [self.served]))
        # Several versions may share a pool of pages.
        pools = {id(one.memory.rows.pool): one.memory.rows.pool for one in versions}
        return sum(pool.num_bytes for pool in pools.values())

    @property
    def has_caught_up(self) -> bool:
        """Whether the graph has the whole log, and no version loads or catches up, nor one
        of an arm."""
        is_caught_up = self.view.caught_up and self.view.candidates.covers_all
        return is_caught_up and not self._swap.is_under_way and not self.arms.is_under_way

    @property
    def _catching_up(self) -> bool:
        """Whether the next version still catches up with the log."""
        return isinstance(self._swap.state, CatchingUp)

    @property
    def next_version(self) -> NextVersion | None:
        """The next version, if it has been loading or catching up for SLOW_SECONDS."""
        state = self._swap.state
        if not isinstance(state, Loading | CatchingUp):
            return None
        if time.monotonic() - state.since < SLOW_SECONDS:
            return None
        if isinstance(state, Loading):
            return NextVersion(state.name, 0.0)
        served = state.served
        return NextVersion(
            None if served is None else served.manifest.name,
            share_caught_up(state, self.view),
        )

    def progress(self) -> Reading:
        """The progress of rebuilding graph, facts and memory."""
        return self._rebuild.at(self.view, self._swap.state)

    def step(self) -> bool:
        """Do one slice. Returns: whether events were read or a version catches up, so that the next
        slice should follow at once.

        1. Read the report of ingest before the log, so that the graph becomes newer than the
           report. In the other order, the report would have an effect only one step later.
        2. Follow the log.
        3. Advance the next version, and swap it in once it is ready. No request is computed
           meanwhile, so none sees half a swap.
        4. Publish the position, after a swap that of the new graph: answers from it must not report
           the old graph's position.
        """
        # 1. Read the report of ingest.
        self._complete.read_report(time.monotonic())
        until = self._pace.begin(self._status.ready)
        # 2. Follow the log.
        is_behind = self._follow_log(until)
        # 3. Follow the versions.
        self._follow_versions(until)
        is_busy = is_behind or self._catching_up
        self._pace.end(is_busy)
        # 4. Publish the position.
        self._publish_position()
        return is_busy

    def _follow_log(self, until: float) -> bool:
        """Add new events of the log to the graph, then advance memory over closed chunks. until:
        monotonic seconds at which to stop. Returns: whether work is left."""
        # The graph gets half of the time, so that memory also advances while the log grows fast.
        # While another version catches up, graph and memory together get half of the time.
        view = self.view
        is_ready = self._status.ready
        now = time.monotonic()
        if self._catching_up:
            until = (now + until) / 2
        while True:
            num_taken = view.follow(answering=is_ready)
            self._freshness.notice(view.log.num_edges, view.log.committed_at, is_ready)
            if not num_taken or time.monotonic() >= (now + until) / 2:
                break
        self._freshness.measure(view.edge, time.time())

        # Memory advances even while the graph has a backlog.
        served = self.served
        memory_behind = served is not None and served.follow_until(
            until, view.log, view.edge, view.watermark
        )
        arms_behind = self.arms.step(view, self._serving, until)
        if num_taken or memory_behind or arms_behind:
            return True
        seconds = COVER_SECONDS if is_ready else STARTING_SECONDS
        if not view.candidates.cover(time.monotonic() + seconds):
            return True
        metrics.caught_up_at.set(time.time())
        return False

    def _follow_versions(self, until: float) -> None:
        """Advance the swap of versions, and answer with its graph and version once they are ready.
        until: monotonic seconds."""
        state = self._swap.step(self.view, self._serving or None, until)
        if isinstance(state, Swapped):
            before, self.view = self.served, state.view
            self._serve(state.served)
            self.arms.adopt(before, self._serving, state.view)

    def stop_serving(self, error: NotFinite) -> None:
        """Answer with the rule until another version is loaded; if the version of an arm failed,
        with the champion in that arm. This process never loads the failed version again."""
        if self.arms.has(error.version):
            self.arms.refuse(error.version, error)
            return
        if self.served is not None:
            self._swap.refuse(self.served.manifest.name, error)
        self._serve(None)

    def _serve(self, served: LoadedVersion | None) -> None:
        self.served = served
        self._status.name_version(None if served is None else served.manifest)

    def _publish_position(self) -> None:
        """Set the position that answers report."""
        included = self.view.included
        self._complete.advance(included, self.view.looked_at)
        self.seen = Seen(included.term, included.seq, self._complete.until)

    def keep(self) -> None:
        """Store the data that a restart needs, if some is due; checked every KEEP_SECONDS."""
        if self.view.caught_up and time.monotonic() - self._kept_at >= KEEP_SECONDS:
            self._kept_at = time.monotonic()
            self.view.retention.keep(self.served)
