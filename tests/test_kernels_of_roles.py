"""After the warm-up no role compiles anything: while one does, nobody is answered."""

import dataclasses
import sys

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from streamd.events import DELETION, Progress, empty_batch
from streamd.graph import jit, live, warm_up
from streamd.graph.blocks import block_store as blocks
from tests.builders import (
    HOUR,
    SETS,
    declared,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)
from tests.scoring.world import Feed, Scoring
from tests.server.world import SCHEMA, World, wait

WHOLE, BEGUN = 600, 350


def compiled():
    """How many signatures each function of ours is compiled for, inner ones too."""
    modules = [m for name, m in sys.modules.items() if name.startswith("streamd.") and not name.startswith("streamd.tfgnn")]
    found = [getattr(value, "dispatcher", value) for m in modules for value in vars(m).values()]
    return {f"{d.py_func.__module__}.{d.py_func.__qualname__}": len(d.overloads) for d in found if issubclass(type(d), Dispatcher)}


class OneSet:
    schema, asked = SCHEMA, {"src": "n:3", "dst": ["n:20", "n:21"]}
    values = {"stream__edge_feature_dim": 2}
    named = {}

    def write(self, path, count, **more):
        write_log(path, *(column[:count] for column in stream(WHOLE)), SCHEMA, **more)


class SeveralSets:
    schema, asked = SETS, {"src": 3, "dst": [4, 5], "edge_set": "views"}
    values = {name.replace(".", "__"): value for name, value in declared().items()}
    named = {"edge_set": "views"}

    def write(self, path, count, **more):
        write_sets_log(path, *(column[:count] for column in sets_stream(WHOLE)), **more)


def ask(world, kind):
    """A request of each kind."""
    asked = kind.asked
    pair = {**asked, "dst": asked["dst"][0]}
    for path, body in (("score", asked), ("recommend", {"src": asked["src"], **kind.named}), ("explain", pair)):
        answer = world.client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("kind", "member"), [(OneSet(), "leader"), (SeveralSets(), "replica")],
                         ids=["one set, leader", "several sets, replica"])
def test_no_role_compiles_a_kernel_while_a_log_is_read_learned_scored_and_swapped(tmp_path, monkeypatch, kind, member):
    # All ways of small and large logs: many events at once, and old ones out of memory and back.
    monkeypatch.setattr(blocks, "MANY_EVENTS", 200)
    monkeypatch.setattr(live, "OFFLOAD_EVENTS", 1)
    path, whole = tmp_path / "data", tmp_path / "whole"
    kind.write(whole, WHOLE)
    kind.write(path, BEGUN)
    values = kind.values | {"model__name": "tgn", "graph__keep_in_memory_seconds": 1800, "server__score_topic": "scores",
                            "log__name": "t", "log__member": member}
    warm_up.warm_up()
    before = compiled()

    trainer = World.of(path, settings(path, **values))
    trainer.train()
    first = trainer.registry.champion()
    server = World.of(path, settings(path, **values)).start()
    wait(lambda: server.engine.status.version == first)
    ask(server, kind)
    scoring = Scoring(trainer.settings).ready()

    feed = Feed(path, whole, kind.schema, BEGUN)
    feed.commit(WHOLE)
    gone = np.zeros(1, DELETION)
    gone["src"], gone["dst"] = 7, -1
    feed.writer.commit(dataclasses.replace(empty_batch(kind.schema), deletions_X=gone), Progress(), 100 * HOUR)
    trainer.train()
    assert trainer.registry.champion() != first
    wait(lambda: server.engine.status.version == trainer.registry.champion())
    ask(server, kind)
    scoring.turn()
    assert scoring.topic.records
    server.stop()
    feed.close()
    assert compiled() == before
    assert all(len(kernel.dispatcher.signatures) == 1 for kernel in jit.KERNELS)
