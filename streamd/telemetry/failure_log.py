"""Decides when to log a failure that lasts, for example of an unreachable store, while its work is
retried continually."""

import time
from collections.abc import Callable
from typing import Any

import structlog

logger = structlog.get_logger()

REPEAT_SECONDS = 300.0
"""A lasting failure is logged once, then at this interval."""


NoteFailure = Callable[[str, str], None]
"""Reports that a task fails, or no longer does: (its name, the error or "")."""


def ignore(task: str, error: str) -> None:
    """A `NoteFailure` that reports nothing."""


class LastingFailures:
    """Decides which failures are logged. Owner: the loop that retries."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """monotonic: seconds of a clock that never goes backwards."""
        self._monotonic = monotonic
        self._logged_at: dict[str, float] = {}
        self._failed_at: float | None = None
        """Time of the first failure since the last success."""

    def is_due(self, kind: str) -> bool:
        """Whether to log a failure: the first of its kind, and then one every REPEAT_SECONDS.

        kind: constant while the failure lasts; the failure's text may contain another file each
        time.
        """
        now = self._monotonic()
        if self._failed_at is None:
            self._failed_at = now
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
        if not self._logged_at:
            self._failed_at = None

    def end(self, event: str, **fields: Any) -> None:
        """Record a success, and log it with the time since the first failure, if there was one.

        event, fields: of the log line.
        """
        if self._failed_at is not None:
            seconds = round(self._monotonic() - self._failed_at)
            logger.info(event, **fields, failed_seconds=seconds)
        self.over()
