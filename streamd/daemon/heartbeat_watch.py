"""Measures the silence of roles: the time since the last heartbeat of each role's process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamd.telemetry.heartbeat import HEARTBEAT_SECONDS, read_beat


@dataclass(slots=True)
class _Observation:
    """The heartbeats of one process so far.

    heartbeat_ns: time of the newest one, nanoseconds. has_begun: whether it sent any. read_at:
    monotonic seconds of the last read. silent_seconds: observed time without a heartbeat.
    """

    heartbeat_ns: int
    has_begun: bool
    read_at: float
    silent_seconds: float


class HeartbeatWatch:
    """Measures for how long the process of each role has sent no heartbeat.

    A thread of each role sends one every second, even during a long compilation or read. Time
    counts only while this object reads the files, so a pause of the supervisor or of the whole
    machine makes no role silent. Owner: the supervisor.
    """

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        """folder_of: role name -> the data directory of its heartbeat."""
        self._folder_of = folder_of
        self._observed: dict[str, _Observation] = {}

    def begin(self, name: str, now: float) -> None:
        """Start to observe a new process of a role. A heartbeat that is already in the file is of
        the process before. now: monotonic seconds."""
        self._observed[name] = _Observation(self._read(name)[0], False, now, 0.0)

    def has_begun(self, name: str) -> bool:
        """Whether the process of a role sent a heartbeat, itself or through its first rank."""
        self._observe(name)
        return self._observed[name].has_begun

    def silent_seconds(self, name: str, now: float) -> float:
        """Seconds since the last heartbeat of a role's process, 0 before its first one, which may
        take any time. Reads the file at most every HEARTBEAT_SECONDS. now: monotonic seconds."""
        observed = self._observed[name]
        passed = now - observed.read_at
        if passed < HEARTBEAT_SECONDS:
            return observed.silent_seconds
        observed.read_at = now
        exists = self._observe(name)
        # A rank that ended is not silent: torchrun restarts it, or ends too.
        if observed.has_begun and exists:
            # A longer pause means that the supervisor itself was stopped.
            observed.silent_seconds += min(passed, 2 * HEARTBEAT_SECONDS)
        return observed.silent_seconds

    def _observe(self, name: str) -> bool:
        """Record the newest heartbeat of a role. Returns: whether the process that sent it
        exists."""
        observed = self._observed[name]
        heartbeat_ns, exists = self._read(name)
        if heartbeat_ns != observed.heartbeat_ns:
            observed.heartbeat_ns = heartbeat_ns
            observed.has_begun = True
            observed.silent_seconds = 0.0
        return exists

    def _read(self, name: str) -> tuple[int, bool]:
        """Read the time of a role's newest heartbeat in nanoseconds, 0 if there is none, and
        whether its process exists."""
        beat = read_beat(self._folder_of(name), name)
        return (0, False) if beat is None else (beat.heartbeat_ns, beat.exists)
