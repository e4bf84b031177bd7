"""The versions of a trial's arms, which follow the log next to the version that serves."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from streamd.errors import StreamdError, VersionError
from streamd.models.memory.files import MemoryReader
from streamd.registry import Registry
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.requests import Recommend, Request, Score
from streamd.serving.serving_settings import ServingSettings
from streamd.telemetry import trial_metrics

logger = structlog.get_logger()
LOOK_SECONDS = 1.0
"""Interval at which the registry is asked for the versions of the arms."""
LOAD_ERRORS = (StreamdError, OSError, RuntimeError, ValueError)
"""Errors of a damaged version or registry, and of one that is being written."""
NOT_SERVED = "the champion answers in this arm, and streamd_trial_fallbacks_total counts it"


@dataclass(frozen=True, slots=True)
class _Look:
    """The versions of the arms in the registry, and one of them that was missing here.

    versions: arm -> name. view: the graph with the log for which it was restored. refused: the name
    of a version that cannot answer.
    """

    versions: Mapping[str, str]
    view: ServerGraph
    loaded: LoadedVersion | None = None
    refused: str = ""


class ArmVersions:
    """Loads the versions of arms, lets their memories follow the log, and drops those that no arm
    has any more. Owner: the log follower.

    Memory: weights and node memory of each version, and for a moment of one more while the version
    of an arm changes.
    """

    def __init__(self, settings: ServingSettings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._arms = settings.version_arms
        self._names: Mapping[str, str] = {}
        """The version of each arm by the newest look."""
        self._serving = ""
        """Name of the version that serves as champion."""
        self._loaded: dict[str, LoadedVersion] = {}
        """Versions with a memory that has caught up with the log, by name."""
        self._next: LoadedVersion | None = None
        """A version with a memory that catches up."""
        self._by_arm: dict[str, LoadedVersion] = {}
        """Arm -> the version that answers in it, not of arms that the champion answers."""
        self._looking: Future[_Look] | None = None
        self._loader = ThreadPoolExecutor(1, "load-arm")
        self._memories = MemoryReader()
        """Owner: the loader's thread."""
        self._refused: set[str] = set()
        self._gone: set[str] = set()
        """Arms without a version in the registry."""
        self._looked_at = -LOOK_SECONDS
        self._has_looked = not self._arms
        self._view: ServerGraph | None = None

    @property
    def by_arm(self) -> Mapping[str, LoadedVersion]:
        """Arm -> the version that answers; a version arm without one has the champion."""
        return self._by_arm

    @property
    def versions(self) -> tuple[LoadedVersion, ...]:
        """The versions with a memory that follows the log."""
        following = self._loaded.values()
        return (*following, self._next) if self._next is not None else tuple(following)

    @property
    def is_under_way(self) -> bool:
        """Whether a version is loaded or catches up, or none was looked for yet."""
        is_missing = any(
            name not in self._loaded and name != self._serving and name not in self._refused
            for name in self._names.values()
        )
        return not self._has_looked or self._next is not None or is_missing

    def step(self, view: ServerGraph, serving: str, until: float) -> bool:
        """Advance by a slice. view, serving: the graph and the name of the version that answer,
        "" for the rule. until: monotonic seconds. Returns: whether memory lags the log, so
        that the next slice should follow at once.

        1. Forget the versions if another graph answers: they follow the log of the old one.
        2. Look up the versions of the arms, and load one that is missing.
        3. Let each memory follow the log by at least one chunk.
        4. Choose the version of each arm. One that is replaced answers until the next has caught
           up.
        """
        if not self._arms:
            return False
        self._serving = serving
        # 1. Another graph.
        if view is not self._view:
            self._view, self._next, self._looking = view, None, None
            self._loaded, self._by_arm = {}, {}
        # 2. The registry.
        self._look(view)
        # 3. The log.
        is_behind = [
            one.follow_until(until, view.log, view.edge, view.watermark)
            for one in self._loaded.values()
        ]
        is_behind.append(self._catch_up(view, until))
        # 4. The arms.
        self._choose()
        return any(is_behind)

    def adopt(self, served: LoadedVersion | None, serving: str, view: ServerGraph) -> None:
        """Keep a version that served until now, if it is that of an arm: it has followed the log.
        serving, view: as in `step`, from now on."""
        self._serving = serving
        if served is None or view is not self._view:
            return
        if served.manifest.name in self._names.values():
            self._loaded[served.manifest.name] = served
            self._choose()

    def refuse(self, name: str, error: Exception) -> None:
        """Let a version answer no more, since its output is not finite."""
        logger.error("arm_not_served", version=name, error=str(error), meaning=NOT_SERVED)
        self._refused.add(name)
        self._loaded.pop(name, None)
        self._choose()

    def has(self, name: str) -> bool:
        """Whether a version answers in an arm."""
        return any(one.manifest.name == name for one in self._by_arm.values())

    def count_fallbacks(self, requests: Iterable[Request]) -> None:
        """Count the requests that the champion answers in arms without their version."""
        if not self._arms:
            return
        for request in requests:
            arm = request.arm if isinstance(request, Score | Recommend) else ""
            # The champion itself may be the version of an arm.
            name = self._names.get(arm, "")
            if arm in self._arms and arm not in self._by_arm and name != self._serving:
                trial_metrics.fallbacks.labels(arm).inc()

    def _look(self, view: ServerGraph) -> None:
        """Take the result of a look at the registry, or start the next one."""
        if self._looking is None:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS and self._next is None:
                self._looked_at = now
                known = frozenset(self._loaded) | self._refused | {self._serving}
                self._looking = self._loader.submit(self._find, view, known)
            return
        if not self._looking.done():
            return
        look, self._looking = self._looking.result(), None
        self._has_looked = True
        gone = set(self._arms) - set(look.versions)
        for arm in sorted(gone - self._gone):
            logger.warning("arm_without_version", arm=arm, meaning=NOT_SERVED)
        self._names, self._gone = look.versions, gone
        if look.refused:
            self._refused.add(look.refused)
        if look.loaded is not None and look.view is view:
            self._next = look.loaded
            view.log.follow(look.loaded)
            # Another one may be missing.
            self._looked_at = -LOOK_SECONDS

    def _find(self, view: ServerGraph, known: frozenset[str]) -> _Look:
        """Find the versions of the arms, and load the first that is not known. Runs in the loader's
        thread."""
        try:
            move = self._registry.shown()
            versions = self._registry.arm_versions(move.champion if move else "")
        except LOAD_ERRORS as error:
            # A trial must not stop the server, which may read the registry the next time.
            logger.error("arms_not_found", error=str(error), meaning="they keep their versions")
            return _Look(self._names, view)
        missing = [name for name in versions.values() if name not in known]
        if not missing:
            return _Look(versions, view)
        name = missing[0]
        try:
            loaded = self._load(name, view)
        except LOAD_ERRORS as error:
            logger.error("arm_not_served", version=name, error=str(error), meaning=NOT_SERVED)
            return _Look(versions, view, refused=name)
        return _Look(versions, view, loaded)

    def _load(self, name: str, view: ServerGraph) -> LoadedVersion | None:
        """Load a version. Returns: None if this machine does not have the log up to its event yet.
        Raises: StreamdError, OSError, RuntimeError, ValueError."""
        manifest, log = self._registry.manifest(name), view.log
        if self._settings.follows and manifest.edge > log.num_edges:
            return None
        if not view.suits(manifest.model_settings()):
            raise VersionError(
                f"Version {name} has another model.half_lives_seconds, max_pairs or direction than "
                "the champion.",
                "choose another version for the arm.",
            )
        if not log.first_edge <= manifest.edge <= log.num_edges:
            raise VersionError(
                f"Version {name} is at event {manifest.edge}, but the log has events "
                f"[{log.first_edge}, {log.num_edges}).",
                "choose a newer version for the arm, or a longer retention.",
            )
        version = self._registry.load(name)
        return LoadedVersion.restored(
            version, log.state.schema, self._settings.device, self._memories
        )

    def _catch_up(self, view: ServerGraph, until: float) -> bool:
        """Let the next version's memory follow the log. Returns: whether it lags."""
        served = self._next
        if served is None:
            return False
        if served.follow_until(until, view.log, view.edge, view.watermark):
            return True
        if served.memory.edge <= view.edge:
            self._loaded[served.manifest.name] = served
            self._next = None
        return False

    def _choose(self) -> None:
        """Choose the version of each arm, and drop the versions that no arm has."""
        chosen: dict[str, LoadedVersion] = {}
        for arm, name in self._names.items():
            if name == self._serving:
                continue
            # The version before answers while the next one catches up, unless it is refused.
            present = self._by_arm.get(arm)
            if present is not None and present.manifest.name in self._refused:
                present = None
            one = self._loaded.get(name, None if name in self._refused else present)
            if one is not None:
                chosen[arm] = one
        self._by_arm = chosen
        kept = {*self._names.values(), *(one.manifest.name for one in chosen.values())}
        self._loaded = {name: one for name, one in self._loaded.items() if name in kept}
