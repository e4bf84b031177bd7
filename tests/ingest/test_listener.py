"""Why no broker answers at an address, told apart without one."""

import socket
import threading
from contextlib import closing

import pytest

from streamd.errors import SilentBrokerError
from streamd.ingest.kafka import listener
from streamd.ingest.kafka.client import make_consumer
from streamd.ingest.kafka.listener import why_silent
from streamd.settings.loading import KafkaSettings


@pytest.fixture
def closed():
    """A port at which nothing listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def answering():
    """Starts a program that answers each connection with some bytes, and ends it. Returns: a function that returns the port."""
    listening = []

    def begin(answer):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def serve():
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    line.recv(1024)
                    line.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return server.getsockname()[1]

    yield begin
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_name_that_is_not_known_a_closed_port_and_an_address_without_a_port_are_named(closed, monkeypatch):
    assert why_silent("kafka.nowhere.invalid:9092", {}) == "the name kafka.nowhere.invalid cannot be resolved"
    assert why_silent(f"127.0.0.1:{closed}", {}) == "connection refused"
    assert why_silent("127.0.0.1:kafka", {}) == "'kafka' is not a port"
    monkeypatch.setattr(listener, "DEFAULT_PORT", closed)
    assert why_silent("127.0.0.1", {}) == f"connection refused; 127.0.0.1 has no port, and {closed} was tried"
    assert why_silent(f"x.invalid:1, 127.0.0.1:{closed}", {}) == (
        f"x.invalid:1: the name x.invalid cannot be resolved; 127.0.0.1:{closed}: connection refused")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00\x00\x06abcdef"])
def test_another_program_at_the_port_is_named(answering, answer):
    assert why_silent(f"127.0.0.1:{answering(answer)}", {}) == "the program that listens there does not answer as Kafka"


def test_a_broker_behind_a_proxy_is_not_asked(closed):
    assert why_silent(f"127.0.0.1:{closed}", {"socks5_proxy": "localhost:1080"}) == ""


def test_the_error_of_a_client_has_the_reason_in_the_place_of_the_librarys_words(closed):
    with pytest.raises(SilentBrokerError, match=f"^No broker answers at 127.0.0.1:{closed}: connection refused\\. Operator") as caught:
        make_consumer(KafkaSettings(bootstrap_servers=f"127.0.0.1:{closed}", client={"bootstrap_timeout_ms": 200}))
    assert "bootstrap" not in str(caught.value).replace("kafka.bootstrap_servers", "")
