import io
import re
import time

import pytest
import structlog
from prometheus_client import CollectorRegistry, Gauge
from rich.console import Console

from streamd.number_texts import span
from streamd.telemetry.progress import LINE_SECONDS, Meter, ProgressLine, RoleProgress
from tests.builders import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


def shares(lines):
    return [int(n) for n in re.findall(r"(\d+) %", "\n".join(lines))]


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_rate_and_time_left_are_those_that_were_measured(clock):
    meter = Meter(0, clock.monotonic)
    assert meter.at(0, 1000).text("events") == "0 %, 0 of 1,000 events", "nothing is measured yet"
    clock.advance(50)
    assert meter.at(40, 1000).text("events") == "4 %, 40 of 1,000 events, 0.8/s"
    assert meter.at(50, 1000).text("events") == "5 %, 50 of 1,000 events", "what was compiled in the first 50 s does not count"
    clock.advance(10)
    now = meter.at(300, 1000)
    assert (now.share, now.rate, now.seconds_left) == (0.3, 26.0, 700 / 26)
    assert now.text("events") == "30 %, 300 of 1,000 events, 26/s, 27 s left"
    assert now.fields() == {"share": 0.3, "seconds_left": 27}
    clock.advance(38)
    assert meter.at(1000, 1000).text("events") == "100 %, 1,000 of 1,000 events, 20/s, 0 s left"


@pytest.mark.parametrize(("before", "done", "left"), [(0, 49, None), (0, 50, 190.0), (600, 619, None), (600, 620, 76.0)])
def test_a_time_left_is_told_after_a_twentieth_of_the_work(clock, before, done, left):
    meter = Meter(before, clock.monotonic)
    meter.at(before + 10, 1000)
    clock.advance((done - before - 10) / 5)
    now = meter.at(done, 1000)
    assert (now.rate, now.seconds_left) == (pytest.approx(5.0), left and pytest.approx(left))


def test_the_first_unit_which_took_the_start_too_promises_nothing(clock):
    meter = Meter(0, clock.monotonic)
    clock.advance(60)
    assert meter.at(300, 3000).text("events") == "10 %, 300 of 3,000 events, 5/s"
    clock.advance(2)
    assert meter.at(400, 3000).text("events") == "13 %, 400 of 3,000 events, 50/s, 52 s left"


def test_a_part_that_is_slower_is_told_within_a_minute(clock):
    meter, done = Meter(0, clock.monotonic), 0
    for second in range(1, 240):
        clock.advance(1)
        done += 1000 if second <= 120 else 10
        now = meter.at(done, 130_000)
    assert now.rate == pytest.approx(10) and now.seconds_left == pytest.approx((130_000 - done) / 10)


def test_what_was_done_before_counts_for_the_share_but_not_for_the_rate(clock):
    meter = Meter(600, clock.monotonic)
    meter.at(650, 1000)
    clock.advance(5)
    now = meter.at(700, 1000)
    assert (now.share, now.rate, now.seconds_left) == (0.7, 10.0, 30.0)


def test_a_share_never_falls_and_is_whole_only_at_the_end(clock):
    meter, seen = Meter(0, clock.monotonic), []
    for done, total in ((500, 1000), (600, 4000), (600, 4000), (3999, 4000), (4000, 4000), (4001, 4000)):
        clock.advance(5)
        seen.append(meter.at(done, total).share)
    assert seen == [0.5, 0.5, 0.5, 0.99975, 1, 1] and Meter().at(0, 0).share == 1
    assert Meter().at(29, 100).text("x").startswith("29 %") and Meter().at(999_999, 1_000_000).text("x").startswith("99 %")


def test_a_work_that_stands_still_promises_nothing(clock):
    meter = Meter(0, clock.monotonic)
    clock.advance(10)
    meter.at(100, 200)
    clock.advance(1000)
    meter.at(100, 200)
    clock.advance(100)
    assert meter.at(100, 200).text("events") == "50 %, 100 of 200 events"


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (99, "99 s"), (100, "2 min"), (5940, "99 min"), (7500, "2 h 5 min"), (7200, "2 h"),
    (1e-6, "1 ms"), (0.3, "300 ms"), (0.97, "1 s"), (48 * 3600, "2 d"), (50 * 3600, "2 d 2 h"), (8.64e9, "100,000 d")])
def test_a_span_is_said_in_the_unit_that_suits_it(seconds, text):
    assert span(seconds) == text


def test_a_log_gets_few_long_lines_that_are_not_wrapped(clock):
    out, what = io.StringIO(), f"importing /a/long/path/{'x' * 100}/[red]events.csv"
    with ProgressLine(Console(file=out), what, monotonic=clock.monotonic) as line:
        for done in range(0, 100_000, 100):
            clock.advance(0.1)
            line.at(done, 100_000)
    lines = out.getvalue().splitlines()
    assert 9 <= len(lines) <= 100 / LINE_SECONDS + 1 and all(x.startswith(what) for x in lines), "markup is text too"
    assert shares(lines) == sorted(shares(lines)) and lines[-1].endswith("100 %, 99,900 events in 2 min")
    assert re.search(r": (19|20) %, (19,900|20,000) of 100,000 events, [\d,]+/s, 80 s left$", lines[1])


def test_each_part_ends_whole_and_begins_from_nothing(clock):
    out = io.StringIO()
    with ProgressLine(Console(file=out), "opening", monotonic=clock.monotonic) as line:
        for what in ("reading", "learning"):
            for done in range(5):
                clock.advance(6)
                line.of(what, done, 10, "steps")
        line.begin("writing")
    assert out.getvalue().splitlines() == [
        "reading: 20 %, 2 of 10 steps, 0.17/s, 48 s left", "reading: 40 %, 4 of 10 steps, 0.17/s, 36 s left",
        "reading: 100 %, 4 steps in 30 s", "learning: 20 %, 2 of 10 steps, 0.17/s, 48 s left",
        "learning: 40 %, 4 of 10 steps, 0.17/s, 36 s left", "learning: 100 %, 4 steps in 24 s"]


def test_a_work_that_fails_or_is_left_does_not_say_it_is_done(clock):
    out = io.StringIO()
    with pytest.raises(OSError), ProgressLine(Console(file=out), "reading", monotonic=clock.monotonic) as line:
        line.at(1, 10)
        clock.advance(2)
        line.at(3, 10)
        raise OSError
    assert out.getvalue().splitlines() == ["reading: 30 %, 3 of 10 events, 1/s, 7 s left"]
    with ProgressLine(Console(file=out), "waiting", monotonic=clock.monotonic) as line:
        line.at(3, 10)
        line.leave()
    assert "100 %" not in out.getvalue() and "waiting: 30 %" in out.getvalue()


def test_a_wait_is_never_done_by_its_units(clock):
    out = io.StringIO()
    with ProgressLine(Console(file=out, width=40), "looking", monotonic=clock.monotonic) as line:
        line.wait("waiting for serve", 5, 20)
        clock.sleep(20)
        line.wait("waiting for serve", 10, 20)
        clock.sleep(20)
        line.wait("waiting for serve", 20, 20)
        clock.sleep(20)
        line.wait("waiting for the store")
        clock.sleep(20)
        line.wait("waiting for the store")
    assert out.getvalue().splitlines() == [
        "waiting for serve: 50 %, 10 of 20 events, 0.25/s", "waiting for serve: for 40 s so far", "waiting for the store: for 20 s so far"]


def test_a_terminal_gets_one_line_however_narrow_it_is(clock):
    screen = Screen()
    console = Console(file=screen, force_terminal=True, width=40, color_system=None)
    with ProgressLine(console, "importing /a/path/of/some/length/events.csv", monotonic=clock.monotonic) as line:
        for done in range(0, 1001, 100):
            clock.advance(1)
            line.at(done, 1000)
            time.sleep(0.05)  # rich draws ten times a second
    frames = re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", screen.getvalue())
    assert screen.getvalue().count("\n") == 1 and all(len(frame) <= 40 for frame in frames), "the last line's end"
    assert any("importing" in frame and "…" in frame for frame in frames)
    screen = Screen()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with ProgressLine(console, "importing", monotonic=clock.monotonic) as line:
        line.at(10, 1000)
    assert "importing: 100 %, 10 events in 0 s" in screen.getvalue()


def test_colours_that_are_forced_make_no_terminal_of_a_log(clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with ProgressLine(Console(file=out), "importing", monotonic=clock.monotonic) as line:
        clock.advance(20)
        line.at(10, 1000)
    assert len(out.getvalue().splitlines()) == 2 and "\x1b" not in out.getvalue()


def test_a_role_says_in_its_log_now_and_then_where_it_is_and_always_in_its_metric(clock):
    registry = CollectorRegistry()
    ratio = Gauge("ratio", "of a test", ["role"], registry=registry)
    with structlog.testing.capture_logs() as said:
        work = RoleProgress("rebuilding", ratio.labels("train"), clock.monotonic, step="record")
        for done in range(0, 1001, 10):
            clock.advance(0.25)
            reading = work.at(done, 1000)
            assert registry.get_sample_value("ratio", {"role": "train"}) == reading.share
    assert [s["share"] for s in said] == [0.39, 0.79] and reading.share == 1
    assert said[0] == {"event": "rebuilding", "step": "record", "done": 390, "total": 1000, "share": 0.39,
                       "seconds_left": 15, "a_second": 40.0, "log_level": "info"}
