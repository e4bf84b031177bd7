import re

import pytest
import structlog
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from streamd.server.app import create_app
from streamd.telemetry import metrics
from streamd.telemetry.trace import trace_of
from tests.builders import settings
from tests.readings import reading
from tests.server.world import World

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(("given", "flags"), [
    (GOOD, "01"), (f" {GOOD}\t", "01"), (f"00-{TRACE}-{PARENT}-00", "00"), (f"00-{TRACE}-{PARENT}-ff", "03"),
    (f"cc-{TRACE}-{PARENT}-03", "03"), (f"cc-{TRACE}-{PARENT}-01-what-will-be", "01")])
def test_a_trace_is_answered_by_its_id_and_a_span_of_our_own(given, flags):
    trace = trace_of([given])
    assert (trace.trace_id, trace.parent) == (TRACE, PARENT)
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-{flags}", trace.response) and trace.span not in (PARENT, "0" * 16)
    assert trace_of([given]).span != trace.span


@pytest.mark.parametrize("given", [
    "", "00", GOOD.upper(), GOOD[:-1], GOOD + "1", GOOD + "-more", "ff" + GOOD[2:], f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01", GOOD.replace("-", "_"), "cc" + GOOD[2:] + ".more", f"00-{TRACE}-{PARENT}-x1", "é" * 55])
def test_what_is_no_trace_is_none(given):
    assert trace_of([given]) is None


def test_no_trace_and_two_are_none():
    assert trace_of([]) is None and trace_of([GOOD, GOOD]) is None


@given(st.text(max_size=80))
def test_any_text_is_a_trace_or_none(text):
    trace = trace_of([text])
    assert trace is None or trace.trace_id in text


def test_the_lines_of_a_request_name_its_trace_and_those_of_the_next_do_not(tmp_path, logged, monkeypatch):
    world = World.of(tmp_path, settings(tmp_path, telemetry__access_log=True))
    models, of_request = world.state.registry.journal.last, structlog.get_logger()
    monkeypatch.setattr(world.state.registry.journal, "last", lambda: of_request.info("looked") or models())
    client = TestClient(create_app(world.state), "http://localhost")
    told = [client.get("/v1/models", headers=h).headers.get("traceresponse")
            for h in ({"traceparent": GOOD}, {"traceparent": GOOD[:-1]}, {})]
    lines = logged()
    assert [line["event"] for line in lines] == ["looked", "request"] * 3
    _, trace_id, span, _ = told[0].split("-")
    assert all((x["trace_id"], x["parent"], x["span"]) == (TRACE, PARENT, span) for x in lines[:2]) and trace_id == TRACE
    assert told[1:] == [None, None] and not any("trace_id" in line for line in lines[2:])


def test_requests_are_counted_by_their_whole_route(tmp_path):
    world = World.of(tmp_path, settings(tmp_path))
    counted = metrics.requests.labels("/v2/models/{name}", "404")
    before = reading(counted)
    assert TestClient(create_app(world.state), "http://localhost").get("/v2/models/other").status_code == 404
    assert reading(counted) == before + 1
