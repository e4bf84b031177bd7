"""The work of housekeeping grows with what there is to do, not with its square, and comes in short steps."""

import dataclasses
import itertools
import json
from contextlib import closing

import numpy as np
import pytest

from streamd.eventlog import node_keys as nodekeys
from streamd.eventlog import reader, recovery
from streamd.eventlog import writer as log
from streamd.eventlog.journal import journal
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf import reader as tguf
from streamd.eventlog.upkeep import compact, holds, housekeeper
from streamd.eventlog.upkeep.compact import compaction
from streamd.eventlog.upkeep.holds import Hold, ask_to_compact, asked_to_compact, write_hold
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.ingest.dead_letters import purge as deadletter
from streamd.ingest.dead_letters import search as letter_search
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.settings.loading import RetentionSettings
from tests.builders import SECOND, ManualClock, batch
from tests.work import lines_of_steps, lines_run

SCHEMA = Schema()
SMALL, LARGE = 60, 120


def log_of(path, keys, deleted=(), segment_edges=1000, events=1):
    """A log of that many nodes, "user:0" and so on, of which some are deleted; events of its first two, one a second."""
    made = LogWriter(path, SCHEMA, segment_edges)
    for i in range(events):
        made.commit(batch(SCHEMA, np.array([0]), np.array([1]), np.array([i * SECOND]), () if i else keys), Progress(), i * SECOND)
    rows = np.zeros(len(deleted), DELETION)
    rows["src"], rows["dst"], rows["time"] = np.array(deleted, np.int64), -1, -1
    made.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), made.watermark)
    return made


def letters_about(folder, names):
    """Dead letters of these nodes, whose records have them as keys too."""
    letters = LocalDeadLetters(folder, 10**8)
    for at, name in enumerate(names):
        letters.add(DeadLetter("t", 0, at, 0, "bad_time", "", 5, json.dumps({"src": name, "dst": "x"}).encode(), key=name.encode()))
    letters.flush()
    return letters


def test_letters_are_searched_for_all_keys_in_one_go_a_letter_a_step(tmp_path):
    work = {}
    for size in (SMALL, LARGE):
        gone, kept = ([f"{name}:{i:03d}" for i in range(size)] for name in ("gone", "kept"))
        letters = letters_about(tmp_path / f"{size}", [name for pair in zip(gone, kept, strict=True) for name in pair])
        work[size] = lines_of_steps(iter(letters.purge(set(gone))), deadletter, letter_search)
        left = (tmp_path / f"{size}/current.jsonl").read_text().splitlines()
        assert [json.loads(line)["offset"] for line in left] == list(range(1, 2 * size, 2))
    assert sum(work[LARGE]) < 2.2 * sum(work[SMALL]), "letters + keys, not letters x keys"
    assert max(work[LARGE][1:]) == max(work[SMALL][1:]), "and no step of many letters takes longer"


def test_keys_are_taken_in_some_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(deadletter, "KEYS_PER_STEP", 10)
    letters = letters_about(tmp_path, ["kept"])
    steps = lines_of_steps(iter(letters.purge([f"gone:{i}" for i in range(100)])), letter_search)
    assert len(steps) > 10 and max(steps) < 20 * min(steps[:9])


def test_a_compaction_reads_the_keys_twice_in_slices_and_decodes_those_that_go(tmp_path, monkeypatch):
    monkeypatch.setattr(nodekeys, "SLICE_BYTES", 200)
    rows, decoded = [], []
    walk, decode = nodekeys._rows, nodekeys.decode_keys

    def rows_of(data):
        found = walk(data)
        rows.append(len(found[0]))
        return found

    monkeypatch.setattr(nodekeys, "_rows", rows_of)
    monkeypatch.setattr(nodekeys, "decode_keys", lambda data: decoded.append(len(data)) or decode(data))
    for size in (SMALL, LARGE):
        rows.clear(), decoded.clear()
        made = log_of(tmp_path / f"{size}", [f"user:{i}" for i in range(size)], deleted=range(0, size, 10))
        with closing(made):
            most = max(lines_of_steps(compaction(made, LogReader.open(made.data_dir), made.num_edges), nodekeys))
        assert sum(rows) == 2 * size and len(decoded) == size // 10 and max(decoded) < 20
        assert most < 250, "a slice or two, however many keys there are"
        keys = LogReader.open(made.data_dir).keys
        assert keys == [*(None if i % 10 == 0 else f"user:{i}" for i in range(size)), None]


@pytest.fixture
def two_looks_a_step(monkeypatch):
    """A clock by which a step of housekeeping is over after two pieces of work."""
    clock = ManualClock()
    monkeypatch.setattr(clock, "monotonic", itertools.count(0, 0.6 * housekeeper.STEP_SECONDS).__next__)
    monkeypatch.setattr(clock, "time", lambda: 0.0, raising=False)
    monkeypatch.setattr(housekeeper, "time", clock)


def test_of_the_journal_some_files_go_a_step_and_in_the_end_all_of_dropped_segments(tmp_path, two_looks_a_step):
    with closing(log_of(tmp_path, ["a", "b"], segment_edges=2, events=41)) as made:
        house = Housekeeper(made, RetentionSettings(max_age_seconds=1), lambda _: ())
        left = [len(journal.journal_files(tmp_path / "journal"))]
        while left[-1] != left[-2:][0] or len(left) == 1:
            house.step()
            left.append(len(journal.journal_files(tmp_path / "journal")))
        assert left[0] > 20 and left[-1] <= 3 and max(-np.diff(left)) <= 2


def test_no_step_of_a_compaction_takes_longer_for_more_keys(tmp_path, monkeypatch, two_looks_a_step):
    monkeypatch.setattr(nodekeys, "SLICE_BYTES", 200)
    most = {}
    for size in (SMALL, 4 * SMALL):
        with closing(log_of(tmp_path / f"{size}", [f"user:{i:04d}" for i in range(size)], deleted=[2])) as made:
            ask_to_compact(made.data_dir, 1)
            house, steps = Housekeeper(made, RetentionSettings(), lambda _: ()), []
            while asked_to_compact(made.data_dir) is not None:
                steps.append(lines_run(house.step, housekeeper, compact, reader, nodekeys))
            most[size] = max(steps)
            assert len(steps) > size // 10
    assert most[4 * SMALL] < 1.2 * most[SMALL]


@pytest.mark.parametrize("kind", ["holds", "segments that stay", "segments that go"])
def test_a_step_takes_twice_as_long_for_twice_as_much(tmp_path, kind, monkeypatch):
    work, opened = {}, []
    monkeypatch.setattr(tguf.TGUFFile, "__init__", lambda self, path, f=tguf.TGUFFile.__init__: opened.append(path) or f(self, path))
    for size in (10, 20):
        path = tmp_path / f"{size}"
        segments = 2 if kind == "holds" else size
        with closing(log_of(path, ["a", "b"], segment_edges=2, events=2 * segments + 1)) as made:
            for number in range(size if kind == "holds" else 0):
                write_hold(path, f"serve-{number}", Hold(made.num_edges, 0))
            age = {"segments that go": 1}.get(kind, 10**6)
            house = Housekeeper(made, RetentionSettings(max_age_seconds=age), lambda _: ())
            opened.clear()
            work[size] = lines_run(house.step, holds, housekeeper, log, journal, recovery, compact)
            assert made.state.first_edge == {"segments that go": 2 * (size - 1)}.get(kind, 0)
            assert len(opened) == {"segments that go": size}.get(kind, 1), "a segment that stays is the last one looked at"
    assert work[20] < 2.2 * work[10]
