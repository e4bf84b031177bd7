"""Times as text: all forms of one time read as the same microseconds, and nothing else is read."""

import datetime
import random
import string

import numpy as np
import pytest

from streamd.clock import parse_time_us
from streamd.decode.encoding import Times, number_of
from streamd.errors import BadEvent, SettingsError
from streamd.exchange.times import Misfit
from streamd.exchange.times import Times as TableTimes
from streamd.iso_times import iso_us
from tests.builders import ManualClock

UTC = datetime.UTC
DAY_US = 86_400_000_000
NEW_YEAR_2019 = 1_546_300_800_000_000


def random_form(rng: random.Random) -> tuple[str, int]:
    """A time in a form drawn from all that are read, and its microseconds by arithmetic alone."""
    day = datetime.date.fromordinal(rng.randint(datetime.date(1970, 1, 3).toordinal(), datetime.date(9999, 12, 29).toordinal()))
    year, week, weekday = day.isocalendar()
    days = rng.choice([day.isoformat(), f"{day:%Y%m%d}", f"{year:04}-W{week:02}-{weekday}", f"{year:04}W{week:02}{weekday}"])
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    sign, ahead = rng.choice("+-"), (rng.randrange(24), rng.randrange(60))
    offset = (ahead[0] * 3600 + ahead[1] * 60) * (1 if sign == "+" else -1)
    zone, offset = rng.choice([("", 0), ("Z", 0), ("z", 0), (f"{sign}{ahead[0]:02}:{ahead[1]:02}", offset), (f"{sign}{ahead[0]:02}{ahead[1]:02}", offset)])
    midnight = (day.toordinal() - 719_163) * 86_400
    if rng.random() < 0.2:
        return f"{days}{zone}", (midnight - offset) * 10**6
    colon = rng.choice([":", ""])
    kept = rng.randint(1, 3)
    clock = colon.join(f"{part:02}" for part in (hour, minute, second)[:kept])
    seconds = hour * 3600 + minute * 60 * (kept > 1) + second * (kept > 2)
    digits = "".join(rng.choices(string.digits, k=rng.randint(1, 30))) if kept == 3 and rng.random() < 0.7 else ""
    micros = int(digits[:6].ljust(6, "0")) if digits else 0
    fraction = f"{rng.choice('.,')}{digits}" if digits else ""
    return f"{days}{rng.choice('Tt ')}{clock}{fraction}{zone}", (midnight + seconds - offset) * 10**6 + micros


def test_every_form_of_a_time_is_read_alike_by_options_tables_and_sources():
    rng = random.Random(7)
    table, source = TableTimes("s", "us", 1e12, ManualClock()), Times("iso8601")
    for _ in range(3000):
        text, expected = random_form(rng)
        assert iso_us(text) == parse_time_us(text, "x") == expected, text
        assert source.one(text, "t") == expected, text
        column = source.column([text, text])
        assert column is not None and (column == expected).all(), text
        # Digits alone are an integer in a table.
        if not text.isdigit():
            assert table.read(text) == expected, text


def test_what_python_writes_is_read():
    rng = random.Random(8)
    for _ in range(1000):
        zone = datetime.timezone(datetime.timedelta(minutes=rng.randint(-1439, 1439)))
        when = datetime.datetime.fromtimestamp(rng.randrange(2**33), UTC).replace(microsecond=rng.choice([0, 5, 999_999])).astimezone(zone)
        expected = (when - datetime.datetime.fromtimestamp(0, UTC)) // datetime.timedelta(microseconds=1)
        assert iso_us(when.isoformat()) == expected
        assert iso_us(str(np.datetime64(expected, "us"))) == expected


def test_a_changed_character_is_refused_or_read_as_it_is_written():
    """No character stands for another: what is read has the form, and only of ASCII."""
    rng = random.Random(9)
    alphabet = string.printable + "٣−–："  # digits, dashes and a colon that are no ASCII
    taken = 0
    for _ in range(20_000):
        text, _ = random_form(rng)
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice(alphabet) + text[at + 1:]
        try:
            iso_us(changed)
        except ValueError:
            continue
        taken += 1
        assert changed.isascii() and set(changed) <= set(string.digits + "-:.,+TtZzW "), changed
    assert taken > 500  # a digit for a digit


@pytest.mark.parametrize(("text", "expected"), [
    ("2019-01-01+02:00", NEW_YEAR_2019 - 7_200_000_000), ("2019-06-30+05:30", 1_561_833_000_000_000),
    ("2019-01-01-05:00", NEW_YEAR_2019 + 18_000_000_000), ("20190101Z", NEW_YEAR_2019), ("2018-12-31T24:00", NEW_YEAR_2019),
    ("2018-12-31t240000.000z", NEW_YEAR_2019), ("2018-12-31T23:59:60Z", NEW_YEAR_2019), ("2019-01-01T00:59:60.25+01:00", NEW_YEAR_2019 + 250_000),
    ("2019-01-01T00:00:00-00:00", NEW_YEAR_2019), ("1969-12-31", -DAY_US), ("1970-01-01T00:30+01:00", -1_800_000_000),
    ("9999-12-31T23:59:59.9999999-23:59", 253_402_300_799_999_999 + 86_340_000_000), ("2262-04-11T23:47:16.854775808Z", 9_223_372_036_854_775),
])
def test_edges(text: str, expected: int):
    assert iso_us(text) == expected
    assert Times("iso8601").column([text]) == [expected]


@pytest.mark.parametrize("text", [
    "", "now", "201901", "2019-01", "2019-001", "2019-1-1", "2019-02-29", "2019-13-01", "0000-01-01", "+2019-01-01", "12019-01-01",
    "2019-01-01+02", "2019-01-01-05", "2019-01-01x02:00", "2019-01-01_02:00", "2019-01-01T", "2019-01-01T2", "2019-01-01T02:0", "2019-01-01T02:00:0",
    "2019-01-01T02:0000", "2019-01-01T0200:00", "2019-01-01T02:00.5", "2019-01-01T02:00:00.", "2019-01-01T02:00:00Zx", "2019-01-01T02:00:00 Z",
    "2019-01-01T02:00:00+24:00", "2019-01-01T02:00:00+01:60", "2019-01-01T02:00:00+01:00:30", "2019-01-01T02:00:00+1", "2019-01-01T02:00:00[UTC]",
    "2019-01-01T24:00:01", "2019-01-01T24:00:00.1", "2019-01-01T24:01", "2019-01-01T25:00", "2019-01-01T02:60", "2019-01-01T02:00:61",
    "2019-01-01T02:00:00\n", "20190101.5", "2019-0101", "201901-01", "2019-W54-1", "2019-W01-8", "٢٠١٩-01-01",
])
def test_other_text_is_refused_everywhere(text: str):
    with pytest.raises(ValueError, match=r"is not RFC 3339|month|day|year|week|Invalid|has |is after"):
        iso_us(text)
    with pytest.raises(SettingsError, match="not an ISO 8601 time"):
        parse_time_us(text, "--start")
    # Sources and tables strip blanks.
    if text == text.strip():
        assert Times("iso8601").column([text]) is None
        with pytest.raises(BadEvent, match="not ISO 8601"):
            Times("iso8601").one(text, "t")
        if number_of(text) is None:
            with pytest.raises(Misfit, match="nor an ISO 8601 time"):
                TableTimes("s", "us", 1e12, ManualClock()).read(text)
