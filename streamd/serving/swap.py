"""The swap of versions: a thread loads the next one, which then catches up in slices and serves."""

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
"""Interval at which the registry is asked for the champion: each time reads a file."""
MakeView = Callable[[LogReader, ModelSettings], ServerGraph]
"""Makes a graph of a log, by the settings of a version."""

PROMOTE_ANOTHER = "promote another version, or wait for the trainer's next one."
FALLBACK_NOTE = (
    "the last proven version or the rule answers until another version is champion; this one is "
    "retried only when the server restarts"
)


@dataclass(frozen=True, slots=True)
class Idle:
    """The version that should serve did so at the last check of the registry, or none could."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A thread loads a version. since: monotonic time at which the change was noticed.

    name: None for the rule, which needs only the graph.
    """

    name: str | None
    since: float
    loaded: Future[tuple[LoadedVersion | None, ServerGraph]]


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The memory of a version advances to the end of the log. So does a graph of its own, if the
    version needs other facts or the log got further sets or features.

    served: None for the rule. since: as in `Loading`. from_edge: event id at which its memory
    started.
    """

    served: LoadedVersion | None
    view: ServerGraph
    since: float
    from_edge: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """From now on, this version (None for the rule) serves with this graph."""

    served: LoadedVersion | None
    view: ServerGraph


@dataclass(frozen=True, slots=True)
class Refused:
    """A version cannot serve. error: the reason."""

    name: str
    error: str


State = Idle | Loading | CatchingUp | Swapped | Refused


class Swap:
    """The state machine of the swap. It also remembers the versions that cannot serve.

        Idle --> Loading --> CatchingUp --> Swapped --> as Idle
                  |   |          |
                  |   +----------+--------> Refused --> as Idle
                  |
                  +--> Idle, if loading failed and another version should serve by now

    `step` advances it, by more than one state if no wait is needed. Swapped and Refused last until
    the next step; meanwhile the engine takes the new graph and version. Owner: the engine.
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

        serving: name of the version that serves, None for the rule. Returns: the new state.

        1. Look up the version that should serve, and start to load it.
        2. Once it is loaded, subscribe it to the log's changes, before it computes anything:
           embeddings that it caches would otherwise survive deletes.
        3. Let graph, facts and memory catch up with the log. Only then is the version swapped in:
           answers would otherwise lose events that they had before.
        """
        # Each state may follow at once on the one before it.
        state = self.state
        if isinstance(state, Idle | Swapped | Refused):
            # 1. Look up.
            state = self._look_up(view, serving)
        if isinstance(state, Loading):
            # 2. Finish loading.
            state = self._finish_loading(state)
        if isinstance(state, CatchingUp):
            # 3. Catch up.
            state = self._catch_up(state, view, until)
        self.state = state
        return state

    def refuse(self, name: str, error: Exception) -> Refused:
        """Record that a version cannot serve, so that it is not tried again.

        error: the reason; a StreamdError has the operator's action.
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

        # A log with further sets or features needs a new graph, even for the same version.
        name = self._target_name()
        if not view.log.superseded and (name is None or name == serving):
            return Idle()
        return Loading(name, now, self._loader.submit(self._load, name, view))

    def _target_name(self) -> str | None:
        """Name of the champion, or of the shadow if the champion cannot serve.

        Returns: None if neither can.
        """
        # The metric shows operators that another version than the champion answers.
        move = self._registry.shown()
        names = [move.champion, move.shadow] if move else []
        metrics.champion_not_served.set(bool(names) and names[0] in self._refused)
        return next((name for name in names if name and name not in self._refused), None)

    def _load(
        self, name: str | None, view: ServerGraph
    ) -> tuple[LoadedVersion | None, ServerGraph]:
        """Load a version in the loader's thread, and make a new graph for it if the present one
        does not suit.

        Raises: VersionError, OSError.
        """
        # The present graph lacks the sets and features that the log got since.
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

        # The version needs a new graph, with facts by its settings.
        if not view.suits(model):
            logger.warning(
                "facts_rebuilt",
                version=served.manifest.name,
                reason="the version has another model.half_lives_seconds, max_pairs or direction",
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

        # Any other error is a defect: it ends the role, which is better than wrong answers.
        try:
            served, view = state.loaded.result()
        except NewerSchemaError:
            # The log was extended since the graph's reader refreshed; the reader will notice too.
            return Idle()
        except (StreamdError, OSError, RuntimeError, ValueError) as error:
            # No error if the version should no longer serve: it may have been removed meanwhile.
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

        # On a machine that follows another one, the log may arrive later than the version, for
        # example after a start from a manifest.
        ahead = served is not None and served.manifest.edge > log.num_edges
        if ahead and self._settings.follows:
            if next_view is not view:
                next_view.follow()
            return state

        # Retention may have dropped its event while it was loaded, or it may belong to another log.
        if served is not None and not log.first_edge <= served.manifest.edge <= log.num_edges:
            error = VersionError(
                f"Version {served.manifest.name} is at event {served.manifest.edge}, but the log "
                f"has events [{log.first_edge}, {log.num_edges}).",
                PROMOTE_ANOTHER,
            )
            return self.refuse(served.manifest.name, error)

        # It must not serve before graph, facts and memory are at the end of the log.
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
