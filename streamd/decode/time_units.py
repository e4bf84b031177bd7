"""Units of times as numbers, and times that look like those of another unit."""

from dataclasses import dataclass

import numpy as np

from streamd.clock import utc
from streamd.events import MAX_TIME_US, MICROSECONDS, Int64

UNITS_NS = {
    "days": 86_400_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
"""Nanoseconds in each unit of a source's or a table's times."""
DATES = "iso8601"
"""The form of times that reads dates in digits, such as 2026, 20260131 and 20260131093000."""
UNIT_WORDS = {
    "days": "days",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    DATES: "dates in digits",
}
NEAR = 0.1
"""Share of the wall clock's time by which a time may miss it and still look like that unit: about
five and a half years. Times of a stream that counts from 0 are rarely in that range."""
FIRST_SHARE = 0.5
"""All times of a stream look like a unit from this share of the wall clock's time on, about 1998:
the first records of a topic are often old."""
EARLIEST_US = -62_135_596_800_000_000
"""The year 1: dates before it have no text."""
MAX_SHOWN = 10**25
"""Larger numbers are not shown."""
MAX_LOOKED_AT = 20_000
"""Most times that are looked at: those of one commit."""


def other_unit(time_us: int, now_us: int, unit: str) -> str | None:
    """The other unit in which a time of this unit would be near the wall clock, if any."""
    # A time far ahead of the clock is wrong in any case, so it may be of 1998 or later.
    least = FIRST_SHARE if time_us > now_us * (1 + NEAR) else 1 - NEAR
    for name, ns in UNITS_NS.items():
        other_us = time_us * ns // UNITS_NS[unit]
        if name != unit and least * now_us < other_us < (1 + NEAR) * now_us:
            return name
    number = number_in(time_us, unit)
    if number is not None and are_dates(np.array([number if number < 10**15 else 0]), now_us):
        return DATES
    return None


def describe_time(time_us: int, unit: str) -> str:
    """A time that is out of range, and why, for people. unit: in which it was read."""
    if EARLIEST_US <= time_us < 0:
        return f"{utc(time_us)}, before 1970"
    number = number_in(time_us, unit)
    number = time_us * 1_000 // UNITS_NS[unit] if number is None else number
    return f"{number} {unit}, out of range" if abs(number) < MAX_SHOWN else "out of range"


def number_in(time_us: int, unit: str) -> int | None:
    """The integer of a unit that a time was; None if it was a fraction, or had more digits."""
    ns = UNITS_NS[unit]
    return None if ns < 1_000 or time_us * 1_000 % ns else time_us * 1_000 // ns


def are_dates(number_N: Int64, now_us: int) -> bool:
    """Whether integers all read as dates in digits, since 1970 and hardly after the clock: years,
    days, and days with an hour, with minutes or with seconds."""
    # Digits of the time of day by the number of all digits; any other number is no date.
    scale_N = np.zeros_like(number_N)
    for digits, scale in ((8, 1), (10, 10**2), (12, 10**4), (14, 10**6)):
        scale_N[(number_N >= 10 ** (digits - 1)) & (number_N < 10**digits)] = scale
    is_year_N = (number_N > 0) & (number_N < 10**4)
    scale_N = np.maximum(scale_N, is_year_N)
    if not scale_N.all():
        return False
    day_N = np.where(is_year_N, number_N * 10**4 + 101, number_N // scale_N)
    of_day_N = np.where(is_year_N, 0, number_N % scale_N * (10**6 // scale_N))
    year_N, month_N, monthday_N = day_N // 10_000, day_N // 100 % 100, day_N % 100
    last_year = 1970 + int(now_us * (1 + NEAR) / 31_556_952e6)
    fits_N = (year_N >= 1970) & (year_N <= last_year)
    fits_N &= (month_N >= 1) & (month_N <= 12) & (monthday_N >= 1) & (monthday_N <= 31)
    fits_N &= (of_day_N // 10_000 <= 23) & (of_day_N // 100 % 100 <= 59) & (of_day_N % 100 <= 60)
    return bool(fits_N.all())


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherUnit:
    """The unit that all times look like. unit: in which they were read. looks_like: a unit, or
    DATES. example_us: the first of them as it was read. setting: that names the unit, for people.
    """

    unit: str
    looks_like: str
    example_us: int
    setting: str

    @property
    def words(self) -> str:
        """The finding with the example, for people."""
        number = number_in(self.example_us, self.unit)
        shown = f"{self.example_us * 1_000 / UNITS_NS[self.unit]:.6f}" if number is None else number
        read = f"all times look like {UNIT_WORDS[self.looks_like]}, not {UNIT_WORDS[self.unit]}"
        return f"{read}: {shown} was read as {utc(self.example_us)}"

    @property
    def hint(self) -> str:
        """The finding and both remedies, for the producer of the times."""
        return f"{self.words}; send {UNIT_WORDS[self.unit]}, or {self.action}"

    @property
    def action(self) -> str:
        """The setting to change, for people."""
        return change_unit(self.setting, self.looks_like)


def change_unit(setting: str, unit: str) -> str:
    """The words that tell how to set another unit. setting: that names the unit now."""
    if setting == "stream.time_unit" and unit not in MICROSECONDS:
        return f"give the topic a source with time: {unit}"
    return f"set {setting} to {unit}"


class UnitCheck:
    """Finds the unit that all times so far look like, other than their own. Owner: the reader of
    the times.

    One time that looks like none ends the search. found: the other unit, None if there is none.
    """

    def __init__(self, unit: str, setting: str) -> None:
        """unit: of the times; others than those of `UNITS_NS` are not looked at. setting: that
        names it."""
        self.found: OtherUnit | None = None
        self._unit = unit
        self._setting = setting
        self._may_be = [*self._coarser(), DATES] if unit in UNITS_NS and setting else []
        self._num_seen = 0

    def fresh(self) -> "UnitCheck":
        """A check of the same unit that looked at no time."""
        return UnitCheck(self._unit, self._setting)

    @property
    def is_open(self) -> bool:
        """Whether further times may still decide."""
        return bool(self._may_be) and self._num_seen < MAX_LOOKED_AT

    def _coarser(self) -> list[str]:
        # A time in a finer unit is far ahead of the clock, and refused.
        return [name for name, ns in UNITS_NS.items() if ns > UNITS_NS[self._unit]]

    def add(self, time_N: Int64, now_us: int) -> None:
        """Look at times, int64[n] microseconds, as they were read."""
        if not self.is_open or not len(time_N):
            return
        first = self.found.example_us if self.found else int(time_N[0])
        self._num_seen += len(time_N)
        low, high = int(time_N.min()), int(time_N.max())
        self._may_be = [
            name for name in self._may_be if self._fits(name, time_N, low, high, now_us)
        ]
        self.found = None
        if self._may_be:
            self.found = OtherUnit(
                unit=self._unit,
                looks_like=self._may_be[0],
                example_us=first,
                setting=self._setting,
            )

    def end(self) -> None:
        """Note that a time names its unit itself, as text and timestamps do."""
        self._may_be = []
        self.found = None

    def _fits(self, name: str, time_N: Int64, low: int, high: int, now_us: int) -> bool:
        """Whether times between low and high look like those of a unit, or like dates."""
        ns = UNITS_NS[self._unit]
        if name != DATES:
            # A time in a coarser unit is smaller than the clock by the ratio of the units.
            of_clock = now_us * ns // UNITS_NS[name]
            return of_clock * FIRST_SHARE < low and high < of_clock * (1 + NEAR)
        us = ns // 1_000
        if not us or low < 0 or high > MAX_TIME_US or (time_N % us).any():
            return False
        return are_dates(time_N // us, now_us)
