"""Several servers on one port: each has its own name, heartbeat and metrics, and one that dies takes no other with it."""

import json
import os
import random
import re
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest

from streamd.demo.standin import StandIn
from streamd.errors import SettingsError
from streamd.settings.loading import load_settings
from streamd.telemetry.heartbeat import read_beat
from tests.crash.daemons import Daemon, wait

NAMES = ("serve", "serve-worker-1")
EVENTS = 60


def free_pair():
    """The first of two ports beside one another that are free, below those that the kernel gives to connections meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            for number in (port, port + 1):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", number))
            return port
        except OSError:
            pass


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A daemon with two workers and a stand-in for Kafka; one for all tests, since three processes take long to start."""
    broker = StandIn()
    broker.create_topic("events", 4)
    made = Daemon(
        tmp_path_factory.mktemp("workers") / "data", broker.bootstrap_servers, "events", kafka__client=broker.client,
        server__workers=2, server__admin_keys=["admin"], server__api_keys=["user"], telemetry__serve_port=free_pair(),
        telemetry__ingest_port=0, telemetry__train_port=0).start()
    try:
        yield made
        assert made.stop() == 0, made.output()[-3000:]
    finally:
        if made.process.poll() is None:
            made.kill()
        broker.close()


@pytest.fixture
def daemon(started):
    """The daemon with both workers answering."""
    deadline = time.monotonic() + 120
    while not all(state_of(started, name) == "ready" for name in NAMES):
        assert time.monotonic() < deadline, started.output()[-5000:]
        time.sleep(0.05)
    return started


def state_of(daemon, name):
    beat = read_beat(daemon.path, name)
    return beat.state if beat is not None and beat.alive else None


def request(port, path, body=None, key="user"):
    """Ask over a connection of its own, so that the kernel chooses a worker. Returns: (status, answer as text)."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "x-api-key": key}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def ask(daemon, path, body=None, key="user"):
    return request(daemon.settings.server.port, path, body, key)


def counted(daemon, number):
    """Score requests that a worker has answered, by its own metrics."""
    status, text = request(daemon.settings.telemetry.serve_port + number, "/metrics")
    assert status == 200
    return sum(float(x) for x in re.findall(r'streamd_requests_total\{[^}]*route="/v1/score"[^}]*\} (\S+)', text))


def score(daemon):
    return ask(daemon, "/v1/score", {"src": "u:1", "dst": ["i:1", "i:2"]})[0]


def test_two_workers_answer_on_one_port_each_with_its_own_metrics(daemon):
    # A worker begins to listen shortly after its heartbeat says that it is ready.
    wait(lambda: score(daemon) == 200 and all(counted(daemon, number) for number in (0, 1)), "both answer")
    before = [counted(daemon, number) for number in (0, 1)]
    assert all(score(daemon) == 200 for _ in range(EVENTS))
    parts = [counted(daemon, number) - before[number] for number in (0, 1)]
    assert sum(parts) == EVENTS and min(parts) > 0, "the kernel spreads connections over both"

    # The shared port would show a worker by chance, so it shows none.
    status, text = ask(daemon, "/metrics")
    assert status == 404 and "telemetry.serve_port" in text
    assert request(daemon.settings.telemetry.serve_port, "/metrics", key="")[0] == 401
    for number in (0, 1):
        assert request(daemon.settings.telemetry.serve_port + number, "/livez")[0] == 200
    roles = json.loads(ask(daemon, "/status.json")[1])["roles"]
    assert all(roles[name]["alive"] and roles[name]["role"] == "serve" for name in NAMES)

    # Events and moves of versions go through whichever answers.
    for i in range(10):
        assert ask(daemon, "/v1/events", {"events": [{"src": "u:1", "dst": f"i:{i}", "time": i + 1}]})[0] == 202
        assert ask(daemon, "/v1/models/rollback", {"why": "test"}, key="user")[0] == 403
        assert ask(daemon, "/v1/models/rollback", {"why": "test"}, key="admin")[0] in (202, 409)
    wait(lambda: all(read_beat(daemon.path, name).detail["edges"] == 10 for name in NAMES), "both have seen the events")


@pytest.mark.parametrize("name", NAMES)
def test_the_others_answer_while_a_killed_worker_starts_again(daemon, name):
    before = read_beat(daemon.path, name).pid
    os.kill(before, signal.SIGKILL)

    # What waits at the dead one's socket is reset; from then on nothing fails, also while the new one starts.
    time.sleep(0.2)
    num = 0
    deadline = time.monotonic() + 120
    while read_beat(daemon.path, name).pid == before or state_of(daemon, name) != "ready":
        assert time.monotonic() < deadline, daemon.output()[-3000:]
        assert score(daemon) == 200 and ask(daemon, "/readyz")[0] == 200
        num += 1
    assert num > 10 and "role_died" in daemon.output()
    for _ in range(EVENTS):
        assert score(daemon) == 200
    wait(lambda: counted(daemon, NAMES.index(name)) > 0 or score(daemon) != 200, "the new one answers too")


def test_workers_without_a_port_to_share_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="server.port is 0"):
        load_settings(environ={"STREAMD_SERVER__WORKERS": "2", "STREAMD_SERVER__PORT": "0"})
