"""Times in the cells of a table, and the error for a cell that cannot be read."""

import datetime
from typing import Any

from streamd.clock import Clock, time_us, utc
from streamd.errors import SettingsError
from streamd.events import MAX_TIME_US, MICROSECONDS
from streamd.iso_times import iso_us

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


class Misfit(ValueError):
    """A cell cannot be read. action: for the operator. `at` adds the cell's position."""

    def __init__(self, what: str, action: str = "correct it in the file.") -> None:
        super().__init__(what)
        self.action = action

    def at(self, position: str) -> SettingsError:
        """The error with a position, such as file and row."""
        return SettingsError(f"{position}: {self}.", self.action)


class Times:
    """Reads the times of one file and remembers their range. Owner: the thread that reads the file.

    Integers are in `unit`. Text is ISO 8601, in UTC if it names no zone; digits below a
    microsecond are cut. `read` returns times in the unit `out`.
    """

    def __init__(self, unit: str, out: str, max_ahead_seconds: float, clock: Clock) -> None:
        self._unit = unit
        self._out = out
        self._clock = clock
        self._max_ahead_us = int(max_ahead_seconds * 1e6)
        self._first_us = MAX_TIME_US
        self._last_us = -1
        self._forms: dict[str, None] = {}

    @property
    def unit_us(self) -> int:
        """Microseconds in the unit of the times that `read` returns."""
        return MICROSECONDS[self._out]

    def read(self, value: Any, of_event: bool = True) -> int:
        """Read one cell. of_event: whether to extend the range by it. Raises: Misfit."""
        taken_us, form = self._microseconds(value)
        self.check(taken_us, value)
        if taken_us % MICROSECONDS[self._out]:
            raise Misfit(
                f"{value!s} is finer than {UNITS[self._out]}",
                "set stream.time_unit to us, or round it.",
            )
        if of_event:
            self.extend(taken_us, taken_us, form)
        return taken_us // MICROSECONDS[self._out]

    def check(self, taken_us: int, value: Any) -> None:
        """Refuse a time before 1970, or further ahead of the clock than ingest takes.

        Raises: Misfit.
        """
        unit, shown = self._unit, shown_value(value)
        if not 0 <= taken_us <= MAX_TIME_US:
            raise Misfit(
                f"the time {shown} is out of range",
                f"correct it; integers are read in {UNITS[unit]}.",
            )
        if taken_us > self._clock.now_us() + self._max_ahead_us:
            raise Misfit(
                f"the time {shown} is {utc(taken_us)}, further ahead of the clock than "
                f"ingest.max_ahead_seconds ({self._max_ahead_us / 1e6:g})",
                f"correct it, or its unit; integers are read in {UNITS[unit]}.",
            )

    def extend(self, first_us: int, last_us: int, form: str) -> None:
        """Extend the range to these times. form: their notation, as text."""
        self._first_us = min(self._first_us, first_us)
        self._last_us = max(self._last_us, last_us)
        self._forms[form] = None

    def summary(self) -> str:
        """The range in UTC and the notation of the times, for people."""
        if self._last_us < 0:
            return "no times"
        forms = " and ".join(self._forms)
        return f"times {utc(self._first_us)} to {utc(self._last_us)}, read as {forms}"

    def _microseconds(self, value: Any) -> tuple[int, str]:
        """A cell in microseconds, and its notation. Raises: Misfit."""
        if type(value) is str:
            try:
                number = int(value)
            except ValueError:
                return self._iso(value), "ISO 8601"
            # Python reads 1_000 as a number.
            if "_" in value:
                raise self._unreadable(value)
            value = number
        if type(value) is int:
            return value * MICROSECONDS[self._unit], UNITS[self._unit]
        if isinstance(value, datetime.datetime):
            return time_us(value), "timestamps"
        raise self._unreadable(value)

    def _iso(self, text: str) -> int:
        """ISO 8601 text in microseconds. Raises: Misfit."""
        try:
            return iso_us(text.strip())
        except ValueError:
            raise self._unreadable(text) from None

    def _unreadable(self, value: Any) -> Misfit:
        if value is None:
            return Misfit("there is no value")
        return Misfit(
            f"{shown_value(value)} is neither an integer in {UNITS[self._unit]} "
            "nor an ISO 8601 time such as 2026-01-31T00:00:00Z"
        )


def shown_value(value: Any) -> str:
    """A value for an error, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
