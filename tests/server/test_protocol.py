"""What comes over real sockets and is no polite request: bodies without end, connections without number, other sites."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvicorn

from streamd.server.app import create_app
from streamd.server.http import connections as protocol
from streamd.server.listening import web_config
from streamd.telemetry import metrics
from tests.builders import settings
from tests.readings import reading
from tests.server.world import World, wait

POST = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
MEGABYTE = 1_000_000


class Wire:
    """A server of its own on a port of its own; its engine does not run, which none of this needs."""

    def __init__(self, path, **values):
        self.world = World.of(path, settings(path, **values))
        self.app = create_app(self.world.state)
        self._listening = socket.create_server(("127.0.0.1", 0))
        config = web_config(self.world.state)
        config.lifespan = "off"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})
        self._thread.start()
        self._links = []
        wait(lambda: self._server.started)

    @property
    def num_open(self):
        return len(self._server.server_state.connections)

    def link(self, said=b"", source="127.0.0.1"):
        made = socket.create_connection(self._listening.getsockname(), 10, (source, 0))
        self._links.append(made)
        made.sendall(said)
        return made

    def status(self, said, **more):
        return status_of(self.link(said, **more))

    def close(self):
        for link in self._links:
            link.close()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


def status_of(link):
    """Of the next answer; 0 where the connection was closed without one."""
    try:
        return int((link.recv(65536).split(b" ") + [b"0", b"0"])[1])
    except ConnectionError:
        return 0


def is_closed(link):
    """Whether the other side ends a connection, behind the rest of its answer; one that stays open times out."""
    with contextlib.suppress(ConnectionError):
        while link.recv(65536):
            pass
    return True


@pytest.fixture
def wire(tmp_path, request):
    made = Wire(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def test_a_line_of_the_web_server_goes_where_lines_of_libraries_go(wire, caplog):
    wire.link(b"garbage\r\n\r\n")
    wait(lambda: "Invalid HTTP request received." in caplog.messages)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def pour(link, piece, num_bytes):
    """Send a piece again and again, until so much is sent or nobody takes it any more."""
    with contextlib.suppress(OSError):
        for _ in range(num_bytes // len(piece)):
            link.sendall(piece)


CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"


@pytest.mark.parametrize("wire", [{}, {"server__api_keys": ["sesame"]}], indirect=True, ids=["open", "keys"])
@pytest.mark.parametrize(("header", "piece"), [
    (b"Transfer-Encoding: Chunked\r\n\r\n", CHUNK), (b"TRANSFER-ENCODING: chunked\r\n\r\n", CHUNK),
    (b"transfer-encoding: gzip, chunked\r\n\r\n", CHUNK),
    (b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n", CHUNK),
    (b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: " + b"y" * 60_000 + b"\r\n")])
def test_a_body_or_trailers_without_end_take_no_memory_whatever_the_headers_say(wire, header, piece):
    assert wire.status(LIVE) == 200
    before = resident_bytes()
    link = wire.link(POST + header)
    pour(link, piece, 48 * MEGABYTE)
    assert resident_bytes() - before < 16 * MEGABYTE
    assert status_of(link) in (400, 411)
    assert wire.status(LIVE) == 200


def test_the_bytes_of_a_body_are_counted_as_they_come(tmp_path):
    """Below any server of HTTP, by messages that no length was promised for."""
    app, sent, left = create_app(World.of(tmp_path, settings(tmp_path)).state), [], [100]

    async def receive():
        left[0] -= 1
        return {"type": "http.request", "body": b" " * 65536, "more_body": True}

    async def send(message):
        sent.append(message)

    for path in ("/v1/score", "/v1/embeddings", "/v2/models/streamd/infer"):
        sent.clear()
        left[0] = 100
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "client": ("127.0.0.1", 1)}
        asyncio.run(app(scope, receive, send))
        assert sent[0]["status"] == 413 and left[0] == 100 - 17


@pytest.mark.parametrize("wire", [{"server__api_keys": ["reader"], "server__admin_keys": ["admin"]}], indirect=True)
@pytest.mark.parametrize(("path", "key", "status"), [
    ("/v1/score", "", 401), ("/v1/embeddings", "", 401), ("/v1/events", "", 401), ("/v2/models/streamd/infer", "", 401),
    ("/v1/models/rollback", "x-api-key: reader\r\n", 403), ("/v1/models/1-1/promote", "x-api-key: wrong\r\n", 401)])
def test_a_key_is_checked_before_any_of_the_body_came(wire, path, key, status):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{key}content-type: application/json\r\ncontent-length: 9\r\n"
    assert wire.status(head.encode() + b"\r\n") == status
    assert wire.status(head.encode() + b"Expect: 100-continue\r\n\r\n") == status, "nor is it asked for"


def test_a_body_that_goes_on_after_its_answer_is_cut_off_and_one_that_ends_is_not(wire, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    ends = wire.link(POST + b"content-length: 2000000\r\n\r\n")
    assert status_of(ends) == 413
    pour(ends, b"x" * 50_000, 2 * MEGABYTE)
    ends.sendall(LIVE)
    assert status_of(ends) == 200
    goes_on = wire.link(POST + b"content-length: 2000000\r\n\r\n")
    assert status_of(goes_on) == 413 and is_closed(goes_on)


def test_requests_sent_without_waiting_for_answers_are_answered_up_to_a_bound(wire):
    link = wire.link(LIVE * 10)
    told = b""
    while told.count(b"HTTP/1.1 200") < 10:
        told += link.recv(65536)
    flood = wire.link()
    pour(flood, LIVE * 1000, MEGABYTE)
    told = b"x"
    with contextlib.suppress(ConnectionError):
        while told:
            told = flood.recv(65536)
    assert wire.status(LIVE) == 200


FEW = {"server__max_connections": 8, "server__max_connections_per_address": 5}


@pytest.fixture
def overloaded(wire, monkeypatch):
    monkeypatch.setattr(wire.world.engine._queue, "overload", lambda: "more requests arrive than the server can answer")


@pytest.mark.parametrize(("path", "route"), [
    ("/v1/score", "/v1/score"), ("/v1/recommend/batch", "/v1/recommend/batch"), ("/v1/embeddings/a/b?integer=true", "/v1/embeddings/{node:path}"),
    ("/v2/models/streamd/infer", "/v2/models/{name}/infer")])
def test_an_overloaded_server_refuses_a_request_by_its_head_and_reads_the_next_one_behind_its_body(wire, overloaded, path, route):
    before = reading(metrics.requests.labels(route, "429"))
    link = wire.link(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 6\r\n\r\n".encode())
    answer = link.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: 1\r\n" in head
    assert "more requests arrive than the server can answer" in json.loads(body).values()
    assert int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) == len(body)
    assert reading(metrics.requests.labels(route, "429")) == before + 1
    link.sendall(b"body\r\n" + LIVE)
    assert status_of(link) == 200


@pytest.mark.parametrize("path", ["/livez", "/v1/models", "/v1/schema", "/v2/health/live"])
def test_an_overloaded_server_answers_everything_that_is_no_question_to_the_model(wire, overloaded, path):
    assert wire.status(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()) != 429


def test_a_refused_request_that_asks_for_it_has_its_connection_closed(wire, overloaded):
    assert is_closed(wire.link(POST + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"))
    assert is_closed(wire.link(POST.replace(b"1.1", b"1.0") + b"content-length: 2\r\n\r\n{}"))


def test_a_refused_body_that_does_not_end_is_cut_off(wire, overloaded, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    link = wire.link(POST + b"content-length: 9\r\n\r\n")
    assert status_of(link) == 429
    assert is_closed(link)


def test_answers_to_requests_sent_without_waiting_keep_their_order_though_the_server_is_overloaded(wire, overloaded):
    link = wire.link(LIVE + POST + b"content-length: 2\r\n\r\n{}" + LIVE)
    said = b""
    while said.count(b"HTTP/1.1 ") < 3:
        said += link.recv(65536)
    assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]][::2] == [b"200", b"200"]


@pytest.mark.parametrize("wire", [FEW], indirect=True)
def test_more_connections_than_may_be_are_told_to_come_again(wire):
    refused = reading(metrics.connections_refused.labels("address"))
    busy = [wire.link(b"GET /livez HTTP/1.1\r\n") for _ in range(5)]
    wait(lambda: wire.num_open == 5)
    told = wire.link().recv(4096)
    assert told.startswith(b"HTTP/1.1 503") and b"retry-after: 1\r\n" in told
    assert reading(metrics.connections_refused.labels("address")) == refused + 1
    others = [wire.link(b"GET /livez HTTP/1.1\r\n", "127.0.0.2") for _ in range(3)]
    wait(lambda: wire.num_open == 8)
    assert wire.status(b"", source="127.0.0.2") == 503, "there is no room for any address"
    others[0].close()
    wait(lambda: wire.num_open == 7)
    assert wire.status(LIVE, source="127.0.0.3") == 200
    busy[0].sendall(b"host: localhost\r\n\r\n")
    assert status_of(busy[0]) == 200


@pytest.mark.parametrize("wire", [FEW], indirect=True)
def test_connections_that_say_nothing_make_room_for_others(wire):
    silent = [wire.link() for _ in range(200)]
    spoke = wire.link(LIVE)
    assert status_of(spoke) == 200 and wire.num_open <= 5
    assert all(is_closed(link) for link in silent[:190])
    assert wire.status(LIVE, source="127.0.0.2") == 200


@pytest.mark.parametrize("wire", [{"server__idle_seconds": 0.2}], indirect=True)
def test_a_connection_without_requests_is_closed_after_a_time(wire):
    link = wire.link(LIVE)
    assert status_of(link) == 200 and is_closed(link)
    assert wire.num_open == 0


@pytest.fixture
def next_file():
    """The number that the next file gets; all below it are taken, so that each further file gets the one after."""
    with contextlib.ExitStack() as stack:
        highest = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
        number = 0
        while number <= highest:
            number = stack.enter_context(Path(os.devnull).open()).fileno()
        yield number + 1


def test_connections_leave_files_to_the_log_and_to_accept_when_few_are_allowed(wire, monkeypatch, next_file):
    allowed = next_file + protocol.SPARE_FILES + 20
    monkeypatch.setattr(protocol, "file_limit", lambda: allowed)
    refused = metrics.connections_refused.labels("files")
    links = []
    for _ in range(30):
        before = wire.num_open + reading(refused)
        links.append(wire.link(b"GET /livez HTTP/1.1\r\n"))
        wait(lambda known=before: wire.num_open + reading(refused) > known)
    assert 5 <= wire.num_open < 20 and status_of(links[-1]) == 503
    for link in links:
        link.close()
    wait(lambda: wire.num_open == 0)
    assert wire.status(LIVE) == 200


def test_a_role_allows_itself_as_many_open_files_as_it_may():
    code = ("import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (100, r.getrlimit(r.RLIMIT_NOFILE)[1]));"
            "from streamd.processes import file_limit, raise_file_limit; raise_file_limit();"
            "print(file_limit(), r.getrlimit(r.RLIMIT_NOFILE))")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(" ", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert told[1].strip() == str((soft, hard)) and (soft == -1 or told[0] == str(soft))


def test_a_client_that_does_not_read_its_answers_is_cut_off(wire, monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.3)
    asked = b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
    wire.link(asked * 12)
    wait(lambda: wire.num_open == 1)
    wait(lambda: wire.num_open == 0)


@pytest.mark.parametrize(("headers", "status"), [
    ("origin: http://evil.example\r\n", 403), ("origin: null\r\n", 403), ("origin: http://localhost:8001\r\n", 403),
    ("origin: http://[::\r\n", 403), ("origin: \r\n", 403), ("sec-fetch-site: cross-site\r\n", 403),
    ("origin: http://localhost:8000\r\nsec-fetch-site: same-site\r\n", 403), ("", 404),
    ("origin: http://localhost:8000\r\n", 404), ("origin: HTTP://LOCALHOST:8000\r\n", 404),
    ("origin: https://evil.example\r\nsec-fetch-site: Same-Origin\r\n", 404), ("sec-fetch-site: none\r\n", 404)])
def test_a_page_of_another_site_cannot_move_the_champion(wire, headers, status):
    body = json.dumps({"why": "because"}).encode()
    rest = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body
    assert wire.status(b"POST /v1/models/1-1/promote HTTP/1.1\r\nhost: localhost:8000\r\n" + rest) == status


@pytest.mark.parametrize("kind", ["", "content-type: text/plain\r\n", "content-type: multipart/form-data; boundary=x\r\n",
                                  "content-type: application/x-www-form-urlencoded\r\n"])
def test_a_move_in_a_form_that_any_page_may_send_is_not_read(wire, kind):
    body = json.dumps({"why": "because"}).encode()
    rest = f"{kind}content-length: {len(body)}\r\n\r\n".encode() + body
    assert wire.status(b"POST /v1/models/1-1/promote HTTP/1.1\r\nhost: localhost\r\n" + rest) == 422


def test_names_of_this_machine_and_of_schemes_are_compared_without_case(tmp_path):
    wire = Wire(tmp_path, server__api_keys=["sesame"])
    asked = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: BEARER sesame\r\n\r\n"
    assert wire.status(asked) == 200
    wire.close()
    wire = Wire(tmp_path)
    assert wire.status(LIVE.replace(b"localhost", b"LocalHost:8000")) == 200
    assert wire.status(LIVE.replace(b"localhost", b"evil.example")) == 403
    wire.close()
