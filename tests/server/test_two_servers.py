"""Two servers on one directory: each has its own hold, facts, memory and heartbeat."""

import shutil
import time
from contextlib import closing

import pytest

from streamd.cli.doctor_checks import run_check
from streamd.eventlog.upkeep.holds import end_lease, read_holds
from streamd.eventlog.writer import LogWriter
from streamd.roles import FACTS, HEARTBEAT, HOLD, MEMORY, folder_of
from streamd.serving import retention_hold
from streamd.serving.memory_store import INDEX
from streamd.telemetry.heartbeat import read_beat
from tests.builders import HOUR, settings, stream, write_log
from tests.server.world import SCHEMA, World, ask, wait


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Servers `serve` and `serve-2` of a log of several segments, with a version."""
    monkeypatch.setattr(retention_hold, "MEMORY_EVERY", 50)
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR, segment_edges=200)
    chosen = settings(tmp_path, stream__edge_feature_dim=2)
    first, second = (World.of(tmp_path, chosen, name) for name in ("serve", "serve-2"))
    first.train(2)
    for world in (first, second):
        world.start()
        wait(lambda world=world: world.engine.status.version == world.registry.champion())
        folder = folder_of(tmp_path, world.name)
        wait(lambda folder=folder: (folder / MEMORY / INDEX).exists() and list((folder / FACTS).glob("*")))
    yield first, second
    first.stop()
    second.stop()


def test_two_servers_of_different_names_do_not_disturb_one_another(two):
    first, second = two
    path = first.path
    wait(lambda: {n: h.edge for n, h in read_holds(path).items() if n != "train"} == {"serve": 500, "serve-2": 500})
    answer = ask(first)
    assert ask(second)["scores"] == answer["scores"]

    # Both are shown, each by its own heartbeat.
    roles = first.client.get("/status.json").json()["roles"]
    assert roles["serve"]["alive"] and roles["serve-2"]["alive"] and roles["serve-2"]["role"] == "serve"
    seen = run_check("roles", first.settings).seen
    assert "serve: ready, holds the log from event 500; serve-2: ready, holds the log from event 500" in seen

    # What one loses, the other keeps; and what is gone for good holds nothing.
    second.stop()
    before = {p: p.read_bytes() for p in folder_of(path, "serve").rglob("*") if p.is_file() and p.name != HEARTBEAT}
    assert {p.name for p in before} >= {HOLD, INDEX}
    shutil.rmtree(folder_of(path, "serve-2"))
    assert {p: p.read_bytes() for p in before} == before and "serve-2" not in read_holds(path)
    assert read_beat(path, "serve").alive and ask(first)["scores"] == answer["scores"]
    assert "serve-2" not in first.client.get("/status.json").json()["roles"]


def test_a_further_server_that_is_down_still_holds_the_log(two):
    _, second = two
    second.stop()
    assert read_holds(second.path)["serve-2"].edge <= 500
    fresh = World.of(second.path, second.settings, "serve-3").start()
    fresh.stop()
    assert set(read_holds(second.path)) == {"serve", "serve-2", "serve-3", "train"}


def test_a_server_that_returns_after_its_lease_starts_anew_from_the_logs_begin(two):
    first, second = two
    second.stop()
    first.stop()
    first.train(2)
    for name in ("serve", "serve-2"):
        assert not end_lease(second.path, name, 86_400, time.time())
        assert end_lease(second.path, name, 86_400, time.time() + 90_000)
    assert set(read_holds(second.path)) == {"train"} and not (folder_of(second.path, "serve-2") / FACTS).exists()
    with closing(LogWriter(second.path, SCHEMA, 200)) as writer:
        writer.drop_before(200)

    # It answers as one that has never run here, and holds the log again.
    answers = []
    for name in ("serve-2", "serve-9"):
        world = World.of(second.path, second.settings, name).start()
        wait(lambda world=world: world.engine.status.version == world.registry.champion())
        wait(lambda name=name: read_holds(second.path)[name].edge == 500)
        answers.append(ask(world)["scores"])
        world.stop()
    assert answers[0] == answers[1]
