import functools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from streamd.clock import SystemClock
from streamd.errors import VersionError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import ask_to_compact
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat, read_beat
from streamd.training import ledger
from streamd.training.initial_training import planned_range
from streamd.training.recorder import Recorder
from streamd.training.trainer import Trainer
from streamd.training.versions.shadow import Comparison
from streamd.training.window_attempts import Stopped, last_attempt
from streamd.training.window_report import Forgetting
from streamd.windows.history import HistoryReader
from tests.builders import HOUR, batch, settings, stream, write_log

ROOT = Path(__file__).parents[2]
SCHEMA = Schema(2, 0, 0)
TRAIN = """
import os, signal, sys
from pathlib import Path
from streamd.gpu.device import make_torch_deterministic
make_torch_deterministic(1)
from streamd.clock import SystemClock
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.eventlog.reader import LogReader
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.builders import settings
path, step, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
seen = 0
def on_step(name):
    global seen
    if name == step:
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
s = settings(path, stream__edge_feature_dim=2)
log = LogReader.open(path)
trainer = Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(path, "train"), on_step)
while due := trainer.due():
    trainer.process(due[0])
"""


def train(path, step="none", number=0):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", TRAIN, str(path), step, str(number)], cwd=ROOT, env=env, check=False,
                          capture_output=True).returncode


def outcome(path):
    """Everything that must not depend on whether the trainer was killed."""
    folder, = (path / "train/checkpoints").iterdir()
    state = {k: v.numpy().tobytes() for k, v in load_file(folder / "state.safetensors").items()}
    records = [(r.start_us, r.version, r.scores, r.loss, r.scored_by) for r in HistoryReader(path).refresh()]
    replay = {p.name: p.read_bytes() for p in (path / "train/replay").iterdir()}
    registry = Registry.of(settings(path))
    return state, records, replay, registry.names(), [(m.champion, m.shadow) for m in registry.journal.moves()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "log"
    write_log(path, *stream(500), SCHEMA, watermark=100 * HOUR)
    assert train(path) == 0
    return outcome(path)


@pytest.mark.parametrize(("step", "number"), [
    ("learn", 3), ("publish", 2), pytest.param("checkpoint", 5, marks=pytest.mark.slow), pytest.param("record", 3, marks=pytest.mark.slow),
    pytest.param("checkpoint", 2, marks=pytest.mark.slow)])
def test_a_trainer_killed_at_any_step_resumes_to_the_same_bits(tmp_path, undisturbed, step, number):
    path = tmp_path / "log"
    write_log(path, *stream(500), SCHEMA, watermark=100 * HOUR)
    assert train(path, step, number) == -9
    assert train(path) == 0
    state, records, replay, names, moves = outcome(path)
    want = undisturbed
    assert records == want[1] and names == want[3] and moves == want[4] and replay == want[2]
    assert {k for k, v in state.items() if want[0][k] != v} == set()


def make(path, **values):
    s = settings(path, stream__edge_feature_dim=2, **values)
    log = LogReader.open(path)
    return Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(path, "train")), Registry.of(s), log


def process_all(trainer, limit=99):
    """Process closed windows singly, at most so many. Returns: the record of each."""
    done = []
    while len(done) < limit and (due := trainer.due()):
        done.append(trainer.process(due[0]))
    return done


class StopAfterOneLook(threading.Event):
    """Ends `Trainer.run` when it waits for the first time."""

    def wait(self, timeout=None):
        self.set()
        return True


def test_every_window_is_scored_by_the_version_before_it_and_promoted(tmp_path):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, log = make(tmp_path)
    records = process_all(trainer)
    assert 0 < records[0].num_scored < records[0].end_edge, "nothing can be asked of the very first destinations"
    assert records[0].num_known < records[0].num_scored and records[-1].num_known == records[-1].num_scored
    assert records[0].scored_by == "rule" and records[1].scored_by == records[0].version
    assert all(r.promoted for r in records) and registry.champion() == records[-1].version
    assert set(records[1].scores) == {"live", "rule", "edgebank", "popularity"}, "the first version is the shadow itself"
    assert set(records[2].scores) == {"live", "shadow", "rule", "edgebank", "popularity"}
    assert records[-1].scores["live"]["mrr_known"] == records[-1].scores["live"]["mrr"]
    manifest = registry.manifest(records[-1].version)
    assert manifest.parent == records[-2].version and manifest.edge == log.num_edges
    assert read_beat(tmp_path, "train").alive


@pytest.mark.parametrize("values", [{"model__name": "tgat"}, {"model__name": "dysat"}, {"model__name": "sage", "model__id_rows": 32},
                                    {"model__name": "gat", "model__pair_facts": False}, {"training__replay": "recent"}])
def test_any_model_goes_on_after_a_restart_as_if_there_had_been_none(tmp_path, values):
    left, right = tmp_path / "left", tmp_path / "right"
    for path in (left, right):
        write_log(path, *stream(500), SCHEMA, watermark=100 * HOUR)
    one, _, _ = make(left, **values)
    whole = process_all(one)
    two, _, _ = make(right, **values)
    parts = process_all(two, 3)
    again, _, _ = make(right, **values)
    parts += process_all(again)
    assert [r.scores for r in whole] == [r.scores for r in parts] and [r.loss for r in whole] == [r.loss for r in parts]
    for a, b in zip(one.learner.model.state_dict().values(), again.learner.model.state_dict().values(), strict=True):
        assert (a == b).all()


def test_windows_too_small_to_hold_a_tail_out_make_versions_that_can_be_read(tmp_path):
    write_log(tmp_path, *stream(30), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    records = process_all(trainer)
    assert all(r.num_scored < 10 for r in records) and registry.champion() == records[-1].version
    assert registry.manifest(records[-1].version).tail["before"] is None and registry.load(records[-1].version)
    assert make(tmp_path)[0].edge == trainer.edge


def test_a_rollback_by_hand_takes_the_trainer_with_it(tmp_path):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    records = process_all(trainer, 4)
    move = registry.rollback("operator", "worse")
    proven = records[0].version
    assert (move.champion, move.shadow) == (proven, proven)
    following, = process_all(trainer, 1)
    assert following.scored_by == proven and "shadow" not in following.scores
    assert registry.manifest(following.version).parent == proven
    assert registry.champion() == following.version


def test_a_champion_no_worse_over_enough_events_becomes_the_shadow_and_a_restart_knows_both(tmp_path):
    write_log(tmp_path, *stream(1200, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path, registry__gate_events=150)
    records = process_all(trainer)
    moves = registry.journal.moves()
    proven = [m for m in moves if m.action == "prove"]
    assert proven and all(m.shadow in {r.version for r in records} for m in proven)
    again, _, _ = make(tmp_path, registry__gate_events=150)
    assert again.contest.shadow.name == trainer.contest.shadow.name == registry.shadow()
    assert again.contest.compared == trainer.contest.compared
    assert (again.contest.shadow.memory.tensors()["state"] == trainer.contest.shadow.memory.tensors()["state"]).all()
    assert again.contest.shadow.memory.edge == again.edge


def test_a_shadow_that_compaction_takes_away_between_windows_is_not_missed_by_a_restart(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    process_all(trainer)
    old = registry.shadow()
    assert old != registry.champion()
    ask_to_compact(tmp_path, registry.manifest(old).edge)
    monkeypatch.setattr(ledger, "HOLD_SECONDS", 0)
    trainer.run(StopAfterOneLook())
    assert registry.shadow() == registry.champion() and old not in registry.names()
    again, _, _ = make(tmp_path)
    assert again.contest.shadow.name == registry.champion() and len(list((tmp_path / "train/checkpoints").iterdir())) == 1
    for name, tensor in trainer.learner.model.state_dict().items():
        assert torch.equal(tensor, again.learner.model.state_dict()[name])


def test_a_compaction_proves_no_version_that_an_operator_rolled_back_from(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    process_all(trainer)
    old, rejected = registry.shadow(), registry.champion()
    registry.rollback("operator", "worse")
    ask_to_compact(tmp_path, registry.manifest(old).edge)
    monkeypatch.setattr(ledger, "HOLD_SECONDS", 0)
    trainer.run(StopAfterOneLook())
    assert registry.champion() == registry.shadow() == old != rejected
    with pytest.raises(VersionError, match="no version to roll back to"):
        registry.rollback("operator", "again")


def test_a_champion_that_is_worse_is_rolled_back_and_the_trainer_goes_on_from_the_proven_one(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(1200, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path, registry__gate_events=150, training__learning_rate=0.01)
    process_all(trainer, 4)
    learner = trainer.learner

    def turn_around(*step):
        learned = type(learner).learn(learner, *step)
        with torch.no_grad():
            learner.model.pair[-1].weight.neg_()
        return learned

    trainer.contest.compared = Comparison()
    monkeypatch.setattr(learner, "learn", turn_around)
    records = process_all(trainer, 2)
    back = next(r for r in records if r.reason.startswith("rolled back"))
    monkeypatch.undo()
    assert not back.promoted and back.loss is None and back.scored_by != back.version
    at, move = next((i, m) for i, m in enumerate(registry.journal.moves()) if m.action == "rollback")
    before = registry.journal.moves()[at - 1]
    assert move.champion == move.shadow == before.shadow == back.version and before.champion == back.scored_by
    assert move.who == "trainer" and "MRR -" in move.why
    after, = process_all(trainer, 1)
    assert after.promoted and learner.memory.edge == trainer.edge


def test_a_refused_version_leaves_the_champion_and_the_trainer_goes_on_from_it(tmp_path, monkeypatch):
    from streamd.registry import candidate
    from streamd.registry.gate import Decision

    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    process_all(trainer, 3)
    champion = registry.champion()
    before = {k: v.clone() for k, v in trainer.learner.model.state_dict().items()}
    monkeypatch.setattr(candidate, "decide", lambda *_: Decision(False, "no"))
    record, = process_all(trainer, 1)
    assert not record.promoted and record.version == champion == registry.champion()
    assert all((v == before[k]).all() for k, v in trainer.learner.model.state_dict().items())
    assert trainer.learner.memory.edge == trainer.edge, "memory went on under the old weights"
    monkeypatch.undo()
    assert process_all(trainer, 1)[0].promoted


def test_a_trainer_says_from_its_start_up_to_where_it_has_learned_and_a_quiet_stretch_is_no_lag(tmp_path):
    write_log(tmp_path, *stream(60, hours=2), SCHEMA, watermark=10 * HOUR)

    def told():
        return metrics.TRAIN.get_sample_value("streamd_trained_until_timestamp_seconds")

    trainer, _, _ = make(tmp_path)
    assert told() == 0, "nothing is learned, the first window is due"
    process_all(trainer)
    assert told() == 2 * 3600
    make(tmp_path)
    assert told() == 10 * 3600, "no event lies between the last window and the watermark"


def test_a_checkpoint_beyond_the_log_is_refused_by_name(tmp_path):
    write_log(tmp_path / "long", *stream(300), SCHEMA, watermark=100 * HOUR)
    trainer, _, _ = make(tmp_path / "long")
    process_all(trainer)
    short = tmp_path / "short"
    src, dst, time = stream(300)
    write_log(short, src[:50], dst[:50], time[:50], SCHEMA)
    (tmp_path / "long/train").rename(short / "train")
    with pytest.raises(VersionError, match="checkpoint"):
        make(short)


def test_run_waits_for_windows_and_stops_when_told(tmp_path):
    write_log(tmp_path, *stream(300), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    stop = threading.Event()
    threading.Timer(3.0, stop.set).start()
    trainer.run(stop)
    assert registry.champion() is not None


def test_a_first_start_on_a_log_with_a_past_learns_the_newest_of_it_at_once(tmp_path):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=10 * HOUR + 5)
    values = {"windows__max_events": 100, "bootstrap__max_events": 400, "bootstrap__epochs": 2}
    trainer, registry, log = make(tmp_path, **values)
    trainer.bootstrap()
    manifest = registry.manifest(registry.champion())
    first, end = manifest.first_edge, manifest.edge
    assert end == log.lower_bound(10 * HOUR) == trainer.edge and end - 400 <= first < end - 300
    assert manifest.scores == {} and registry.shadow() == registry.champion()
    again, _, _ = make(tmp_path, **values)
    again.bootstrap()
    assert again.edge == end and len(registry.names()) == 1, "once is enough"
    assert torch.equal(again.learner.memory.tensors()["state"], trainer.learner.memory.tensors()["state"])


def test_rebuilding_and_bootstrapping_say_how_far_they_are(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=10 * HOUR + 5)
    said, touch = [], Heartbeat.touch
    monkeypatch.setattr(Recorder, "rebuild", functools.partialmethod(Recorder.rebuild, slice_edges=100, catch_up_edges=100))
    monkeypatch.setattr(Heartbeat, "touch", lambda self, state, **detail: said.append((state, detail)) or touch(self, state, **detail))
    values = {"windows__max_events": 100, "bootstrap__max_events": 400, "bootstrap__epochs": 2}
    trainer, _, _ = make(tmp_path, **values)
    trainer.bootstrap()
    shares = {state: [d["share"] for s, d in said if s == state] for state in ("rebuilding", "bootstrapping")}
    assert len(shares["rebuilding"]) == 5 and shares["rebuilding"] == sorted(shares["rebuilding"])
    assert shares["rebuilding"][-1] == 1, "up to the events that are learned"
    whole = shares["bootstrapping"].index(1)
    for part in (shares["bootstrapping"][: whole + 1], shares["bootstrapping"][whole + 1:]):
        assert len(part) > 3 and part == sorted(part) and part[-1] == 1, "recording, then learning"
    said.clear()
    make(tmp_path, **values)
    again = [(d["edge"], d["share"]) for s, d in said if s == "rebuilding"]
    assert again[0] == (100, int(1000 * 100 / trainer.edge) / 1000) and again[-1] == (trainer.edge, 1)
    assert metrics.MODEL.get_sample_value("streamd_rebuild_ratio") == 1


class StopAt(threading.Event):
    """A stop that comes while the trainer says for the n-th time that it does something. Counts how often it says so."""

    def __init__(self, monkeypatch, state, number):
        super().__init__()
        self.count = 0
        touch = Heartbeat.touch

        def touched(beat, now, **detail):
            touch(beat, now, **detail)
            if now == state:
                self.count += 1
                if self.count == number:
                    self.set()

        monkeypatch.setattr(Heartbeat, "touch", touched)


@pytest.mark.parametrize(("state", "number"), [("bootstrapping", 3), ("bootstrapping", 30), ("scoring", 3), ("learning", 3)], ids=[
    "recording what it begins with", "learning it", "scoring a window", "learning a window"])
def test_a_stop_is_heard_within_a_chunk_whatever_the_trainer_does_and_is_no_failure(tmp_path, monkeypatch, state, number):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    values = {"training__epochs": 3, "bootstrap__max_events": 600 if state == "bootstrapping" else 0, "windows__max_events": 100}
    with monkeypatch.context() as patched:
        stop = StopAt(patched, state, number)
        trainer, registry, _ = make(tmp_path, **values)
        assert not trainer.run(stop)
    assert stop.is_set() and stop.count == number, "nothing is begun after it"
    assert registry.names() == [] and last_attempt(tmp_path / "train").failures == 0

    # The next start does the same work, as if nothing had been.
    again, registry, _ = make(tmp_path, **values)
    again.bootstrap()
    record = process_all(again, 1)
    assert registry.names() and (record or state == "bootstrapping")


def test_a_stop_ends_the_rebuild_of_a_start(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, _, log = make(tmp_path)
    process_all(trainer, 6)
    shutil.rmtree(tmp_path / "roles")
    monkeypatch.setattr(Recorder, "rebuild", functools.partialmethod(Recorder.rebuild, slice_edges=50, catch_up_edges=50))
    stop = StopAt(monkeypatch, "rebuilding", 3)
    s = settings(tmp_path, stream__edge_feature_dim=2)
    with pytest.raises(Stopped):
        Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(tmp_path, "train"), stop=stop)
    assert stop.count == 3


def test_what_follows_a_bootstrap_is_scored_by_its_version(tmp_path):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=10 * HOUR)
    values = {"windows__max_events": 100, "bootstrap__max_events": 10_000, "training__learning_rate": 0.01}
    trainer, registry, log = make(tmp_path, **values)
    trainer.bootstrap()
    version = registry.champion()
    append(tmp_path, 900, 60, 12 * HOUR)
    log.refresh()
    record = process_all(trainer)[0]
    assert record.scored_by == version and record.scores["live"]["mrr"] > record.scores["edgebank"]["mrr"]


def append(path, first, count, start, seconds=1):
    """More edges at the end of a log, and a watermark far ahead."""
    writer = LogWriter(path, SCHEMA, 100_000)
    src, dst, _ = stream(first + count, hours=12)
    time = start + np.arange(count) * seconds * 1_000_000
    writer.commit(batch(SCHEMA, src[first:], dst[first:], time), Progress(), 100 * HOUR)
    writer.close()


def test_a_bootstrap_cut_short_takes_the_same_range_again_and_a_short_log_needs_none(tmp_path):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=6 * HOUR)
    values = {"windows__max_events": 100, "bootstrap__max_events": 250}
    _, _, log = make(tmp_path, **values)
    s = settings(tmp_path, stream__edge_feature_dim=2, **values)
    planned = planned_range(s.bootstrap, s.windows, log, tmp_path / "train")
    append(tmp_path, 900, 60, 12 * HOUR)
    again, registry, log = make(tmp_path, **values)
    assert log.watermark == 100 * HOUR
    again.bootstrap()
    assert (registry.manifest(registry.champion()).first_edge, again.edge) == (planned.first_edge, planned.end_edge)
    write_log(tmp_path / "short", *stream(90), SCHEMA, watermark=100 * HOUR)
    short, registry, _ = make(tmp_path / "short", **values)
    short.bootstrap()
    assert registry.champion() is None and short.edge == 0


def test_a_window_that_ends_the_trainer_three_times_is_passed_over_and_named(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path)
    process_all(trainer, 3)
    champion, edge = registry.champion(), trainer.edge

    def fail(*_):
        raise RuntimeError("out of memory")

    for _ in range(3):
        trainer, registry, _ = make(tmp_path)
        monkeypatch.setattr(trainer.learner, "learn", fail)
        with pytest.raises(RuntimeError):
            process_all(trainer, 1)
    trainer, registry, _ = make(tmp_path)
    assert trainer.edge == edge
    record, = process_all(trainer, 1)
    assert "skipped" in record.reason and record.num_scored == 0 and registry.champion() == champion
    assert trainer.learner.memory.edge == trainer.edge == record.end_edge, "memory moved on"
    following, = process_all(trainer, 1)
    assert following.promoted and following.scored_by == champion


def test_forgetting_is_measured_on_a_part_of_the_past_that_stays_the_same(tmp_path):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, _, _ = make(tmp_path, training__learning_rate=0.01)
    assert trainer.learner.recall() is None
    process_all(trainer, 4)
    before = trainer.learner.recall()
    assert trainer.learner.recall() == before and 0 < before["mrr"] <= 1
    for p in trainer.learner.model.parameters():
        torch.nn.init.normal_(p)
    assert trainer.learner.recall()["mrr"] < before["mrr"]


def test_forgetting_is_measured_at_most_every_ten_seconds(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, _, _ = make(tmp_path)
    at, measured = [100.0], []
    monkeypatch.setattr(trainer.learner, "recall", lambda: {"mrr": measured.append(at[0]) or 0.5})
    forgetting = trainer._forgetting = Forgetting(trainer.learner, monotonic=lambda: at[0])
    forgetting.measure()
    assert not measured, "nothing was learned"
    for at[0] in (100.0, 109.9, 110.0, 115.0):
        process_all(trainer, 1)
    assert measured == [100.0, 110.0] and metrics.TRAIN.get_sample_value("streamd_past_mrr") == 0.5


def test_a_trainer_that_lags_learns_several_windows_as_one_but_scores_each(tmp_path):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=100 * HOUR)
    trainer, registry, _ = make(tmp_path, windows__merge_after=4)
    due = trainer.due()
    assert len(due) == 4
    trainer.process(*due)
    records = HistoryReader(tmp_path).refresh()
    assert [r.end_edge for r in records] == [w.end_edge for w in due] and records[1].num_scored > 0
    assert [r.promoted for r in records] == [False, False, False, True] and len(registry.names()) == 1
    manifest = registry.manifest(registry.champion())
    assert (manifest.first_edge, manifest.edge) == (0, due[-1].end_edge) and trainer.edge == due[-1].end_edge
    trainer.process(*trainer.due())
    assert len(trainer.due()) == 1, "four are left, which is no lag"


def test_windows_begun_as_one_are_taken_as_one_again_and_singly_where_that_fails(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(900, hours=12), SCHEMA, watermark=6 * HOUR)

    def fail(*_):
        raise RuntimeError("out of memory")

    for tries in range(3):
        trainer, _, _ = make(tmp_path, windows__merge_after=3)
        due = trainer.due()
        assert len(due) == 3
        monkeypatch.setattr(trainer.learner, "learn", fail)
        with pytest.raises(RuntimeError):
            trainer.process(*due)
        if tries == 0:
            append(tmp_path, 900, 60, 12 * HOUR)
    trainer, _, _ = make(tmp_path, windows__merge_after=3)
    assert trainer.due() == due[:1]
    record = trainer.process(*trainer.due())
    assert "skipped" not in record.reason


@pytest.mark.parametrize("fault", ["signal", "full disk"])
def test_kills_from_outside_and_a_full_disk_throw_no_window_away(tmp_path, monkeypatch, fault):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    if fault == "signal":
        assert [train(tmp_path, "learn", 2) for _ in range(2)] == [-9, -9], "killed in the second window it sees"
        assert [train(tmp_path, "learn", 1) for _ in range(4)] == [-9] * 4, "and then over and over in the same one"
    else:
        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Registry, "publish", full)
        for _ in range(5):
            trainer, _, _ = make(tmp_path)
            with pytest.raises(OSError, match="No space"):
                process_all(trainer)
        monkeypatch.undo()
    trainer, _, _ = make(tmp_path)
    process_all(trainer)
    records = HistoryReader(tmp_path).refresh()
    assert sum(r.num_scored for r in records) > 400 and not any("skipped" in r.reason for r in records)
