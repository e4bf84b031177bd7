"""A leader's life of commits, told by a changelog, makes the same log elsewhere."""


import pytest

from streamd import storage
from streamd.eventlog import node_features as features
from streamd.eventlog.journal import journal
from streamd.eventlog.journal.journal import journal_files, read_lines
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.replica.directories import difference
from tests.replica.twin import Topic


@pytest.fixture(autouse=True)
def short_journals_and_holes(monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 5)
    monkeypatch.setattr(features, "SLICE_BYTES", 100)
    monkeypatch.setattr(storage, "HOLE_BYTES", 16)


@pytest.fixture(params=[life.ONE_SET, life.THREE_SETS], ids=["one set", "three sets"])
def schema(request, monkeypatch):
    monkeypatch.setattr(life, "SCHEMA", request.param)
    return request.param


def leader(path, topic, schema, disk=storage.DISK):
    publisher = lead(path, topic.producer(), topic.reader(), disk, member="m")
    return LogWriter(path, schema, life.SEGMENT_EDGES, disk, publisher)


def follow(path, topic):
    follower = Follower(path, topic.reader())
    while follower.step(0):
        pass
    follower.close()
    return follower


def test_a_life_of_commits_is_told_byte_for_byte(tmp_path, schema):
    topic = Topic()
    log = leader(tmp_path / "a", topic, schema)
    life.live(log)
    log.close()
    assert max(dict(headers).get("parts", b"1") for headers, _ in topic.records) > b"1", "some commits have several parts"
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    newest = [next(read_lines(journal_files(tmp_path / name / "journal")[-1]))[1] for name in "ab"]
    assert newest[0]["format"] == newest[1]["format"] == 5, "an older release refuses both by the number"


def test_a_follower_begins_a_journal_file_once_there_is_a_run_ahead(tmp_path, schema, monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 1000)
    topic = Topic()
    log = leader(tmp_path / "a", topic, schema)
    life.live(log, 6)
    log.close()
    follow(tmp_path / "b", topic)
    checkpoints = [next(read_lines(file))[1] for file in journal_files(tmp_path / "b/journal")]
    assert (checkpoints[-1]["format"], checkpoints[-1]["checkpoint"]) == (5, log.seq) and checkpoints[-2]["format"] < 5
