"""HEAD is GET without a body, for probes and load balancers; another method is refused by name."""

import http.client
import json

import pytest

from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, listening

PROBES = ["/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"]
OTHERS = ["/", "/docs", "/openapi.json", "/static/swagger-ui.css", "/status.json?windows=1", "/v1/models", "/v1/nodes?prefix=n",
          "/v1/schema", "/v2", "/v2/models/streamd", "/v2/models/streamd/ready", "/v2/models/streamd/stats"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("methods")
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR)
    made = World(path).start()
    yield made
    made.stop()


def test_every_path_that_has_a_get_answers_a_head_with_the_same_head_and_no_body(world):
    """On one connection: a body in an answer to HEAD would be taken for the next answer."""
    with listening(world) as (host, port):
        line = http.client.HTTPConnection(host, port, timeout=20)
        for path in [*PROBES, *OTHERS]:
            line.request("GET", path)
            got = line.getresponse()
            body = got.read()
            line.request("HEAD", path)
            head = line.getresponse()
            assert (head.status, head.read()) == (200, b"") and got.status == 200, path
            assert head.getheader("content-type") == got.getheader("content-type"), path
            length = head.getheader("content-length")
            changes = ("/metrics", "/status.json", "/livez", "/v2/models/streamd/stats")
            assert length is not None and (path.startswith(changes) or int(length) == len(body)), path
        line.close()


def test_a_head_says_what_a_get_would(world):
    head = world.client.head
    assert head("/v1/nowhere").status_code == head("/v1/embeddings/n:3").status_code == 404 and head("/v1/embeddings/n:3?integer=true").status_code == 422
    assert head("/v1/nowhere").content == b"" and int(head("/v1/nowhere").headers["content-length"]) > 50
    stopped = World.of(world.path / "none", world.settings.model_copy(update={"data_dir": world.path / "none"}))
    for path in ("/readyz", "/v2/health/ready"):
        assert (stopped.client.head(path).status_code, stopped.client.head(path).content) == (503, b""), "there is no log"
    assert head("/livez", headers={"host": "elsewhere"}).status_code == 403


def test_a_head_of_a_stream_ends(world):
    answer = world.client.head("/around/n:3")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream") and not answer.content
    assert "content-length" not in answer.headers and world.state.streams.num_open == 0


def test_a_refused_head_has_no_body(world, monkeypatch):
    """The connection refuses it by itself, before the application sees it."""
    monkeypatch.setattr(world.engine, "overload", lambda: "too many requests wait", raising=True)
    with listening(world) as (host, port):
        line = http.client.HTTPConnection(host, port, timeout=20)
        for method, has_body in (("HEAD", False), ("GET", True), ("HEAD", False)):
            line.request(method, "/v1/embeddings/n:3")
            answer = line.getresponse()
            assert answer.status == 429 and bool(answer.read()) == has_body
        line.close()


def test_a_method_that_a_path_does_not_have_is_named(world):
    for method, path, allowed in (("GET", "/v1/score", "POST"), ("DELETE", "/v1/models", "GET, HEAD"), ("PUT", "/livez", "GET, HEAD"),
                                  ("HEAD", "/v1/score", "POST"), ("PATCH", "/v2/models/streamd/infer", "POST")):
        answer = world.client.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == allowed
        if method != "HEAD":
            told = answer.json()
            assert told.get("detail", told.get("error")) == f"{method} is not for this path; use {allowed}"
    assert json.loads(world.client.get("/v1/score").content)["title"] == "Method Not Allowed"
