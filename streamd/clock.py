"""Time as an argument: the wall clock for production, a hand-moved one for tests."""

import datetime
import time
from typing import Protocol

import numpy as np

from streamd.errors import SettingsError


class Clock(Protocol):
    """What streamd needs to know about time."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring waits."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def parse_time_us(text: str, name: str) -> int:
    """Microseconds since the epoch of an ISO 8601 time, UTC where it names no zone. Raises:
    SettingsError."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{name} is {text!r}, which is not an ISO 8601 time like 2026-01-31T00:00:00Z."
        ) from None
    return time_us(when)


def time_us(when: datetime.datetime) -> int:
    """Microseconds since the epoch of a time, in UTC where it has no zone."""
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return round(
        (when.replace(tzinfo=when.tzinfo or datetime.UTC) - epoch)
        / datetime.timedelta(microseconds=1)
    )


def utc(time_us: int) -> str:
    """Microseconds since the epoch as ISO 8601 in UTC, also beyond the year 9999 where Python's own
    dates end."""
    text = str(np.datetime64(time_us, "us"))
    return f"{text.rstrip('0').removesuffix('.')}Z"
