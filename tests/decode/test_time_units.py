"""Times that look like those of another unit, and records' timestamps that are no milliseconds."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.decode.block import NO_STAMP, Origin, timestamp_us
from streamd.decode.encoding import Times
from streamd.decode.time_units import (
    DATES,
    UNITS_NS,
    UnitCheck,
    are_dates,
    describe_time,
    other_unit,
)
from streamd.telemetry import metrics
from tests.builders import Record
from tests.decode.mapped import Topic, source
from tests.readings import reading

NOW = 1_795_341_600_000_000
"""2026-11-22T10:00:00Z in microseconds."""
YEAR = 365.25 * 86_400e6
UNITS = ("days", "s", "ms", "us", "ns")
TIMED = "{{time: {form}, fields: {{src: u, dst: v, time: t}}}}"


def as_read(time_us, sent, read):
    """Times that are sent in one unit and read in another, microseconds."""
    numbers = (np.asarray(time_us) * 1_000 // UNITS_NS[sent]).tolist()
    return np.array([number * UNITS_NS[read] // 1_000 for number in numbers], np.int64)


# A finer unit than that in which times are read is far ahead of the clock: each is refused alone.
@pytest.mark.parametrize(("sent", "read"), [(sent, read) for at, sent in enumerate(UNITS) for read in UNITS[at:]])
@pytest.mark.parametrize("years_ago", [0, 5, 20])
def test_the_unit_in_which_all_times_were_sent_is_found(sent, read, years_ago):
    times = NOW - int(years_ago * YEAR) - np.arange(40) * 90_061_000_001
    check = UnitCheck(read, "the unit")
    for part in np.array_split(as_read(times, sent, read), 3):
        check.add(part, NOW)
    if sent == read:
        assert check.found is None and not check.is_open
        return
    found = check.found
    assert (found.looks_like, found.unit, found.action) == (sent, read, f"set the unit to {sent}")
    if years_ago < 20 and (sent, read) != ("days", "ns"):  # microseconds hold too few of those digits
        assert other_unit(int(as_read(times[:1], sent, read)[0]), NOW, read) == sent


@pytest.mark.parametrize(("sent", "read"), [(sent, read) for at, sent in enumerate(UNITS) for read in UNITS[:at]])
@pytest.mark.parametrize("years_ago", [0, 5, 20])
def test_the_unit_of_a_time_far_ahead_of_the_clock_is_found(sent, read, years_ago):
    number = (NOW - int(years_ago * YEAR)) * 1_000 // UNITS_NS[sent]
    assert other_unit(number * UNITS_NS[read] // 1_000, NOW, read) == sent


@pytest.mark.parametrize(("unit", "numbers"), [
    ("s", [20_150_218]), ("s", [20_150_218, 20_151_231, 20_261_121]), ("ms", [20_150_218]), ("ms", [20_150_218] * 3), ("us", [20_150_218]),
    ("us", [20_150_218_123_000, 19_800_101_000_000]), ("us", [19_700_101]), ("ms", [2015, 1987, 2026]), ("s", [1986]), ("us", [2000]), ("days", [1999]), ("ms", [2_015_021_812]),
    ("ms", [201_502_181_230, 201_512_312_359]), ("us", [201_502_181_230]), ("ms", [20_150_218, 2_015_021_812, 201_502_181_230])])
def test_dates_in_digits_are_found(unit, numbers):
    check = UnitCheck(unit, "the unit")
    check.add(np.array(numbers) * (UNITS_NS[unit] // 1_000), NOW)
    assert check.found.looks_like == DATES and "dates in digits" in check.found.words and str(numbers[0]) in check.found.words
    check.add(np.array([5]), NOW)
    assert check.found is None and not check.is_open


@pytest.mark.parametrize("numbers", [[20_150_218, 20_150_230 + 9], [20_151_301], [20_150_018], [20_150_200], [20_991_231], [18_991_231], [2_015_021], [201_502_181],
                                     [20_150_218_240_000], [20_150_218_126_000], [20_150_218_000_061], [0], [-20_150_218],
                                     [1969], [2040], [9999], [999], [20_151], [201_512], [2_015_021_824], [201_502_181_260], [2015, 5], [-2015], [2_015_021_812_300]])
def test_other_numbers_are_no_dates(numbers):
    assert not are_dates(np.array(numbers), NOW)


@given(st.dates(datetime.date(1970, 1, 1), datetime.date(2026, 12, 31)), st.times())
def test_every_date_in_digits_is_one(day, time):
    forms = ("%Y", "%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
    numbers = [int(datetime.datetime.combine(day, time).strftime(form)) for form in forms]
    assert are_dates(np.array(numbers), NOW)
    read = Times(DATES)
    whole = [datetime.datetime.strptime(str(number), form).replace(tzinfo=datetime.UTC) for number, form in zip(numbers, forms, strict=True)]
    assert [read.one(number, "") for number in numbers] == [read.one(str(number), "") for number in numbers] == [int(when.timestamp()) * 10**6 for when in whole]


@pytest.mark.parametrize(("unit", "first", "step"), [("s", 0, 1), ("s", 1, 60), ("ms", 0, 1_000), ("us", 5, 10**6), ("days", 0, 1), ("s", 1, 86_400), ("ms", 1, 3_600_000)])
def test_a_stream_that_counts_from_zero_looks_like_no_unit(unit, first, step):
    """Also once it passes through numbers that would be another unit."""
    numbers = first + np.arange(30_000) * step
    check = UnitCheck(unit, "the unit")
    for part in np.array_split(numbers * (UNITS_NS[unit] // 1_000), 50):
        check.add(part, NOW)
        assert check.found is None


def test_times_without_a_unit_are_not_looked_at():
    for unit, setting in (("iso8601", "it"), ("record", "it"), ("s", "")):
        check = UnitCheck(unit, setting)
        check.add(np.array([20_416_000_000]), NOW)
        assert check.found is None
    check = UnitCheck("s", "it")
    check.add(np.array([20_416_000_000]), NOW)
    assert check.found is not None
    check.end()
    assert check.found is None


@pytest.mark.parametrize(("time_us", "unit", "words"), [
    (-1, "us", "1969-12-31T23:59:59.999999Z, before 1970"), (-86_400_000_000, "days", "1969-12-31T00:00:00Z, before 1970"),
    (2**62 + 1, "us", "4611686018427387905 us, out of range"), (2**62 // 10**6 * 10**6 + 10**6, "s", "4611686018428 s, out of range"),
    (10**40, "s", "out of range"), (-(10**18), "ms", "-1000000000000000 ms, out of range")])
def test_times_out_of_range_are_shown(time_us, unit, words):
    assert describe_time(time_us, unit) == words


@pytest.mark.parametrize(("form", "value", "says"), [
    ("days", -10, "time is 1969-12-22T00:00:00Z, before 1970"), ("s", -1, "time is 1969-12-31T23:59:59Z, before 1970"), ("s", "-0.5", "23:59:59.5Z, before 1970"),
    ("iso8601", "1958-02-03", "time is 1958-02-03T00:00:00Z, before 1970"), ("days", 2_147_483_647, "out of range"), ("us", 2**63 - 1, "out of range"),
    ("ns", 2**63 - 1, " ahead of the wall clock"), ("ns", 2**64, " ahead of the wall clock"), ("s", 20_150_218_123_000, "looks like a date in digits, time in the source of clicks is s"),
    ("ms", 20_150_218_123_000, "looks like a date in digits"), ("days", 20_150_218, "looks like a date in digits"), ("s", NOW * 1000, "looks like ns"), ("days", NOW, "looks like us"),
    ("iso8601", "2262-04-11T23:47:16.854775808Z", " ahead of the wall clock"), ("iso8601", "9999-12-31", " ahead of the wall clock"), ("s", 1e305, "out of range")])
def test_times_at_the_edges_are_refused_with_what_they_are(tmp_path, form, value, says):
    assert says in Topic(source(TIMED.format(form=form)), tmp_path).refused({"u": "a", "v": "b", "t": value})[1]


@pytest.mark.parametrize(("form", "value", "says"), [
    ("s", "2026-11-22T10:00:00Z", "time (t) is text, not a number of s; it is ISO 8601: set time: iso8601"), ("days", "2026-11-22", "it is ISO 8601"),
    ("iso8601", 1_764_000_000, "time (t) is a number that is not ISO 8601; numbers need a unit"), ("iso8601", "1764000000.5", "numbers need a unit")])
def test_a_time_of_another_form_says_which(tmp_path, form, value, says):
    assert says in Topic(source(TIMED.format(form=form)), tmp_path).refused({"u": "a", "v": "b", "t": value})[1]


@pytest.mark.parametrize(("form", "value", "time"), [
    ("iso8601", 20_150_218, 1_424_217_600_000_000), ("iso8601", "20150218", 1_424_217_600_000_000), ("iso8601", 20_150_218_123_000, 1_424_262_600_000_000),
    ("iso8601", "20150218123000", 1_424_262_600_000_000), ("ns", "1764000000000000000.5", 1_764_000_000_000_000), ("days", 0, 0), ("s", " 5 ", 5_000_000), ("days", 16_484.5, 1_424_260_800_000_000)])
def test_dates_in_digits_and_parts_of_units_are_read(tmp_path, form, value, time):
    topic = Topic(source(TIMED.format(form=form)), tmp_path)
    assert topic.one({"u": "a", "v": "b", "t": value}).time == time


def test_a_record_of_seconds_or_nanoseconds_has_no_timestamp(tmp_path):
    """The mistake of a producer that sets it; events with a time of their own are taken."""
    now_ms = NOW // 1000
    before = reading(metrics.odd_timestamps)
    for stamp in (now_ms // 1000, now_ms * 1000, now_ms * 1_000_000, 400_000_000, 2**62):
        assert timestamp_us(Record(b"", timestamp=stamp)) == NO_STAMP
        topic = Topic(source("{time: record, fields: {src: u, dst: v}}"), tmp_path)
        reason, error = topic.refused({"u": "a", "v": "b"}, timestamp=stamp)
        assert reason == "bad_time" and "no timestamp in ms" in error
        topic = Topic(source(TIMED.format(form="ms")), tmp_path)
        events, rejected = topic.decode(*[{"u": "a", "v": "b", "t": now_ms - 5}] * 12, timestamp=stamp)
        assert [event.time for event in events] == [NOW - 5_000] * 12 and not rejected
    assert reading(metrics.odd_timestamps) - before == 5 * 13


@given(st.lists(st.one_of(st.integers(-5, 2**63 - 1), st.integers(300_000_000, 5_000_000_000), st.integers(315 * 10**12, 316 * 10**12)), min_size=1))
def test_timestamps_of_one_record_and_of_many_are_read_alike(stamps):
    records = [Record(b"", at, stamp) for at, stamp in enumerate(stamps)]
    assert Origin.of_records(records, 0, NOW).stamp.tolist() == [timestamp_us(record) for record in records]
