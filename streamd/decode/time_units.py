"""Units of numeric times, and detection of times that look like another unit."""

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
"""Nanoseconds in each unit of times of sources and tables."""
DATES = "iso8601"
"""The form of times that includes dates in digits, such as 2026, 20260131 and 20260131093000."""
UNIT_WORDS = {
    "days": "days",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    DATES: "dates in digits",
}
NEAR = 0.1
"""A time is near the wall clock if it differs by at most this share of the clock's time since 1970:
about five and a half years. Times that count from 0 are rarely in that range."""
FIRST_SHARE = 0.5
"""Times look like a unit if all are after this share of the wall clock's time, about 1998, since
the first records of a topic are often old."""
EARLIEST_US = -62_135_596_800_000_000
"""The year 1: earlier dates cannot be written as text."""
MAX_SHOWN = 10**25
"""Larger numbers are left out of texts."""
MAX_LOOKED_AT = 20_000
"""Maximum number of times that are checked: those of one commit."""


def other_unit(time_us: int, now_us: int, unit: str) -> str | None:
    """The other unit in which a time of this unit would be near the wall clock, None for none."""
    # A time far ahead of the clock is wrong in any case, so accept any time from 1998 on.
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
    """A time that is out of range, and the reason, as text. unit: in which it was read."""
    if EARLIEST_US <= time_us < 0:
        return f"{utc(time_us)}, before 1970"
    number = number_in(time_us, unit)
    number = time_us * 1_000 // UNITS_NS[unit] if number is None else number
    return f"{number} {unit}, out of range" if abs(number) < MAX_SHOWN else "out of range"


def number_in(time_us: int, unit: str) -> int | None:
    """The integer of a unit that was read as this time; None if it was a fraction, or had more
    digits."""
    ns = UNITS_NS[unit]
    return None if ns < 1_000 or time_us * 1_000 % ns else time_us * 1_000 // ns


def are_dates(number_N: Int64, now_us: int) -> bool:
    """Whether integers are all dates in digits, from 1970 until shortly after the clock: years,
    days, and days with an hour, with minutes or with seconds."""
    # The number of digits determines those of the time of day; other numbers are no dates.
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
    """The unit that all times look like.

    unit: in which they were read. looks_like: a unit, or DATES. example_us: the first of them as it
    was read. setting: of the unit, for texts.
    """

    unit: str
    looks_like: str
    example_us: int
    setting: str

    @property
    def words(self) -> str:
        """The finding with the example, as text."""
        number = number_in(self.example_us, self.unit)
        shown = f"{self.example_us * 1_000 / UNITS_NS[self.unit]:.6f}" if number is None else number
        read = f"all times look like {UNIT_WORDS[self.looks_like]}, not {UNIT_WORDS[self.unit]}"
        return f"{read}: {shown} was read as {utc(self.example_us)}"

    @property
    def hint(self) -> str:
        """The finding and both remedies, as text for the producer."""
        return f"{self.words}; send {UNIT_WORDS[self.unit]}, or {self.action}"

    @property
    def action(self) -> str:
        """The setting to change, as text."""
        return change_unit(self.setting, self.looks_like)


def change_unit(setting: str, unit: str) -> str:
    """The action that sets another unit, as text. setting: of the unit now."""
    if setting == "stream.time_unit" and unit not in MICROSECONDS:
        return f"give the topic a source with time: {unit}"
    return f"set {setting} to {unit}"


class UnitCheck:
    """Finds the unit, other than their own, that all times so far look like. Owner: the reader of
    the times.

    One time that looks like no other unit ends the search. found: the other unit, None for none.
    """

    def __init__(self, unit: str, setting: str) -> None:
        """unit: of the times; only those of `UNITS_NS` are checked. setting: of the unit, "" for no
        check."""
        self.found: OtherUnit | None = None
        self._unit = unit
        self._setting = setting
        self._may_be = [*self._coarser(), DATES] if unit in UNITS_NS and setting else []
        self._num_seen = 0

    def fresh(self) -> "UnitCheck":
        """A check of the same unit that has seen no time."""
        return UnitCheck(self._unit, self._setting)

    @property
    def is_open(self) -> bool:
        """Whether further times may still change the result."""
        return bool(self._may_be) and self._num_seen < MAX_LOOKED_AT

    def _coarser(self) -> list[str]:
        # A time in a finer unit would be far ahead of the clock, and is refused elsewhere.
        return [name for name, ns in UNITS_NS.items() if ns > UNITS_NS[self._unit]]

    def add(self, time_N: Int64, now_us: int) -> None:
        """Check times, int64[n] microseconds, as they were read."""
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
        """End the check, because a time contains its unit, as text and timestamps do."""
        self._may_be = []
        self.found = None

    def _fits(self, name: str, time_N: Int64, low: int, high: int, now_us: int) -> bool:
        """Whether times between low and high look like those of a unit, or like dates in digits."""
        ns = UNITS_NS[self._unit]
        if name != DATES:
            # A time in a coarser unit is smaller than the clock by the ratio of the units.
            of_clock = now_us * ns // UNITS_NS[name]
            return of_clock * FIRST_SHARE < low and high < of_clock * (1 + NEAR)
        us = ns // 1_000
        if not us or low < 0 or high > MAX_TIME_US or (time_N % us).any():
            return False
        return are_dates(time_N // us, now_us)
