"""What a call does next, by a clock and a dice of the test's own."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from streamd.client import ClientError, DeadlineExceeded, NotReached, Retries, TryAgain, calls
from streamd.client.exchange import Exchange, Retry
from streamd.client.positions import Positions
from streamd.server.engine.conditions import CommitToken, RecordToken, read_conditions


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def exchange(call=calls.score("u", ["i"]), draws=(), timeout=1e9, retries=Retries(), positions=None, clock=None):
    drawn = iter(draws)
    return Exchange(call, headers={}, positions=positions, timeout=timeout, retries=retries, draw=lambda: next(drawn), clock=clock or Clock())


def test_waits_are_drawn_from_a_range_that_doubles_up_to_a_bound():
    e = exchange(draws=[0.5] * 9, retries=Retries(most=9, base_seconds=0.1, longest_seconds=1.0))
    assert [e.on_answer(503, {}, b"").seconds for _ in range(6)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_longer_than_said(number, draw):
    assert 0 <= Retries().wait_seconds(number, lambda: draw) < 5.0


def test_retry_after_is_the_least_wait_by_number_or_date():
    e = exchange(draws=[0.5, 0, 0.9, 0.9])
    assert e.on_answer(429, {"retry-after": "7"}, b"").seconds == pytest.approx(7.05)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 28 < e.on_answer(503, {"retry-after": soon}, b"").seconds <= 30
    for strange in ("soon", "-5"):
        assert e.on_answer(503, {"retry-after": strange}, b"").seconds < 1.0


@pytest.mark.parametrize("strange", [
    "9" * 400, "9" * 5000, "inf", "NaN", "1e9", "", "\u0663\u0663", "Mon, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 9999 00:00:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 -0000", "Mon, 99 Jan 2026 00:00:00 GMT", "Mon, 01 Jan 99999999999 00:00:00 GMT"])
def test_a_retry_after_that_is_nonsense_breaks_nothing_and_is_never_waited_for_beyond_the_calls_time(strange):
    e = exchange(draws=[0.5], timeout=10.0)
    try:
        assert 0 <= e.on_answer(503, {"retry-after": strange}, b"").seconds < 10
    except TryAgain as error:
        assert error.retry_after is None or error.retry_after >= 0


@pytest.mark.parametrize("years", [-30, 30])
def test_a_wall_clock_that_jumps_changes_no_budget(monkeypatch, years):
    """The date of Retry-After is measured by it, everything else by a clock that never jumps."""
    clock = Clock()
    e = exchange(draws=[0.5, 0.5], timeout=10.0, clock=clock)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
    real = time.time
    monkeypatch.setattr("streamd.client.exchange.time.time", lambda: real() + years * 365 * 86_400)
    if years < 0:
        # The date lies decades ahead: that leads nowhere.
        with pytest.raises(TryAgain):
            e.on_answer(503, {"retry-after": soon}, b"")
    else:
        assert e.on_answer(503, {"retry-after": soon}, b"").seconds < 1
    assert e.seconds_left == pytest.approx(10.0)


def test_no_wait_goes_past_the_calls_time():
    clock = Clock()
    e = exchange(draws=[0.999] * 9, timeout=1.0, clock=clock, retries=Retries(most=99))
    with pytest.raises(TryAgain):
        e.on_answer(503, {"retry-after": "1"}, b"")
    clock.now += 0.99
    with pytest.raises(TryAgain):
        e.on_answer(503, {}, b"")
    clock.now += 0.01
    with pytest.raises(DeadlineExceeded, match="the last try: 503"):
        _ = e.seconds_left


def test_only_what_may_be_done_twice_is_sent_again():
    for call, again in ((calls.score("u", ["i"]), True), (calls.explain("u", "i"), True), (calls.models(), True), (calls.embedding("u"), True),
                        (calls.events([{}]), False), (calls.events([{}], at_least_once=True), True), (calls.promote("v", "w"), False),
                        (calls.rollback("w"), False)):
        assert isinstance(exchange(call, [0]).on_failure(OSError("refused"), sent=False), Retry), "nothing was sent"
        assert isinstance(exchange(call, [0]).on_answer(429, {}, b""), Retry), "it was refused unread"
        for step in (lambda e: e.on_failure(OSError("reset"), sent=True), lambda e: e.on_answer(503, {}, b"")):
            if again:
                assert isinstance(step(exchange(call, [0])), Retry)
            else:
                with pytest.raises(ClientError) as told:
                    step(exchange(call, [0]))
                assert told.value.may_have_happened


tokens = st.lists(st.tuples(st.sampled_from(["a", "b.c", "d-e_f"]), st.integers(0, 5), st.integers(0, 2**63 - 1)), min_size=1, max_size=20)


@given(st.lists(tokens, min_size=1, max_size=4))
def test_what_is_sent_is_what_the_server_reads(written):
    """All writes are in it: the newest of each partition."""
    positions = Positions()
    newest = {}
    for group in written:
        positions.add_writes(", ".join(f"{t}:{p}:{o}" for t, p, o in group))
        for t, p, o in group:
            newest[t, p] = max(o, newest.get((t, p), -1))
    e = exchange(positions=positions)
    got = read_conditions(Headers(e.headers)).after
    assert {(t.topic, t.partition): t.offset for t in got if isinstance(t, RecordToken)} == newest

    # Written while the request was under way: only what it had to see is taken off.
    positions.add_writes("late:0:5")
    positions.confirm(e.headers["streamd-after"], "3.9")
    assert set(read_conditions(Headers({"streamd-after": positions.header})).after) == {RecordToken("late", 0, 5), CommitToken(3, 9)}
    positions.confirm("late:0:5", "3.2")
    assert positions.header == "3.9"
    positions.forget()
    assert positions.header == ""


def test_more_partitions_than_a_server_takes_are_refused_before_anything_is_sent():
    positions = Positions()
    positions.add_writes(", ".join(f"t:{p}:1" for p in range(256)))
    exchange(positions=positions)
    positions.add_writes("t:256:1")
    with pytest.raises(ClientError, match="more than 256 partitions"):
        exchange(positions=positions)


def test_a_problem_of_a_position_that_is_not_reached_is_asked_again_by_reads():
    body = b'{"type": "urn:streamd:position-not-reached", "title": "t", "status": 504, "detail": "d"}'
    assert isinstance(exchange(draws=[0]).on_answer(504, {}, body), Retry)
    with pytest.raises(NotReached):
        exchange(retries=Retries(most=0)).on_answer(504, {}, body)
