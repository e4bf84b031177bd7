"""A data directory made of another follower's: without a store, stopped or running, killed at any moment."""

import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import DataDirectoryError, SettingsError, StoreError
from streamd.eventlog.journal.changelog_position import read_position
from streamd.eventlog.upkeep.holds import Hold, write_hold
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.replica.members import MEMBER, member_name
from streamd.store.directory import copy_directory, directory_at
from streamd.store.objects import Store
from streamd.store.upload import upload
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import stream
from tests.eventlog import test_crash as life
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.twin import Topic
from tests.store.test_store import busy_writer, committed, grow, rich_log


class World:
    """A leader, and a follower that has what the changelog had at commit 6 of 10."""

    def __init__(self, folder):
        self.topic, self.leader, self.source = Topic(10**6), folder / "leader", folder / "source"
        log = LogWriter(self.leader, life.SCHEMA, life.SEGMENT_EDGES,
                        publisher=lead(self.leader, self.topic.producer(), self.topic.reader(), member="a"))
        life.live(log, 6)
        log.commits.await_acks()
        self.follow(self.source)
        life.live(log, 10)
        log.close()

    def follow(self, path):
        with closing(Follower(path, self.topic.reader())) as follower:
            while follower.step(0):
                pass


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def keep_of_its_own(path):
    """What roles of a machine keep there, and a version."""
    member_name(path)
    write_hold(path, "serve", Hold(3, 3))
    Heartbeat(path, "follow").touch("following")
    for name in ("roles/serve/facts/1.safetensors", "roles/serve/memory/1.safetensors", "train/checkpoints/1.0/cursor.json",
                 "models/7-1/model.safetensors", "models/journal.jsonl", "models/.8-1.tmp/model.safetensors"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(name.encode())


def files(path):
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("writable", [True, False])
def test_a_copy_of_a_followers_directory_goes_on_by_the_changelog(tmp_path, world, monkeypatch, writable):
    keep_of_its_own(world.source)
    before = {name: (world.source / name).read_bytes() for name in files(world.source)}
    with monkeypatch.context() as patch:
        if not writable:
            patch.setattr("streamd.store.directory.os.access", lambda path, how: False)
        state = copy_directory(world.source, tmp_path / "new")
    assert difference(world.source, tmp_path / "new") == "" and state.seq > 0
    assert read_position(tmp_path / "new") == read_position(world.source)
    assert read_position(tmp_path / "new").changelog == world.topic.changelog
    assert {n for n in files(tmp_path / "new") if n.startswith(("roles", "train", "models"))} == {
        "models/7-1/model.safetensors", "models/journal.jsonl"}
    assert member_name(tmp_path / "new") != (world.source / "roles/follow" / MEMBER).read_text()

    # The source is as it was, and both go on to the same end.
    left = files(world.source) - before.keys()
    assert left <= ({"roles/backup/lock"} if writable else set())
    assert all((world.source / name).read_bytes() == data for name, data in before.items())
    for path in (tmp_path / "new", world.source):
        world.follow(path)
        assert difference(world.leader, path) == ""


def test_only_what_readers_were_shown_is_copied(tmp_path):
    """Lines that wait for the changelog are durable in the source, and may be taken back."""
    topic = Topic(10**6)
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(tmp_path / "a", topic.producer(), topic.reader(), member="a"))
    life.live(log, 4, housekeeping=False)
    log.commits.await_acks()
    topic.hold, topic.patience = True, 10**9
    for number in range(3):
        log.commit(life.empty_batch(life.SCHEMA), log.progress, 10**6 + number)
    assert (log.seq, log.commits.published_seq) == (7, 4)
    assert copy_directory(tmp_path / "a", tmp_path / "b").seq == 4
    topic.hold = False
    log.close()
    with closing(Follower(tmp_path / "b", topic.reader())) as follower:
        while follower.step(0):
            pass
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_a_copy_beside_a_writer_that_commits_drops_and_compacts(tmp_path):
    with busy_writer(tmp_path / "log"):
        seqs = [copy_directory(tmp_path / "log", tmp_path / f"copy{number}").seq for number in range(5)]
    assert seqs == sorted(seqs) and len(set(seqs)) > 1
    assert all(verify_log(tmp_path / f"copy{number}")[1] == [] for number in range(5))


@pytest.mark.parametrize(("mode", "stride"), [("kill", 13), ("torn", 29), ("full", 17), ("power", 23),
                                              *(pytest.param(mode, 1, marks=pytest.mark.slow) for mode in ("kill", "torn", "full", "power"))])
def test_a_copy_that_stops_anywhere_leaves_no_log_and_can_be_run_again(tmp_path, world, mode, stride):
    counting = FaultyDisk()
    copy_directory(world.source, tmp_path / "count", disk=counting)
    for at in range(0, counting.calls, stride):
        disk = FaultyDisk(at, mode)
        try:
            copy_directory(world.source, tmp_path / "new", disk=disk)
        except (Crash, DataDirectoryError):
            assert not (tmp_path / "new").exists() or at >= counting.calls - 1
        if not (tmp_path / "new").exists():
            copy_directory(world.source, tmp_path / "new")
        assert difference(world.source, tmp_path / "new") == ""
        shutil.rmtree(tmp_path / "new")


def test_kill_9_in_the_midst_leaves_no_log_and_the_next_copy_is_whole(tmp_path):
    src, dst, time_E = stream(30_000, hours=300)
    with closing(rich_log(tmp_path / "log", segment_edges=2_000)) as log:
        for i in range(12, 400):
            grow(log, src, dst, np.maximum(time_E, log.watermark), i)
    code = ("import sys; from pathlib import Path; from streamd.store.directory import copy_directory\n"
            "copy_directory(Path(sys.argv[1]), Path(sys.argv[2]), lambda done, of: print(done, flush=True))")
    rng, killed = random.Random(1), 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "log", tmp_path / "new"], stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(rng.random() * 0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if (tmp_path / "new").exists():
            assert committed(tmp_path / "new") == committed(tmp_path / "log")
            shutil.rmtree(tmp_path / "new")
        else:
            killed += 1
    assert killed > 0, "none was killed in the midst"
    copy_directory(tmp_path / "log", tmp_path / "new")
    assert committed(tmp_path / "new") == committed(tmp_path / "log")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [], "what was killed is gone"


def test_damage_of_any_file_is_found_and_leaves_nothing(tmp_path, world):
    paths = [p for top in ("edges", "node_features", "nodes.keys", "deletions.log", "journal")
             for p in sorted([world.source / top, *(world.source / top).rglob("*")]) if p.is_file() and p.stat().st_size]
    found = 0
    for path in paths:
        data = path.read_bytes()
        rows = max(i for i, byte in enumerate(data) if byte) if path.suffix != ".journal" else data.index(b"\n") // 2
        path.write_bytes(data[:rows] + bytes([data[rows] ^ 1]) + data[rows + 1:])
        # Behind the committed rows of a segment nothing is copied.
        try:
            copy_directory(world.source, tmp_path / "new")
        except Exception as error:  # noqa: BLE001 - any error is right that leaves nothing
            assert "damage" in str(error) or "differ" in str(error) or "journal" in str(error), error
            assert not (tmp_path / "new").exists()
            found += 1
        else:
            path.write_bytes(data)
            assert difference(world.source, tmp_path / "new") == ""
            shutil.rmtree(tmp_path / "new")
        path.write_bytes(data)
    assert found >= len(paths) - 2 > 3


def test_a_file_that_goes_while_a_directory_is_read_in_place_is_said(tmp_path, world, monkeypatch):
    monkeypatch.setattr("streamd.store.directory.os.access", lambda path, how: False)

    def drop(done, of):
        for path in (world.source / "edges/default").glob("*.tguf"):
            path.unlink()

    with pytest.raises(StoreError, match="was removed during the copy"):
        copy_directory(world.source, tmp_path / "new", drop)
    assert not (tmp_path / "new").exists()


def test_the_command_takes_a_path_or_url_of_a_directory_and_of_a_store(tmp_path, world):
    def run(*words):
        return CliRunner().invoke(app, ["restore", *(str(w) for w in words)])

    upload(world.source, Store(f"file://{tmp_path}/store"))
    for number, url in enumerate((world.source, f"file://{world.source}", tmp_path / "store", f"file://{tmp_path}/store")):
        done = run(url, "--data-dir", tmp_path / f"new{number}")
        assert done.exit_code == 0 and ("made of" in done.output) == (number < 2), done.output
        assert difference(world.source, tmp_path / f"new{number}") == ""
    done = run(world.source, "--seq", 3, "--data-dir", tmp_path / "third")
    assert isinstance(done.exception, SettingsError) and "only its newest commit" in str(done.exception)
    done = run(world.source, "--data-dir", world.source)
    assert isinstance(done.exception, DataDirectoryError)
    shutil.copytree(world.source, tmp_path / "with space/data")
    assert directory_at(f"file://{tmp_path}/with%20space/data") == tmp_path / "with space/data"
    assert directory_at(f"s3:/{world.source}") is None and directory_at(str(tmp_path)) is None
