"""The swap of versions: the next one is loaded in a thread, catches up in slices, then serves."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from streamd.errors import NewerSchemaError, StreamdError, VersionError
from streamd.eventlog.reader import LogReader
from streamd.models.memory.files import MemoryReader
from streamd.registry import Registry
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import ModelSettings
from streamd.telemetry import metrics

logger = structlog.get_logger()
REGISTRY_SECONDS = 0.1
"""Time between two looks at which version is champion: each reads a file."""
MakeView = Callable[[LogReader, ModelSettings], ServerGraph]
"""Makes a graph of a log, by the settings of a version."""

PROMOTE_ANOTHER = "promote another one, or wait for the trainer's next one, which serves by itself."
FALLBACK_NOTE = (
    "the last proven version or the rule answers until another one is champion; this one is tried "
    "again only when the server starts"
)


@dataclass(frozen=True, slots=True)
class Idle:
    """At the last look at the registry, the version that should serve did so, or none could."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A version is loaded by a thread of its own. since: monotonic time at which it was noticed.

    name: None for the rule, which needs no more than the graph.
    """

    name: str | None
    since: float
    loaded: Future[tuple[LoadedVersion | None, ServerGraph]]


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """A version's memory, and a graph of its own where it needs other facts or the log got further
    sets or features, advance to the end of the log.

    served: None for the rule. since: as in `Loading`. from_edge: event id at which its memory
    began.
    """

    served: LoadedVersion | None
    view: ServerGraph
    since: float
    from_edge: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """A version is to serve from now on, or the rule, with this graph."""

    served: LoadedVersion | None
    view: ServerGraph


@dataclass(frozen=True, slots=True)
class Refused:
    """A version cannot serve. error: why."""

    name: str
    error: str


State = Idle | Loading | CatchingUp | Swapped | Refused


class Swap:
    """The state machine of the swap. It also knows the versions that cannot serve.

        Idle --> Loading --> CatchingUp --> Swapped --> as Idle
                  |   |          |
                  |   +----------+--------> Refused --> as Idle
                  |
                  +--> Idle, where its loading failed and it is no longer the one that should serve

    `step` moves it on, by more than one state where nothing has to be waited for. Swapped and
    Refused last until the next step; the engine takes over what was swapped. Owner: the engine.
    """

    def __init__(self, settings: ServingSettings, registry: Registry, make_view: MakeView) -> None:
        """make_view: makes the graphs that versions need of their own."""
        self._settings = settings
        self._registry = registry
        self._make_view = make_view
        self.state: State = Idle()
        self._refused: set[str] = set()
        """Names of the versions that were tried and cannot serve."""
        self._loader = ThreadPoolExecutor(1, "load-version")
        self._memories = MemoryReader()
        """Owner: the loader's thread."""
        self._looked_at = 0.0

    @property
    def is_under_way(self) -> bool:
        return isinstance(self.state, Loading | CatchingUp)

    def step(self, view: ServerGraph, serving: str | None, until: float = 0.0) -> State:
        """Advance by at least one slice. until: monotonic seconds.

        serving: name of the version that answers, None for the rule. Returns: the new state.
        """
        # Each state may follow at once on the one before, so that nothing waits without need.
        state = self.state
        if isinstance(state, Idle | Swapped | Refused):
            state = self._look_up(view, serving)
        if isinstance(state, Loading):
            state = self._finish_loading(state)
        if isinstance(state, CatchingUp):
            state = self._catch_up(state, view, until)
        self.state = state
        return state

    def refuse(self, name: str, error: Exception) -> Refused:
        """Remember that a version cannot serve, so that it is not tried again.

        error: why; our own errors say what the operator does.
        """
        if not isinstance(error, StreamdError):
            error = VersionError(f"Version {name} failed: {error}.", PROMOTE_ANOTHER)
        if name not in self._refused:
            logger.error(
                "version_not_served", version=name, error=str(error), meaning=FALLBACK_NOTE
            )
        self._refused.add(name)
        return Refused(name, str(error))

    def _look_up(self, view: ServerGraph, serving: str | None) -> Idle | Loading:
        now = time.monotonic()
        if now - self._looked_at < REGISTRY_SECONDS:
            return Idle()
        self._looked_at = now

        # A log that got further sets or features needs a new graph, even for the same version.
        name = self._target_name()
        if not view.log.superseded and (name is None or name == serving):
            return Idle()
        return Loading(name, now, self._loader.submit(self._load, name, view))

    def _target_name(self) -> str | None:
        """Name of the champion, or of the shadow where the champion cannot serve.

        Returns: None where neither can.
        """
        # The metric tells operators that something other than the champion answers.
        move = self._registry.shown()
        names = [move.champion, move.shadow] if move else []
        metrics.champion_not_served.set(bool(names) and names[0] in self._refused)
        return next((name for name in names if name and name not in self._refused), None)

    def _load(
        self, name: str | None, view: ServerGraph
    ) -> tuple[LoadedVersion | None, ServerGraph]:
        """Load a version in the loader's thread, and make a graph of its own for it if the present
        one does not suit.

        Raises: VersionError, OSError.
        """
        # The present graph has neither sets nor features that the log got since.
        log = self._open_log() if view.log.superseded else view.log
        if name is None:
            return None, self._make_view(log, view.model)
        served = LoadedVersion.restored(
            self._registry.load(name),
            log.state.schema,
            self._settings.device,
            self._memories,
        )
        served.take_memory(view.retention.memory, log.num_edges)
        model = served.model.settings
        if log is view.log and view.suits(model):
            return served, view

        # Facts with the version's settings, or of further sets.
        if not view.suits(model):
            logger.warning(
                "facts_made_anew",
                version=served.manifest.name,
                reason="other model.half_lives_seconds or max_pairs",
            )
        log = self._open_log() if log is view.log else log
        return served, self._make_view(log, model)

    def _open_log(self) -> LogReader:
        reader = LogReader.open(self._settings.paths.log)
        assert reader is not None, "a view of it serves"
        return reader

    def _finish_loading(self, state: Loading) -> State:
        if not state.loaded.done():
            return state

        # An error of another kind is a defect: it ends the role, rather than its answers.
        try:
            served, view = state.loaded.result()
        except NewerSchemaError:
            # The log was extended since the graph's reader looked; it will notice too.
            return Idle()
        except (StreamdError, OSError, RuntimeError, ValueError) as error:
            # A version that should no longer serve may have been dropped meanwhile: no error.
            if state.name is None or self._target_name() != state.name:
                return Idle()
            return self.refuse(state.name, error)
        edge = 0
        if served is not None:
            edge = served.memory.edge
            view.log.follow(served)
        return CatchingUp(served, view, state.since, edge)

    def _catch_up(
        self, state: CatchingUp, view: ServerGraph, until: float
    ) -> CatchingUp | Swapped | Refused:
        """Advance a version by at least one slice: first its graph, if it has its own, then its
        memory.

        view: the graph that answers now. until: monotonic seconds.
        """
        served = state.served
        next_view = state.view
        log = next_view.log

        # Where a follower writes the log, it may come later than the version, as after a start from
        # a manifest.
        ahead = served is not None and served.manifest.edge > log.num_edges
        if ahead and self._settings.follows:
            if next_view is not view:
                next_view.follow()
            return state

        # Its event may have been dropped by retention while it was loaded, or be of another log.
        if served is not None and not log.first_edge <= served.manifest.edge <= log.num_edges:
            error = VersionError(
                f"Version {served.manifest.name} is at event {served.manifest.edge}, the log holds "
                f"[{log.first_edge}, {log.num_edges}).",
                PROMOTE_ANOTHER,
            )
            return self.refuse(served.manifest.name, error)

        # Not served before graph, facts and memory are at the log's end.
        if next_view is not view:
            while next_view.follow():
                if time.monotonic() >= until:
                    return state
            if not (next_view.caught_up and next_view.candidates.cover(until)):
                return state
        if served is not None:
            if served.follow_until(until, log, next_view.edge, next_view.watermark):
                return state
            if served.memory.edge > next_view.edge:
                return state

        # Caught up.
        metrics.swaps.inc()
        metrics.swap_seconds.observe(time.monotonic() - state.since)
        return Swapped(served, next_view)
