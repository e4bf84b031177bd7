"""The state of the engine for health checks, the status page and the heartbeat."""

import time
from dataclasses import dataclass, field

from streamd.models.rule import NAME as RULE
from streamd.registry.manifest import Manifest
from streamd.telemetry.progress import Reading


@dataclass(frozen=True, slots=True)
class NextVersion:
    """The version that will serve, while it loads or catches up. name: None for the rule. share:
    share of its events that it has processed, from 0 to 1."""

    name: str | None
    share: float


@dataclass
class EngineStatus:
    """The state that the status page and the health checks read. Owner: the engine.

    edge: id of the next event to read. newest_us: time of the newest event in microseconds.
    memory_edge: event id up to which the memory has advanced. answered: number of processed
    requests, including errors and the server's own recall checks. beat: monotonic time of the last
    slice.
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
    next_version: NextVersion | None = None
    """The version that will serve, if it has been loading or catching up for some seconds."""
    beat: float = field(default_factory=time.monotonic)

    def name_version(self, manifest: Manifest | None) -> None:
        """Set the version that serves from now on; None for the rule."""
        self.version = RULE if manifest is None else manifest.name
        self.trained_until_us = None if manifest is None else manifest.window_end_us

    def fail(self, error: BaseException) -> None:
        """Report that no request can be answered any more."""
        self.ready = False
        self.why = f"the engine failed: {error}"
        self.rebuild = None
