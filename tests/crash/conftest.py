import uuid

import pytest
from kafka import KafkaProducer

from tests.crash.daemons import Daemon


@pytest.fixture
def daemon_on(tmp_path):
    """Makes daemons, and ends those a failed test left running."""
    made = []

    def make(broker, topic, folder="data", **values):
        made.append(Daemon(tmp_path / folder, broker, topic, **values))
        return made[-1]

    yield make
    for daemon in made:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
    for daemon in made:
        if daemon.process is not None:  # pytest shows it where the test failed
            print(f"--- {daemon.path.name}, ended with {daemon.process.poll()}\n{daemon.output()[-6000:]}")


@pytest.fixture
def topic(kafka):
    name = f"t-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, 4)
    return name


@pytest.fixture
def producer(kafka):
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5)
    yield made
    made.close()
