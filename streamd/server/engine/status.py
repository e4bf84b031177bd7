"""The state of the engine for health checks, the status page and the heartbeat."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from streamd.models.rule import NAME as RULE
from streamd.registry.manifest import Manifest
from streamd.telemetry.progress import Reading


class EngineState(StrEnum):
    """The state of the engine. Its value is the state in the server's heartbeat.

        STARTING --> PREPARING <--> WAITING
                         |
                         +--> REBUILDING --> READY

    FAILED may follow any state.
    """

    STARTING = "starting"
    """The engine's task has not started."""
    PREPARING = "preparing"
    """Another thread compiles the kernels, or opens the log and its stored facts."""
    WAITING = "waiting"
    """Ingest has not created the log yet."""
    REBUILDING = "rebuilding"
    """Graph, facts and memory catch up with the log."""
    READY = "ready"
    """Requests are answered."""
    FAILED = "failed"
    """No request can be answered any more; the process ends."""


MAY_FOLLOW: dict[EngineState, frozenset[EngineState]] = {
    EngineState.STARTING: frozenset({EngineState.PREPARING}),
    EngineState.PREPARING: frozenset({EngineState.WAITING, EngineState.REBUILDING}),
    EngineState.WAITING: frozenset({EngineState.PREPARING}),
    EngineState.REBUILDING: frozenset({EngineState.READY}),
    EngineState.READY: frozenset(),
    EngineState.FAILED: frozenset(),
}
"""State -> the states that may follow it, besides FAILED."""


@dataclass(frozen=True, slots=True)
class NextVersion:
    """The version that will serve, while it loads or catches up. name: None for the rule. share: of
    its events that it has processed, from 0 to 1."""

    name: str | None
    share: float


@dataclass
class EngineStatus:
    """The figures that the status page and the health checks read. Owner: the engine.

    why: the state as a text for people. version: name of the version that serves.
    trained_until_us: end of its training in microseconds, None for the rule. edge: id of the next
    event to read. newest_us: time of the newest event in microseconds. memory_edge: event id up to
    which the memory has advanced. answered: number of processed requests, including errors and the
    server's own recall checks. beat: monotonic seconds of the last slice.
    """

    state: EngineState = EngineState.STARTING
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

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.state is EngineState.READY

    def transition(self, state: EngineState, why: str) -> None:
        """Enter a state, which must be the present one or one that may follow it. why: the state as
        a text for people."""
        may_follow = MAY_FOLLOW[self.state] | {self.state}
        assert state in may_follow, f"{self.state.name} -> {state.name}"
        self.state = state
        self.why = why

    def name_version(self, manifest: Manifest | None) -> None:
        """Set the version that serves from now on; None for the rule."""
        self.version = RULE if manifest is None else manifest.name
        self.trained_until_us = None if manifest is None else manifest.window_end_us

    def fail(self, error: BaseException) -> None:
        """Report that no request can be answered any more: enter FAILED from any state."""
        self.state = EngineState.FAILED
        self.why = f"the engine failed: {error}"
        self.rebuild = None
