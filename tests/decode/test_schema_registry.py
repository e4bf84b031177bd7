"""The client of a schema registry, against a real HTTP server with faults."""

import contextlib
import ssl
import subprocess
import time

import pytest

from streamd.decode.sources import schema_registry
from streamd.decode.sources.schema_registry import MAX_ANSWER_BYTES, SchemaRegistry, UnknownSchema
from streamd.errors import BadEvent, SchemaRegistryError, SettingsError
from streamd.settings.loading import (
    SchemaRegistrySettings,
    as_environment,
    effective,
    load_settings,
)
from tests.decode.registry import Registry, trickle

JSON = "application/json"


def trickle_headers(handler):
    """A fault: headers that come byte by byte and never end."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\na: ")
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b"b")
            time.sleep(0.05)
    handler.close_connection = True


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.stop()


def client(registry, **values):
    return SchemaRegistry(SchemaRegistrySettings(**{"url": registry.url, "timeout_seconds": 0.3, **values}))


def test_a_schema_is_asked_by_id_on_one_connection(registry):
    registry.add(7, "string")
    registry.add(8, "x", "JSON")
    asked = client(registry, url=f"{registry.url}/")
    assert (asked.schema(7).kind, asked.schema(7).text, asked.schema(8).kind) == ("AVRO", "string", "JSON")
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/7", "/schemas/ids/8"]


def test_references_come_behind_what_they_need_and_once_each(registry):
    registry.refer("a/b?", 1, "A")
    registry.refer("b", 2, "B", references=[("a", "a/b?", 1), ("self", "b", 2)])
    registry.add(1, "C", references=[("b", "b", 2), ("a", "a/b?", 1)])
    asked = client(registry)
    needed = asked.referenced(asked.schema(1))
    assert {name: s.text for name, s in needed.items()} == {"a": "A", "self": "B", "b": "B"}
    assert list(needed)[-1] == "b" and registry.asked[1:] == [
        "/subjects/b/versions/2?deleted=true", "/subjects/a%2Fb%3F/versions/1?deleted=true", "/subjects/b/versions/2?deleted=true"]


def test_a_schema_may_not_need_any_number_of_others(registry):
    for i in range(300):
        registry.refer(f"s{i}", 1, "x", references=[(f"n{i + 1}", f"s{i + 1}", 1)])
    registry.add(1, "x", references=[("n0", "s0", 1)])
    asked = client(registry)
    with pytest.raises(BadEvent, match="needs more than"):
        asked.referenced(asked.schema(1))
    assert len(registry.asked) < 110


def test_only_the_apis_own_404_means_an_unknown_schema(registry):
    with pytest.raises(UnknownSchema, match="does not know schema 9"):
        client(registry).schema(9)
    with pytest.raises(SchemaRegistryError, match="is it its root"):
        client(registry, url=f"{registry.url}/wrong").schema(9)


FAULTS = {
    "an error of its own": ((500, JSON, b'{"error_code": 50001}'), "status 500"),
    "not itself": ((503, "text/html", b"<html>"), "status 503"),
    "a login page": ((200, "text/html", b"<html>" * 10**6), "text/html"),
    "a redirect": ((302, JSON, b""), "status 302"),
    "credentials": ((401, JSON, b"{}"), "refuses our credentials"),
    "rights": ((403, JSON, b"{}"), "refuses our credentials"),
    "half an answer": ((200, JSON, b'{"schema": "x"'), "not JSON"),
    "deep JSON": ((200, JSON, b"[" * 10**5), "not JSON"),
    "a list": ((200, JSON, b"[]"), "not with a schema"),
    "no schema": ((200, JSON, b"{}"), "not with a schema"),
    "a number": ((200, JSON, b'{"schema": 5}'), "not with a schema"),
    "no version": ((200, JSON, b'{"schema": "x", "references": [{"name": "a", "subject": "b", "version": 1e999}]}'), "not with a schema"),
    "odd references": ((200, JSON, b'{"schema": "x", "references": [5]}'), "not with a schema"),
    "no number": ((200, JSON, b'{"schema": "x", "references": [{"name": "a", "subject": "b", "version": "../x"}]}'), "not with a schema"),
    "a slow byte": (trickle, "timed out"),
    "slow headers": (trickle_headers, "timed out"),
    "silence": (lambda handler: time.sleep(0.5), "timed out"),
    "garbage": (lambda handler: handler.wfile.write(b"\x16\x03\x01" * 99), "does not answer"),
    "long headers": (lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10**4), "does not answer"),
    "a hang up": (lambda handler: handler.connection.close(), "does not answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_registry_that_says_nothing_of_the_schema_is_away_and_then_is_back(registry, fault, monkeypatch):
    monkeypatch.setattr(schema_registry, "FIRST_PAUSE_SECONDS", 0.05)
    registry.add(7, "string")
    asked = client(registry)
    assert asked.schema(7)
    registry.fault, says = FAULTS[fault]
    begun = time.monotonic()
    with pytest.raises(SchemaRegistryError, match=says) as error:
        asked.schema(7)
    assert "Operator action: check" in str(error.value) and time.monotonic() - begun < 3
    registry.fault = None
    time.sleep(0.06)
    assert asked.schema(7).text == "string"


def test_an_answer_too_large_is_a_bad_schema_and_is_not_read_to_its_end(registry):
    registry.add(7, "string")
    registry.add(8, "x" * MAX_ANSWER_BYTES * 20)
    asked = client(registry, timeout_seconds=5)
    with pytest.raises(BadEvent, match="larger than"):
        asked.schema(8)
    assert asked.schema(7).text == "string"


def test_a_registry_that_fails_is_asked_ever_more_seldom():
    now = [0.0]
    server = Registry()
    server.fault = (500, JSON, b"{}")
    asked = SchemaRegistry(SchemaRegistrySettings(url=server.url), lambda: now[0])
    moments = []
    for _ in range(600):
        before = len(server.asked)
        with pytest.raises(SchemaRegistryError, match="status 500"):
            asked.schema(1)
        if len(server.asked) > before:
            moments.append(now[0])
        now[0] += 0.1
    server.stop()
    pauses = [round(b - a, 1) for a, b in zip(moments, moments[1:], strict=False)]
    assert [round(p) for p in pauses[1:]] == [1, 2, 4, 8, 10, 10, 10, 10] and pauses[0] < 0.7


def test_a_registry_that_is_down_is_away_and_a_new_one_at_its_address_is_found(registry):
    registry.add(7, "string")
    asked = client(registry)
    assert asked.schema(7)
    port = registry.port
    registry.stop()
    with pytest.raises(SchemaRegistryError, match="does not answer"):
        time.sleep(0.05)
        client(registry).schema(7)
    registry.start(port)
    # The old connection is closed; nobody has to wait for that.
    assert asked.schema(7).text == "string"


def test_an_old_connection_that_ends_as_it_is_asked_is_opened_again_once(registry):
    registry.add(7, "string")
    asked = client(registry)
    assert asked.schema(7)

    def end(handler):
        registry.fault = None
        handler.close_connection = True

    registry.fault = end
    assert asked.schema(7).text == "string" and len(registry.asked) == 3


def test_a_redirect_does_not_get_the_credentials(registry):
    other = Registry()
    other.add(7, "string")

    def redirect(handler):
        handler.send_response(307)
        handler.send_header("Location", f"{other.url}/schemas/ids/7")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    registry.fault = redirect
    with pytest.raises(SchemaRegistryError, match="status 307"):
        client(registry, user="me", secret="pass").schema(7)
    other.stop()
    assert other.asked == [] and registry.headers[-1]["Authorization"]


def test_credentials_are_sent_as_basic_or_bearer_and_a_changed_file_counts(registry, tmp_path):
    registry.add(7, "string")
    file = tmp_path / "token"
    file.write_text("one\n")
    client(registry).schema(7)
    client(registry, user="me", secret="pass").schema(7)
    asked = client(registry, secret_file=file)
    asked.schema(7)
    file.write_text("two\n")
    asked.schema(7)
    assert [h.get("Authorization") for h in registry.headers] == [None, "Basic bWU6cGFzcw==", "Bearer one", "Bearer two"]
    file.unlink()
    with pytest.raises(SchemaRegistryError, match="token cannot be read"):
        asked.schema(7)
    for bad in ("a\r\nX: y", "é"):
        file.write_text(bad)
        with pytest.raises(SettingsError, match="one line of ASCII"):
            client(registry, secret_file=file)
    with pytest.raises(SettingsError, match="cannot be read"):
        client(registry, secret_file=tmp_path / "none")
    # As from an environment variable; an error does not show it.
    client(registry, secret="hush\n").schema(7)
    assert registry.headers[-1]["Authorization"] == "Bearer hush"
    with pytest.raises(SettingsError, match=r"schema_registry\.secret holds more than one line of ASCII") as error:
        client(registry, secret="hush\nhush")
    assert "hush" not in str(error.value)


def test_a_registry_behind_tls_must_be_who_it_says(registry, tmp_path):
    registry.add(7, "string")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(cert)
    context.verify_mode = ssl.CERT_REQUIRED
    registry.server.socket = context.wrap_socket(registry.server.socket, server_side=True)
    url = registry.url.replace("http", "https")
    assert client(registry, url=url, ca_file=cert, cert_file=cert, key_file=key).schema(7).text == "string"
    with pytest.raises(SchemaRegistryError, match="(?i)certificate"):
        client(registry, url=url, cert_file=cert, key_file=key).schema(7)
    registry.fault = trickle
    with pytest.raises(SchemaRegistryError, match="timed out"):
        client(registry, url=url, ca_file=cert, cert_file=cert, key_file=key).schema(7)
    with pytest.raises(SettingsError, match="cert_file .* cannot be used"):
        client(registry, url=url, cert_file=key)


@pytest.mark.parametrize(("text", "says"), [
    ("{url: 'ftp://x'}", "begins with http"), ("{url: 'http://'}", "begins with http"), ("{url: 'http://a:b@x'}", "the address holds a user"), ("{url: 'http://x:99999'}", "ort"), ("{url: 'http://a..b'}", r"url .*line 1\): each part of the host name"),
    ("{url: 'http://x', secret: a, secret_file: b}", "secret_file is set too"), ("{url: 'http://x', user: me}", "needs schema_registry.secret"),
    ("{url: 'http://x', ca_file: a}", "unless schema_registry.url is https"), ("{url: 'https://x', key_file: a}", "needs schema_registry.cert_file"), ("{user: 'a:b'}", "pattern")])
def test_settings_that_cannot_work_are_refused(tmp_path, text, says):
    (tmp_path / "s.yaml").write_text(f"schema_registry: {text}")
    with pytest.raises(SettingsError, match=says):
        load_settings(tmp_path / "s.yaml", environ={})


def test_the_secret_reaches_roles_and_is_never_shown():
    s, _ = load_settings(environ={"STREAMD_SCHEMA_REGISTRY__URL": "http://x", "STREAMD_SCHEMA_REGISTRY__SECRET": "hush"})
    assert effective(s)["schema_registry.secret"] == "***" and "hush" not in repr(s)
    again, _ = load_settings(environ=as_environment(s))
    assert again.schema_registry.secret.get_secret_value() == "hush"
