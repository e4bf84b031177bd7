"""A delete on its way through everything: hidden at once in every view, and after `compact` not a byte is left."""

import dataclasses

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import ask_to_compact, asked_to_compact, read_holds
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph import Draw
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.recorder import Recorder
from streamd.training.trainer import Trainer
from streamd.windows import next_window
from tests.builders import HOUR, batch, compact, learning, settings, stream
from tests.graph.drawing import rows, wanted
from tests.server.world import World, wait

SCHEMA = Schema(2, 1, 0)
SECRET = "secret:user"
MARK = np.float32(7.25e11)
"""Every feature of the deleted user's edges: eight bytes that nothing else has."""
GONE = 3


def columns():
    """A stream in which user 3 is busy until edge 400 and then is never seen again."""
    src, dst, time = stream(900, hours=9)
    src[400:][src[400:] == GONE] = 4
    return src, dst, time


class Life:
    """A log that grows, its writer and a trainer."""

    def __init__(self, path, segment_edges=250):
        self.path, self.settings = path, settings(path, stream__edge_feature_dim=2, stream__node_feature_dim=1)
        self.src, self.dst, self.time = columns()
        self.writer = LogWriter(path, SCHEMA, segment_edges)
        self.at = 0

    def grow(self, until, watermark=None):
        while self.at < until:
            end = min(self.at + min(90, self.writer.remaining_rows()), until)
            src, dst, time = self.src[self.at:end], self.dst[self.at:end], self.time[self.at:end]
            new = [SECRET if i == GONE else f"n:{i}" for i in range(40)] if self.at == 0 else []
            self.writer.keys.update({k: i for i, k in enumerate(new)})
            rows = batch(SCHEMA, src, dst, time, new)
            msg = rows.msg_ED.copy()
            msg[(src == GONE) | (dst == GONE)] = MARK
            one = np.full(1, GONE, np.int64)
            features = {"node_F": one, "node_row_F": one * 0 + end - self.at, "node_edge_F": one * 0 + end - self.at,
                        "node_values_F": np.full((1, 1), MARK)} if self.at == 0 else {}
            mark = int(time[-1]) if watermark is None or end < until else watermark
            self.writer.commit(dataclasses.replace(rows, msg_ED=msg, **features), Progress(), mark)
            self.at = end
        return self

    def delete(self, node=GONE, dst=-1, time=-1):
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = node, dst, time
        self.writer.keys.pop(SECRET, None)
        self.writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), self.writer.watermark)
        return self

    def trainer(self):
        log = LogReader.open(self.path, keep_keys=False)
        return Trainer(self.settings, Paths.of(self.settings, "train"), "cpu", log, Registry.of(self.settings), SystemClock(), Heartbeat(self.path, "train"))

    def learn(self, trainer, limit=99):
        done = 0
        trainer.log.refresh()
        while done < limit and (window := next_window(trainer.log, trainer.edge, HOUR)) is not None:
            trainer.process(window)
            done += 1
        return done

    def files_with(self, needle):
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file() and needle in p.read_bytes())


@pytest.fixture
def life(tmp_path):
    made = Life(tmp_path)
    yield made
    made.writer.close()


def test_a_deleted_node_and_a_deleted_edge_vanish_from_graph_learning_and_replay(life):
    life.grow(450)
    trainer = life.trainer()
    life.learn(trainer)
    held = trainer.learner.replay.chunks
    assert any((c.inputs.node_M == GONE).any() for c in held)
    single = int(np.flatnonzero(life.src[:400] != GONE)[-1])
    life.delete().delete(int(life.src[single]), int(life.dst[single]), int(life.time[single]))
    life.grow(900, 100 * HOUR)
    seen = []
    chunks = trainer.recorder.chunks
    trainer.recorder.chunks = lambda w, **how: (seen.append(c) or c for c in chunks(w, **how))
    assert life.learn(trainer)
    deletions = trainer.log.deletions
    for chunk in [c.learn for c in seen if c.learn is not None]:
        hop, = chunk.hops
        around = chunk.node_M[hop.neighbor_UK][hop.mask_UK]
        assert not (around == GONE).any() and not (hop.eid_UK[hop.mask_UK] == single).any()
        assert not (chunk.node_M[hop.root_U] == GONE).any(), "neither source nor candidate"
    for recorded in [*trainer.learner.replay.chunks, *trainer.learner.tail]:
        x, gone_M = recorded.inputs, recorded.inputs.node_M == GONE
        assert not recorded.state_MD[gone_M].any() and not x.node_MD[gone_M].any()
        hop, = x.hops
        assert not (hop.mask_UK & gone_M[hop.neighbor_UK]).any() and not hop.edge_UKD[hop.eid_UK == single].any()
        hit = gone_M[hop.root_U][x.src_E] | torch.isin(x.event_E, torch.tensor([single]))
        assert not x.weight_E[hit].any() and not x.facts_ECF[hit].any()
    assert not trainer.learner.memory.tensors()["state"][GONE].any() and deletions.hides_edges(np.array([single]))[0]


def test_a_graph_built_anew_or_lived_through_or_after_compaction_answers_the_same(life):
    life.grow(500)
    log = LogReader.open(life.path)
    lived = Recorder(learning(life.settings), log)
    lived.rebuild(300)
    life.delete().grow(900, 100 * HOUR)
    log.refresh()
    lived.rebuild(900)
    hidden = set(np.flatnonzero((life.src == GONE) | (life.dst == GONE)).tolist())
    roots = np.arange(40)
    for compacted in (False, True):
        fresh_log = LogReader.open(life.path)
        fresh = Recorder(learning(life.settings), fresh_log)
        fresh.rebuild(900)
        for before in (450, 900):
            draw = Draw(fanout=5)
            for recorder in (lived, fresh):
                got = rows(recorder.live.graph.sample(roots, 0, before, draw))
                assert got == wanted(life.src, life.dst, roots, 0, before, draw, hidden)
        if not compacted:
            facts = [r.live.facts.all.compute(roots, np.full(40, life.time[-1] + 1), np.tile(roots, (40, 1))) for r in (lived, fresh)]
            np.testing.assert_array_equal(*facts)
            ask_to_compact(life.path, 500)
            Housekeeper(life.writer, life.settings.retention, lambda _: ()).compact()
            assert not life.files_with(MARK.tobytes() * 2)


def test_a_reader_that_keeps_no_keys_hides_what_one_with_keys_hides(life):
    life.grow(450)
    with_keys, without = LogReader.open(life.path), LogReader.open(life.path, keep_keys=False)

    def hidden(reader):
        reader.refresh()
        return reader.num_nodes, reader.hidden(0, 450).tolist(), reader.deletions.is_gone(np.arange(reader.num_nodes)).tolist()

    life.delete()
    assert any(hidden(with_keys)[1]) and hidden(with_keys) == hidden(without) and not without.keys and not without.ids
    compact(life.writer)
    assert hidden(with_keys) == hidden(without) == hidden(LogReader.open(life.path, keep_keys=False))


def test_the_server_forgets_a_deleted_node_at_once_and_its_key_comes_back_as_a_stranger(tmp_path):
    life = Life(tmp_path).grow(500)
    life.learn(life.trainer())
    world = World(tmp_path, stream__node_feature_dim=1)
    world.start()
    wait(lambda: world.engine.status.version != "rule")
    ask = {"src": SECRET, "dst": ["n:20", "n:21"]}
    assert world.client.post("/v1/score", json=ask).json()["known"] is True
    life.delete()
    wait(lambda: world.client.post("/v1/score", json=ask).json()["known"] is False)
    back = world.client.post("/v1/score", json={"src": "n:4", "dst": [SECRET, "n:20"]}).json()
    assert [s["known"] for s in back["scores"]] == [False, True]
    found = world.client.post("/v1/recommend", json={"src": "n:4", "k": 50}).json()
    assert SECRET not in str(found)
    rows = batch(SCHEMA, np.array([40]), np.array([20]), np.array([life.time[499] + 5]), [SECRET])
    life.writer.commit(rows, Progress(), int(life.time[499]) + 5)
    wait(lambda: world.client.post("/v1/score", json=ask).json()["known"] is True)
    assert LogReader.open(tmp_path).ids[SECRET] == 40, "a new id, with fresh state"
    world.stop()
    life.writer.close()


def test_the_server_embeds_the_neighbors_of_a_deleted_node_anew(tmp_path):
    life = Life(tmp_path).grow(400)
    life.settings = settings(tmp_path, stream__edge_feature_dim=2, stream__node_feature_dim=1, model__name="tgat")
    life.learn(life.trainer())
    met = sorted(set(life.dst[:400][life.src[:400] == GONE].tolist()))

    def embedded(world):
        wait(lambda: world.engine.status.version != "rule")
        answer = world.client.post("/v1/embeddings", json={"nodes": [f"n:{v}" for v in met]}).json()
        return np.array([a["embedding"] for a in answer])
    world = World(tmp_path, stream__node_feature_dim=1, model__name="tgat")
    world.start()
    before = embedded(world)
    life.delete()
    wait(lambda: world.client.post("/v1/score", json={"src": SECRET, "dst": ["n:20"]}).json()["known"] is False)
    after = embedded(world)
    world.stop()
    assert not np.allclose(before, after)
    again = World(tmp_path, stream__node_feature_dim=1, model__name="tgat")
    again.start()
    np.testing.assert_allclose(embedded(again), after, atol=1e-5)
    again.stop()
    life.writer.close()


def test_after_compact_not_a_byte_of_key_or_features_is_left(life, monkeypatch):
    life.grow(450)
    trainer = life.trainer()
    life.learn(trainer)
    letters = LocalDeadLetters(life.path / "deadletter", 10**6)
    for value in (b'{"src": "secret:user", "x"', b'{"src": "\\u0073ecret:user", "dst": 1}', b'{"src": "n:4", "dst": 5}'):
        letters.add(DeadLetter("t", 0, 1, 0, "bad_json", "it does not fit", 0, value))
    letters.flush()
    mark = MARK.tobytes() * 2
    folders = {name.split("/")[0] for name in life.files_with(mark)}
    assert {"edges", "train", "models"} <= folders, "the test would miss them"
    life.delete()
    runner = CliRunner()
    options = ["compact", "--wait", "0", "--data-dir", str(life.path)]
    held = runner.invoke(app, options)
    assert held.exit_code == 1 and "waiting for train" in " ".join(held.output.split())
    house = Housekeeper(life.writer, life.settings.retention, letters.purge)
    house.compact()
    assert life.files_with(b"secret:user") == [] and life.files_with(b"c2VjcmV0OnVzZXI") == []
    kept = (life.path / "deadletter/current.jsonl").read_bytes().splitlines()
    assert len(kept) == 1, "the letter that speaks of others stays"
    life.grow(900, 100 * HOUR)
    life.learn(trainer)
    assert read_holds(life.path)["train"].purged_before_event >= 450
    house.compact()
    assert asked_to_compact(life.path) is None and life.files_with(mark) == []
    again = life.trainer()
    assert again.edge == trainer.edge, "a trainer that starts now goes on from its checkpoint"
    np.testing.assert_array_equal(
        *(t.recorder.live.facts.all.compute(np.arange(40), np.full(40, life.time[-1] + 1), np.tile(np.arange(40), (40, 1)))
          for t in (trainer, again)))
    life.writer.close()
    done = runner.invoke(app, options)
    assert done.exit_code == 0 and "gone" in " ".join(done.output.split()), done.output


def test_the_trainer_goes_on_where_retention_left_the_log_and_a_new_one_starts_there(life):
    life.grow(700)
    life.settings = life.settings.model_copy(update={"registry": life.settings.registry.model_copy(update={"gate_events": 50})})
    trainer = life.trainer()
    life.learn(trainer)
    hold = read_holds(life.path)["train"]
    assert hold.edge >= 250, "the first segment is behind, so the facts were stored"
    keep = life.settings.retention.model_copy(update={"max_bytes": 1})
    Housekeeper(life.writer, keep, lambda _: ()).step()
    assert 0 < life.writer.state.first_edge <= hold.edge
    life.grow(900, 100 * HOUR)
    again = life.trainer()
    assert again.edge == trainer.edge
    life.learn(trainer)
    life.learn(again)
    for name, tensor in trainer.learner.memory.tensors().items():
        assert torch.equal(tensor, again.learner.memory.tensors()[name]), name
    everyone = np.arange(40)
    np.testing.assert_array_equal(*(t.recorder.live.facts.all.compute(everyone, np.full(40, life.time[-1]), np.tile(everyone, (40, 1)))
                                    for t in (trainer, again)))
    a, b = (t.recorder.live.graph.sample(everyone, 0, 900, Draw(fanout=4)) for t in (trainer, again))
    assert rows(a) == rows(b), "what was dropped is not answered with"
