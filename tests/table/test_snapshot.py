"""A snapshot of a log is as of one commit, while ingest writes, compaction rewrites and retention drops; and it ends."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import DataDirectoryError, JournalError, LeaseError, TGUFError
from streamd.eventlog.journal.journal import journal_files
from streamd.eventlog.upkeep.housekeeper import Housekeeper
from streamd.eventlog.upkeep.snapshot_leases import read_leases
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.settings.loading import RetentionSettings
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.builders import batch, compact, stream, write_log
from tests.replica.twin import Topic
from tests.table.logs import delete


def retained(writer):
    """Let retention drop all it may; the log's first event afterwards."""
    Housekeeper(writer, RetentionSettings(max_bytes=1), lambda keys: ()).step()
    return writer.state.first_edge


def test_a_snapshot_sees_one_commit_while_ingest_writes_compacts_and_drops(tmp_path):
    src, dst, when = stream(4000)
    write_log(tmp_path, src[:2000], dst[:2000], when[:2000], Schema(1), segment_edges=500)
    writer = LogWriter(tmp_path, Schema(1), 500)
    done = threading.Event()
    seen = []

    def read():
        while not done.is_set():
            with streamd.open_log(tmp_path) as snapshot:
                ids = snapshot.events(columns=["event", "src"]).read_all()
                again = snapshot.events(columns=["event", "src"]).read_all()
                assert ids.equals(again)
                seen.append((snapshot.commit, snapshot.end_event, ids["event"].to_numpy()))

    reader = threading.Thread(target=read)
    reader.start()
    for at in range(2000, 4000, 50):
        while writer.remaining_rows() < 50:
            writer.seal()
        writer.commit(batch(writer.schema, src[at:at + 50], dst[at:at + 50], when[at:at + 50]), Progress(), int(when[at + 49]))
        if at % 400 == 0:
            delete(writer, [at // 400])
            compact(writer)
            retained(writer)
    done.set()
    reader.join()
    writer.close()
    assert len({commit for commit, *_ in seen}) > 2, "it read several commits"
    assert any(len(ids) for *_, ids in seen)
    for _, end, ids in seen:
        assert (ids < end).all() and (np.diff(ids) > 0).all()


def test_compaction_and_retention_change_nothing_in_an_open_snapshot(tmp_path):
    write_log(tmp_path, *stream(3000), Schema(1), segment_edges=500)
    writer = LogWriter(tmp_path, Schema(1), 500)
    snapshot = streamd.open_log(tmp_path, lease_seconds=100)
    names = snapshot.event_table().schema.names
    before = snapshot.events(columns=names).read_all()
    delete(writer, [4])
    assert compact(writer).edges > 0 and retained(writer) == 0, "its lease keeps the segments"
    assert snapshot.events(columns=names).read_all().equals(before)
    with streamd.open_log(tmp_path) as later:
        assert later.events().read_all().num_rows < before.num_rows
    snapshot.close()
    assert retained(writer) == 3000, "compaction has sealed the newest segment"
    assert before["src"].to_numpy().sum() > 0, "batches stay valid"
    writer.close()


def test_verify_names_the_snapshots_that_keep_files_from_before_a_compaction(tmp_path):
    write_log(tmp_path, *stream(500))
    writer = LogWriter(tmp_path, Schema(), 500)
    delete(writer, [4])

    def verify():
        done = CliRunner().invoke(app, ["verify", "--deleted", "n:4", "--data-dir", str(tmp_path)])
        return done.exit_code, done.stderr

    with streamd.open_log(tmp_path) as snapshot:
        compact(writer)
        writer.close()
        code, text = verify()
        assert code == 1 and f"a snapshot of commit {snapshot.commit} keeps the files from before the compaction" in text and f"process {os.getpid()} on" in text
        with streamd.open_log(tmp_path):
            assert verify()[1].count("a snapshot of") == 1, "a later snapshot has the new files"
    assert verify() == (0, verify()[1]) and "snapshot" not in verify()[1]


def test_a_restored_backup_is_read_as_the_log_itself(tmp_path):
    write_log(tmp_path / "log", *stream(900), Schema(1), segment_edges=400)
    upload(tmp_path / "log", Store(f"file://{tmp_path}/store"))
    runner = CliRunner().invoke(app, ["restore", f"file://{tmp_path}/store", "--data-dir", str(tmp_path / "copy")])
    assert runner.exit_code == 0
    with streamd.open_log(tmp_path / "log") as left, streamd.open_log(tmp_path / "copy") as right:
        names = left.event_table().schema.names
        assert right.events(columns=names).read_all().equals(left.events(columns=names).read_all()) and right.commit == left.commit


def test_a_replica_is_read_as_its_leader(tmp_path):
    topic = Topic()
    writer = LogWriter(tmp_path / "leader", Schema(1), 400, publisher=lead(tmp_path / "leader", topic.producer(), topic.reader(), member="m"))
    src, dst, when = stream(900)
    for at in range(0, 900, 100):
        writer.commit(batch(writer.schema, src[at:at + 100], dst[at:at + 100], when[at:at + 100], [f"n:{i}" for i in range(40)] if at == 0 else ()),
                      Progress(), int(when[at + 99]))
    writer.close()
    follower = Follower(tmp_path / "replica", topic.reader())
    while follower.step(0):
        pass
    follower.close()
    with streamd.open_log(tmp_path / "leader") as left, streamd.open_log(tmp_path / "replica") as right:
        names = left.event_table().schema.names
        found = right.events(columns=names).read_all()
        assert found.num_rows == 900 and found.equals(left.events(columns=names).read_all()) and right.has_lease


def test_a_lease_runs_out_without_use_and_is_renewed_by_use(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(1500), segment_edges=500)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    snapshot = streamd.open_log(tmp_path, lease_seconds=60)
    for _ in range(4):
        now += 50
        snapshot.events()
    (lease,) = read_leases(tmp_path, now)
    assert (lease.until, lease.first_event, lease.seq) == (now + 60, 0, snapshot.commit) and str(os.getpid()) in lease.process
    reading = snapshot.events()
    now += 61
    with pytest.raises(LeaseError, match="was not used for 60 seconds.*open the log again"):
        snapshot.events()
    with pytest.raises(LeaseError, match="was not used"):
        reading.read_next_batch()
    writer = LogWriter(tmp_path, Schema(), 500)
    assert retained(writer) == 1000 and not list((tmp_path / "snapshots").iterdir())
    writer.close()


def test_a_closed_snapshot_refuses(tmp_path):
    write_log(tmp_path, *stream(100))
    with streamd.open_log(tmp_path) as snapshot:
        pass
    snapshot.close()
    with pytest.raises(LeaseError, match="closed"):
        snapshot.events()
    assert not list((tmp_path / "snapshots").iterdir())


def test_a_directory_without_the_right_to_write_is_read_without_a_lease(tmp_path):
    write_log(tmp_path, *stream(100))
    (tmp_path / "snapshots").touch()  # no folder can be made there, whoever runs this
    with streamd.open_log(tmp_path) as snapshot:
        assert not snapshot.has_lease and snapshot.events().read_all().num_rows == 100


def test_a_log_of_a_newer_release_is_refused_by_its_number(tmp_path):
    write_log(tmp_path, *stream(100))
    from crc32c import crc32c
    (path,) = journal_files(tmp_path / "journal")
    head, *rest = path.read_bytes().splitlines(keepends=True)
    text = head[9:].rstrip(b"\n").replace(b'"format":3', b'"format":99')
    assert b"99" in text
    path.write_bytes(b"%08x %s\n" % (crc32c(text), text) + b"".join(rest))
    with pytest.raises(JournalError, match="format 99, this streamd reads up to"):
        streamd.open_log(tmp_path)


def test_no_log_and_a_missing_segment_are_named(tmp_path):
    with pytest.raises(DataDirectoryError, match="holds no log"):
        streamd.open_log(tmp_path)
    write_log(tmp_path, *stream(100))
    next((tmp_path / "edges" / "default").glob("*.tguf")).unlink()
    with pytest.raises(TGUFError, match="00000.tguf cannot be opened"):
        streamd.open_log(tmp_path)


WITHOUT_RIGHTS = """
import os, sys, streamd, streamd.table.log_snapshot
os.setgid(65534), os.setuid(65534)
try:
    streamd.open_log(sys.argv[1])
except streamd.errors.DataDirectoryError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
def test_a_user_without_the_right_to_read_is_told_the_file(tmp_path):
    write_log(tmp_path / "log", *stream(100))
    (tmp_path / "log").chmod(0o700)
    done = subprocess.run([sys.executable, "-c", WITHOUT_RIGHTS, str(tmp_path / "log")], capture_output=True, text=True, check=True)
    assert "log/published cannot be read: Permission denied. Operator action: run as a user that may read" in done.stdout


def test_without_pyarrow_the_extra_is_named(tmp_path):
    write_log(tmp_path, *stream(100))
    code = "import sys; sys.modules['pyarrow'] = None; import streamd; streamd.open_log(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "Tables of the log need pyarrow. Operator action: pip install 'streamd-gnn[arrow]'" in done.stderr
