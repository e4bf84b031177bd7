"""Lines of the outbox in the log: stopped at every system call of writer, commit and removal, each is there once, in order, or not yet."""

import dataclasses
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from streamd.errors import JournalError, LockedError
from streamd.eventlog import line_outbox as outbox
from streamd.eventlog.delivery import Wait, commit_alone, deliver
from streamd.eventlog.journal import journal
from streamd.eventlog.journal.journal import LogState, journal_files, read_lines
from streamd.eventlog.layout import MOVES, WINDOWS
from streamd.eventlog.recovery import last_state, published_seq
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import Position, Progress, Schema, empty_batch
from tests.faults import Crash, FaultyDisk

SCHEMA = Schema()
NUM_BATCHES = 5


def edges(i):
    """Commit i of a fixed life: an edge between two new nodes."""
    return dataclasses.replace(empty_batch(SCHEMA), src_E=np.array([2 * i]), dst_E=np.array([2 * i + 1]), time_E=np.array([i]),
                               msg_ED=np.zeros((1, 0), np.float32), new_keys=(f"a{i}", f"b{i}"))


def lines_of(path, file=MOVES):
    """The published lines of a file, oldest first."""
    published = published_seq(path)
    content = (path / file).read_bytes() if (path / file).exists() else b""
    lines = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    return [line for line in lines if line["seq"] <= published]


def numbers(path, file=MOVES):
    return [line["n"] for line in lines_of(path, file)]


def put_next(path, disk):
    """Put the batch after the newest in the log: whoever was stopped does not know whether its last one got there."""
    if not outbox.is_empty(path):
        return
    n = len(lines_of(path))
    if n < NUM_BATCHES:
        outbox.put(path, [(MOVES, b'{"n":%d}\n' % n), (WINDOWS, b'{"n":%d}' % n), (WINDOWS, b'{"n":%d,"more":[1]}' % n)], disk)


def live(path, disk, log):
    """Batches with events, and batches alone."""
    for _ in range(4 * NUM_BATCHES):
        put_next(path, disk)
        i = log.progress.positions.get("t", {0: Position(0)})[0].offset
        if i < NUM_BATCHES and i % 2 == 0:
            log.commit(edges(i), Progress("c", {"t": "id"}, {"t": {0: Position(i + 1)}}), i)
        else:
            log.show_acknowledged()
            if i < NUM_BATCHES:
                log.commit(edges(i), Progress("c", {"t": "id"}, {"t": {0: Position(i + 1)}}), i)


def check_whole(path, where):
    assert numbers(path) == list(range(NUM_BATCHES)), where
    assert numbers(path, WINDOWS) == [n for n in range(NUM_BATCHES) for _ in range(2)], where
    assert last_state(path, SCHEMA).num_edges == NUM_BATCHES, where
    assert outbox.is_empty(path) and verify_log(path)[1] == [], where


@pytest.fixture(autouse=True)
def short_journals(monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 3)


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_stop_at_any_system_call_takes_each_line_once(tmp_path, mode):
    trial = FaultyDisk()
    log = LogWriter(tmp_path / "calls", SCHEMA, 8, trial)
    live(tmp_path / "calls", trial, log)
    log.close()
    check_whole(tmp_path / "calls", "without a stop")
    assert trial.calls > 100
    for at in range(trial.calls):
        path, log = tmp_path / f"{at}", None
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            log = LogWriter(path, SCHEMA, 8, disk)
            live(path, disk, log)
            log.close()
        disk.abandon(log)
        seen = numbers(path)
        assert seen == list(range(len(seen))), f"{mode} at call {at}"
        log = LogWriter(path, SCHEMA, 8)
        assert numbers(path)[: len(seen)] == seen, f"{mode} at call {at}: a line that readers saw is gone"
        live(path, log.files.disk, log)
        log.close()
        check_whole(path, f"{mode} at call {at}")


@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_command_that_commits_by_itself_may_stop_at_any_system_call(tmp_path, mode):
    def begun(path):
        LogWriter(path, SCHEMA, 8).close()
        log = LogWriter(path, SCHEMA, 8)
        log.commit(edges(0), Progress("c", {"t": "id"}, {"t": {0: Position(1)}}), 0)
        log.close()

    def command(path, disk):
        if not lines_of(path):
            if outbox.is_empty(path):
                put_next(path, disk)
            assert commit_alone(path, disk)

    trial = FaultyDisk()
    begun(tmp_path / "calls")
    command(tmp_path / "calls", trial)
    for at in range(trial.calls):
        path = tmp_path / f"{at}"
        begun(path)
        disk = FaultyDisk(at, mode)
        with pytest.raises(Crash):
            command(path, disk)
        disk.abandon(None)
        command(path, outbox.DISK)
        assert deliver(path, Wait(0)) and numbers(path) == [0] and numbers(path, WINDOWS) == [0, 0], f"{mode} at call {at}"
        assert outbox.is_empty(path) and verify_log(path)[1] == [] and last_state(path, SCHEMA).num_edges == 1


def test_a_batch_that_is_in_the_log_already_is_removed_and_not_taken_again(tmp_path):
    log = LogWriter(tmp_path, SCHEMA, 8)
    put_next(tmp_path, outbox.DISK)
    content = (tmp_path / outbox.FILE).read_bytes()
    log.show_acknowledged()
    seq = log.seq
    (tmp_path / outbox.FILE).write_bytes(content)
    log.show_acknowledged()
    log.commit(edges(0), Progress(), 1)
    log.close()
    assert numbers(tmp_path) == [0] and log.seq == seq + 1 and outbox.is_empty(tmp_path)


HOLDER = """
import sys
import time
from pathlib import Path
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema

log = LogWriter(Path(sys.argv[1]), Schema())
print("open", flush=True)
time.sleep(0.3)
log.close()
"""


def test_a_command_waits_a_moment_for_a_process_that_has_the_log_open(tmp_path):
    LogWriter(tmp_path, SCHEMA).close()
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(LockedError):
            LogWriter(tmp_path, SCHEMA, lock_seconds=0.0)
        LogWriter(tmp_path, SCHEMA).close()
    assert holder.returncode == 0


@pytest.mark.usefixtures("ingest_asleep")
def test_ingest_takes_what_another_process_waits_for(tmp_path):
    log = LogWriter(tmp_path, SCHEMA, 8)
    put_next(tmp_path, outbox.DISK)
    assert not deliver(tmp_path, Wait(0.02)), "ingest has the log open"
    waits = []
    waiter = threading.Thread(target=lambda: waits.append(deliver(tmp_path, Wait(10))))
    waiter.start()
    log.show_acknowledged()
    waiter.join()
    assert waits == [True] and numbers(tmp_path) == [0]
    log.close()


def test_a_damaged_outbox_is_set_aside_and_the_log_goes_on(tmp_path, capsys):
    log = LogWriter(tmp_path, SCHEMA, 8)
    put_next(tmp_path, outbox.DISK)
    content = (tmp_path / outbox.FILE).read_bytes()
    for damaged in (content[:20] + b"x" + content[21:], b"", content.replace(MOVES.encode(), b"x" * len(MOVES))):
        (tmp_path / outbox.FILE).write_bytes(damaged)
        log.commit(edges(0), Progress(), 1)
        assert outbox.is_empty(tmp_path) and (tmp_path / outbox.DAMAGED).read_bytes() == damaged
    assert capsys.readouterr().out.count("outbox_damaged") == 3
    put_next(tmp_path, outbox.DISK)
    log.show_acknowledged()
    assert numbers(tmp_path) == [0]
    log.close()


def test_a_batch_that_follows_other_lines_than_the_log_has_is_set_aside(tmp_path, capsys):
    log = LogWriter(tmp_path, SCHEMA, 8)
    put_next(tmp_path, outbox.DISK)
    log.show_acknowledged()
    put_next(tmp_path, outbox.DISK)
    old = (tmp_path / outbox.FILE).read_bytes()
    (tmp_path / outbox.FILE).unlink()
    outbox.put(tmp_path, [(MOVES, b'{"n":7}')])
    log.show_acknowledged()
    # As on a machine that was deposed while its batch waited, and follows.
    (tmp_path / outbox.FILE).write_bytes(old)
    log.show_acknowledged()
    assert outbox.is_empty(tmp_path) and (tmp_path / outbox.OUTDATED).read_bytes() == old and "outbox_outdated" in capsys.readouterr().out
    put_next(tmp_path, outbox.DISK)
    log.commit(edges(0), Progress(), 1)
    assert numbers(tmp_path) == [0, 7, 2]
    log.close()


def test_a_log_with_such_lines_has_format_6_which_older_releases_refuse_and_one_without_has_not(tmp_path):
    log = LogWriter(tmp_path, SCHEMA, 8)

    def first_line():
        return next(read_lines(journal_files(tmp_path / "journal")[-1]))[1]

    assert first_line()["format"] == 3 and "outbox" not in first_line()
    put_next(tmp_path, outbox.DISK)
    log.show_acknowledged()
    line = first_line()
    assert line["format"] == 6 and line["outbox"] == log.state.outbox and line["runs"] is False
    assert LogState.restored(line) == log.state
    with pytest.raises(JournalError, match=r"format 7, this streamd reads up to 6\."):
        LogState.restored(line | {"format": 7})
    log.close()
