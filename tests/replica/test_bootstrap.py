"""A directory made from the store's newest manifest, in the place of one that is empty or too old, killed at any moment."""

import shutil

import numpy as np
import pytest

from streamd.errors import ChangelogError, DiskError, DivergedError, JournalError
from streamd.eventlog.journal import journal
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition, read_position
from streamd.eventlog.journal.journal import LogState, journal_files
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import state_at
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.bootstrap import (
    MADE,
    bootstrap,
    finish_bootstrap,
    newest_manifest,
    take_manifest,
)
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.eventlog import test_crash as life
from tests.faults import Crash, FaultyDisk
from tests.replica.directories import difference
from tests.replica.rivals import commit
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
    with pytest.raises(ChangelogError, match=r"belongs to topic t.changelog \(id id-1\) .* not to topic t.changelog \(id id-2\)"):
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


@pytest.mark.parametrize("lost", ["torn", "older", "gone"])
def test_the_one_log_that_is_whole_leads_again_after_a_power_cut_that_took_its_position(tmp_path, world, lost):
    """The position is not synced. Claims before the manifest are deleted, and no manifest has as much as this log."""
    topic, store = world
    path = tmp_path / "a"
    reader = LogReader.open(path)
    whole = (path / CHANGELOG).read_bytes()
    if lost == "gone":
        (path / CHANGELOG).unlink()
    else:
        (path / CHANGELOG).write_bytes(whole[:100] if lost == "torn" else ChangelogPosition(2, 3, 4).pack())
    with pytest.raises(ChangelogError, match="older than the changelog"):
        lead(path, topic.producer(), topic.reader(), member="m")
    manifest = newest_manifest(store)
    assert manifest.seq == 6
    assert take_manifest(store, manifest, path) and read_position(path) == manifest.position
    assert not take_manifest(store, manifest, path), "one that helped once does not help again"
    log = LogWriter(path, life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(path, topic.producer(), topic.reader(), member="m"))
    life.live(log, 11, housekeeping=False)
    log.close()
    reader.refresh()
    assert reader.state.seq == log.state.seq == 11, "readers go on: the log stayed"
    (tmp_path / "b").mkdir()
    assert take_manifest(store, manifest, tmp_path / "b")
    follow(tmp_path / "b", topic)
    assert difference(path, tmp_path / "b") == ""


def test_a_log_that_has_other_commits_than_a_manifest_does_not_take_its_position(tmp_path, world):
    """Neither one of another history, nor one whose journal no longer has the manifest's commit: what was shown would be forgotten."""
    topic, store = world
    other = LogWriter(tmp_path / "other", life.SCHEMA, life.SEGMENT_EDGES)
    for number in range(20, 29):
        commit(other, number)
    other.close()
    shutil.copytree(tmp_path / "a", tmp_path / "short")
    (tmp_path / "short" / CHANGELOG).unlink()
    for path in journal_files(tmp_path / "short/journal")[:-1]:
        path.unlink()
    for name in ("other", "short"):
        assert state_at(tmp_path / name, 6) != LogState.restored(newest_manifest(store).log)
        assert not take_manifest(store, newest_manifest(store), tmp_path / name)
        assert read_position(tmp_path / name) is None


def test_the_state_after_any_commit_is_read_over_all_files_of_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "FILE_LINES", 3)
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    states = [log.state]
    for number in range(20, 30):
        commit(log, number)
        states.append(log.state)
    log.close()
    assert len(journal_files(tmp_path / "journal")) > 3
    assert [state_at(tmp_path, seq) for seq in range(11)] == states
    assert state_at(tmp_path, 11) is None
    journal_files(tmp_path / "journal")[0].unlink()
    assert state_at(tmp_path, 0) is None and state_at(tmp_path, 10) == states[10]
