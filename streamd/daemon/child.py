"""The process of one role under the supervisor, as a state machine."""

import subprocess
from enum import Enum, auto


class ChildState(Enum):
    """The state of a role's process.

    PAUSED --> RUNNING --> PAUSED      it died, and starts again after a pause
                  |------> REPLACED    --> RUNNING with other settings, once it has ended
                  +------> ENDED       it is never started again
    """

    PAUSED = auto()
    """No process runs; one starts when the pause is over."""
    RUNNING = auto()
    """A process runs, as far as the supervisor knows."""
    REPLACED = auto()
    """The process was asked to end, and another one starts at once after it."""
    ENDED = auto()
    """The role refused its settings or data, or never ran."""


MAY_FOLLOW: dict[ChildState, frozenset[ChildState]] = {
    ChildState.PAUSED: frozenset({ChildState.RUNNING}),
    ChildState.RUNNING: frozenset({ChildState.PAUSED, ChildState.REPLACED, ChildState.ENDED}),
    ChildState.REPLACED: frozenset({ChildState.RUNNING}),
    ChildState.ENDED: frozenset(),
}
"""State -> the states that may follow it."""


class Child:
    """One role, or one of several servers. Owner: the supervisor.

    name: of the role or server. process: None in the states PAUSED and ENDED. started_at, due_at:
    monotonic seconds of the last start, and of the next one in state PAUSED. num_failures: deaths
    in a row, each soon after a start. is_proven: whether a process of the role ever sent a
    heartbeat: then it is started again however often it dies.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ChildState.PAUSED
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0
        self.num_failures = 0
        self.is_proven = False

    def transition(self, state: ChildState) -> None:
        """Enter a state, which must be one that may follow the present one."""
        assert state in MAY_FOLLOW[self.state], f"{self.name}: {self.state.name} -> {state.name}"
        self.state = state

    def start(self, process: subprocess.Popen[bytes], now: float) -> None:
        """Record that a process started. now: monotonic seconds."""
        self.transition(ChildState.RUNNING)
        self.process = process
        self.started_at = now

    def replace(self) -> None:
        """Ask the process to end, so that another one starts. Does nothing in state PAUSED, since
        the next process has the new settings anyway."""
        if self.process is None:
            return
        if self.state is ChildState.RUNNING:
            self.transition(ChildState.REPLACED)
        self.process.terminate()

    def pause(self, due_at: float) -> None:
        """Record that the process died, and the monotonic time of the next start."""
        self.transition(ChildState.PAUSED)
        self.process = None
        self.due_at = due_at

    def end(self) -> None:
        """Record that the process ended and is not started again."""
        self.transition(ChildState.ENDED)
        self.process = None
