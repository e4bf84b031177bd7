"""A power cut takes what was not synced, as `published` and the position in the changelog mostly are. Nobody needs more of the changelog
then than it still has, and no log is thrown away for an older one."""

import shutil

import pytest

from streamd.eventlog.journal.changelog_position import CHANGELOG, read_position
from streamd.eventlog.recovery import last_state
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.bootstrap import newest_manifest, take_manifest
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.replica.start import settled_seq
from streamd.store.archive import Archive
from streamd.store.objects import Store
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import ManualClock
from tests.eventlog import test_crash as life
from tests.faults import FaultyDisk
from tests.replica.twin import Topic

ROUND_SECONDS = 100.0


class Machine:
    """A leader and its archive on one disk."""

    def __init__(self, tmp_path, seed, segment_edges=life.SEGMENT_EDGES):
        self.path, self.topic, self.disk, self.clock = tmp_path / f"{seed}", Topic(10**6), FaultyDisk(seed=seed), ManualClock()
        self.store = Store(f"file://{tmp_path}/store-{seed}")
        self.path.mkdir()
        self.begin(segment_edges)

    def begin(self, segment_edges=life.SEGMENT_EDGES):
        publisher = lead(self.path, self.topic.producer(), self.topic.reader(), self.disk, member="m")
        self.log = LogWriter(self.path, life.SCHEMA, segment_edges, self.disk, publisher)
        self.archive = Archive(self.path, self.store, self, manifest_seconds=ROUND_SECONDS, clock=self.clock,
                               beat=Heartbeat(self.path, "archive"), bootstrap_seconds=ROUND_SECONDS, disk=self.disk)

    def commit(self, until):
        life.live(self.log, until, housekeeping=False)
        self.log.commits.await_acks()

    def store_and_trim(self):
        self.clock.advance(ROUND_SECONDS + 1)
        self.archive.step()
        assert self.archive.error == ""

    def cut_power(self):
        self.disk.abandon(self.log)
        self.disk.cut_power()
        self.disk = FaultyDisk()

    # What an archive asks of a changelog.

    def bounds(self):
        return self.topic.begin, self.topic.end

    def delete_before(self, offset):
        self.topic.delete_before(offset)


@pytest.mark.parametrize("seed", range(8))
def test_a_leader_leads_again_whose_changelog_was_trimmed(tmp_path, seed):
    machine = Machine(tmp_path, seed)
    for until in range(2, 12, 2):
        machine.commit(until)
        machine.store_and_trim()
    assert machine.topic.begin > 3
    machine.cut_power()
    assert read_position(machine.path).offset >= machine.topic.begin
    machine.begin()
    machine.commit(12)
    assert machine.log.state.seq == 12
    machine.log.close()


def test_an_archive_does_not_trim_beyond_the_place_of_its_directory(tmp_path):
    machine = Machine(tmp_path, 0)
    machine.commit(4)
    machine.store_and_trim()
    machine.commit(8)
    place = (machine.path / CHANGELOG).read_bytes()
    (machine.path / CHANGELOG).unlink()
    machine.store_and_trim()
    assert machine.topic.begin == 0, "the next leader would begin at 0"
    (machine.path / CHANGELOG).write_bytes(place)
    machine.store_and_trim()
    assert machine.topic.begin > 0
    machine.log.close()


@pytest.mark.parametrize("journal_lines", [3, 10_000])
def test_a_position_is_not_older_than_the_journal_file(tmp_path, monkeypatch, journal_lines):
    monkeypatch.setattr("streamd.eventlog.journal.journal.FILE_LINES", journal_lines)
    for seed in range(8):
        machine = Machine(tmp_path, seed)
        machine.commit(11)
        machine.cut_power()
        assert read_position(machine.path).seq >= settled_seq(machine.path)
        machine.begin()
        assert machine.log.state.seq == 11
        machine.log.close()


def test_a_standby_keeps_a_log_that_has_more_than_the_manifest(tmp_path):
    """It has lost `published`, its position and with them all that says that its commits count; the manifest knows an older one of them."""
    machine = Machine(tmp_path, 0, segment_edges=1000)
    machine.commit(7)
    machine.store_and_trim()
    machine.commit(8)
    machine.log.close()
    machine.topic.delete_before(7)
    path = tmp_path / "standby"
    shutil.copytree(machine.path, path)
    (path / "published").write_bytes(b"")
    (path / CHANGELOG).unlink()
    manifest = newest_manifest(machine.store)
    assert settled_seq(path) < manifest.seq == 7
    assert take_manifest(machine.store, manifest, path)
    assert last_state(path, life.SCHEMA).seq == 8, "the log stayed"
    follower = Follower(path, machine.topic.reader())
    assert follower.seq == 8
    follower.close()
    assert not take_manifest(machine.store, manifest, path), "one that helped once does not help again"
