"""Trainers on several ranks score, learn, publish and resume as one trainer does."""

import shutil
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from streamd.clock import SystemClock
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import read_holds
from streamd.models.architectures import ARCHITECTURES
from streamd.registry import Registry
from streamd.registry.candidate import Candidate
from streamd.registry.gate import Decision
from streamd.serving.loaded_version import LoadedVersion
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.ledger import Ledger
from streamd.training.trainer import Trainer
from streamd.training.versions import contest
from streamd.windows.history import RULES, HistoryReader
from tests.builders import SETS
from tests.ranks.threads import run
from tests.ranks.worlds import World, one_at_a_time


@pytest.fixture(autouse=True)
def seeds(monkeypatch):
    one_at_a_time(monkeypatch)


def state_of(trainer):
    learner = trainer.learner
    return {
        "weights": {n: t.clone() for n, t in learner.model.state_dict().items()}, "edge": trainer.edge,
        "replay": [(c.first_edge, c.num_events) for c in learner.replay.chunks],
        "tail": [(c.first_edge, c.num_events) for c in learner.tail],
        "version": trainer.contest.version, "compared": trainer.contest.compared.num_events, "nodes": learner.memory.rows.num_positions}


def records(path):
    return HistoryReader(path).refresh()


def check_alike(path, other):
    """What two directories say of their windows and versions agrees, to what learning by parts changes."""
    ours, theirs = records(path), records(other)
    assert [(r.start_us, r.num_scored, r.num_known, r.first_edge) for r in ours] == [
        (r.start_us, r.num_scored, r.num_known, r.first_edge) for r in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one.scores.keys() == two.scores.keys() and one.edge_sets.keys() == two.edge_sets.keys()
        for name in RULES:
            if name in one.scores:
                assert one.scores[name] == pytest.approx(two.scores[name], abs=1e-12), "facts do not depend on ranks"
        for name, values in two.scores.items():
            assert one.scores[name] == pytest.approx(values, abs=0.06), name
        if two.loss is not None:
            assert one.loss == pytest.approx(two.loss, rel=0.02)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_ranks_together_make_the_versions_and_records_of_one_trainer(tmp_path, size):
    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    one, = alone.learn(1, state_of)
    parts = together.learn(size, state_of)
    for part in parts:
        assert {k: part[k] for k in ("edge", "replay", "tail", "compared")} == {
            k: one[k] for k in ("edge", "replay", "tail", "compared")}
        for name, tensor in parts[0]["weights"].items():
            assert torch.equal(part["weights"][name], tensor)
            torch.testing.assert_close(tensor, one["weights"][name], rtol=0.2, atol=0.02, msg=name)
    assert len({p["nodes"] for p in parts}) > 1 or size == 1, "each has its own nodes"
    check_alike(together.path, alone.path)
    ours, theirs = Registry.of(together.settings), Registry.of(alone.settings)
    assert ours.names() == theirs.names()
    assert [(m.champion, m.shadow) for m in ours.journal.moves()] == [(m.champion, m.shadow) for m in theirs.journal.moves()]


def test_the_server_loads_a_version_whose_memory_several_ranks_wrote(tmp_path):
    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    alone.learn(1)
    together.learn(3)
    memories = []
    for world in (alone, together):
        registry = Registry.of(world.settings)
        served = LoadedVersion.restored(registry.load(registry.champion()), SETS)
        memories.append(served.memory)
    one, some = (m.tensors() for m in memories)
    assert torch.equal(some["pending_node"], one["pending_node"]) and torch.equal(some["last_us"], one["last_us"])
    torch.testing.assert_close(some["state"], one["state"], rtol=0.1, atol=0.05)


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path):
    """2, then 3, then 1, then 2 ranks, with deletes between; the windows are those of one trainer throughout."""
    changing, alone = World(tmp_path / "some"), World(tmp_path / "one")
    for sizes, world in (((2, 3, 1, 2), changing), ((1, 1, 1, 1), alone)):
        for size, until in zip(sizes, (250, world.num_kept_before, None, None), strict=True):
            world.grow(until)
            if until == world.num_kept_before:
                world.delete()
            world.learn(size)
    check_alike(changing.path, alone.path)
    assert Registry.of(changing.settings).names() == Registry.of(alone.settings).names()


def test_the_same_ranks_give_the_same_bits(tmp_path):
    def made(name):
        world = World(tmp_path / name).grow()
        world.learn(3)
        folder, = (world.path / "train/checkpoints").iterdir()
        return {k: v.numpy().tobytes() for k, v in load_file(folder / "state.safetensors").items()}

    assert made("a") == made("b")


@pytest.mark.parametrize("size", [1, 2])
def test_trainers_of_a_log_with_labels_and_features_go_on_after_a_restart_to_the_same_bits(tmp_path, size):
    going, started_again = World(tmp_path / "one").grow(400), World(tmp_path / "some").grow(400)
    one = going.learn(size, state_of, between=[going.grow])
    started_again.learn(size)
    started_again.grow()
    other = started_again.learn(size, state_of)
    for ours, theirs in zip(one, other, strict=True):
        for name, tensor in ours["weights"].items():
            assert torch.equal(tensor, theirs["weights"][name]), name
    assert registry_of(going) == registry_of(started_again)


def test_a_log_with_a_past_is_learned_at_once_by_all_ranks(tmp_path):
    values = {"windows__max_events": 100, "bootstrap__max_events": 400}
    alone, together = (World(tmp_path / name, **values).grow() for name in ("one", "some"))
    one, = alone.learn(1, state_of)
    parts = together.learn(2, state_of)
    assert all(part["edge"] == one["edge"] and part["replay"] == one["replay"] for part in parts)
    check_alike(together.path, alone.path)


@pytest.mark.parametrize("state", ["bootstrapping", "scoring", "learning"])
def test_a_stop_of_the_first_rank_is_heard_by_all_within_a_chunk(tmp_path, state):
    world = World(tmp_path, bootstrap__max_events=400 if state == "bootstrapping" else 0, windows__max_events=100).grow()

    class Counting(Heartbeat):
        count, is_first, stop = 0, False, threading.Event()

        def touch(self, now, **detail):
            super().touch(now, **detail)
            self.count += now == state
            if self.count == 3 and self.is_first:
                self.stop.set()

    def one(ranks):
        beat = Counting(tmp_path, "train", f"train-{ranks.rank}" if ranks.rank else "train")
        beat.is_first = ranks.is_first
        log = LogReader.open(tmp_path, keep_keys=False)
        trainer = Trainer(world.settings, Paths.of(world.settings, "train"), "cpu", log, Registry.of(world.settings), SystemClock(), beat, ranks=ranks)
        return trainer.run(beat.stop if ranks.is_first else threading.Event()), beat.count

    assert run(2, one) == [(False, 3)] * 2
    assert Registry.of(world.settings).names() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "tgn"])
def test_every_model_is_learned_by_several_ranks(tmp_path, name):
    alone, together = (World(tmp_path / n, model__name=name).grow() for n in ("one", "some"))
    alone.learn(1)
    together.learn(3)
    check_alike(together.path, alone.path)


def test_what_was_deleted_is_forgotten_on_every_rank(tmp_path):
    world = World(tmp_path / "some").grow()
    log = LogReader.open(world.path)
    assert len(log.deletions.nodes) == 0
    world.learn(2)
    world.delete()
    again = world.learn(2, lambda trainer: [
        bool((c.inputs.node_M == 3).any() and c.state_MD[c.inputs.node_M == 3].any()) for c in trainer.learner.replay.chunks])
    assert not any(np.concatenate(again))


@pytest.mark.parametrize(("replicas", "shards"), [(2, 1), (2, 2)])
def test_replicas_learn_as_one_trainer_and_hold_the_same_rows(tmp_path, replicas, shards):
    def rows(trainer):
        memory = trainer.learner.memory
        place = np.arange(memory.rows.num_positions)
        node = place if memory.rows.owned is None else memory.rows.owned.nodes(place)
        return torch.from_numpy(memory.rows.state(node)), {n: t.clone() for n, t in trainer.learner.model.state_dict().items()}

    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    alone.learn(1)
    parts = together.learn(replicas * shards, rows, shards)
    for rank, (state, weights) in enumerate(parts):
        assert torch.equal(state, parts[rank % shards][0])
        assert all(torch.equal(t, parts[0][1][n]) for n, t in weights.items())
    check_alike(together.path, alone.path)
    # The files are of one replica, and one trainer goes on from them.
    again, = together.learn(1, rows)
    nodes = sum(len(state) for state, _ in parts[:shards])
    assert len(again[0]) == nodes


def test_ranks_on_several_machines_read_each_its_own_log_and_share_checkpoints(tmp_path):
    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    # The other machine follows by a changelog, so the log takes no moves and windows.
    (together.path / CHANGELOG).write_bytes(ChangelogPosition(1, 1, 1).pack())
    shutil.copytree(together.path, tmp_path / "far")
    alone.learn(1)
    together.learn(2, logs=[together.path, tmp_path / "far"])
    check_alike(together.path, alone.path)
    assert not (tmp_path / "far/models").exists() and not (tmp_path / "far/train").exists()
    near, far = read_holds(together.path)["train"], read_holds(tmp_path / "far")["train"]
    assert near == far, "what a restart needs is kept on every machine"


def test_ranks_learn_beside_a_champion_of_other_settings(tmp_path):
    for name, size in (("one", 1), ("some", 2)):
        world = World(tmp_path / name)
        world.grow(400)
        world.learn(1)
        wider = world.settings.model.model_copy(update={"dim": 16})
        world.settings = world.settings.model_copy(update={"model": wider})
        world.learn(size)
        world.grow()
        world.learn(size)
    assert any("incumbent" in r.scores for r in records(tmp_path / "some"))
    check_alike(tmp_path / "some", tmp_path / "one")


def registry_of(world):
    registry = Registry.of(world.settings)
    return registry.names(), [(m.action, m.champion, m.shadow) for m in registry.journal.moves()]


def memory_of(world):
    registry = Registry.of(world.settings)
    return LoadedVersion.restored(registry.load(registry.champion()), SETS).memory.tensors()


def check_same_memory(world, other):
    ours, theirs = memory_of(world), memory_of(other)
    assert torch.equal(ours["last_us"], theirs["last_us"]) and torch.equal(ours["pending_node"], theirs["pending_node"])
    torch.testing.assert_close(ours["state"], theirs["state"], rtol=0.1, atol=0.05)


def test_a_version_that_the_gate_refuses_is_refused_on_every_rank_and_no_rank_writes_its_memory(tmp_path, monkeypatch):
    judged, store, refused_at, stored = Candidate.judged, Ledger.store_memory, set(), []

    def refuse_one(self):
        refused = self.edge in refused_at
        return Decision(False, "as the test says") if refused else judged(self)

    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    plain = World(tmp_path / "plain").grow()
    plain.learn(1)
    edges = [int(name.split("-")[1]) for name in Registry.of(plain.settings).names()]
    refused_at.add(edges[-2])
    monkeypatch.setattr(Candidate, "judged", refuse_one)
    monkeypatch.setattr(Ledger, "store_memory", lambda self, memory: stored.append(self) or store(self, memory))
    one, = alone.learn(1, state_of)
    num_alone = len(stored)
    parts = together.learn(2, state_of)
    assert len(stored) - num_alone == 2 * num_alone, "each rank writes what one trainer does, nothing of the refused"
    assert "as the test says" in [r.reason for r in records(together.path)]
    assert registry_of(together) == registry_of(alone) != registry_of(plain)
    assert {p["version"] for p in parts} == {one["version"]}
    check_alike(together.path, alone.path)
    check_same_memory(together, alone)


def test_ranks_roll_back_as_one_trainer_does(tmp_path, monkeypatch):
    judge = contest.judge

    def judge_worse(compared, gate_events):
        decision, why = judge(compared, gate_events)
        return ("worse", "as the test says") if compared.num_events >= 300 else (decision, why)

    monkeypatch.setattr(contest, "judge", judge_worse)
    alone, together = World(tmp_path / "one").grow(), World(tmp_path / "some").grow()
    one, = alone.learn(1, state_of)
    parts = together.learn(2, state_of)
    assert any(action == "rollback" for action, _, _ in registry_of(together)[1])
    assert registry_of(together) == registry_of(alone)
    assert {p["version"] for p in parts} == {one["version"]}
    check_alike(together.path, alone.path)
    check_same_memory(together, alone)


def test_a_champion_moved_by_hand_while_ranks_run_takes_all_of_them_with_it(tmp_path):
    """To the version before the newest, then back to the shadow."""
    def moved(name, size):
        world, made = World(tmp_path / name).grow(400), []
        registry = Registry.of(world.settings)

        def promote():
            made.append(registry.manifest(registry.champion()).parent)
            assert made[0] != registry.shadow()
            registry.promote(made[0], "operator", "better")
            world.grow(550)

        def roll_back():
            newest = registry.champion()
            made.append(registry.rollback("operator", "worse").champion)
            assert made[1] not in (newest, made[0])
            world.grow()

        return world, made, world.learn(size, state_of, between=[promote, roll_back])

    (alone, hand, (one,)), (together, same, parts) = moved("one", 1), moved("some", 2)
    assert same == hand and registry_of(together) == registry_of(alone)
    by = [r.scored_by for r in records(together.path)]
    assert by == [r.scored_by for r in records(alone.path)] and all(by.count(name) == 2 for name in hand), "learning went on from both"
    assert {p["version"] for p in parts} == {one["version"]}
    check_alike(together.path, alone.path)
    check_same_memory(together, alone)
