"""Guesses the field of an event's time and its form, from names and values."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from streamd.clock import utc
from streamd.decode.encoding import Times
from streamd.decode.notices import named
from streamd.decode.time_units import DATES, NEAR, UNITS_NS
from streamd.exchange.field_names import (
    OTHER_TIMES,
    TIMES,
    is_technical,
    last_words,
    names_time,
)
from streamd.exchange.field_values import Fields, Seen
from streamd.settings.sources import TimeForm, steps_of

ROWS = frozenset(("data", "after", "fullDocument", "payload", "row", "new", "dynamodb"))
"""Names of the object that contains the row, in changes of rows."""
NO_TIME = "no field could be read as a time: the Kafka timestamp is taken"
"""The doubt about records without a time."""
REFUSED = "such records become dead letters, and a file with one is not read"
"""The consequence of a record without a time that can be read."""
FORMS = frozenset(get_args(TimeForm))
"""Forms that a source can read."""
YEAR_US = 365 * 86_400_000_000
NAMED_FROM_US = 10 * YEAR_US
"""A number from 1980 on, microseconds, is a time if the field's name means one; other numbers must
be closer to the clock."""
DIGITS = re.compile(
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d){0,2})?"
)
"""A date, or a date and a time, as digits without separators."""
YEAR = re.compile(r"(19[7-9]|20)\d+")
"""A year as digits, if the field's name means a year."""
DATE = re.compile(r"\d{4}-\d\d-\d\d")
"""A date without a time of day."""
FOREIGN = re.compile(
    r"\d{1,4}[./]\d{1,2}[./]\d{2,4}([ ,T].*)?|\d{1,2}[-/ ][A-Z][a-z]{2}[-/ ,]+\d{4}.*"
    r"|[A-Z][a-z]{2},? .*\d{1,2}:\d{2}.*|\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*"
)
"""Text that people read as a time, such as 24/Nov/2025:10:00:00 or 01.03.2026 07:45."""


@dataclass(frozen=True, slots=True)
class FoundTimes:
    """The times of some rows. path: of the event's time, "" for none. form: of that time. all:
    paths of all times, including those that no form can read."""

    path: str
    form: str
    all: frozenset[str]


def find_time(
    fields: Fields, now_us: int, doubts: list[str], are_changes: bool = False
) -> FoundTimes:
    """Find the time of an event, that of its Kafka record if there is none, and all other times.
    Adds doubts.

    are_changes: the records are changes of rows, which are objects inside them.
    """
    found: list[tuple[float, str, str]] = []
    unread: dict[str, str] = {}
    misfits: dict[str, list[Any]] = {}
    for path, at in fields.scalars.items():
        if form := form_of(path, at, now_us):
            # A date is coarser than another time of the same event, so rank it lower.
            is_coarse = are_dates_in_digits(path, at) or are_dates(at)
            found.append((_rank(path, at, fields.count) - is_coarse, path, form))
        elif main := _form_of_most(path, at, now_us):
            form, misfits[path] = main
            found.append((_rank(path, at, fields.count) - are_dates(at), path, form))
        elif why := why_unread(path, at, now_us):
            unread[path] = why
    # Prefer a column of the row to the time of its change.
    if are_changes:
        found = [(r + (steps_of(path)[0] in ROWS), path, form) for r, path, form in found]
    readable = sorted(found, key=lambda one: -one[0])
    times = frozenset([path for _, path, _ in found] + [*unread])
    if not readable:
        counted = _counted_from_zero(fields)
        if counted and counted not in unread:
            doubts.append(
                f"{counted} counts from its own start, not from 1970: as `time: s` its dates are "
                "in 1970, which trains the same model; the unit may be another"
            )
            return FoundTimes(counted, "s", times | {counted})
        doubts.extend(f"{path} looks like a time, but {why}" for path, why in unread.items())
        doubts.append(NO_TIME)
        return FoundTimes("", "record", times)

    # Report an unreadable time if its name fits as well as that of the chosen one.
    best, path, form = readable[0]
    for other, why in unread.items():
        if names_time(other) and _rank(other, fields.scalars[other], fields.count) >= best:
            doubts.append(f"{other} looks like a time too, but {why}")
    if others := [one[1] for one in readable[1:] if not is_technical(one[1])]:
        doubts.append(f"the time may also be {', '.join(others[:4])}; none of them is a feature")
    doubts += _doubts_of_values(fields, path, form, misfits.get(path, []))
    return FoundTimes(path, form, times)


def _doubts_of_values(fields: Fields, path: str, form: str, misfits: list[Any]) -> list[str]:
    """Sentences on the values of the chosen time. misfits: those that `form` cannot read."""
    doubts = []
    if are_dates_in_digits(path, fields.scalars[path]):
        example = next(iter(fields.scalars[path].values))
        doubts.append(
            f"{path} is read as dates in digits, in UTC: {example} is "
            f"{utc(Times(DATES).one(example, path))}"
        )
    # Some values have another form, or none.
    if misfits:
        num = sum(fields.scalars[path].values[value] for value in misfits)
        doubts.append(
            f"{path} is {str(misfits[0])[:MAX_EXAMPLE]!r} or such in {num} of {fields.count} "
            f"records, which {form} cannot read: {REFUSED}"
        )
    if missing := fields.missing(path):
        doubts.append(
            f"{path} is missing in {missing} of {fields.count} records: {REFUSED}; name a time "
            "that all records have, or let the producer write it"
        )
    return doubts


def take_envelope_time(
    objects: list[dict[str, Any]], sources: list[dict[str, Any]], doubts: list[str]
) -> None:
    """Use the time of the CloudEvents envelope in sources without a time, if all objects have
    it."""
    if not all("time" in one for one in objects):
        return
    for one in sources:
        if one["time"] == "record":
            one["time"] = DATES
            one["fields"]["time"] = "$envelope.time"
    doubts[:] = [doubt.replace(NO_TIME, "the time is that of the envelope") for doubt in doubts]


def _rank(path: str, at: Seen, count: int) -> float:
    """Rank a path as the time of the event, by its name and by the share of records that have
    it."""
    words = last_words(path)
    rank = 3.0 * (not words or any(word in TIMES for word in words))
    rank += len(words) <= 2 and all(word in TIMES or word == "event" for word in words)
    rank -= 2.0 * any(word in OTHER_TIMES for word in words)
    rank -= 4.0 * is_technical(path)
    # Outer fields describe the event; inner ones more likely describe its parts.
    rank -= 0.2 * path.count(".")
    return rank + 4.0 * at.count / max(count, 1)


def form_of(path: str, at: Seen, now_us: int) -> str:
    """The form of the times at a path; "" if the values are no times."""
    values = list(at.values)
    if are_dates_in_digits(path, at):
        return DATES
    if at.types.keys() == {"str"}:
        # Require hyphens, because digits alone may be a number.
        iso = Times("iso8601")
        if all("-" in v and iso.column([v]) is not None for v in values):
            return "iso8601"
        is_number = all(re.fullmatch(r"[0-9]{9,19}(\.[0-9]{1,9})?", v) for v in values)
        values = [float(v) for v in values] if is_number else []
    elif not at.types.keys() <= {"int", "float"}:
        return ""
    earliest, latest = now_us * (1 - 4 * NEAR), now_us * (1 + 4 * NEAR)
    if names_time(path):
        earliest, latest = NAMED_FROM_US, now_us + 10 * YEAR_US
    for form, scale in UNITS_NS.items():
        if form != "days" and values and all(earliest < v * scale / 1000 < latest for v in values):
            return form
    # Small integers may be anything, so days need the name of a time.
    today = now_us / 86_400e6
    is_day = at.types.keys() == {"int"} and names_time(path)
    return "days" if is_day and all(0.5 * today < v < 1.2 * today for v in values) else ""


def why_unread(path: str, at: Seen, now_us: int) -> str:
    """The reason why values that look like times cannot be read; "" if they do not look like
    times."""
    forms = _values_by_form(path, at, now_us)
    if len(forms) > 1 and "" not in forms:
        shown = [f"{form} ({str(some[0])[:MAX_EXAMPLE]})" for form, some in forms.items()]
        return f"it has several forms, {named(shown)}: let the producer or the table write one"
    texts = [str(v) for v in at.values]
    if at.types.keys() == {"str"} and all(map(FOREIGN.fullmatch, texts)):
        example = texts[0][:MAX_EXAMPLE]
        return f"{example!r} is not ISO 8601: let the producer or the table write it so"
    return ""


def are_dates(at: Seen) -> bool:
    """Whether all values are dates without a time of day, such as 2026-03-01."""
    return all(isinstance(v, str) and DATE.fullmatch(v) for v in at.values)


def _form_of_most(path: str, at: Seen, now_us: int) -> tuple[str, list[Any]] | None:
    """The form of at least nine of ten values of a field that is named as a time, and the other
    values; None if no form has so many."""
    of_form = _values_by_form(path, at, now_us)
    # Some producers write a few values by hand.
    for form, values in of_form.items():
        if form and 10 * sum(at.values[v] for v in values) >= 9 * at.count:
            others = [v for other, some in of_form.items() if other != form for v in some]
            return form, others
    return None


def _values_by_form(path: str, at: Seen, now_us: int) -> dict[str, list[Any]]:
    """Form -> values, "" for those that no form can read; empty if the field's name means no
    time."""
    of_form: dict[str, list[Any]] = {}
    for value in at.values if names_time(path) else ():
        one = Seen(Counter([type(value).__name__]), Counter([value]))
        of_form.setdefault(form_of(path, one, now_us), []).append(value)
    return of_form


def are_dates_in_digits(path: str, at: Seen) -> bool:
    """Whether all values are digits of a date, or of a date and a time; or years, if the name means
    one."""
    texts = [str(v) for v in at.values]
    is_possible = bool(texts) and at.types.keys() <= {"int", "str"}
    if is_possible and last_words(path)[-1:] == ("year",):
        return all(YEAR.fullmatch(text) and len(text) == 4 for text in texts)
    return is_possible and all(map(DIGITS.fullmatch, texts))


MAX_EXAMPLE = 40
"""Maximum characters of a value in a doubt."""


def _counted_from_zero(fields: Fields) -> str:
    """A field with the name of a time and numbers that rise from a small one; "" if there is
    none."""
    for path, at in fields.scalars.items():
        words = last_words(path)
        is_named = any(word in TIMES or word == "step" for word in words)
        if not is_named or at.count < fields.count or not at.is_number or len(at.values) < 2:
            continue
        values = [float(v) for v in at.values]
        # The values are in the order of their first occurrence.
        rising = sum(b >= a for a, b in zip(values, values[1:], strict=False))
        if min(values) >= 0 and rising >= 0.95 * (len(values) - 1):
            return path
    return ""
