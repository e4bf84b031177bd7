import dataclasses

import numpy as np
import pytest
from structlog.testing import capture_logs

from streamd.training.replay import ReplayStore
from tests.training.test_learner import run, world


def test_recent_replay_holds_the_newest_chunks_and_none_holds_nothing(tmp_path):
    learner, _, _ = run(*world(tmp_path))
    chunk = learner.replay.chunks[0]
    newest, nothing = ReplayStore(None, 3, 0, "recent"), ReplayStore(None, 3, 0, "none")
    for edge in range(8):
        for store in (newest, nothing):
            store.offer(dataclasses.replace(chunk, first_edge=edge))
    assert sorted(c.first_edge for c in newest.chunks) == [5, 6, 7] and nothing.num_events == 0
    assert nothing.draw(100, 0) == []


def test_all_chunks_kept_are_replayed_alike(tmp_path):
    learner, _, _ = run(*world(tmp_path), capacity=50)
    store, chunk = ReplayStore(None, 8, 0), learner.replay.chunks[0]
    for edge in range(8):
        store.offer(dataclasses.replace(chunk, first_edge=edge))
    drawn = np.zeros(8)
    for window_edge in range(800):
        some = [c.first_edge for c in store.draw(2 * chunk.inputs.num_events, window_edge)]
        assert len(set(some)) == len(some) == 2
        drawn[some] += 1
    assert abs(drawn / 800 - 2 / 8).max() < 0.07


@pytest.mark.parametrize("num_events", [0, 0.3, 1, 2.75])
def test_as_many_events_are_replayed_as_asked_for_on_average(tmp_path, num_events):
    learner, _, _ = run(*world(tmp_path), capacity=50)
    store, chunk = ReplayStore(None, 8, 0), learner.replay.chunks[0]
    for edge in range(8):
        store.offer(dataclasses.replace(chunk, first_edge=edge))
    size = chunk.inputs.num_events
    drawn = [len(store.draw(num_events * size, window_edge)) for window_edge in range(600)]
    assert set(drawn) <= {int(num_events), -int(-num_events // 1)} and abs(np.mean(drawn) - num_events) < 0.06


def test_the_reservoir_is_bounded_uniform_and_comes_back_from_disk(tmp_path):
    s, log = world(tmp_path)
    learner, _, _ = run(s, log, capacity=50)
    chunk = learner.replay.chunks[0]
    hits = np.zeros(40)
    for seed in range(300):
        store = ReplayStore(None, 5, seed)
        for edge in range(40):
            store.offer(dataclasses.replace(chunk, first_edge=edge))
        for kept in store.chunks:
            hits[kept.first_edge] += 1
        assert len(store.chunks) == 5
    assert abs(hits / 300 - 5 / 40).max() < 0.07
    disk = ReplayStore(tmp_path / "replay", 3, 0)
    for edge in range(20):
        disk.offer(dataclasses.replace(chunk, first_edge=edge))
    disk.sweep()
    other = ReplayStore(tmp_path / "replay", 3, 0)
    other.restore(disk.index(), log.state.schema, log.state.schema)
    assert len(list((tmp_path / "replay").glob("*.safetensors"))) == 3
    assert [c.first_edge for c in other.draw(10**6, 4)] == [c.first_edge for c in disk.draw(10**6, 4)]


def test_chunks_that_an_older_release_recorded_with_fewer_facts_are_left_out_and_told(tmp_path):
    s, log = world(tmp_path)
    learner, _, _ = run(s, log)
    chunk, store = learner.replay.chunks[0], ReplayStore(tmp_path / "replay", 8, 0)
    older = dataclasses.replace(chunk, inputs=dataclasses.replace(chunk.inputs, facts_ECF=chunk.inputs.facts_ECF[..., :19]))
    for edge, recorded in enumerate((older, chunk, older)):
        store.offer(dataclasses.replace(recorded, first_edge=edge))
    again = ReplayStore(tmp_path / "replay", 8, 0)
    with capture_logs() as logs:
        again.restore(store.index(), log.state.schema, log.state.schema)
    assert [c.first_edge for c in again.chunks] == [1]
    assert [entry["chunks"] for entry in logs if entry["event"] == "replay_chunks_dropped"] == [2]
