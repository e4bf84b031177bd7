"""Failures that last, as of a store that is away: they are tried again and again, and logged now
and then."""

import time
from collections.abc import Callable

REPEAT_SECONDS = 300.0
"""A lasting failure is logged once, then at this interval."""


class LastingFailures:
    """Says which failures are to be logged. Owner: the loop that tries again."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """monotonic: seconds of a clock that never goes backwards."""
        self._monotonic = monotonic
        self._logged_at: dict[str, float] = {}

    def is_due(self, kind: str) -> bool:
        """Whether a failure that just came is to be logged: the first of its kind, and then one
        each REPEAT_SECONDS.

        kind: what stays the same while the failure lasts; its text may name another file each time.
        """
        now = self._monotonic()
        if now - self._logged_at.get(kind, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        self._logged_at[kind] = now
        return True

    def over(self) -> None:
        """Say that all is well: the next failure is a new one."""
        self._logged_at.clear()
