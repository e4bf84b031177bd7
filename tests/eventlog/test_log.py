import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamd.errors import CorruptionError, DataDirectoryError, DiskError, JournalError, LockedError
from streamd.eventlog import recovery
from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition
from streamd.eventlog.journal.journal import decode_line, encode_line, journal_files
from streamd.eventlog.layout import FEATURES, LATE
from streamd.eventlog.log_files import MAX_IN_FLIGHT
from streamd.eventlog.node_keys import decode_keys, encode_keys
from streamd.eventlog.reader import LogReader
from streamd.eventlog.tguf.reader import open_tguf
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import MAX_COMMIT_ROWS, LogWriter
from streamd.events import DELETION, Position, Progress, Run, Schema, empty_batch
from tests.builders import batch, feature_updates, stream, write_log

SCHEMA = Schema(2, 3, 0)


def read(path):
    return LogReader.open(path)


def test_what_is_committed_is_read_back_across_segments(tmp_path):
    src, dst, time_E = stream(500)
    write_log(tmp_path, src, dst, time_E, SCHEMA, tails=(1, 7, 60), segment_edges=128)
    reader = read(tmp_path)
    got = reader.edges(0, 500)
    for have, want in zip(got, (src, dst, time_E), strict=True):
        np.testing.assert_array_equal(have, want)
    assert len(list((tmp_path / "edges/default").glob("*.tguf"))) == 4
    asked = np.array([[499, 0], [127, 128]])
    np.testing.assert_array_equal(reader.time_of(asked), time_E[asked])
    assert reader.features_of(asked).shape == (2, 2, 2)
    for t in (0, int(time_E[200]), int(time_E[-1]) + 1):
        assert reader.lower_bound(t) == np.searchsorted(time_E, t)


def test_a_tail_reader_follows_every_commit(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA, 100)
    reader = LogReader.open(tmp_path)
    for i in range(40):
        ids = np.array([i % 9, 3])
        writer.commit(batch(SCHEMA, ids, ids + 1, np.array([i, i]) * 10), Progress(), i * 10)
        assert reader.refresh() and reader.num_edges == writer.num_edges == 2 * (i + 1)
        assert reader.watermark == i * 10
    assert not reader.refresh()
    writer.close()


def test_positions_keys_features_and_late_times_survive_a_restart(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA, 100)
    progress = Progress("c", {"t": "id-1"}, {"t": {0: Position(7, 2, (Run((8, 0), (8, 0)), Run((9, 1), (12, 3)))), 3: Position(5)}})
    import dataclasses
    keys = ("a", 1, "1")
    writer.keys.update({k: i for i, k in enumerate(keys)})
    b = dataclasses.replace(
        batch(SCHEMA, np.array([0, 1]), np.array([1, 2]), np.array([5, 5]), keys), node_F=np.array([2]),
        node_row_F=np.array([1]), node_edge_F=np.array([1]), node_values_F=np.ones((1, 3), np.float32), late_edge=(1,),
        late_time=(3,))
    writer.commit(b, progress, 5)
    writer.close()
    writer = LogWriter(tmp_path, SCHEMA, 100)
    assert writer.progress == progress and writer.keys == {"a": 0, 1: 1, "1": 2} and writer.watermark == 5
    writer.close()
    reader = read(tmp_path)
    assert reader.keys == list(keys) and reader.ids[1] != reader.ids["1"]
    assert feature_updates(reader) == [(2, [1.0, 1.0, 1.0])] and feature_updates(reader, 0) == []
    assert np.frombuffer((tmp_path / LATE).read_bytes(), "<i8").tolist() == [1, 3]


def test_a_commit_without_rows_moves_watermark_and_positions(tmp_path):
    write_log(tmp_path, *stream(50), SCHEMA)
    writer = LogWriter(tmp_path, SCHEMA)
    writer.commit(empty_batch(SCHEMA), Progress("c", {}, {"t": {0: Position(3)}}), 10**13)
    writer.close()
    reader = read(tmp_path)
    assert reader.watermark == 10**13 and reader.num_edges == 50 and reader.state.progress.positions["t"][0].offset == 3


def test_the_writer_knows_which_edges_it_holds(tmp_path):
    write_log(tmp_path, *stream(300), SCHEMA, segment_edges=128)
    src, dst, time_E = stream(300)
    writer = LogWriter(tmp_path, SCHEMA, 128)
    for edge in (0, 127, 128, 299):
        one = slice(edge, edge + 1)
        assert writer.count_edges(src[one], dst[one], time_E[one]) >= 1 and writer.count_edges(src[one], dst[one], time_E[one] + 1) == 0
    count = writer.count_edges(src + (src.max() + 1) * (np.arange(300) % 2), dst, time_E)
    assert (count > 0).tolist() == [True, False] * 150
    before = writer.count_edges(src[-1:], dst[-1:], time_E[-1:])
    writer.commit(batch(SCHEMA, src[-1:], dst[-1:], time_E[-1:]), Progress(), int(time_E[-1]))
    assert writer.count_edges(src[-1:], dst[-1:], time_E[-1:]) == before + 1
    writer.close()


def test_a_commit_larger_than_recovery_would_clear_is_not_begun(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA)
    many = np.zeros(MAX_COMMIT_ROWS + 1, np.int64)
    with pytest.raises(AssertionError, match="65537 rows"):
        writer.commit(batch(SCHEMA, many, many, many), Progress(), 0)
    writer.commit(batch(SCHEMA, many[1:], many[1:], many[1:]), Progress(), 0)
    assert read(tmp_path).num_edges == MAX_COMMIT_ROWS
    writer.close()


def test_the_lock_keeps_no_key_that_its_owner_was_told_to_erase(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["streamd", "erase", "user:8"])
    LogWriter(tmp_path, SCHEMA).close()
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"(erase)" in content for content in kept) and not any(b"user:8" in content for content in kept)


def test_a_second_writer_is_refused_and_names_the_one_that_owns_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["streamd", "run", "--role", "ingest"])
    writer = LogWriter(tmp_path, SCHEMA)
    with pytest.raises(LockedError, match=rf"process {os.getpid()} on {socket.gethostname()} \(run --role ingest\)\."):
        LogWriter(tmp_path, SCHEMA, lock_seconds=0.1)
    writer.close()
    files = len(list(Path("/proc/self/fd").iterdir()))
    LogWriter(tmp_path, SCHEMA).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.parametrize("read", ["streamd.eventlog.log_files.last_state", "streamd.eventlog.writer.read_keys"])
@pytest.mark.parametrize(("error", "told"), [(OSError(5, "Input/output error"), DiskError), (JournalError("damaged"), JournalError)])
def test_a_log_that_cannot_be_opened_gives_its_lock_back(tmp_path, read, error, told):
    def fail(*_):
        raise error

    LogWriter(tmp_path, SCHEMA).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, fail)
        with pytest.raises(told):
            LogWriter(tmp_path, SCHEMA)
    LogWriter(tmp_path, SCHEMA).close()


def test_where_the_lock_holds_nobody_back_the_writer_that_came_first_stops_before_it_writes(tmp_path, monkeypatch):
    first = LogWriter(tmp_path, SCHEMA)
    two = batch(SCHEMA, np.array([0, 3]), np.array([1, 3]), np.array([10, 10]))
    first.commit(two, Progress(), 20)
    monkeypatch.setattr("streamd.eventlog.recovery.fcntl.flock", lambda fd, how: None)
    second = LogWriter(tmp_path, SCHEMA)
    second.commit(two, Progress(), 30)
    with pytest.raises(LockedError, match="in spite of the lock"):
        first.commit(two, Progress(), 99)
    second.commit(two, Progress(), 40)
    assert read(tmp_path).num_edges == 6 and read(tmp_path).watermark == 40
    assert verify_log(tmp_path)[1] == []


def test_a_volume_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(fd, how):
        raise OSError(95, "Operation not supported")
    monkeypatch.setattr("streamd.eventlog.recovery.fcntl.flock", no_locks)
    with pytest.raises(DataDirectoryError, match="gives no locks"):
        LogWriter(tmp_path, SCHEMA)


def test_other_widths_are_refused(tmp_path):
    write_log(tmp_path, *stream(50), SCHEMA)
    with pytest.raises(JournalError, match="edge_feature_dim"):
        LogWriter(tmp_path, Schema(3, 3, 0))


def test_a_last_line_torn_at_any_byte_takes_only_its_own_commit_with_it(tmp_path):
    src, dst, time_E = stream(120)
    write_log(tmp_path / "whole", src, dst, time_E, SCHEMA, tails=(40,))
    journal = journal_files(tmp_path / "whole/journal")[-1]
    whole = journal.read_bytes()
    last = len(whole.rstrip(b"\n").rsplit(b"\n", 1)[0]) + 1
    for cut in [last, last + 1, last + 9, (last + len(whole)) // 2, len(whole) - 1]:
        torn = tmp_path / f"torn{cut}"
        shutil.copytree(tmp_path / "whole", torn)
        (torn / "journal" / journal.name).write_bytes(whole[:cut])
        (torn / "published").write_bytes((2).to_bytes(8, "little"))
        writer = LogWriter(torn, SCHEMA)
        assert (writer.state.seq, writer.num_edges) == (2, 80)
        rest = open_tguf(torn / writer.state.segments[0].path, check_rows=False).column("src", 100_000)[80:]
        assert not rest.any(), "rows of the commit that never was are zeroed"
        writer.commit(batch(SCHEMA, src[80:], dst[80:], time_E[80:], seed=80), Progress(), int(time_E[-1]))
        writer.close()
        np.testing.assert_array_equal(read(torn).edges(0, 120)[1], dst)
        assert verify_log(torn) == (3, [])


def test_damage_before_the_last_line_stops_recovery(tmp_path):
    write_log(tmp_path, *stream(120), SCHEMA, tails=(40,))
    journal = journal_files(tmp_path / "journal")[-1]
    raw = bytearray(journal.read_bytes())
    raw[raw.index(b"\n") + 20] ^= 1
    journal.write_bytes(raw)
    with pytest.raises(JournalError, match="line 2"):
        LogWriter(tmp_path, SCHEMA)


def test_a_new_journal_file_torn_in_its_first_line_is_made_again(tmp_path):
    write_log(tmp_path, *stream(120), SCHEMA, tails=(40,))
    (tmp_path / "journal" / f"{4:020d}.journal").write_bytes(b"0123abcd {half")
    writer = LogWriter(tmp_path, SCHEMA)
    assert writer.num_edges == 120
    writer.close()


@pytest.mark.parametrize("where", ["edges/default/00000000000000000000.tguf", "nodes.keys"])
def test_verify_names_the_file_of_a_flipped_bit(tmp_path, where):
    src, dst, time_E = stream(120)
    write_log(tmp_path, src, dst, time_E, SCHEMA, tails=(40,))
    assert verify_log(tmp_path) == (3, [])
    path = tmp_path / where
    raw = bytearray(path.read_bytes())
    raw[4096 + 8 * 45 if where.endswith("tguf") else 30] ^= 4
    path.write_bytes(raw)
    _, damage = verify_log(tmp_path)
    assert [d.path for d in damage] == [where]
    assert ("[40, 80)" if where.endswith("tguf") else "[0, ") in damage[0].extent


def test_a_file_of_keys_with_fewer_keys_than_were_committed_is_refused(tmp_path):
    write_log(tmp_path, *stream(120), SCHEMA)
    keys = tmp_path / "nodes.keys"
    raw = keys.read_bytes()
    keys.write_bytes(raw[: len(encode_keys(list(decode_keys(raw))[:-1]))])
    with pytest.raises(DataDirectoryError, match="nodes.keys is shorter than the journal says"):
        LogWriter(tmp_path, SCHEMA)


def test_lines_and_keys_are_read_as_written():
    assert decode_line(encode_line({"a": [1, "x"]})) == {"a": [1, "x"]}
    assert decode_line(encode_line({"a": 1})[:-1]) is None
    keys = ["a", 5, "5", "é☃", -(2**62), "a b"]
    assert list(decode_keys(encode_keys(keys))) == keys
    with pytest.raises(CorruptionError):
        list(decode_keys(encode_keys(keys)[:-1]))


WRITER = """
import sys
import numpy as np
from pathlib import Path
from streamd.events import Progress, Position, Schema
from streamd.eventlog.writer import LogWriter
from tests.builders import batch
schema = Schema(2, 3, 0)
log = LogWriter(Path(sys.argv[1]), schema, 64)
i = log.num_edges
print("ready", flush=True)
while True:
    n = min(1 + i % 13, log.remaining_rows())
    ids = np.arange(i, i + n)
    new = [f"n:{k}" for k in range(i, i + n)]
    log.keys.update({k: len(log.keys) + j for j, k in enumerate(new)})
    log.commit(batch(schema, ids, ids + 1, ids * 10, new), Progress("c", {}, {"t": {0: Position(i + n)}}), i + n)
    i += n
"""


def test_kill_9_at_random_moments_loses_nothing_that_a_reader_saw(tmp_path):
    rng = random.Random(5)
    seen = 0
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE,
                                 cwd=Path(__file__).parents[2])
        assert child.stdout.readline() == b"ready\n"
        reader = LogReader.open(tmp_path)
        deadline = time.monotonic() + rng.uniform(0.005, 0.12)
        while time.monotonic() < deadline:
            reader.refresh()
            assert reader.num_edges >= seen
            seen = reader.num_edges
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        writer = LogWriter(tmp_path, SCHEMA, 64)
        assert writer.num_edges >= seen, "a row that a reader saw is gone"
        assert writer.progress.positions.get("t", {0: Position(0)})[0].offset == writer.num_edges
        assert len(writer.keys) == writer.num_edges
        writer.close()
        if writer.num_edges:
            np.testing.assert_array_equal(read(tmp_path).edges(0, writer.num_edges)[0], np.arange(writer.num_edges))
        assert verify_log(tmp_path)[1] == []
    assert seen > 50, "the writer made progress between kills"


def test_files_named_in_the_journal_exist(tmp_path):
    write_log(tmp_path, *stream(50), SCHEMA)
    assert (tmp_path / FEATURES).exists() and (tmp_path / LATE).exists()


def test_a_copy_taken_while_the_log_is_written_holds_a_whole_number_of_commits(tmp_path):
    """In the order of docs/operations.md: what says how far the log goes, then the log."""
    writer = LogWriter(tmp_path / "log", Schema(2, 0, 0), 1000)
    src, dst, time = stream(20_000)
    stop, done = threading.Event(), []

    def write():
        at = 0
        while not stop.is_set() or len(done) < 20:
            part = slice(at, at + 37)
            writer.commit(batch(Schema(2, 0, 0), src[part], dst[part], np.sort(time[part]) * 0 + time[0] + at), Progress(), 0)
            at += 37
            done.append(at)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            while len(done) < 20 * (number + 1):
                pass
            copy = tmp_path / f"copy{number}"
            copy.mkdir()
            shutil.copy2(tmp_path / "log/published", copy)
            # A journal file that is being begun gets its name while it is copied.
            shutil.copytree(tmp_path / "log/journal", copy / "journal", ignore=shutil.ignore_patterns("*.tmp"))
            shutil.copytree(tmp_path / "log", copy, dirs_exist_ok=True, ignore=lambda _, names: {"published", "journal", "lock"} & set(names))
            again = LogWriter(copy, Schema(2, 0, 0), 1000)
            assert again.num_edges % 37 == 0 and again.num_edges >= 37 * 20 * number
            again.close()
            assert verify_log(copy, lambda *_: None)[1] == []
    finally:
        stop.set()
        thread.join()
    writer.close()


def test_the_state_of_a_log_is_read_while_its_writer_commits(tmp_path, monkeypatch):
    writer, read_file = LogWriter(tmp_path, SCHEMA, 1000), recovery._read
    ids = np.array([1])

    def read_and_commit(path):
        found = read_file(path)
        writer.commit(batch(SCHEMA, ids, ids, ids), Progress(), 0)
        return found

    writer.commit(batch(SCHEMA, ids, ids, ids), Progress(), 0)
    monkeypatch.setattr(recovery, "_read", read_and_commit)
    assert recovery.last_state(tmp_path, SCHEMA).num_edges == 1
    writer.close()


def deletion(src, dst):
    """A delete of the node `src` where `dst` is -1, else of an edge."""
    rows = np.zeros(1, DELETION)
    rows["src"], rows["dst"], rows["time"] = src, dst, -1 if dst < 0 else 0
    return replace(empty_batch(SCHEMA), deletions_X=rows)


def test_after_a_restart_only_the_keys_of_deleted_nodes_are_gone(tmp_path):
    writer = LogWriter(tmp_path, SCHEMA, 100)
    ids = np.arange(4)
    writer.commit(replace(batch(SCHEMA, ids, ids, ids), new_keys=tuple("abcd")), Progress(), 0)
    writer.commit(deletion(1, -1), Progress(), 0)
    writer.commit(deletion(2, 2), Progress(), 0)
    writer.close()
    again = LogWriter(tmp_path, SCHEMA, 100)
    assert again.keys == {"a": 0, "c": 2, "d": 3}
    again.close()


class Changelog:
    """A publisher whose changelog acknowledges when the test says so, or one commit whenever the writer waits."""

    changelog, term = ChangelogId("host", "topic"), 1

    def __init__(self):
        self.num_handed = self.num_acknowledged = self.most = 0

    def publish(self, before, fields, line):
        self.num_handed += 1
        self.most = max(self.most, self.num_handed - self.num_acknowledged)

    def acknowledged(self):
        return ChangelogPosition(self.term, self.num_acknowledged, 10 * self.num_acknowledged, self.changelog)

    def wait(self):
        self.num_acknowledged += 1

    def heartbeat(self):
        pass

    def close(self):
        pass


def test_readers_see_a_commit_once_the_changelog_has_it_and_only_so_many_wait(tmp_path):
    changelog = Changelog()
    writer = LogWriter(tmp_path, SCHEMA, 1000, publisher=changelog)
    reader = LogReader.open(tmp_path)
    ids = np.array([1])
    for _ in range(3):
        writer.commit(batch(SCHEMA, ids, ids, ids), Progress(), 0)
    for number in (1, 2):
        changelog.num_acknowledged = number
        writer.show_acknowledged()
        reader.refresh()
        assert reader.num_edges == number
    for _ in range(2 * MAX_IN_FLIGHT):
        writer.commit(batch(SCHEMA, ids, ids, ids), Progress(), 0)
    assert changelog.most == MAX_IN_FLIGHT
    writer.close()
