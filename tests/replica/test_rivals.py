"""Members that claim, are deposed, wake up and come back, and changelogs that lost records."""

import shutil

import pytest

from streamd.errors import ChangelogError, DivergedError, FencedError, KafkaError, StoreError
from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition, read_position
from streamd.eventlog.recovery import published_seq
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import Claim
from streamd.replica.changelog.verify import compare
from streamd.replica.follower.bootstrap import newest_manifest, take_manifest
from streamd.replica.follower.follower import Follower
from streamd.store.objects import Store
from streamd.store.upload import upload
from tests.eventlog import test_crash as life
from tests.replica.rivals import all_agree, commit, difference, drain, leader
from tests.replica.twin import Topic


@pytest.fixture
def topic(tmp_path):
    """Two members that may lead and a follower, of the same four commits."""
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 4, housekeeping=False)
    log.close()
    for name in "bf":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    return topic


def abandon(log):
    """Close a log as a kill would: what waits is not waited for."""
    log.commits._pending.clear()
    log.close()


@pytest.mark.parametrize("stored", range(6))
def test_what_a_paused_leader_has_on_its_way_counts_only_before_the_claim(tmp_path, topic, stored):
    """a sends a commit of four parts, and another; b claims when some have arrived; a wakes up."""
    a = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    for number in (20, 21):
        commit(a, number)
    topic.store(stored)
    late, topic.sent = topic.sent, []
    topic.hold = False
    b = leader(tmp_path / "b", topic)
    whole = 4 + (stored >= 4)
    assert b.seq == whole and b.commits._publisher.term == a.commits._publisher.term + 1
    commit(b, 22)
    b.commits.await_acks()
    topic.sent = late
    topic.store()
    topic.acknowledge()
    with pytest.raises(FencedError, match="b claimed term 4"):
        a.commits.await_acks()
    assert published_seq(tmp_path / "a") in (4, whole)
    abandon(a)
    commit(b, 23)
    b.close()
    drain(tmp_path / "a", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""
    all_agree(tmp_path, topic, whole + 2)


def test_of_two_claims_of_one_term_the_first_wins_and_the_other_member_follows(tmp_path, topic):
    topic.on_turn = lambda: topic.append(Claim(0, 3, "b", "other", 4)) if topic.records[-1][0][0][1] != b"claim" else None
    follower = Follower(tmp_path / "f", topic.reader())
    with pytest.raises(FencedError, match="b, in term 3"):
        leader(tmp_path / "a", topic)
    topic.on_turn = lambda: None
    assert (follower.step(0), follower.term) == (1, 3), "the claim that lost counts for nothing"
    follower.close()
    log = leader(tmp_path / "a", topic)
    assert log.commits._publisher.term == 4
    log.close()


def test_an_idle_leader_that_was_deposed_finds_out_by_its_heartbeat(tmp_path, topic):
    a = leader(tmp_path / "a", topic, heartbeat_seconds=0)
    for _ in range(3):
        a.show_acknowledged()
        topic.turn()
    assert a.show_acknowledged() == 4
    assert read_position(tmp_path / "a").offset == topic.end, "its place moves over heartbeats"
    b = leader(tmp_path / "b", topic)
    a.show_acknowledged()
    topic.turn()
    with pytest.raises(FencedError, match="b claimed term 4"):
        a.show_acknowledged()
    a.close()
    b.close()


def test_a_followers_place_moves_over_heartbeats_so_that_they_may_be_deleted(tmp_path, topic):
    log = leader(tmp_path / "a", topic, heartbeat_seconds=0)
    follower = Follower(tmp_path / "f", topic.reader())
    shown_at = [(tmp_path / name / "published").stat().st_mtime_ns for name in "af"]
    for _ in range(5):
        log.show_acknowledged()
        topic.turn()
        assert follower.step(0) == 1
    log.show_acknowledged()
    follower.close()
    assert read_position(tmp_path / "a") == read_position(tmp_path / "f") == ChangelogPosition(3, 4, topic.end)
    assert [(tmp_path / name / "published").stat().st_mtime_ns for name in "af"] == shown_at, "which says when the newest commit came"
    topic.delete_before(topic.end)
    drain(tmp_path / "f", topic)
    commit(log, 20)
    log.close()
    drain(tmp_path / "f", topic)
    leader(tmp_path / "a", topic).close()
    assert difference(tmp_path / "a", tmp_path / "f") == "" and published_seq(tmp_path / "f") == 5


def test_a_fork_after_the_changelog_lost_its_tail_is_noticed_by_name(tmp_path, topic):
    """f has read two commits of a that are lost, with a's volume; b goes on without them, and is further by now."""
    a = leader(tmp_path / "a", topic)
    begin = topic.end
    for number in (20, 21):
        commit(a, number)
    a.close()
    drain(tmp_path / "f", topic)
    read = topic.end
    del topic.records[begin - topic.begin:]
    b = leader(tmp_path / "b", topic)
    for number in (22, 23, 24, 25):
        commit(b, number)
    b.commits.await_acks()
    assert topic.end > read
    with pytest.raises(DivergedError, match="term 4, but a claim before it is missing"):
        drain(tmp_path / "f", topic)
    b.close()


def test_a_fork_within_a_term_is_noticed_by_the_line_before(tmp_path, topic):
    a = leader(tmp_path / "a", topic)
    for number in (20, 21):
        commit(a, number)
    a.close()
    topic.records = [([(k, b"0badf00d" if (k, dict(h).get("seq")) == ("before", b"6") else v) for k, v in h], value) for h, value in topic.records]
    with pytest.raises(DivergedError, match="another commit 5"):
        drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == 5
    with pytest.raises(DivergedError, match="another commit 5"):
        leader(tmp_path / "b", topic)


def test_a_changelog_that_lost_what_it_acknowledged_is_noticed(tmp_path, topic):
    log = leader(tmp_path / "a", topic)
    del topic.records[-1:]
    at = topic.end
    with pytest.raises(ChangelogError, match=f"lost records: offset {at} came after offset {at}"):
        for number in (20, 21):
            commit(log, number)
            log.commits.await_acks()
    assert published_seq(tmp_path / "a") == 4
    with pytest.raises(ChangelogError):
        log.close()


def test_an_old_directory_neither_leads_nor_claims_where_all_that_it_lacks_is_deleted(tmp_path, topic):
    log = leader(tmp_path / "a", topic)
    for number in (20, 21):
        commit(log, number)
    log.commits.await_acks()
    topic.delete_before(topic.end)
    with pytest.raises(ChangelogError, match="older than the changelog"):
        leader(tmp_path / "b", topic)
    with pytest.raises(OutOfRange):
        drain(tmp_path / "f", topic)
    commit(log, 22)
    log.close()
    leader(tmp_path / "a", topic).close()


def test_a_directory_without_its_place_neither_leads_nor_follows_where_claims_are_deleted(tmp_path, topic):
    topic.delete_before(3)
    for name in "bf":
        (tmp_path / name / CHANGELOG).unlink()
    with pytest.raises(ChangelogError, match="older than the changelog"):
        leader(tmp_path / "b", topic)
    with pytest.raises(OutOfRange, match="begins at offset 3"):
        drain(tmp_path / "f", topic)


class SilentReceipt:
    """The broker had the record already, and does not say where."""

    def __init__(self, receipt):
        self.receipt, self.wait = receipt, receipt.wait

    def offset(self):
        return None if self.receipt.offset() is None else -1


def test_offsets_are_found_where_the_broker_does_not_tell_them(tmp_path, topic):
    """Of the claim, of each part, and of a heartbeat; records of an older leader lie between."""
    producer = topic.producer()
    send = producer.send
    producer.send = lambda record: SilentReceipt(send(record))
    topic.producer = lambda: producer
    log = leader(tmp_path / "a", topic, heartbeat_seconds=0)
    assert log.commits._publisher.acknowledged().offset == topic.end
    topic.records += topic.records[1:3]
    for number in (20, 21):
        commit(log, number)
    log.commits.await_acks()
    assert log.commits._publisher.acknowledged().offset == topic.end and published_seq(tmp_path / "a") == 6
    topic.records += topic.records[1:3]
    log.show_acknowledged()
    topic.turn()
    log.show_acknowledged()
    assert read_position(tmp_path / "a").offset == topic.end
    log.close()
    drain(tmp_path / "f", topic)
    assert difference(tmp_path / "a", tmp_path / "f") == ""


def test_a_place_in_the_changelog_never_lies_amid_a_commit(tmp_path, topic):
    """Whoever begins there, as after a restore, would miss the first parts."""
    log = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    commit(log, 20)
    commit(log, 21)
    whole = topic.end + 4
    topic.store(5)
    topic.acknowledge(5)
    assert log.show_acknowledged() == 5
    assert read_position(tmp_path / "a").offset == whole
    topic.hold = False
    log.close()


def test_a_commit_that_a_dead_leader_never_finished_keeps_nobody_waiting(tmp_path, topic):
    """Its parts are read, so nothing lags; a claim drops them, and the place moves on."""
    follower = Follower(tmp_path / "f", topic.reader())
    log = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    commit(log, 20)
    topic.store(2)
    begin = topic.end - 2
    abandon(log)
    topic.sent.clear()
    topic.hold = False
    follower.step(0)
    assert (follower.lag, follower.position.offset, follower.seq) == (0, begin, 4)
    log = leader(tmp_path / "b", topic)
    follower.step(0)
    assert follower.position == ChangelogPosition(4, 4, topic.end)
    commit(log, 22)
    log.close()
    follower.step(0)
    assert follower.seq == 5
    follower.close()
    assert difference(tmp_path / "b", tmp_path / "f") == ""


def test_a_manifest_that_stands_further_lets_a_follower_go_on_whose_heartbeats_are_deleted(tmp_path, topic):
    store = Store(f"file://{tmp_path}/store")
    log = leader(tmp_path / "a", topic, heartbeat_seconds=0)
    upload(tmp_path / "a", store)
    for _ in range(4):
        log.show_acknowledged()
        topic.turn()
    log.show_acknowledged()
    first = newest_manifest(store)
    assert not take_manifest(store, first, tmp_path / "a")
    made = upload(tmp_path / "a", store).manifest
    assert (made.seq, made.changelog_term, made.changelog_offset) == (4, 3, topic.end)
    topic.delete_before(made.changelog_offset)
    with pytest.raises(OutOfRange):
        drain(tmp_path / "f", topic)
    before = (tmp_path / "f/published").stat().st_ino
    assert take_manifest(store, made, tmp_path / "f")
    assert (tmp_path / "f/published").stat().st_ino == before, "the log here is whole: it stays, and so do its readers"
    assert not take_manifest(store, made, tmp_path / "f"), "one that helped once does not help again"
    commit(log, 20)
    log.close()
    drain(tmp_path / "f", topic)
    assert difference(tmp_path / "a", tmp_path / "f") == ""

    # A machine that was deposed, or restored from an older manifest, stores none over it.
    with pytest.raises(StoreError, match="term 3 at offset"):
        upload(tmp_path / "b", store)


def test_a_leader_that_stood_still_until_its_gap_was_deleted_is_a_deposed_one(tmp_path, topic):
    a = leader(tmp_path / "a", topic, heartbeat_seconds=0)
    b = leader(tmp_path / "b", topic)
    commit(b, 20)
    b.close()
    topic.delete_before(topic.end)
    a.show_acknowledged()
    topic.turn()
    with pytest.raises(FencedError, match="has no offset"):
        a.show_acknowledged()
    a.close()
    assert published_seq(tmp_path / "a") == 4


def test_a_log_whose_very_first_commit_was_refused_is_led_and_followed_all_the_same(tmp_path):
    topic = Topic()
    drain(tmp_path / "f", topic)
    a = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    commit(a, 20)
    commit(a, 21)
    # The broker takes the second one, which was on its way already.
    topic.refuse()
    topic.store()
    topic.acknowledge()
    with pytest.raises(KafkaError):
        a.commits.await_acks()
    abandon(a)
    topic.hold, topic.sent = False, []
    b = leader(tmp_path / "b", topic)
    commit(b, 22)
    commit(b, 23)
    b.close()
    all_agree(tmp_path, topic, 2)
    found = compare(tmp_path / "b", topic.reader())
    assert (found.difference, found.commits) == (None, 2)


def test_verify_passes_over_what_does_not_count_also_where_the_claim_is_deleted(tmp_path, topic):
    a = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    commit(a, 20)
    late, topic.sent, topic.hold = topic.sent, [], False
    b = leader(tmp_path / "b", topic)
    claimed = topic.end
    topic.sent = late
    topic.store()
    commit(b, 22)
    topic.acknowledge()
    with pytest.raises(FencedError):
        a.commits.await_acks()
    abandon(a)
    b.close()
    for begin in (0, claimed):
        topic.delete_before(begin)
        found = compare(tmp_path / "b", topic.reader())
        assert found.difference is None and found.behind == 0 and found.commits == (5 if begin == 0 else 1)
