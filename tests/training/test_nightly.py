"""The nightly baseline: the live model as of the last midnight, which scores each window and learns nothing."""

import dataclasses
import json
import shutil
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
import torch

from streamd.clock import SystemClock
from streamd.evaluation.freshness import NightlyView, nightly_memory_step
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import ask_to_compact
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.graph.facts.pair_facts import PairFacts
from streamd.graph.negatives import SCORED
from streamd.models.inference.new_rates import COUNTS
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.learner import Learner
from streamd.training.measures import measures
from streamd.training.recorder import Recorder
from streamd.training.replay import ReplayStore
from streamd.training.trainer import Trainer
from streamd.training.versions import nightly
from streamd.windows.history import HistoryReader
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
from tests.training.test_trainer import SCHEMA, make, outcome, process_all, train

DAY = 24


def long_log(path, num_edges=350, hours=10, begin=20):
    """Some hours of events from an hour of the first day on: four windows, midnight, six more."""
    src, dst, time = stream(num_edges, hours=hours)
    write_log(path, src, dst, time + begin * HOUR, SCHEMA, watermark=100 * HOUR)


def of_baseline(trainer):
    return trainer.nightly


def to_midnight(trainer):
    """Process all windows of the first day."""
    while trainer.log.time_of(np.array([trainer.edge]))[0] < DAY * HOUR:
        trainer.process(trainer.due()[0])


def slow_reference(settings, log, learner, edge, windows):
    """MRR of each window by a learner whose state stays as of `edge`, by the backtest's own ways for a nightly model."""
    stale, moving = Recorder(settings, log), Recorder(settings, log)
    stale.rebuild(edge)
    moving.rebuild(edge)
    frozen = Learner(settings, log, ReplayStore.of(settings))
    frozen.take_over(learner)
    frozen.memory_step = nightly_memory_step
    frozen.model.new_destinations.stop()
    out = []
    for window in windows:
        stale.view = NightlyView(stale.live, moving.view.pool_of(window))
        logits = [frozen.score(c) for c in stale.chunks(window) if c.score is not None]
        out.append(measures(np.concatenate(logits))["mrr"])
        moving.rebuild(window.end_edge)
    return out


@pytest.mark.parametrize("model", ["tgn", "tgat", "pair"])
def test_windows_are_scored_by_the_state_of_the_last_midnight(tmp_path, model):
    long_log(tmp_path)
    trainer, _, log = make(tmp_path, model__name=model)
    to_midnight(trainer)
    edge = trainer.edge
    assert of_baseline(trainer).name == "", "there was no midnight between two windows yet"
    before = Learner(trainer._settings, log, ReplayStore.of(trainer._settings))
    before.take_over(trainer.learner)
    windows, records = [], []
    while due := trainer.due():
        windows.append(due[0])
        records.append(trainer.process(due[0]))
    want = slow_reference(trainer._settings, log, before, edge, windows)
    assert [r.scores["nightly"]["mrr"] for r in records] == pytest.approx(want, abs=1e-6) and len(want) >= 5
    assert of_baseline(trainer).name == f"{edge:020d}"
    # The whole window was scored, so the two live scores are one; from the second window on the baseline is another model.
    for r in records:
        assert r.scores["nightly"]["mrr_live"] == r.scores["live"]["mrr"] and r.scores["nightly"]["events"] == r.num_scored
    assert any(r.scores["nightly"]["mrr"] != r.scores["live"]["mrr"] for r in records)
    assert all(r.seconds["nightly"] > 0 for r in records)
    last = records[-1].scores
    assert metrics.TRAIN.get_sample_value("streamd_window_mrr", {"model": "nightly"}) == last["nightly"]["mrr"]
    assert metrics.TRAIN.get_sample_value("streamd_nightly_mrr_difference") == last["live"]["mrr"] - last["nightly"]["mrr"]


def test_the_state_of_midnight_does_not_move_while_the_live_one_learns(tmp_path):
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path)
    to_midnight(trainer)
    weights = {k: v.clone() for k, v in trainer.learner.model.state_dict().items()}
    memory = {k: v.clone() for k, v in trainer.learner.memory.tensors().items()}
    facts = {k: v.copy() for k, v in trainer.recorder.live.facts.all.tensors().items()}
    process_all(trainer)
    baseline = of_baseline(trainer)._baseline
    assert all(torch.equal(weights[k], v) for k, v in baseline.model.state_dict().items() if k != COUNTS)
    assert not baseline.model.new_destinations.counts.any(), "what is new since midnight is not what is new"
    assert all(torch.equal(memory[k], v) for k, v in baseline.memory.tensors().items())
    own = baseline.facts.all.tensors()
    assert all(np.array_equal(facts[k], own[k]) for k in facts)
    assert any(not torch.equal(weights[k], v) for k, v in trainer.learner.model.state_dict().items())
    with pytest.raises(ValueError, match="are read-only"):
        baseline.facts.all.advance(*(np.zeros(1, np.int64),) * 3)


def test_a_large_window_is_sampled_and_both_are_scored_on_the_same_events(tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, "MAX_EVENTS", 7)
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path)
    to_midnight(trainer)
    asked = []
    real = nightly.Nightly._logits
    monkeypatch.setattr(nightly.Nightly, "_logits", lambda self, event, candidates: (
        asked.append((event, candidates)), real(self, event, candidates))[1])
    seen = []
    note = nightly.Nightly.note
    monkeypatch.setattr(nightly.Nightly, "note", lambda self, chunk: (seen.append(chunk), note(self, chunk))[1])
    record = trainer.process(trainer.due()[0])
    events = np.concatenate([e for e, _ in asked])
    assert record.num_scored > 7 == record.scores["nightly"]["events"] == len(events) and (np.diff(events) > 0).all()
    # Negatives are those of the live score of the same events.
    live = {}
    for chunk in (c for c in seen if c.score is not None):
        roots = chunk.score.node_M[chunk.score.hops[0].root_U]
        live |= zip(chunk.score.event_E.tolist(), roots[chunk.score.candidate_EC[:, SCORED]].numpy(), strict=True)
    for event, row in zip(events.tolist(), np.concatenate([c for _, c in asked]), strict=True):
        assert (live[event] == row).all() and row[0] == trainer.log.gather("dst", np.array([event]))[0]


@pytest.mark.parametrize(("step", "number"), [("learn", 6), pytest.param("checkpoint", 5, marks=pytest.mark.slow),
                                              pytest.param("record", 6, marks=pytest.mark.slow)])
def test_a_trainer_killed_after_midnight_resumes_to_the_same_bits(tmp_path, step, number):
    paths = tmp_path / "left", tmp_path / "right"
    for path in paths:
        long_log(path, 250, 8)
    assert train(paths[0]) == 0 and train(paths[1], step, number) == -9 and train(paths[1]) == 0
    want, got = map(outcome, paths)
    assert want == got and "nightly" in want[1][-1][2], "records hold the baseline's scores"
    stored = [{p.name: p.read_bytes() for p in sorted((path / "train/nightly").rglob("*")) if p.is_file()} for path in paths]
    assert stored[0] == stored[1] and "facts.safetensors" in stored[0]


def test_the_next_midnight_replaces_it_and_one_folder_stays(tmp_path):
    long_log(tmp_path, 1000, 50, begin=0)
    trainer, _, _ = make(tmp_path, windows__width_seconds=6 * 3600)
    names = []
    while due := trainer.due():
        trainer.process(due[0])
        names.append(of_baseline(trainer).name)
        folders = [p.name for p in (tmp_path / "train").glob("nightly/*")]
        assert folders == [n for n in names[-1:] if n]
    assert len(set(names) - {""}) == 2 and names[:4] == [""] * 4
    assert metrics.TRAIN.get_sample_value("streamd_nightly_twin_bytes", {"where": "mapped"}) > 0


def test_each_edge_set_has_its_score_of_the_night(tmp_path):
    src, dst, time, sets = sets_stream(400, hours=4)
    write_sets_log(tmp_path, src, dst, time + 22 * HOUR, sets, watermark=100 * HOUR, segment_edges=150)
    s = settings(tmp_path, stream__edge_feature_dim=SETS.edge_feature_dim, stream__node_feature_dim=SETS.node_feature_dim, **declared())
    log = LogReader.open(tmp_path)
    trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(tmp_path, "train"))
    records = process_all(trainer)
    last = records[-1]
    assert set(last.edge_sets) == {"views", "buys", "follows"}
    total = sum(own.scores["nightly"]["mrr"] * own.num_scored for own in last.edge_sets.values())
    assert total / last.num_scored == pytest.approx(last.scores["nightly"]["mrr"])
    again = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(tmp_path, "train"))
    for ours, theirs in zip((of_baseline(trainer)._baseline.facts.all, *of_baseline(trainer)._baseline.facts.per_set),
                            (of_baseline(again)._baseline.facts.all, *of_baseline(again)._baseline.facts.per_set), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours.tensors().values(), theirs.tensors().values(), strict=True))


def test_compaction_takes_the_baseline_that_may_hold_what_was_deleted(tmp_path):
    long_log(tmp_path)
    trainer, _, log = make(tmp_path)
    to_midnight(trainer)
    trainer.process(trainer.due()[0])
    assert (tmp_path / "train/nightly" / of_baseline(trainer).name).is_dir()
    ask_to_compact(tmp_path, of_baseline(trainer)._baseline.about.window_edge)
    trainer.process(trainer.due()[0])
    assert of_baseline(trainer).name, "all of it was learned after the event up to which compaction goes"
    ask_to_compact(tmp_path, log.num_edges)
    record = trainer.process(trainer.due()[0])
    assert "nightly" in record.scores and of_baseline(trainer).name == "" and not list((tmp_path / "train/nightly").iterdir())
    assert "nightly" not in trainer.process(trainer.due()[0]).scores
    again, _, _ = make(tmp_path)
    assert of_baseline(again).name == ""


def test_events_of_deleted_nodes_are_not_asked_of_it(tmp_path, monkeypatch):
    long_log(tmp_path)
    trainer, _, log = make(tmp_path)
    to_midnight(trainer)
    with closing(LogWriter(tmp_path, SCHEMA, 100_000)) as writer:
        gone = np.zeros(1, DELETION)
        gone["src"], gone["dst"], gone["time"] = 3, -1, -1
        writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=gone), Progress(), 100 * HOUR)
    log.refresh()
    asked = []
    real = nightly.Nightly._logits
    monkeypatch.setattr(nightly.Nightly, "_logits", lambda self, event, candidates: (
        asked.append((event, candidates)), real(self, event, candidates))[1])
    records = process_all(trainer)
    assert len(records) >= 5 and all("nightly" in r.scores for r in records)
    for event, candidates in asked:
        assert 3 not in candidates and 3 not in log.gather("src", event)


def damage_weights(folder):
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def damage_facts(folder):
    path = folder / "facts.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def other_schema(folder):
    about = json.loads((folder / "twin.json").read_bytes())
    about["schema"]["label_dim"] = 7
    (folder / "twin.json").write_text(json.dumps(about))


@pytest.mark.parametrize("spoil", [shutil.rmtree, damage_weights, damage_facts, other_schema,
                                   lambda folder: (folder / "twin.json").write_text("{")])
def test_a_baseline_that_cannot_be_read_is_left_out_until_midnight_and_the_trainer_goes_on(tmp_path, spoil):
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path)
    to_midnight(trainer)
    process_all(trainer, 2)
    spoil(tmp_path / "train/nightly" / of_baseline(trainer).name)
    with structlog.testing.capture_logs() as logs:
        again, _, _ = make(tmp_path)
    assert [x["event"] for x in logs].count("nightly_baseline_lost") == 1
    assert again.edge == trainer.edge and "nightly" not in process_all(again)[-1].scores


def test_a_checkpoint_of_a_release_without_a_baseline_opens(tmp_path):
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path)
    process_all(trainer, 6)
    folder, = (tmp_path / "train/checkpoints").iterdir()
    cursor = json.loads((folder / "cursor.json").read_bytes())
    assert cursor.pop("nightly")
    (folder / "cursor.json").write_text(json.dumps(cursor))
    again, _, _ = make(tmp_path)
    assert again.edge == trainer.edge and of_baseline(again).name == ""
    assert process_all(again)[-1].scores["live"]


def test_a_full_disk_at_midnight_costs_the_baseline_and_not_the_window(tmp_path, monkeypatch):
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path)
    to_midnight(trainer)
    real = PairFacts.save

    def full(self, path, more=None):
        if "nightly" in str(path):
            raise OSError(28, "No space left on device")
        real(self, path, more)

    monkeypatch.setattr(PairFacts, "save", full)
    with structlog.testing.capture_logs() as logs:
        records = process_all(trainer)
    assert [x["event"] for x in logs].count("nightly_baseline_not_stored") == 1
    assert all(r.num_scored and r.version and "nightly" not in r.scores for r in records)


def test_several_ranks_say_loudly_that_they_have_none(tmp_path):
    long_log(tmp_path)
    trainer, _, log = make(tmp_path)
    for is_first in (True, False):
        learner = Learner(trainer._settings, log, ReplayStore.of(trainer._settings))
        learner.ranks = dataclasses.replace(learner.ranks, learning=SimpleNamespace(size=2, rank=0 if is_first else 1))
        with structlog.testing.capture_logs() as logs:
            one = nightly.Nightly(trainer._settings, log, learner, trainer.recorder, tmp_path / "train", lambda memory: ())
        assert [(x["event"], x["log_level"]) for x in logs] == [("nightly_baseline_off", "warning")] * is_first
        one.restore("00000000000000000001")
        assert one.name == "" and one.score(np.arange(3), lambda: None) is None


def test_it_can_be_left_out(tmp_path):
    long_log(tmp_path)
    trainer, _, _ = make(tmp_path, training__nightly_twin=False)
    assert all("nightly" not in r.scores for r in process_all(trainer)) and not (tmp_path / "train/nightly").exists()
    assert len(HistoryReader(tmp_path).refresh()) == 10
