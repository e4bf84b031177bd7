"""Two machines that may lead, on a real Kafka: where one is killed, the trainer of the other goes on from the stored checkpoint."""

import json
import random
import uuid

import pytest

from streamd.replica.models.checkpoint_marker import read_marker
from streamd.telemetry.heartbeat import read_beat
from tests.crash.daemons import wait
from tests.replica.models_world import logged_windows

SECOND = 1_000_000


def lines(daemon):
    return logged_windows(daemon.path) if (daemon.path / "published").exists() else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trainer_of_another_machine_learns_each_window_once(daemon_on, kafka, topic, producer, tmp_path):
    together = {"log__name": f"log-{uuid.uuid4().hex[:8]}", "log__store": f"file://{tmp_path}/store", "log__member": "standby",
                "windows__width_seconds": 60, "telemetry__archive_port": 0, "telemetry__train_port": 0, "telemetry__ingest_port": 0}
    first, second = (daemon_on(kafka.bootstrap_servers, topic, name, **together) for name in ("first", "second"))
    rng, sent = random.Random(1), [0]

    def send(num_events):
        for _ in range(num_events):
            sent[0] += 1
            event = {"src": f"u{rng.randrange(20)}", "dst": f"i{rng.randrange(15)}", "time": 10**15 + sent[0] * SECOND}
            producer.send(topic, json.dumps(event).encode())
        producer.flush()

    first.start()
    send(300)
    wait(lambda: read_marker(first.path) and len(lines(first)) >= 3, "the first machine has stored windows", 240)
    second.start()
    wait(lambda: (beat := read_beat(second.path, "train")) is not None and beat.state == "standby", "the second one stands by", 120)
    wait(lambda: len(lines(second)) >= 3, "it shows the windows", 60)
    shown = lines(second)
    first.kill()
    send(200)
    wait(lambda: len(lines(second)) >= len(shown) + 2, "its trainer learns on", 240)
    assert lines(second)[: len(shown)] == shown
    begins = [line["first_edge"] for line in lines(second)]
    assert begins == sorted(set(begins)), "each window once"
    second.stop()
