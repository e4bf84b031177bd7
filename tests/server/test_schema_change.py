"""A server on a log that gets further sets and features while it answers."""

import dataclasses

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, SetKey, empty_batch
from streamd.settings.loading import with_schema
from tests.builders import HOUR, settings, stream, write_log
from tests.server.world import SCHEMA, World, wait
from tests.training.test_schema_change import EXTENDED


def world_of(path, name):
    write_log(path, *stream(600), SCHEMA, watermark=100 * HOUR)
    return World.of(path, settings(path, model__name=name, stream__edge_feature_dim=2))


def buy(path, times):
    """Extend the log, and append purchases of five shops by the nodes n:1 and n:3, in two windows."""
    log = LogWriter(path, EXTENDED)
    first, last = log.num_nodes, log.newest_us
    src = np.array([log.keys["n:1"], log.keys["n:3"]] * times)
    for hour in (1, 2):
        log.commit(dataclasses.replace(
            empty_batch(EXTENDED), src_E=src, dst_E=first + np.where(src == src[1], 1, np.arange(len(src)) % 5),
            time_E=np.full(2 * times, last + hour * HOUR), msg_ED=EXTENDED.edge_rows(1, np.ones((2 * times, 1), np.float32)),
            new_keys=tuple(SetKey(1, name) for name in "abcde") if hour == 1 else ()), Progress(), 100 * hour * HOUR + HOUR)
    log.close()


def score(world, **more):
    answer = world.client.post("/v1/score", json={"src": "n:3", "dst": ["n:20", "n:21"], **more})
    return answer.status_code, answer.json()


@pytest.mark.parametrize("name", ["tgn", "pair", "rule"])
def test_the_server_answers_while_the_log_is_extended_and_then_for_the_new_set_too(tmp_path, name):
    world = world_of(tmp_path, "pair" if name == "rule" else name)
    if name != "rule":
        world.train()
    world.start()
    wait(lambda: world.engine.status.version == (world.registry.champion() or "rule"))
    status, before = score(world)
    assert status == 200

    # Not one request fails from the change until the new set is known.
    buy(tmp_path, 20)
    asked = []

    def knows():
        asked.append(score(world)[0])
        return score(world, edge_set="buys", dst=["a", "b"])[0] == 200

    wait(knows)
    assert asked[:-1] == [200] * (len(asked) - 1) and world.engine.status.ready and not world.failures
    assert "edge_set is required; there are default, buys" in score(world)[1]["detail"]
    status, after = score(world, edge_set="default")
    assert status == 200 and after["as_of"]["version"] == before["as_of"]["version"]
    bought = score(world, edge_set="buys", dst=["a", "b"])[1]["scores"]
    assert bought[1]["known"] and bought[1]["score"] > bought[0]["score"], "n:3 bought of b"
    schema = world.client.get("/v1/schema").json()
    assert [s["name"] for s in schema["edge_sets"]] == ["default", "buys"] and schema["edge_sets"][1]["features"][0]["name"] == "x"

    # A version that was learned with the new set is served too.
    if name != "rule":
        log = LogReader.open(tmp_path)
        world.settings = with_schema(world.settings, log.state.schema)
        world.train()
        wait(lambda: world.engine.status.version == world.registry.champion() != before["as_of"]["version"])
        assert score(world, edge_set="buys", dst=["a", "b"])[0] == 200
    world.stop()
