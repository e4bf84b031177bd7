"""A server on a log that tests write, train and ask, and the waiting for what it does in threads."""

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import uvicorn
from fastapi.testclient import TestClient

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.events import Schema
from streamd.registry import Registry
from streamd.server.app import create_app
from streamd.server.listening import web_config
from streamd.server.state import ServerState
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.builders import HOUR, settings

SCHEMA = Schema(2, 0, 0)


class World:
    """A server on a log that tests can grow and train."""

    name = "serve"

    def __init__(self, path, **values):
        self.open(path, settings(path, stream__edge_feature_dim=2, **values))

    @classmethod
    def of(cls, path, chosen, name="serve"):
        """With settings of the test's own."""
        world = cls.__new__(cls)
        world.name = name
        world.open(path, chosen)
        return world

    def open(self, path, chosen):
        self.path, self.settings = path, chosen
        self.registry = Registry.of(self.settings)
        self.failures = []
        beat = Heartbeat(path, "serve", self.name)
        self.state = ServerState(self.settings, self.registry, beat, on_failure=lambda: self.failures.append(True))
        self.engine = self.state.engine
        self.client = TestClient(create_app(self.state), "http://localhost")
        self.running = ExitStack()

    def run(self):
        """Begin the application's life, and with it the engine's."""
        self.running.enter_context(self.client)

    def start(self):
        self.run()
        try:
            # Kernels may be compiled first.
            wait(lambda: self.engine.status.ready, 90)
        except AssertionError:
            self.stop()
            raise
        return self

    def stop(self):
        self.running.close()

    def train(self, limit=99):
        log = LogReader.open(self.path, keep_keys=False)
        trainer = Trainer(self.settings, Paths.of(self.settings, "train"), "cpu", log, self.registry, SystemClock(), Heartbeat(self.path, "train"))
        done = 0
        while done < limit and (window := next_window(log, trainer.edge, HOUR)) is not None:
            trainer.process(window)
            done += 1


@contextmanager
def listening(world, port=0):
    """The same application behind a real socket. Yields: its address and port."""
    with socket.create_server(("127.0.0.1", port)) as open_port:
        config = web_config(world.state)
        config.lifespan = "off"
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [open_port]})
        thread.start()
        wait(lambda: server.started)
        try:
            yield open_port.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def wait(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)


def ask(world, src="n:3", dst=("n:20", "n:21", "n:22"), **more):
    answer = world.client.post("/v1/score", json={"src": src, "dst": list(dst), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()
