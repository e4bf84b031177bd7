"""A follower, and a leader at its start, stopped at every system call: what is there is what the changelog told, or less."""

import shutil

import pytest

from streamd import storage
from streamd.errors import DiskError
from streamd.eventlog import node_features as features
from streamd.eventlog.journal import journal
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.twin import Topic


@pytest.fixture(autouse=True)
def short_journals_and_holes(monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 12)
    monkeypatch.setattr(features, "SLICE_BYTES", 100)
    monkeypatch.setattr(storage, "HOLE_BYTES", 16)


@pytest.fixture(scope="module", params=[life.ONE_SET, life.THREE_SETS], ids=["one set", "three sets"])
def told(request, tmp_path_factory):
    """A life of commits and housekeeping, as the leader's directory and as the changelog."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life, "SCHEMA", request.param)
        path, topic = tmp_path_factory.mktemp("told") / "a", Topic(10**6)
        log = LogWriter(path, life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(path, topic.producer(), topic.reader(), member="m"))
        life.live(log)
        log.close()
        yield path, topic


def follow(path, topic, disk):
    follower = Follower(path, topic.reader(), disk)
    while follower.step(0):
        pass
    follower.close()
    return follower


@pytest.mark.parametrize("stride", [31, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["kill", "torn", "power", "full"])
def test_a_follower_that_stops_at_any_system_call_goes_on(tmp_path, told, mode, stride):
    leader, topic = told
    trial = FaultyDisk()
    follow(tmp_path / "trial", topic, trial)
    if life.SCHEMA is not life.ONE_SET and stride > 1:
        stride *= 5
    for at in range(len(mode) % stride, trial.calls, stride):
        path, disk, follower = tmp_path / "b", FaultyDisk(at, mode), None
        with pytest.raises((Crash, DiskError)):
            follower = Follower(path, topic.reader(), disk)
            while follower.step(0):
                pass
            follower.close()
        # A constructor that was stopped gave its lock back itself.
        disk.abandon(None if follower is None else follower._applier)
        shown = published_seq(path)
        follow(path, topic, storage.DISK)
        assert published_seq(path) >= shown
        assert difference(leader, path) == "" and verify_log(path)[1] == [], f"{mode} at call {at}"
        shutil.rmtree(path)
