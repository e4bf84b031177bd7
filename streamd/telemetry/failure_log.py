"""Lasting failures, for example of an unreachable store: retried continually, logged from time to
time."""

import time
from collections.abc import Callable

REPEAT_SECONDS = 300.0
"""A lasting failure is logged once, then at this interval."""


class LastingFailures:
    """Decides which failures are logged. Owner: the loop that retries."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """monotonic: seconds of a clock that never goes backwards."""
        self._monotonic = monotonic
        self._logged_at: dict[str, float] = {}

    def is_due(self, kind: str) -> bool:
        """Whether to log a failure: the first of its kind, and then one every REPEAT_SECONDS.

        kind: constant while the failure lasts; the failure's text may contain another file each
        time.
        """
        now = self._monotonic()
        if now - self._logged_at.get(kind, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        self._logged_at[kind] = now
        return True

    def over(self, kind: str | None = None) -> None:
        """Record a success: the next failure is a new one. kind: None for all kinds."""
        if kind is None:
            self._logged_at.clear()
        else:
            self._logged_at.pop(kind, None)
