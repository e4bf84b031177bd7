"""The clock interface: the machine's clock in production, a manual one in tests."""

import datetime
import time
from typing import Protocol

import numpy as np

from streamd.errors import SettingsError
from streamd.iso_times import iso_us


class Clock(Protocol):
    """The interface of a clock."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes backwards, for measuring waits."""

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def parse_time_us(text: str, name: str) -> int:
    """Parse an ISO 8601 time as microseconds since the epoch; without a zone it is UTC.

    name: of the option or setting, for the error. Raises: SettingsError.
    """
    try:
        return iso_us(text)
    except ValueError:
        raise SettingsError(
            f"{name} is {text!r}, which is not an ISO 8601 time.",
            "write it as 2026-01-31T00:00:00Z.",
        ) from None


def time_us(when: datetime.datetime) -> int:
    """Convert a time to microseconds since the epoch; without a zone it is UTC."""
    # Integer division of time differences is exact; `timestamp()` in float seconds is not.
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    since = when.replace(tzinfo=when.tzinfo or datetime.UTC) - epoch
    return since // datetime.timedelta(microseconds=1)


def utc(time_us: int) -> str:
    """Format microseconds since the epoch as ISO 8601 in UTC, also after the year 9999, the last of
    Python's `datetime`."""
    # numpy always writes six decimals; remove trailing zeros.
    text = str(np.datetime64(time_us, "us"))
    return f"{text.rstrip('0').removesuffix('.')}Z"
