"""`streamd health`: what an engine of containers asks, wherever the settings have a role listen."""

import json
import re
import shutil
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from streamd.cli.health import ask_health
from streamd.cli.main import app
from streamd.demo.broker import free_port
from streamd.errors import SettingsError
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.port import open_port
from tests.builders import settings
from tests.ingest.secured import make_certificates

ANSWERS = {"/livez": (200, {"alive": True, "why": "turning"}), "/readyz": (503, {"ready": False, "why": "rebuilding"})}


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        status, said = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(said if isinstance(said, bytes) else json.dumps(said).encode())

    def log_message(self, *_):
        """Nothing on the terminal."""


@pytest.fixture
def server():
    made = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_the_server_is_asked_on_its_port_whatever_address_it_binds(tmp_path, server):
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        s = settings(tmp_path, server__port=server.server_port, server__host=host, server__api_keys=["k"])
        assert ask_health(s, "serve", "/livez") == (True, "turning")
        assert ask_health(s, "serve", "/readyz") == (False, "rebuilding")


def test_with_a_certificate_the_server_is_asked_over_tls_by_whatever_name_it_is_for(tmp_path, server):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    make_certificates(tmp_path / "tls")
    cert, key = tmp_path / "tls/client.pem", tmp_path / "tls/client.plain"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    plain = server.socket
    server.socket = context.wrap_socket(plain, server_side=True)
    s = settings(tmp_path, server__port=server.server_port, server__tls_cert_file=cert, server__tls_key_file=key)
    assert ask_health(s, "serve", "/livez") == (True, "turning")
    without = settings(tmp_path, server__port=server.server_port)
    assert not ask_health(without, "serve", "/livez")[0]


@pytest.mark.parametrize("role", ["ingest", "train"])
def test_a_role_is_asked_on_its_own_port_without_tls_and_stalled_is_not_well(tmp_path, monkeypatch, role):
    beat = Heartbeat(tmp_path, role)
    port = free_port()
    open_port(port, "127.0.0.1", beat, lambda key: False)
    s = settings(tmp_path, **{f"telemetry__{role}_port": port}, server__tls_cert_file="c", server__tls_key_file="k")
    beat.touch("busy")
    assert ask_health(s, role, "/livez")[0]
    monkeypatch.setattr("streamd.telemetry.heartbeat.STALLED_SECONDS", -1)
    assert not ask_health(s, role, "/livez")[0]


def test_nobody_there_or_somebody_else_is_not_well(tmp_path, server, monkeypatch):
    s = settings(tmp_path, server__port=free_port())
    well, said = ask_health(s, "serve", "/livez")
    assert not well and said == f"127.0.0.1:{s.server.port} does not answer: connection refused"
    s = settings(tmp_path, server__port=server.server_port)
    for body in (b"<html>", b"[]"):
        monkeypatch.setitem(ANSWERS, "/livez", (200, body))
        well, said = ask_health(s, "serve", "/livez")
        assert not well and said.startswith(f"another program than streamd answers at 127.0.0.1:{server.server_port}")


@pytest.mark.parametrize(("role", "path", "says"), [
    ("cook", "/livez", "no role 'cook'"), ("train", "/readyz", "no /readyz"), ("ingest", "/livez", "no port")])
def test_what_cannot_be_asked_is_an_error_and_not_an_answer(tmp_path, role, path, says):
    with pytest.raises(SettingsError, match=says):
        ask_health(settings(tmp_path), role, path)


def test_the_command_ends_with_0_or_1_and_asks_no_proxy(server, monkeypatch):
    monkeypatch.setenv("STREAMD_SERVER__PORT", str(server.server_port))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    lives, ready = (CliRunner().invoke(app, ["health", *more]) for more in ((), ("--ready",)))
    assert (lives.exit_code, lives.output) == (0, "serve: alive: turning\n")
    assert (ready.exit_code, ready.output) == (1, "serve: not ready: rebuilding\n")
    monkeypatch.setitem(ANSWERS, "/readyz", (200, {"ready": True, "why": "answering", "kafka": "Kafka k:9092 has no topic t"}))
    assert CliRunner().invoke(app, ["health", "--ready"]).output == "serve: ready: answering; but Kafka k:9092 has no topic t\n"


def test_the_words_about_a_role_that_waits_for_kafka_fit_the_verdict(tmp_path, monkeypatch):
    beat = Heartbeat(tmp_path, "ingest")
    port = free_port()
    open_port(port, "127.0.0.1", beat, lambda key: False)
    beat.touch("broker unavailable")
    monkeypatch.setenv("STREAMD_TELEMETRY__INGEST_PORT", str(port))
    done = CliRunner().invoke(app, ["health", "--role", "ingest"])
    assert done.exit_code == 0 and re.fullmatch(r"ingest: alive: its loop's last turn was \d\.\d s ago, its state: broker unavailable\n", done.output)
