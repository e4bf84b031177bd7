"""Windows whose events mostly came late, as many dead letters sent again do: they are left out of learning, and that is said."""

import dataclasses

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from streamd.clock import SystemClock
from streamd.evaluation.backtest import Plan, backtest
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.registry import Registry
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training import window_attempts as attempts
from streamd.training.trainer import Trainer
from streamd.windows import Window, next_window, num_late
from streamd.windows.history import HistoryReader
from tests.builders import HOUR, batch, learning, settings, stream

SCHEMA = Schema(2, 0, 0)


def late_log(path, shares, before_us=2 * HOUR):
    """A log of six hours. shares: hour -> share of its events that came late, with a time so much before their own."""
    src, dst, time = stream(600)
    late = [i for i, t in enumerate(time.tolist()) if i % 20 < 20 * shares.get(t // HOUR, 0)]
    keys = [f"n:{i}" for i in range(int(max(src.max(), dst.max())) + 1)]
    writer = LogWriter(path, SCHEMA, 100_000)
    writer.keys.update((key, number) for number, key in enumerate(keys))
    for a in range(0, 600, 100):
        own = [i for i in late if a <= i < a + 100]
        rows = batch(SCHEMA, src[a: a + 100], dst[a: a + 100], time[a: a + 100], keys if a == 0 else (), a)
        rows = dataclasses.replace(rows, late_edge=tuple(i - a for i in own), late_time=tuple(int(time[i]) - before_us for i in own))
        writer.commit(rows, Progress(), int(time[a + 99]) if a < 500 else 100 * HOUR)
    writer.close()
    return late


def make(path, **values):
    s = settings(path, stream__edge_feature_dim=2, **values)
    registry = Registry.of(s)
    return Trainer(s, Paths.of(s, "train"), "cpu", LogReader.open(path), registry, SystemClock(), Heartbeat(path, "train")), registry


def window(log, hour):
    edge = log.lower_bound(hour * HOUR)
    return next_window(log, edge, HOUR)


def test_events_of_an_earlier_time_are_counted_by_window(tmp_path):
    late = late_log(tmp_path, {2: 0.5, 4: 1})
    log = LogReader.open(tmp_path)
    for hour in range(6):
        own = window(log, hour)
        assert num_late(log, own) == sum(own.first_edge <= i < own.end_edge for i in late)
    late_log(tmp_path / "near", {2: 1}, before_us=1)
    log = LogReader.open(tmp_path / "near")
    assert num_late(log, window(log, 2)) <= 1, "within its own window an event is late, and of its time"


def test_a_window_that_is_mostly_late_is_neither_scored_nor_learned_and_says_so(tmp_path):
    late_log(tmp_path, {2: 0.4, 3: 0.6})
    trainer, registry = make(tmp_path)
    records = [trainer.process(*trainer.due()) for _ in range(3)]
    assert all(r.num_scored for r in records[1:]) and records[2].num_late > 0, "two fifths of a window are not most of it"
    champion, learned = registry.champion(), trainer.learner.num_learned
    weights = {n: t.clone() for n, t in trainer.learner.model.state_dict().items()}
    count = metrics.windows.labels("left_out")._value.get()
    with capture_logs() as lines:
        record = trainer.process(*trainer.due())
    assert record.num_scored == 0 and record.is_mostly_late and record.reason.startswith(f"left out: {record.num_late} of its ")
    assert (registry.champion(), trainer.learner.num_learned, trainer.contest.version) == (champion, learned, champion)
    assert all(torch.equal(t, weights[n]) for n, t in trainer.learner.model.state_dict().items())
    assert not any(record.first_edge <= c.first_edge < record.end_edge for c in trainer.learner.replay.chunks)
    line, = (x for x in lines if x["event"] == "window_left_out")
    assert (line["log_level"], line["late"], line["why"]) == ("warning", record.num_late, record.reason)
    assert metrics.windows.labels("left_out")._value.get() == count + 1

    # State goes on, and so does learning.
    assert trainer.learner.memory.edge == trainer.edge == trainer.recorder.edge == record.end_edge
    following = trainer.process(*trainer.due())
    assert following.num_scored and following.promoted and following.scored_by == champion
    assert [r.num_late for r in HistoryReader(tmp_path).refresh()] == [0, 0, records[2].num_late, record.num_late, 0]


def due_hours(trainer):
    return [w.start_us // HOUR for w in trainer.due()]


def test_of_windows_that_are_merged_the_late_one_goes_alone(tmp_path):
    late_log(tmp_path, {2: 1})
    trainer, _ = make(tmp_path, windows__merge_after=4)
    assert due_hours(trainer) == [0, 1]
    trainer.process(*trainer.due())
    assert due_hours(trainer) == [2]
    trainer.process(*trainer.due())
    assert due_hours(trainer) == [3]
    assert [bool(r.num_scored) for r in HistoryReader(tmp_path).refresh()][2] is False


def test_a_restart_leaves_out_the_same_windows_and_learns_the_same_bits(tmp_path):
    after = []
    for name, stops in (("through", ()), ("stopped", ("score", "learn", "record", "checkpoint"))):
        late_log(tmp_path / name, {2: 1})
        trainer, _ = make(tmp_path / name)
        for _ in range(2):
            trainer.process(*trainer.due())

        def stop(step, at):
            if step == at:
                raise KeyboardInterrupt

        for at in stops:
            trainer, _ = make(tmp_path / name)
            trainer._on_step = lambda step, at=at: stop(step, at)
            if at == "score":
                # A release that knew of no late windows began several as one.
                attempts.begin_attempt(tmp_path / name / "train", Window(2 * HOUR, 5 * HOUR, trainer.edge, window(trainer.log, 4).end_edge))
            else:
                with pytest.raises(KeyboardInterrupt):
                    trainer.process(*trainer.due())
            assert due_hours(make(tmp_path / name)[0]) == [2]
        trainer, _ = make(tmp_path / name)
        while due := trainer.due():
            trainer.process(*due)
        after.append(trainer.learner.model.state_dict())
        records = HistoryReader(tmp_path / name).refresh()
        assert [r.start_us // HOUR for r in records if not r.num_scored][-1] == 2 and len(records) == 6
    assert all(torch.equal(tensor, after[1][n]) for n, tensor in after[0].items())


def test_at_a_first_start_on_a_log_with_a_past_late_windows_are_left_out(tmp_path):
    late_log(tmp_path, {3: 1})
    trainer, registry = make(tmp_path, bootstrap__max_events=500, windows__max_events=200)
    trainer.bootstrap()
    assert registry.champion() is not None and trainer.edge == 600
    hours = {int(trainer.log.time_of(np.array([c.first_edge]))[0]) // HOUR for c in trainer.learner.replay.chunks}
    assert hours and 3 not in hours


def test_a_backtest_leaves_out_what_the_trainer_does(tmp_path):
    late_log(tmp_path, {3: 1})
    s = settings(tmp_path, stream__edge_feature_dim=2)
    result = backtest(learning(s), LogReader.open(tmp_path), Plan(0.3))
    assert [w.window.start_us // HOUR for w in result.windows] == [2, 4, 5] and result.num_left_out == 1


def test_records_of_before_are_encoded_as_they_were(tmp_path):
    late_log(tmp_path, {})
    trainer, _ = make(tmp_path)
    record = trainer.process(*trainer.due())
    assert b"num_late" not in record.line() and b'"num_late":3' in dataclasses.replace(record, num_late=3).line()
