"""The times at which events became visible. The log does not store them, so its reader records
them."""

from bisect import bisect_right
from collections import deque

MAX_KEPT = 100_000
"""Maximum number of remembered commits: enough for a quarter of an hour at the highest rate of
ingest."""


class Arrivals:
    """The times at which the log's reader first saw events. Owner: the role's loop.

    Times are seconds of the monotonic clock.
    """

    def __init__(self, num_events: int, now: float) -> None:
        """num_events: in the log by now. All of them count as visible from now on."""
        self._until: deque[int] = deque([num_events], MAX_KEPT)
        self._at: deque[float] = deque([now], MAX_KEPT)

    def note(self, num_events: int, at: float) -> None:
        """Record that the log has `num_events` events since `at`."""
        if num_events > self._until[-1]:
            self._until.append(num_events)
            self._at.append(at)

    def at(self, event: int) -> float:
        """The time at which an event of the log became visible."""
        return self._at[min(bisect_right(self._until, event), len(self._at) - 1)]

    def before(self, moment: float) -> int:
        """One past the newest event that was visible before a moment; 0 if there was none."""
        number = bisect_right(self._at, moment)
        return self._until[number - 1] if number else 0

    def forget(self, event: int) -> None:
        """Forget the events below one: they are scored or skipped."""
        while len(self._until) > 1 and self._until[0] <= event:
            self._until.popleft()
            self._at.popleft()
