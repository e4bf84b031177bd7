"""The heartbeats of the roles' processes, which the supervisor reads from their files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamd.telemetry.heartbeat import HEARTBEAT_SECONDS, read_beat


@dataclass(slots=True)
class _Watched:
    """The observations of one process.

    heartbeat_ns: time of its newest heartbeat. has_begun: whether it sent one. looked: monotonic
    seconds of the last look. silent: seconds without a heartbeat since.
    """

    heartbeat_ns: int
    has_begun: bool
    looked: float
    silent: float


class HeartbeatWatch:
    """Measures how long the process of each role has sent no heartbeat.

    A thread of each role sends one every second, also while the role compiles or reads for a long
    time. Only time in which this object looked counts, so that a pause of the supervisor or of the
    whole machine makes no role silent. Owner: the supervisor.
    """

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        """folder_of: role name -> the data directory of its heartbeat."""
        self._folder_of = folder_of
        self._watched: dict[str, _Watched] = {}

    def begin(self, name: str, now: float) -> None:
        """Note that a process of a role starts; older files are of the process before. Until its
        first heartbeat it may take any time. now: monotonic seconds."""
        self._watched[name] = _Watched(self._look(name)[0], False, now, 0.0)

    def has_begun(self, name: str) -> bool:
        """Whether the process of a role sent a heartbeat, itself or through its first rank."""
        self._see(name)
        return self._watched[name].has_begun

    def silent_seconds(self, name: str, now: float) -> float:
        """Seconds since the last heartbeat of a role's process; looks once in HEARTBEAT_SECONDS.
        now: monotonic seconds."""
        watched = self._watched[name]
        # Reading a small file ten times a second would be no use.
        passed = now - watched.looked
        if passed < HEARTBEAT_SECONDS:
            return watched.silent
        watched.looked = now
        exists = self._see(name)
        # A rank that ended is started again by torchrun, which ends too if that fails.
        if watched.has_begun and exists:
            # Longer pauses are of a supervisor that was stopped itself.
            watched.silent += min(passed, 2 * HEARTBEAT_SECONDS)
        return watched.silent

    def _see(self, name: str) -> bool:
        """Note the newest heartbeat of a role. Returns: whether the process that sent it exists."""
        watched = self._watched[name]
        heartbeat_ns, exists = self._look(name)
        if heartbeat_ns != watched.heartbeat_ns:
            watched.heartbeat_ns = heartbeat_ns
            watched.has_begun = True
            watched.silent = 0.0
        return exists

    def _look(self, name: str) -> tuple[int, bool]:
        """Time of a role's newest heartbeat, 0 if there is none, and whether its process exists."""
        beat = read_beat(self._folder_of(name), name)
        return (0, False) if beat is None else (beat.heartbeat_ns, beat.exists)
