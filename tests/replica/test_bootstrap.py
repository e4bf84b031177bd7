"""A directory made from the store's newest manifest, in the place of one that is empty or too old, killed at any moment."""

import shutil

import numpy as np
import pytest

from streamd.errors import ChangelogError, DiskError, DivergedError, JournalError
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition, read_position
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.bootstrap import MADE, bootstrap, finish_bootstrap, newest_manifest
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.eventlog import test_crash as life
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.twin import Topic


@pytest.fixture
def world(tmp_path):
    """A leader that stored a manifest after 6 commits and went on to 10; the changelog begins at the manifest."""
    topic = Topic(10**6)
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(tmp_path / "a", topic.producer(), topic.reader(), member="m"))
    life.live(log, 3, housekeeping=False)
    log.commits.await_acks()
    follow(tmp_path / "old", topic)
    life.live(log, 6, housekeeping=False)
    log.commits.await_acks()
    store = Store(f"file://{tmp_path}/store")
    upload(tmp_path / "a", store)
    life.live(log, 10, housekeeping=False)
    log.close()
    topic.delete_before(6)
    return topic, store


def follow(path, topic):
    follower = Follower(path, topic.reader())
    while follower.step(0):
        pass
    follower.close()


def test_an_empty_directory_takes_the_manifest_and_goes_on(tmp_path, world):
    topic, store = world
    (tmp_path / "b").mkdir()
    bootstrap(store, newest_manifest(store), tmp_path / "b")
    assert read_position(tmp_path / "b").seq == 6
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_a_manifest_of_a_changelog_that_is_gone_is_not_taken(tmp_path, world):
    """The topic was made anew: an offset of before would lead anywhere in it."""
    topic, store = world
    assert newest_manifest(store, topic.changelog).seq == 6
    topic.changelog = topic.changelog._replace(topic_id="id-2")
    assert newest_manifest(store, topic.changelog) is None
    (tmp_path / "b").mkdir()
    bootstrap(store, newest_manifest(store), tmp_path / "b")
    with pytest.raises(ChangelogError, match=r"goes with topic t.changelog \(id id-1\) .* not with topic t.changelog \(id id-2\)"):
        follow(tmp_path / "b", topic)


def test_a_disk_that_is_full_is_said_as_such_and_the_next_try_goes_on(tmp_path, world):
    topic, store = world
    (tmp_path / "b").mkdir()
    tried = 0
    for at in range(0, 400, 7):
        disk = FaultyDisk(at, "full")
        try:
            bootstrap(store, newest_manifest(store), tmp_path / "b", disk=disk)
        except DiskError:
            tried += 1
        else:
            break
    assert tried > 5
    finish_bootstrap(tmp_path / "b")
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_commits_between_the_place_in_the_changelog_and_the_manifest_are_compared(tmp_path, world):
    topic, store = world
    (tmp_path / "a" / CHANGELOG).write_bytes(ChangelogPosition(2, 8, 9).pack())
    upload(tmp_path / "a", store)
    for name in "bc":
        (tmp_path / name).mkdir()
        bootstrap(store, newest_manifest(store), tmp_path / name)
        assert read_position(tmp_path / name) == ChangelogPosition(2, 8, 9)
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    headers, value = topic.records[9 - topic.begin]
    topic.records[9 - topic.begin] = [(k, b"0badf00d" if k == "line" else v) for k, v in headers], value
    with pytest.raises(DivergedError, match="another commit 9"):
        follow(tmp_path / "c", topic)


def test_one_that_is_too_old_is_replaced_and_its_readers_notice(tmp_path, world):
    topic, store = world
    reader = LogReader.open(tmp_path / "old")
    src = reader.edges(0, reader.num_edges)[0]
    before = src.tolist()
    (tmp_path / "old/roles/serve/facts").mkdir(parents=True)
    (tmp_path / "old/roles/serve/hold").write_text("{}")
    bootstrap(store, newest_manifest(store), tmp_path / "old")
    assert list((tmp_path / "old/roles/serve").iterdir()) == [] and not (tmp_path / "old" / MADE).exists()
    assert np.array(src).tolist() == before, "what was mapped stays readable"
    with pytest.raises(JournalError, match="replaced by a newer one"):
        reader.refresh()
    follow(tmp_path / "old", topic)
    assert difference(tmp_path / "a", tmp_path / "old") == ""


def test_a_kill_at_any_call_leaves_the_old_log_or_makes_the_new_one(tmp_path, world):
    topic, store = world
    manifest, trial = newest_manifest(store), FaultyDisk()
    shutil.copytree(tmp_path / "old", tmp_path / "trial")
    bootstrap(store, manifest, tmp_path / "trial", disk=trial)
    new = 0
    for at in [*range(0, trial.calls - 30, 9), *range(max(0, trial.calls - 30), trial.calls)]:
        path = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "old", path)
        disk = FaultyDisk(at, "kill")
        with pytest.raises(Crash):
            bootstrap(store, manifest, path, disk=disk)
        disk.abandon(None)
        finish_bootstrap(path)
        reader = LogReader.open(path)
        assert reader.state.seq in (3, 6) and not (path / MADE).exists()
        new += reader.state.seq == 6
        if reader.state.seq == 3:
            bootstrap(store, manifest, path)
        follow(path, topic)
        assert difference(tmp_path / "a", path) == "", at
        shutil.rmtree(path)
    assert new > 3
