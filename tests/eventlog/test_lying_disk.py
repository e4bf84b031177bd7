"""A disk loses writes that it had called durable: `published`, which nobody syncs, may then be older than the journal, and the files older than
both. Neither readers nor other machines get what differs from the journal's checksums."""

import os

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import CorruptionError, JournalError
from streamd.eventlog.journal.journal import journal_files
from streamd.eventlog.layout import DELETIONS, KEYS
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import is_locked, last_state, published_seq, replacement
from streamd.eventlog.upkeep.verify import verify_log
from streamd.eventlog.writer import LogWriter
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.replica.twin import Topic


def publish(path, seq):
    (path / "published").write_bytes(seq.to_bytes(8, "little"))


def make(path, until):
    """A log of some commits, in segments of 8 edges."""
    log = LogWriter(path, life.SCHEMA, life.SEGMENT_EDGES)
    life.live(log, until, housekeeping=False)
    log.close()
    return log.state


def lose(path, before):
    """Set the end of a file of commits to zeros, as if it had not been written. before: the number of bytes that stay."""
    size = path.stat().st_size
    os.truncate(path, before)
    os.truncate(path, size)


@pytest.mark.parametrize("lost", ["keys", "segment", "missing segment"])
def test_damage_after_published_is_found_and_not_published(tmp_path, lost):
    state = make(tmp_path, 8)
    path = KEYS if lost == "keys" else state.segments[-1].path
    if lost == "missing segment":
        (tmp_path / path).unlink()
    else:
        lose(tmp_path / path, 40 if lost == "keys" else 4096)
    publish(tmp_path, 1)
    commits, damage = verify_log(tmp_path)
    assert commits == 8 and damage and {d.path for d in damage} == {path} and min(d.seq for d in damage) > 1

    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"{path} in .* differs from the checksum in the journal: .*, of commit [2-8]"):
            LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
        assert published_seq(tmp_path) == 1 and LogReader.open(tmp_path).state.seq == 1 and not is_locked(tmp_path / "lock")
    found = CliRunner().invoke(app, ["verify", "--data-dir", str(tmp_path)])
    assert found.exit_code == 1 and f"damaged: {path} " in found.stderr
    assert "Operator action: check the disk, and restore the data_dir from a backup; if other machines have the log" in found.stderr


def test_commits_after_published_that_are_whole_are_published(tmp_path):
    make(tmp_path, 8)
    publish(tmp_path, 1)
    assert verify_log(tmp_path) == (8, [])
    LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES).close()
    assert published_seq(tmp_path) == 8


def test_while_a_process_writes_only_published_commits_are_checked(tmp_path):
    """The others may be taken back meanwhile."""
    make(tmp_path, 4)
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    publish(tmp_path, 2)
    assert verify_log(tmp_path) == (2, [])
    log.close()
    assert verify_log(tmp_path) == (4, [])


def test_a_file_that_a_crash_left_without_its_name_is_no_damage(tmp_path):
    """A commit replaces a file: its line is durable before the new file has the old one's name."""
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    life.live(log, 12, housekeeping=False)
    old = (tmp_path / DELETIONS).read_bytes()
    assert old
    for _ in log.replacing(DELETIONS, iter([bytes(len(old))])):
        pass
    log.close()
    (tmp_path / DELETIONS).rename(replacement(tmp_path / DELETIONS, log.state.seq))
    (tmp_path / DELETIONS).write_bytes(old)
    publish(tmp_path, log.state.seq - 1)
    assert verify_log(tmp_path)[1] == []
    LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES).close()
    assert (tmp_path / DELETIONS).read_bytes() == bytes(len(old)) and verify_log(tmp_path)[1] == []


def test_a_journal_without_published_commits_is_refused(tmp_path):
    make(tmp_path, 4)
    publish(tmp_path, 5)
    for look in (verify_log, lambda path: last_state(path, life.SCHEMA)):
        with pytest.raises(JournalError, match="ends at commit 4, but readers or the changelog have commit 5"):
            look(tmp_path)


def test_a_journal_that_ends_before_its_position_in_the_changelog_is_refused(tmp_path):
    """The file of the position was durable, the lines and `published` were not: a leader would number other commits alike."""
    topic = Topic()
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(tmp_path, topic.producer(), topic.reader(), member="m"))
    life.live(log, 2, housekeeping=False)
    log.commits.await_acks()
    log.close()
    [journal] = journal_files(tmp_path / "journal")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    publish(tmp_path, 0)
    for look in (verify_log, lambda path: Follower(path, topic.reader()), lambda path: lead(path, topic.producer(), topic.reader(), member="m")):
        with pytest.raises(JournalError, match="ends at commit 1, but readers or the changelog have commit 2"):
            look(tmp_path)


def test_a_leader_sends_no_damaged_commit_to_others(tmp_path):
    topic = Topic()
    log = LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(tmp_path, topic.producer(), topic.reader(), member="m"))
    life.live(log, 4, housekeeping=False)
    log.commits.await_acks()
    keys = (tmp_path / KEYS).stat().st_size
    topic.hold, topic.patience = True, 10**9
    life.live(log, 5, housekeeping=False)
    log.commits._pending.clear()
    log.close()
    topic.sent.clear()
    topic.hold = False
    lose(tmp_path / KEYS, keys)
    number = len(topic.records)
    with pytest.raises(CorruptionError, match="nodes.keys in .* of commit 5"):
        lead(tmp_path, topic.producer(), topic.reader(), member="m")
    assert len(topic.records) == number and published_seq(tmp_path) == 4
    assert last_state(tmp_path, life.SCHEMA).seq == 5
