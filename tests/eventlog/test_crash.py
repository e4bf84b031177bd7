"""Writer, journal, compaction, pruning and recovery stopped at every system call of a life of commits: what stands is what was acknowledged, or one more."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from streamd import storage
from streamd.errors import DiskError
from streamd.eventlog import node_features as features
from streamd.eventlog.journal import journal
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.prune import pruning
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Position, Progress, Run, Schema, SetKey, empty_batch
from streamd.schema import EdgeSet, NodeSet
from tests.builders import compact, feature_updates
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import lines_of

SCHEMA = ONE_SET = Schema(2, 1, 1)
THREE_SETS = Schema.declared(
    (NodeSet("user", 1), NodeSet("item")), (EdgeSet("views", "user", "item", 2), EdgeSet("buys", "user", "item"), EdgeSet("rates", "user", "item", 1)), 1)
SEGMENT_EDGES = 8
NUM_COMMITS = 16


def commit_number(i):
    """Commit i of a fixed life: edges, keys, labels, features, late events and deletes, over several segments."""
    rng = np.random.default_rng(i)
    n = int(rng.integers(0, 6))
    first_node = 2 * i + 1
    labels = int(rng.integers(0, 2))
    deletions = np.zeros(1 if i % 5 == 4 else 0, DELETION)
    if len(deletions):
        deletions["src"], deletions["dst"] = (2 * i - 7, -1) if i % 2 else (2 * i - 1, 2 * i)
        deletions["time"], deletions["edge"] = (i - 1) * 10, n
        deletions["edge_set"] = i % SCHEMA.num_edge_sets
    return dataclasses.replace(
        empty_batch(SCHEMA), src_E=np.full(n, first_node), dst_E=np.full(n, first_node + 1), time_E=np.full(n, i * 10),
        msg_ED=rows_of(i, n), label_node_L=np.full(labels, first_node),
        label_time_L=np.full(labels, i * 10), label_target_L=np.full((labels, 1), i, np.float32),
        node_F=np.array([first_node, i % 3 + 1]), node_row_F=np.array([n, n]), node_edge_F=np.array([n, n]),
        node_values_F=SCHEMA.node_rows(0, np.full((2, 1), i + 1, np.float32)), new_keys=(
            *(() if i else (None,)), f"key{first_node}", first_node + 1 if SCHEMA is ONE_SET else SetKey(1, first_node + 1)),
        late_edge=(0,) if n and i % 3 == 0 else (), late_time=(i,) if n and i % 3 == 0 else (), deletions_X=deletions)


def rows_of(i, n):
    """Rows of features of n edges: commits are of one edge set or of all in turn."""
    sets = [(i + (row if i % 3 == 0 else 0)) % SCHEMA.num_edge_sets for row in range(n)]
    rows = [SCHEMA.edge_rows(s, np.full((1, dim), i + 1, np.float32)) for s in sets
            for dim in [SCHEMA.edge_columns(s).stop - SCHEMA.edge_columns(s).start]]
    return np.concatenate([np.zeros((0, SCHEMA.edge_feature_dim), np.float32), *rows])


def live(log, until=NUM_COMMITS, acknowledged=None, housekeeping=True):
    """Commit what is missing; the log's own position says where to go on. Commit 5 is the first with events ahead, commit 14 comes amid a
    pruning."""
    while (i := log.progress.positions.get("t", {0: Position(0)})[0].offset) < until:
        ahead = (Run((i + 2, 0), (i + 3, 1)),) if i == 5 else ()
        log.commit(commit_number(i), Progress("c", {"t": "id"}, {"t": {0: Position(i + 1, 0, ahead)}}), i * 10)
        if acknowledged is not None:
            acknowledged.append(i + 1)
        if housekeeping and i == 9:
            log.seal()
            compact(log)
        if housekeeping and i == 13:
            log.drop_before(int(log.state.segments[1].first_edge))
            steps = pruning(log)
            assert any(num_pruned > 0 for num_pruned in steps), "as far as the first slice that is written"
        if housekeeping and i == 14:
            assert list(steps)


def contents(path):
    """All that a fresh reader sees."""
    reader = LogReader.open(path)
    if reader is None:
        return 0, {}
    first, end = reader.first_edge, reader.num_edges
    src, dst, time = reader.edges(first, end) if end else (np.zeros(0),) * 3
    shown = ~reader.hidden(first, end) if end else np.zeros(0, bool)
    ids = np.arange(first, end)[shown]
    return reader.state.progress.positions.get("t", {0: Position(0)})[0].offset, {
        "ids": ids.tolist(), "src": src[shown].tolist(), "dst": dst[shown].tolist(), "time": time[shown].tolist(),
        "msg": reader.features_of(ids).tolist(), "keys": sorted(map(str, reader.ids)), "watermark": reader.watermark,
        "features": {n: v for n, v in feature_updates(reader) if not reader.deletions.is_gone(np.array([n]))[0]}}


@pytest.fixture(autouse=True)
def short_journals_and_holes(monkeypatch):
    """Journal files end within segments too, and a pruned file has holes between its few rows."""
    monkeypatch.setattr(journal, "FILE_LINES", 2)
    monkeypatch.setattr(features, "SLICE_BYTES", 100)
    monkeypatch.setattr(storage, "HOLE_BYTES", 16)


@pytest.fixture(scope="module", autouse=True, params=[ONE_SET, THREE_SETS], ids=["one set", "three sets"])
def schema(request):
    """All of it with a log of one edge set, and with one of several, whose segments are folders."""
    global SCHEMA
    SCHEMA = request.param
    yield SCHEMA
    SCHEMA = ONE_SET


@pytest.fixture(scope="module")
def expected(tmp_path_factory, schema):
    """Contents after each number of commits, from a life without faults and without housekeeping."""
    out = {0: {}}
    path = tmp_path_factory.mktemp("expected")
    log = LogWriter(path, SCHEMA, SEGMENT_EDGES)
    for i in range(1, NUM_COMMITS + 1):
        live(log, i, housekeeping=False)
        out[i] = contents(path)[1]
    log.close()
    return out


def agrees(got, want):
    """Equal, but for edges that retention dropped from the front."""
    if not want or not got:
        return (got or {"ids": []})["ids"] == []
    kept = [k for k, e in enumerate(want["ids"]) if not got["ids"] or e >= got["ids"][0]]
    if not got["ids"]:
        kept = []
    return all(got[n] == ([want[n][k] for k in kept] if n in ("ids", "src", "dst", "time", "msg") else want[n]) for n in want)


def stride_of(stride):
    """Folders take four times the calls, of which a quick run tries a share."""
    return stride if stride == 1 or SCHEMA is ONE_SET else 5 * stride + 2


def calls_of_a_life(path):
    disk = FaultyDisk()
    log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
    live(log)
    log.close()
    return disk.calls


class Watcher:
    """A tail reader that looks before every system call: what it saw must never vanish."""

    def __init__(self, path):
        self.path, self.reader, self.edges = path, None, 0

    def __call__(self):
        if self.reader is None:
            self.reader = LogReader.open(self.path)
        elif self.reader.refresh():
            assert self.reader.num_edges >= self.edges, "a row that a reader saw is gone"
            self.edges = self.reader.num_edges


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["kill", "torn", "power"])
def test_a_stop_at_any_system_call_keeps_what_was_acknowledged(tmp_path, expected, mode, stride):
    total = calls_of_a_life(tmp_path / "calls")
    assert total > 150
    for at in range(len(mode) % stride, total, stride_of(stride)):
        path = tmp_path / f"{at}"
        watcher, acknowledged, log = Watcher(path), [0], None
        disk = FaultyDisk(at, mode, on_call=watcher if mode == "kill" else None)
        with pytest.raises(Crash):
            log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
            live(log, acknowledged=acknowledged)
            log.close()
        disk.abandon(log)
        recover_and_finish(path, expected, acknowledged[-1], watcher, f"{mode} at call {at}")


def recover_and_finish(path: Path, expected, acknowledged, watcher, where):
    log = LogWriter(path, SCHEMA, SEGMENT_EDGES)
    position, got = contents(path)
    assert position in (acknowledged, acknowledged + 1), where
    assert agrees(got, expected[position]), where
    watcher()
    assert verify_log(path)[1] == [], where
    live(log, housekeeping=False)
    log.close()
    assert agrees(contents(path)[1], expected[NUM_COMMITS]), where
    assert verify_log(path)[1] == [], where


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["full", "broken"])
def test_a_disk_that_refuses_is_a_named_error_and_nothing_is_lost(tmp_path, expected, mode, stride):
    """A log in doubt takes nothing more until it is recovered; one that is not goes on, and housekeeping works again."""
    total = calls_of_a_life(tmp_path / "calls")
    went_on = set()
    for at in range(len(mode) % stride, total, stride_of(stride)):
        path = tmp_path / f"{at}"
        acknowledged, log = [0], None
        disk = FaultyDisk(at, mode)
        with pytest.raises(DiskError, match="could not be written"):
            log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
            live(log, acknowledged=acknowledged)
            log.close()
        if log is not None and not log.files.closed:
            went_on.add(not log.files.in_doubt)
            if log.files.in_doubt:
                with pytest.raises(DiskError, match="accepts no changes"):
                    log.commit(empty_batch(SCHEMA), Progress(), 10**9)
            else:
                live(log, acknowledged=acknowledged, housekeeping=False)
                compact(log)
                assert agrees(contents(path)[1], expected[NUM_COMMITS]) and verify_log(path)[1] == [], at
            log.close()
            assert log.files.in_doubt or not disk.open_files, f"call {at} leaves files open"
        recover_and_finish(path, expected, acknowledged[-1], lambda: None, f"{mode} at call {at}")
    assert went_on == {True, False}


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_that_was_acknowledged_rests_on_a_sync_that_failed(tmp_path, expected, stride):
    """A sync fails, the page cache goes on showing what was written; a new writer takes over; then the power is cut."""
    trial = FaultyDisk()
    log = LogWriter(tmp_path / "calls", SCHEMA, SEGMENT_EDGES, trial)
    live(log)
    log.close()
    for number, at in enumerate(trial.syncs[::stride_of(stride)]):
        path, acknowledged, log = tmp_path / f"{at}", [0], None
        disk = FaultyDisk(at, "unsynced", seed=number)
        with pytest.raises(DiskError):
            log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
            live(log, acknowledged=acknowledged)
            log.close()
        if log is not None and not log.files.closed:
            log.close()
        disk.at = -1
        log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
        shown, got = contents(path)
        assert shown in (acknowledged[-1], acknowledged[-1] + 1) and agrees(got, expected[shown]), at
        acknowledged.append(shown)
        live(log, min(shown + 2, NUM_COMMITS), acknowledged, housekeeping=False)
        disk.cut_power()
        disk.abandon(log)
        recover_and_finish(path, expected, acknowledged[-1], lambda: None, f"a failed sync, call {at}")


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["kill", "unsynced"])
def test_a_power_cut_takes_no_line_of_a_commit_that_a_start_went_on_from(tmp_path, mode, stride):
    """The writer before ended before a sync, or at one that failed: its last line may be in the page cache only."""
    trial = FaultyDisk()
    log = LogWriter(tmp_path / "calls", SCHEMA, SEGMENT_EDGES, trial)
    live(log, housekeeping=False)
    log.close()
    for number, at in enumerate(trial.syncs[::stride_of(stride)]):
        path, log = tmp_path / f"{at}", None
        disk = FaultyDisk(at, mode, seed=number)
        with pytest.raises(Crash if mode == "kill" else DiskError):
            log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
            live(log, housekeeping=False)
            log.close()
        if log is not None and not log.files.closed:
            os.close(log.files.lock)
        disk.at = -1
        log = LogWriter(path, SCHEMA, SEGMENT_EDGES, disk)
        lines = lines_of(path)
        assert max(lines, default=0) == log.seq
        disk.cut_power()
        disk.abandon(log)
        assert lines_of(path) == lines, f"{mode} at call {at}"
