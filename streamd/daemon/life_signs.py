"""The signs of life that roles give by their heartbeats' files, as the supervisor sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamd.telemetry.heartbeat import SIGN_SECONDS, read_beat


@dataclass(slots=True)
class _Watched:
    """What was seen of one process.

    sign_ns: its newest sign. has_begun: whether it gave one. looked: monotonic seconds.
    silent: seconds for which it has given none since.
    """

    sign_ns: int
    has_begun: bool
    looked: float
    silent: float


class LifeSigns:
    """Counts for how long the process of each role has given no sign of life.

    A thread of each role gives one every second, also while the role compiles or reads for long.
    Only time in which this object looked counts, so that a supervisor which was stopped itself, or
    a machine that slept, makes no role silent. Owner: the supervisor.
    """

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        """folder_of: the data directory in which a role of this name writes its heartbeat."""
        self._folder_of = folder_of
        self._watched: dict[str, _Watched] = {}

    def begin(self, name: str, now: float) -> None:
        """Note that a process of a role starts: what lies there was written before it. Until its
        first sign it may take any time. now: monotonic seconds."""
        self._watched[name] = _Watched(self._look(name)[0], False, now, 0.0)

    def has_begun(self, name: str) -> bool:
        """Whether the process of a role gave a sign, itself or as the first of its ranks."""
        self._see(name)
        return self._watched[name].has_begun

    def silent_seconds(self, name: str, now: float) -> float:
        """For how long the process of a role has given no sign; looks once in SIGN_SECONDS. now:
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
        """Take in the newest sign of a role. Returns: whether the process that gave it exists."""
        watched = self._watched[name]
        sign_ns, exists = self._look(name)
        if sign_ns != watched.sign_ns:
            watched.sign_ns = sign_ns
            watched.has_begun = True
            watched.silent = 0.0
        return exists

    def _look(self, name: str) -> tuple[int, bool]:
        """Time of a role's newest sign, 0 where none is there, and whether its process exists."""
        beat = read_beat(self._folder_of(name), name)
        return (0, False) if beat is None else (beat.sign_ns, beat.exists)
