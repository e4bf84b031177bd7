"""The parser of times in text, used everywhere: RFC 3339, and ISO 8601 with a complete date."""

import datetime
import re

EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
DAY_SECONDS = 86_400
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
LOCAL_EPOCH = EPOCH.replace(tzinfo=None)
MICROSECOND = datetime.timedelta(microseconds=1)
USUAL_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?"
)
"""Formats that Python's own parser, which is faster, parses with the same result."""
DIGITS = re.compile(r"[0-9]{12}(?:[0-9]{2})?|(?:19[7-9][0-9]|20[0-9]{2})[0-9]{6}")
"""Year, month, day and hour in digits, then minute and second, which may be absent. Ten digits are
of the years 1970 to 2099 only: other numbers are more likely seconds since 1970."""
ISO_TIME = re.compile(
    # A calendar or week date, with or without hyphens.
    r"(?P<day>[0-9]{4}(?:-[0-9]{2}-[0-9]{2}|[0-9]{4}|-W[0-9]{2}-[0-9]|W[0-9]{3}))"
    # A date may have an offset too, as in XML, with minutes: hours alone would look like a part of
    # the date.
    r"(?:(?P<date_zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})"
    r"|[Tt ](?P<hour>[0-9]{2})"
    r"(?::(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?"
    r"|(?P<minute2>[0-9]{2})(?:(?P<second2>[0-9]{2})(?:[.,](?P<fraction2>[0-9]+))?)?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)


def iso_us(text: str) -> int:
    """Microseconds since 1970 of RFC 3339 or ISO 8601 text, negative before 1970.

    A time without a zone is UTC, a date is its midnight, and digits below a microsecond are cut.
    24:00 is the midnight after the day. 10, 12 or 14 digits are a date and its time. A leap second,
    60, is the first second of the next minute, as in POSIX; it is accepted in any minute, since
    offsets and smeared clocks move it. Raises: ValueError for other text.
    """
    if USUAL_TIME.fullmatch(text):
        try:
            when = datetime.datetime.fromisoformat(text)
        except ValueError:
            pass  # 24:00, a leap second, or no time at all
        else:
            return (when - (EPOCH if when.tzinfo else LOCAL_EPOCH)) // MICROSECOND
    # ISO 8601 allows leaving out the T by agreement.
    found = ISO_TIME.fullmatch(f"{text[:8]}T{text[8:]}" if DIGITS.fullmatch(text) else text)
    if found is None:
        raise ValueError("is not RFC 3339 or ISO 8601")
    day, date_zone, hour, minute, second, fraction, minute2, second2, fraction2, zone = (
        found.groups()
    )
    days = datetime.date.fromisoformat(day).toordinal() - EPOCH_DAY
    hours, minutes = int(hour or 0), int(minute or minute2 or 0)
    seconds = int(second or second2 or 0)
    micros = int((fraction or fraction2 or "")[:6].ljust(6, "0"))
    if hours > 24 or minutes > 59 or seconds > 60:
        raise ValueError("has an hour above 24, a minute above 59 or a second above 60")
    if hours == 24 and (minutes or seconds or (fraction or fraction2 or "").strip("0")):
        raise ValueError("is after the end of its day, 24:00")
    of_day = hours * 3600 + minutes * 60 + seconds
    total = days * DAY_SECONDS + of_day - _offset_seconds(zone or date_zone)
    return total * 1_000_000 + micros


def _offset_seconds(zone: str | None) -> int:
    """Offset of a zone from UTC in seconds, above 0 in the east. Raises: ValueError."""
    if zone is None or zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("has an offset of a day or more, or of 60 minutes")
    seconds = hours * 3600 + minutes * 60
    return -seconds if zone[0] == "-" else seconds
