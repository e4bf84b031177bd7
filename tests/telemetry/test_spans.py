"""Spans of requests, commits and windows continue the traces of callers and records; without the extra none are made."""

import ast
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import streamd
from streamd.client import Client
from streamd.server.app import create_app
from streamd.serving.requests import NotReady
from streamd.telemetry import metrics, spans
from streamd.telemetry.spans import Spans, begin_spans, end_spans
from tests.builders import HOUR, settings, stream, write_log
from tests.ingest.world import World as IngestWorld
from tests.server.world import SCHEMA, World
from tests.telemetry.collector import collecting, resources

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def made():
    """Finished spans, kept in memory: made() returns those since the last call."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use(Spans(provider))

    def take():
        found = exporter.get_finished_spans()
        exporter.clear()
        return found

    yield take
    end_spans()
    assert spans.active() is None


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("spans")
    write_log(path, *stream(100), SCHEMA)
    made = World(path).start()
    yield made
    made.stop()


def ask(world, headers=CALLER, path="/v1/score", status=200, **body):
    answer = world.client.post(path, json={"src": "n:3"} | body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer


def hex_of(span):
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


# Requests


def test_a_request_continues_its_callers_trace_and_has_spans_for_its_wait_and_its_answer(world, made):
    answer = ask(world, dst=["n:20"])
    wait, computed, request = made()
    assert [s.name for s in (wait, computed, request)] == ["wait", "answer", "POST /v1/score"]
    trace_id, span_id = hex_of(request)
    assert trace_id == TRACE and f"{request.parent.span_id:016x}" == PARENT and request.parent.is_remote
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{span_id}-01"
    assert all(s.parent.span_id == request.context.span_id and hex_of(s)[0] == TRACE for s in (wait, computed))
    assert request.start_time <= wait.start_time <= wait.end_time <= computed.start_time <= computed.end_time <= request.end_time + 5_000_000
    assert request.kind is SpanKind.SERVER and request.status.status_code is StatusCode.UNSET
    assert dict(request.attributes) == {
        "http.request.method": "POST", "http.route": "/v1/score", "http.response.status_code": 200, "url.scheme": "http",
        "network.protocol.version": "1.1"}
    assert dict(computed.attributes) == {"streamd.version": "rule", "streamd.requests": 1}


def test_a_request_without_a_trace_begins_one(world, made):
    told = ask(world, {}, dst=["n:20"]).headers["traceresponse"]
    request = made()[-1]
    assert request.parent is None and told.startswith("00-{}-{}-".format(*hex_of(request)))
    assert int(told[-2:], 16) & 1, "it is kept"


def test_a_trace_that_its_caller_does_not_keep_is_continued_but_not_kept(world, made):
    told = ask(world, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, dst=["n:20"]).headers["traceresponse"]
    assert made() == () and told.startswith(f"00-{TRACE}-") and told.endswith("-00") and PARENT not in told


def test_spans_of_a_batch_of_a_search_and_of_what_is_waited_for(world, made):
    ask(world, path="/v1/score/batch", requests=[{"src": "n:1", "dst": ["n:20"]}] * 3, src=None, status=422)
    world.client.post("/v1/score/batch", json={"requests": [{"src": "n:1", "dst": ["n:20"]}] * 3}, headers=CALLER)
    assert made()[-2].attributes["streamd.requests"] == 3
    ask(world, path="/v1/recommend", exact=True)
    assert [s.name for s in made()] == ["wait", "answer", "POST /v1/recommend"]
    ask(world, CALLER | {"streamd-after": "0.1"}, dst=["n:20"])
    assert [s.name for s in made()] == ["reach", "wait", "answer", "POST /v1/score"]


def test_only_an_error_of_the_servers_own_is_one_of_its_span(world, made, monkeypatch):
    ask(world, status=422, dst=[])
    refused, = made()
    assert refused.attributes["http.response.status_code"] == 422 and refused.status.status_code is StatusCode.UNSET

    async def not_ready(*_):
        raise NotReady("reading the log")

    monkeypatch.setattr(world.engine, "ask_all", not_ready)
    ask(world, status=503, dst=["n:20"])
    failed, = made()
    assert failed.status.status_code is StatusCode.ERROR and failed.attributes["error.type"] == "503"


def test_no_span_names_a_node_and_probes_make_none(world, made):
    world.client.get("/v1/embeddings/n:private?node_set=default", headers=CALLER)
    assert all("private" not in str(span.to_json()) for span in made())
    for path in ("/livez", "/readyz", "/metrics", "/status.json", "/v2/health/live"):
        assert world.client.get(path).status_code == 200
    assert made() == ()


def test_a_client_passes_its_trace_on(world, made):
    with Client("http://localhost", headers=CALLER, http=world.client) as client:
        client.score("n:3", ["n:20"])
    assert hex_of(made()[-1])[0] == TRACE


def test_events_by_rest_carry_their_requests_span_into_kafka(world, made, monkeypatch):
    sent = []

    class Producer:
        def send(self, topic, key, value, headers):
            sent.append(headers)
            return self

        def flush(self, timeout): ...

        def get(self, timeout):
            return type("Place", (), {"partition": 0, "offset": 1})

    monkeypatch.setattr(world.state.forwarder, "open_producer", Producer)
    body = {"events": [{"src": "n:1", "dst": "n:30", "time": 1, "features": [1, 2]}]}
    assert world.client.post("/v1/events", json=body, headers=CALLER).status_code == 202
    assert sent == [[("traceparent", "00-{}-{}-01".format(*hex_of(made()[-1])).encode())]]
    spans.use(None)
    assert world.client.post("/v1/events", json=body, headers=CALLER).status_code == 202 and sent[1] == []


# Exemplars


OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


def exemplars(client):
    """Of the latency of /v1/models, as OpenMetrics has them."""
    page = client.get("/metrics", headers=OPENMETRICS)
    assert page.headers["content-type"].startswith("application/openmetrics-text") and page.text.endswith("# EOF\n")
    plain = client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain") and "trace_id" not in plain.text
    lines = [x for x in page.text.splitlines() if x.startswith('streamd_request_seconds_bucket{') and 'route="/v1/models"' in x]
    return [m.groups() for x in lines if (m := re.search(r' # \{span_id="(\w+)",trace_id="(\w+)"\} ', x))]


def test_a_latency_leads_to_the_trace_of_its_request(tmp_path):
    """Also without spans: the caller's trace is known."""
    metrics.request_seconds.remove_by_labels({"route": "/v1/models"})
    client = TestClient(create_app(World.of(tmp_path, settings(tmp_path)).state), "http://localhost")
    for headers in ({}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}):
        client.get("/v1/models", headers=headers)
        assert exemplars(client) == []
    told = client.get("/v1/models", headers=CALLER).headers["traceresponse"]
    assert exemplars(client) == [(told.split("-")[2], TRACE)]


# Commits


def traced(number):
    return ("traceparent", f"00-{number + 1:032x}-{number + 1:016x}-01".encode())


def commits(found):
    return [s for s in found if s.name.startswith("commit")]


def test_a_commit_links_to_the_traces_of_its_records(tmp_path, made):
    world = IngestWorld(tmp_path)
    odd = [("traceparent", b"junk"), ("traceparent", None), ("other", b"x"), ("traceparent", b"\xff" * 55)]
    for i in range(3):
        world.send(0, {"src": i, "dst": 7, "time": 1000 + i}, headers=[("other", b"1"), traced(i)])
        world.send(0, {"src": i, "dst": 7, "time": 1000 + i}, headers=[odd[i]])
    world.send(0, {"src": 9, "dst": 7, "time": 2000}, headers=[odd[3]])
    world.run(2).stop()
    found = commits(made())
    linked = [f"{link.context.trace_id:032x}" for s in found for link in s.links]
    assert linked == [f"{i + 1:032x}" for i in range(3)], "each once"
    span = next(s for s in found if s.links)
    assert span.kind is SpanKind.CONSUMER and span.name == "commit events" and span.parent is None
    assert span.links[0].context.is_remote and span.links[0].context.span_id == 1
    assert {k: span.attributes[k] for k in ("messaging.system", "messaging.operation.type", "messaging.destination.name")} == {
        "messaging.system": "kafka", "messaging.operation.type": "process", "messaging.destination.name": "events"}
    assert sum(s.attributes["messaging.batch.message_count"] for s in found) == 7
    assert 'trace_id="' in metrics_of("ingest") and sum(s.attributes["streamd.traced_records"] for s in found) == 3


def metrics_of(role):
    from prometheus_client.openmetrics.exposition import generate_latest
    return generate_latest(metrics.exported_by(role)).decode()


def test_links_of_a_commit_are_bounded(tmp_path, made):
    world = IngestWorld(tmp_path)
    for i in range(2_000):
        world.send(0, {"src": i, "dst": 7, "time": 1000 + i}, headers=[traced(i)])
    world.run(2).stop()
    found = commits(made())
    assert max(len(s.links) for s in found) <= 128
    assert max(s.attributes["streamd.traced_records"] for s in found) <= 1024
    assert max(link.context.span_id for s in found for link in s.links) == 2_000, "the newest are kept"


def test_records_that_wait_for_other_partitions_are_linked_when_they_are_committed(tmp_path, made):
    world = IngestWorld(tmp_path, 2)
    world.send(0, {"src": 1, "dst": 7, "time": 1000}, headers=[traced(0)])
    world.send(1, {"src": 2, "dst": 7, "time": 1000}, headers=[traced(1)])
    world.run(1)
    made()
    # Partition 1 is behind: it has more to read and says nothing, so the later event of 0 waits.
    world.source.mute.add(1)
    world.send(0, {"src": 1, "dst": 7, "time": 9_000_000}, headers=[traced(2)])
    world.send(1, {"src": 2, "dst": 7, "time": 2000}, headers=[traced(3)])
    world.run(0.1)
    waited = len(world.events())
    world.source.mute.clear()
    world.run(8).stop()
    linked = [link.context.span_id for s in commits(made()) for link in s.links]
    assert waited < 4 and sorted(linked) == [3, 4] and len(world.events()) == 4


def test_without_spans_no_trace_is_remembered(tmp_path):
    world = IngestWorld(tmp_path)
    world.send(0, {"src": 1, "dst": 7, "time": 1000}, headers=[traced(0)])
    world.run(0.02)
    assert not world.loop._traced._waiting
    world.stop()


# Windows


def test_a_window_has_a_span_with_its_phases(tmp_path, made):
    write_log(tmp_path, *stream(200), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, model__name="pair")
    world.train(2)
    found = made()
    assert [s.name for s in found] == ["window", "score", "learn"] * 2
    window, score, learn = found[:3]
    assert score.parent.span_id == learn.parent.span_id == window.context.span_id and window.parent is None
    assert window.start_time == score.start_time <= score.end_time == learn.start_time <= learn.end_time == window.end_time
    assert window.attributes["streamd.version"] in world.registry.names() and window.attributes["streamd.events"] > 0
    assert window.attributes["streamd.window.end_us"] - window.attributes["streamd.window.start_us"] == HOUR


# Whether, and where to


@pytest.fixture
def collector():
    with collecting() as (url, got):
        yield url, got


def test_spans_go_where_the_standard_variables_say(collector, monkeypatch):
    url, got = collector
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": "x-team=graph",
                        "OTEL_RESOURCE_ATTRIBUTES": "peer.service.name=other,service.namespace=mine"}.items():
        monkeypatch.setenv(name, value)
    begin_spans("serve", "serve-2")
    spans.active().add("answer", 0.0, 1.0)
    end_spans()
    (path, headers, _), = got
    (resource, (span,)), = resources(got)
    assert path == "/v1/traces" and headers["x-team"] == "graph" and span.name == "answer"
    assert {k: resource[k] for k in ("service.name", "service.instance.id", "service.namespace", "peer.service.name")} == {
        "service.name": "streamd-serve", "service.instance.id": "serve-2", "service.namespace": "mine", "peer.service.name": "other"}
    assert spans.active() is None


def test_the_environment_names_the_service_before_the_role(collector, monkeypatch):
    url, got = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    for variable, value in (("OTEL_RESOURCE_ATTRIBUTES", "service.name=listed"), ("OTEL_SERVICE_NAME", "named")):
        monkeypatch.setenv(variable, value)
        begin_spans("serve", "serve")
        spans.active().add("answer", 0.0, 1.0)
        end_spans()
    assert [resource["service.name"] for resource, _ in resources(got)] == ["listed", "named"]


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(spans, "END_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        begin_spans("serve", "serve")
        spans.active().add("answer", 0.0, 1.0)
        begun = time.monotonic()
        end_spans()
        assert time.monotonic() - begun < 5 and spans.active() is None


@pytest.mark.parametrize("environment", [
    {}, {"OTEL_SERVICE_NAME": "x"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}])
def test_spans_that_nobody_asks_for_are_not_made(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    begin_spans("serve", "serve")
    assert spans.active() is None


WITHOUT = """
import os, sys
import streamd.ingest.loop
from streamd.telemetry import spans

def loaded():
    return sorted(m for m in sys.modules if m.startswith("opentelemetry") and sys.modules[m])

# Nobody asks for spans, whatever is installed.
spans.begin_spans("ingest", "ingest")
print(loaded(), spans.active())

# Spans are asked for, and the extra is not installed.
sys.modules["opentelemetry.sdk"] = sys.modules["opentelemetry.exporter"] = None
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
spans.begin_spans("ingest", "ingest")
print([m for m in loaded() if m.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))], spans.active())
"""


def test_without_the_extra_or_its_variables_nothing_of_it_is_imported():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.strip().splitlines()
    assert [x for x in lines if x.startswith("[]")] == ["[] None", "[] None"], done.stdout
    assert "pip install 'streamd-gnn[otel]'" in done.stdout + done.stderr


def test_it_is_imported_in_one_file_and_there_in_functions_only():
    """So that no role imports it before it is asked for. FastAPI imports OpenTelemetry's API by itself."""
    root = Path(streamd.__file__).parent
    for path in (p for p in root.rglob("*.py") if "opentelemetry" in p.read_text()):
        tree = ast.parse(path.read_text())
        typing = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        tree.body = [n for n in tree.body if n not in typing]
        within = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and "opentelemetry" in ast.unparse(node):
                assert path.relative_to(root) == Path("telemetry/spans.py") and id(node) in within, f"{path}:{node.lineno}"
