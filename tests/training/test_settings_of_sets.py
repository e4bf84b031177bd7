"""All settings of learning at once, each other than its default, with several edge sets: segments are sealed and dropped,
a node is deleted, the trainer is killed and starts again, and what was deleted becomes physical."""

import dataclasses
from contextlib import closing

import numpy as np

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.holds import ask_to_compact, asked_to_compact
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.registry import Registry
from streamd.settings.loading import RetentionSettings, leaves
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.builders import HOUR, SETS, declared, sets_rows, sets_stream, settings, write_sets_log

VALUES = {
    "windows.width_seconds": 2400, "windows.max_events": 60, "windows.merge_after": 3, "graph.max_block_entries": 32,
    "graph.keep_in_memory_seconds": 3600, "model.name": "dysat", "model.pair_facts": False, "model.labels": "regression", "model.dim": 6,
    "model.time_dim": 3, "model.heads": 3, "model.direction": "out", "model.neighbors": 4, "model.id_rows": 5, "model.snapshots": 2,
    "model.snapshot_seconds": 7200, "model.memory_chunk": 30, "model.max_pairs": 50, "model.half_lives_seconds": [60, 600, 1000, 2000, 3000],
    "training.epochs": 1, "training.min_steps": 1, "training.learning_rate": 0.01, "training.replay": "recent", "training.replay_share": 0.5,
    "training.replay_events": 30, "training.replay_capacity_events": 60, "training.recent_negatives": 0.4, "training.tail_share": 0.2,
    "training.seed": 1,
    "training.nightly_twin": False, "bootstrap.max_events": 100, "bootstrap.epochs": 1, "registry.keep": 3, "registry.gate_events": 50}
MACHINES = ("threads", "ranks", "rank_timeout_seconds", "mesh", "checkpoint_dir", "nice")
"""Settings of processes, which `tests/ranks` has."""


def trainer_of(path):
    s = settings(path, **{name.replace(".", "__"): value for name, value in {**declared(), **VALUES}.items()})
    return Trainer(s, Paths.of(s, "train"), "cpu", LogReader.open(path), Registry.of(s), SystemClock(), Heartbeat(path, "train"))


def learn(trainer):
    trainer.log.refresh()
    while due := trainer.due():
        trainer.process(due[0])


def commit(writer, rows, watermark):
    writer.commit(dataclasses.replace(empty_batch(SETS), **rows), Progress(), watermark)


def test_every_setting_of_learning_is_here():
    learning = {".".join(path) for path in leaves() if path[0] in ("windows", "model", "training", "bootstrap", "registry")}
    assert learning - {f"training.{name}" for name in MACHINES} <= set(VALUES)


def test_a_trainer_of_several_sets_lives_with_all_settings_changed(tmp_path):
    src, dst, time, sets = sets_stream(240)
    src[120:][src[120:] == 3], dst[120:][dst[120:] == 3] = 4, 4
    first = slice(0, 120)
    write_sets_log(tmp_path, src[first], dst[first], time[first], sets[first], segment_edges=40)
    trainer = trainer_of(tmp_path)
    trainer.bootstrap()
    learn(trainer)

    with closing(LogWriter(tmp_path, SETS, 40)) as writer:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = 3, -1, -1
        commit(writer, {"deletions_X": rows}, writer.watermark)
        for at in range(120, 240, 40):
            part = slice(at, at + 40)
            commit(writer, {"src_E": src[part], "dst_E": dst[part], "time_E": time[part], "msg_ED": sets_rows(sets[part])}, int(time[part][-1]))
        commit(writer, {}, int(time[-1]) + 9 * HOUR)
        again = trainer_of(tmp_path)
        learn(again)
        ask_to_compact(tmp_path, 120)
        house = Housekeeper(writer, RetentionSettings(max_age_seconds=9 * 3600), lambda _: ())
        for _ in range(20):
            learn(again)
            house.step()
        assert asked_to_compact(tmp_path) is None and writer.state.first_edge > 0 and verify_log(tmp_path)[1] == []
    last = trainer_of(tmp_path)
    learn(last)
    assert last.edge == again.edge > 180 and last.learner.model.is_finite
