"""Records of windows as lines of the log: each is there once, whatever a stop cuts off."""

import dataclasses
import json

import pytest

from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import Wait
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.layout import WINDOWS
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.registry.journal import ModelJournal
from streamd.training.checkpoint import Cursor
from streamd.training.window_records import WindowRecords
from streamd.windows.history import FILE, HistoryReader, WindowRecord, append_record
from tests.builders import stream, write_log
from tests.faults import Crash, FaultyDisk

CURSOR = Cursor(edge=0, window_edge=0, memory_edge=0, memory_us=0, num_learned=0, history_bytes=0, version="", champion="", shadow="", compared=[],
                settings={})


def record(n, reason="learned"):
    """The window of ten events from event 10 n on."""
    return WindowRecord(start_us=n, end_us=n + 1, first_edge=10 * n, end_edge=10 * n + 10, num_scored=9, version=f"{n}-1", scored_by="rule",
                        promoted=True, reason=reason, scores={"live": {"mrr": 0.5}}, loss=None, seconds={"score": 0.1}, finished_at=n + 0.5)


@pytest.fixture
def path(tmp_path):
    write_log(tmp_path, *stream(8))
    return tmp_path


class Life:
    """A trainer's records and checkpoints; a restart begins with the newest checkpoint."""

    def __init__(self, path, disk=outbox.DISK, log=True, cursor=None, wait=Wait(0.02)):
        self.path, self.cursor = path, cursor
        self.records = WindowRecords(path, ModelJournal(path / "models", disk, path if log else None, wait))
        if cursor is not None:
            self.records.restore(cursor)
        self.resumed = self.records.resume(cursor.edge if cursor else 0)

    def window(self, n, stop=""):
        self.records.add(record(n))
        if stop == "before the checkpoint":
            return
        self.cursor = dataclasses.replace(CURSOR, edge=10 * n + 10, history_bytes=self.records.num_bytes, records=self.records.waiting)
        if stop != "before the line":
            self.records.send()

    def again(self, **kwargs):
        return Life(self.path, cursor=self.cursor, **kwargs)


def windows(path):
    return [one.first_edge // 10 for one in HistoryReader(path).refresh()]


def test_records_are_lines_of_the_log_after_their_checkpoint(path):
    life = Life(path)
    reader = HistoryReader(path)
    for n in range(3):
        life.window(n)
        assert [one.first_edge for one in reader.refresh()] == list(range(0, 10 * n + 10, 10))
    assert reader.records == [record(n) for n in range(3)] and not (path / FILE).exists()
    seqs = [json.loads(line)["seq"] for line in (path / WINDOWS).read_bytes().splitlines()]
    assert seqs == sorted(set(seqs)) and len(seqs) == 3 and verify_log(path)[1] == []
    assert life.again().resumed == reader.records


@pytest.mark.parametrize("stop", ["before the checkpoint", "before the line", "after it"])
def test_a_stop_between_two_steps_loses_no_record_and_takes_none_twice(path, stop):
    life = Life(path)
    life.window(0)
    life.window(1, stop)
    life = life.again()
    assert [one.first_edge for one in life.resumed] == [0] + [10] * (stop != "before the checkpoint")
    life.window(len(life.resumed))
    life.again()
    assert windows(path) == list(range(len(life.resumed) + 1)) and len((path / WINDOWS).read_bytes().splitlines()) == len(life.resumed) + 1


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_stop_at_any_system_call_takes_each_record_once(tmp_path, mode):
    def begun(path):
        write_log(path, *stream(8))
        life = Life(path)
        life.window(0)
        return life

    trial = FaultyDisk()
    begun(tmp_path / "calls").again(disk=trial).window(1)
    assert trial.calls > 30
    for at in range(trial.calls):
        life = begun(tmp_path / f"{at}")
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            life = life.again(disk=disk)
            life.window(1)
        disk.abandon(None)
        life = life.again()
        if len(life.resumed) == 1:
            life.window(1)
        life.window(2)
        assert windows(life.path) == [0, 1, 2] and len((life.path / WINDOWS).read_bytes().splitlines()) == 3, f"{mode} at call {at}"
        assert verify_log(life.path)[1] == []


@pytest.mark.usefixtures("ingest_asleep")
def test_a_trainer_does_not_wait_for_the_line_of_its_window_but_for_the_one_before(path):
    life = Life(path)
    log = LogWriter(path, Schema())
    life.window(0)
    assert not outbox.is_empty(path) and windows(path) == []
    log.show_acknowledged()
    life.window(1)
    log.show_acknowledged()
    assert windows(path) == [0, 1]
    log.close()


def test_windows_that_are_repeated_without_a_checkpoint_replace_their_records(path):
    life = Life(path)
    for n in range(4):
        life.window(n)
    reader = HistoryReader(path)
    assert len(before := reader.refresh()) == 4
    life = Life(path)
    life.records.rewind_to(20)
    assert [one.first_edge for one in life.records.resume(20)] == [0, 10]
    life.records.add(record(2, "again"))
    life.cursor = dataclasses.replace(CURSOR, edge=30, records=life.records.waiting)
    life.records.send()
    assert [(one.first_edge, one.reason) for one in reader.refresh()] == [(0, "learned"), (10, "learned"), (20, "again")]
    assert len(before) == 4, "a list that somebody holds is not changed"
    life.again().window(3)
    assert windows(path) == [0, 1, 2, 3]


def older(path, number=3):
    """The history of a directory as the release before wrote it, with a record after its checkpoint."""
    for n in range(number):
        size = append_record(path, record(n))
    append_record(path, record(number))
    return dataclasses.replace(CURSOR, edge=10 * number, history_bytes=size)


def test_the_history_of_the_release_before_becomes_the_first_lines(path):
    cursor = older(path)
    assert windows(path) == [0, 1, 2, 3], "as before"
    life = Life(path, cursor=cursor)
    assert [one.first_edge for one in life.resumed] == [0, 10, 20] and not (path / FILE).exists()
    life.window(3)
    assert windows(path) == [0, 1, 2, 3]
    life.again().window(4)
    assert windows(path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["kill", "power"])
def test_an_upgrade_stopped_at_any_system_call_takes_each_older_record_once(tmp_path, mode):
    write_log(tmp_path / "calls", *stream(8))
    trial = FaultyDisk()
    Life(tmp_path / "calls", trial, cursor=older(tmp_path / "calls"))
    for at in range(trial.calls):
        path = tmp_path / f"{at}"
        write_log(path, *stream(8))
        cursor = older(path)
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            Life(path, disk, cursor=cursor)
        disk.abandon(None)
        assert windows(path)[:3] == [0, 1, 2], f"{mode} at call {at}"
        Life(path, cursor=cursor).window(3)
        assert windows(path) == [0, 1, 2, 3] and len((path / WINDOWS).read_bytes().splitlines()) == 4, f"{mode} at call {at}"


@pytest.mark.parametrize("stop", ["", "before the line"])
def test_the_history_goes_with_a_log_that_gets_other_machines_and_comes_back(path, stop):
    life = Life(path)
    life.window(0)
    life.window(1, stop)
    (path / CHANGELOG).write_bytes(ChangelogPosition(1, 1, 1).pack())
    life = life.again(log=False)
    assert [one.first_edge for one in life.resumed] == [0, 10] and life.records.was_moved
    life.window(2)
    assert windows(path) == [0, 1, 2] and life.cursor.records is None and life.cursor.history_bytes == (path / FILE).stat().st_size
    life = life.again(log=False)
    assert not life.records.was_moved
    (path / CHANGELOG).unlink()
    life = life.again()
    life.window(3)
    assert windows(path) == [0, 1, 2, 3] and not (path / FILE).exists()
