"""Reads times in the cells of a table; also the error for a cell that cannot be read."""

import datetime
from typing import Any

import numpy as np

from streamd.clock import Clock, utc
from streamd.decode.encoding import Times as TimesOfForm
from streamd.decode.encoding import number_of
from streamd.decode.time_units import (
    DATES,
    EARLIEST_US,
    UNIT_WORDS,
    UNITS_NS,
    OtherUnit,
    UnitCheck,
    other_unit,
)
from streamd.errors import BadEvent, SettingsError
from streamd.events import MAX_TIME_US, MICROSECONDS, Int64
from streamd.ingest.first_times import ACCEPT_SETTING
from streamd.settings.sets import nearest_of

UNIT_OPTION = "--time-unit"
"""The option that names the unit of a table's times."""


class Misfit(ValueError):
    """A cell cannot be read. action: for the operator. `at` adds the cell's position."""

    def __init__(self, what: str, action: str = "correct it in the file.") -> None:
        super().__init__(what)
        self.action = action

    def at(self, position: str) -> SettingsError:
        """Make the error with a position, such as file and row."""
        return SettingsError(f"{position}: {self}.", self.action)


def check_unit(unit: str) -> None:
    """Refuse an unknown unit of times. Raises: SettingsError."""
    if unit not in UNIT_WORDS:
        raise SettingsError(
            f"{UNIT_OPTION} is {unit!r}{nearest_of(unit, UNIT_WORDS)}.", "name one of them."
        )


class Times:
    """Reads the times of one file and keeps their range. Owner: the thread that reads the file.

    Numbers are in `unit`, one of `UNIT_WORDS`. Other text is ISO 8601, in UTC if it has no zone;
    digits below a microsecond are cut. `read` returns times in the unit `out`. Times further than
    `max_ahead_seconds` after the clock are refused.
    """

    def __init__(
        self,
        unit: str,
        out: str,
        max_ahead_seconds: float,
        clock: Clock,
        option: str = UNIT_OPTION,
    ) -> None:
        """option: the option that sets the unit; "" if the unit is fixed."""
        self._numbers = TimesOfForm(unit)
        self._text = TimesOfForm(DATES)
        self._units = UnitCheck(unit, option)
        self._option = option
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

    @property
    def has_unit(self) -> bool:
        """Whether numbers count from 1970; otherwise they are dates in digits."""
        return self._unit != DATES

    def of_integers(self, number_N: Int64) -> Int64:
        """Convert integers to microseconds, int64[n]; `read` has accepted the smallest and the
        largest."""
        time_N = self._numbers.to_microseconds(number_N)
        assert time_N is not None
        return time_N

    def find_other_unit(self) -> OtherUnit | None:
        """The other unit that all times so far look like, None for none."""
        return self._units.found

    def read(self, value: Any, of_event: bool = True) -> int:
        """Read one cell. of_event: extend the range by it. Returns: the time in the unit `out`.
        Raises: Misfit."""
        # Text that is not a number is ISO 8601.
        cell = value.strip() if isinstance(value, str) else value
        is_number = number_of(cell) is not None
        try:
            taken_us = (self._numbers if is_number else self._text).one(cell, "")
        except BadEvent:
            raise self._unreadable(value) from None
        self.check(taken_us, value)
        if taken_us % MICROSECONDS[self._out]:
            raise Misfit(
                f"{value!s} is finer than {UNIT_WORDS[self._out]}",
                "set stream.time_unit to us, or round it.",
            )
        # Only numbers may be of another unit.
        if self._units.is_open and is_number:
            self._units.add(np.array([taken_us]), self._clock.now_us())
        elif not is_number:
            self._units.end()
        if of_event:
            form = "timestamps" if isinstance(value, datetime.datetime) else "ISO 8601"
            form = UNIT_WORDS[self._unit] if is_number else form
            self.extend(taken_us, taken_us, form)
        return taken_us // MICROSECONDS[self._out]

    def check(self, taken_us: int, value: Any) -> None:
        """Refuse a time before 1970, or further ahead of the clock than ingest accepts.

        taken_us: the time, microseconds. value: the cell, for the error. Raises: Misfit.
        """
        shown, now_us = shown_value(value), self._clock.now_us()
        if not 0 <= taken_us <= MAX_TIME_US:
            is_early = EARLIEST_US <= taken_us < 0
            why = f"{utc(taken_us)}, before 1970" if is_early else "out of range"
        elif taken_us > now_us + self._max_ahead_us:
            why = (
                f"{utc(taken_us)}, further ahead of the clock than "
                f"ingest.max_ahead_seconds ({self._max_ahead_us / 1e6:g})"
            )
        else:
            return
        unit = UNIT_WORDS[self._unit]
        named = f" by {self._option}" if self._option else ""
        action = f"correct it, or its unit{named}; numbers are read as {unit}."
        # Timestamps have no unit to correct.
        if isinstance(value, datetime.datetime):
            action = "correct it in the file."
        may_be_other = self._unit in UNITS_NS and self._option
        if may_be_other and (other := other_unit(taken_us, now_us, self._unit)):
            why += f"; it looks like {UNIT_WORDS[other]}, numbers are read as {unit}"
            action = f"set {self._option} to {other}, or correct it."
        raise Misfit(f"the time {shown} is {why}", action)

    def extend(self, first_us: int, last_us: int, form: str) -> None:
        """Extend the range to these times, microseconds. form: their notation, as text."""
        self._first_us = min(self._first_us, first_us)
        self._last_us = max(self._last_us, last_us)
        self._forms[form] = None

    def summary(self) -> str:
        """The range in UTC and the notation of the times, as text. It notes if the earliest times
        look like another unit and the latest do not."""
        if self._last_us < 0:
            return "no times"
        forms = " and ".join(self._forms)
        text = f"times {utc(self._first_us)} to {utc(self._last_us)}, read as {forms}"
        first, last = self._looks_like(self._first_us), self._looks_like(self._last_us)
        if first and first != last and UNIT_WORDS[self._unit] in self._forms:
            # A file with two units passes the check of each time.
            text += f"; the earliest look like {UNIT_WORDS[first]}, the latest do not"
        return text

    def _looks_like(self, time_us: int) -> str | None:
        """The other unit in which a time is near the clock, None for none. Never days: seconds that
        count from 0 pass through the numbers of days."""
        if self._unit not in UNITS_NS:
            return None
        other = other_unit(time_us, self._clock.now_us(), self._unit)
        return other if other in UNITS_NS and other != "days" else None

    def _unreadable(self, value: Any) -> Misfit:
        if value is None:
            return Misfit("there is no value")
        return Misfit(
            f"{shown_value(value)} is neither a number of {UNIT_WORDS[self._unit]} "
            "nor an ISO 8601 time such as 2026-01-31T00:00:00Z"
        )


def other_unit_words(found: OtherUnit, position: str, column: str = "") -> tuple[str, str]:
    """The error on times that all look like another unit, and the operator's action. column: of the
    times, "" if there is not exactly one."""
    of_column = f", column {column!r}" if column else ""
    action = f"{found.action}, or set {ACCEPT_SETTING}: true."
    return f"{position}{of_column}: {found.words}.", action


def shown_value(value: Any) -> str:
    """A value as text for an error, at most 80 characters."""
    text = value.isoformat() if isinstance(value, datetime.datetime) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
