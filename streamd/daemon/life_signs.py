"""The roles' signs of life, which the supervisor reads from their heartbeat files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamd.telemetry.heartbeat import SIGN_SECONDS, read_beat


@dataclass(slots=True)
class _Watched:
    """The observations of one process.

    sign_ns: time of its newest sign. has_begun: whether it gave one. looked: monotonic seconds of
    the last look. silent: seconds without a sign since.
    """

    sign_ns: int
    has_begun: bool
    looked: float
    silent: float


class LifeSigns:
    """Measures how long the process of each role has given no sign of life.

    A thread of each role gives one every second, also while the role compiles or reads for a long
    time. Only time in which this object looked counts, so that a pause of the supervisor or of the
    whole machine makes no role silent. Owner: the supervisor.
    """

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        """folder_of: role name -> the data directory of its heartbeat."""
        self._folder_of = folder_of
        self._watched: dict[str, _Watched] = {}

    def begin(self, name: str, now: float) -> None:
        """Note that a process of a role starts; older files are of the process before. Until its
        first sign it may take any time. now: monotonic seconds."""
        self._watched[name] = _Watched(self._look(name)[0], False, now, 0.0)

    def has_begun(self, name: str) -> bool:
        """Whether the process of a role gave a sign, itself or through its first rank."""
        self._see(name)
        return self._watched[name].has_begun

    def silent_seconds(self, name: str, now: float) -> float:
        """Seconds since the last sign of a role's process; looks once in SIGN_SECONDS. now:
        monotonic seconds."""
        watched = self._watched[name]
        # Reading a small file ten times a second would be no use.
        passed = now - watched.looked
        if passed < SIGN_SECONDS:
            return watched.silent
        watched.looked = now
        exists = self._see(name)
        # A rank that ended is started again by torchrun, which ends too if that fails.
        if watched.has_begun and exists:
            # Longer pauses are of a supervisor that was stopped itself.
            watched.silent += min(passed, 2 * SIGN_SECONDS)
        return watched.silent

    def _see(self, name: str) -> bool:
        """Note the newest sign of a role. Returns: whether the process that gave it exists."""
        watched = self._watched[name]
        sign_ns, exists = self._look(name)
        if sign_ns != watched.sign_ns:
            watched.sign_ns = sign_ns
            watched.has_begun = True
            watched.silent = 0.0
        return exists

    def _look(self, name: str) -> tuple[int, bool]:
        """Time of a role's newest sign, 0 if there is none, and whether its process exists."""
        beat = read_beat(self._folder_of(name), name)
        return (0, False) if beat is None else (beat.sign_ns, beat.exists)
