"""Records of two leaders, or of a killed one, between each other; commits that the broker refused; records that it lost."""

import shutil

import pytest

from streamd.errors import ChangelogError, FencedError
from streamd.replica.changelog import OutOfRange
from streamd.replica.follower import Follower
from streamd.replica.leader import lead
from streamd.replica.start import published_seq
from streamd.segments.log import LogWriter
from tests.replica.directories import difference
from tests.replica.twin import Topic, record
from tests.segments import test_crash as life


def leader(path, topic):
    return LogWriter(path, life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(path, topic.producer(), topic.reader()))


def follow(path, topic):
    follower = Follower(path, topic.reader())
    try:
        while follower.step(0):
            pass
    finally:
        follower.close()


def commit(log, number):
    log.commit(life.commit_number(number), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(log.seq + 1)}}), 10**4 + log.seq)


def on_their_way(path, topic, *numbers):
    """What a leader sends that is killed then, by commit: the records as the broker would store them."""
    held = Topic(topic.part_bytes)
    held.records, held.begin, held.hold, held.patience = list(topic.records), topic.begin, True, 10**9
    log = leader(path, held)
    for number in numbers:
        commit(log, number)
    commits = {}
    for receipt in held.sent:
        commits.setdefault(receipt.record.seq, []).append((receipt.record.headers(), bytes(receipt.record.value)))
    log._waiting.clear()
    log.close()
    return list(commits.values())


@pytest.fixture
def topic(tmp_path):
    """Two leaders and a follower of the same four commits."""
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 4, housekeeping=False)
    log.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "f")
    return topic


def all_agree(tmp_path, topic, seq):
    """The follower goes on twice, as one that is started again; then each leader starts and is one."""
    for _ in range(2):
        follow(tmp_path / "f", topic)
    for name in "ab":
        leader(tmp_path / name, topic).close()
    follow(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == seq
    assert difference(tmp_path / "a", tmp_path / "f") == difference(tmp_path / "b", tmp_path / "f") == ""


@pytest.mark.parametrize("order", ["a0 a1 a2 a3 b0 b1 b2 b3", "b0 b1 b2 b3 a0 a1 a2 a3", "a0 b0 a1 a2 a3 b1 b2 b3",
                                   "a0 a1 b0 b1 b2 a2 a3 b3", "a0 b0 b1 a1 b2 b3 a2 a3"])
def test_of_two_leaders_the_first_whole_commit_counts_for_everybody(tmp_path, topic, order):
    parts = dict(zip("ab", (on_their_way(tmp_path / name, topic, number)[0] for name, number in (("a", 20), ("b", 22))), strict=True))
    assert len(parts["a"]) == len(parts["b"]) == 4 and parts["a"] != parts["b"]
    topic.records += [parts[one[0]][int(one[1])] for one in order.split()]
    all_agree(tmp_path, topic, 5)


@pytest.mark.parametrize("order", ["0 1 2 0 3", "0 1 2 0 1 2 3", "0 0 1 1 2 3", "0 1 0 1 2 2 3 3"])
def test_parts_that_came_twice_from_a_killed_process_do_no_harm(tmp_path, topic, order):
    ((*parts,),) = on_their_way(tmp_path / "a", topic, 20)
    topic.records += [parts[int(one)] for one in order.split()]
    all_agree(tmp_path, topic, 5)


@pytest.mark.parametrize("republished", [0, 1, 2, 3])
def test_commits_behind_one_that_the_broker_refused_are_published_again(tmp_path, topic, republished):
    commits = on_their_way(tmp_path / "a", topic, 20, 21, 23)
    topic.records += [record for number in (1, 2) for record in commits[number]]
    with pytest.raises(OutOfRange):
        follow(tmp_path / "f", topic)
    # Whoever never had the missing commit must not put another in its place.
    with pytest.raises(ChangelogError, match="older than the changelog"):
        leader(tmp_path / "b", topic)
    # A start that is killed may have published some of them again.
    topic.records += [record for number in range(republished) for record in commits[number]]
    leader(tmp_path / "a", topic).close()
    all_agree(tmp_path, topic, 7)


def test_a_changelog_that_lost_what_it_acknowledged_is_noticed(tmp_path, topic):
    log = leader(tmp_path / "a", topic)
    del topic.records[-1:]
    with pytest.raises(ChangelogError, match="lost records: offset 19 came behind offset 19"):
        for number in (20, 21):
            commit(log, number)
            log._let_through(0)
    assert published_seq(tmp_path / "a") == 4
    with pytest.raises(ChangelogError):
        log.close()


def test_an_old_directory_does_not_lead_where_all_that_it_lacks_is_deleted(tmp_path, topic):
    log = leader(tmp_path / "a", topic)
    for number in (20, 21):
        commit(log, number)
    log.close()
    topic.delete_before(topic.end)
    with pytest.raises(ChangelogError, match="older than the changelog"):
        leader(tmp_path / "b", topic)
    with pytest.raises(OutOfRange):
        follow(tmp_path / "f", topic)
    leader(tmp_path / "a", topic).close()


class SilentReceipt:
    """The broker had the record already, and does not say where."""

    def __init__(self, receipt):
        self.receipt, self.wait = receipt, receipt.wait

    def offset(self):
        return None if self.receipt.offset() is None else -1


def test_the_offset_of_each_part_is_found_where_the_broker_does_not_tell_it(tmp_path, topic):
    log = leader(tmp_path / "a", topic)
    producer = log._publisher._producer
    send = producer.send
    producer.send = lambda record: SilentReceipt(send(record))
    topic.records += topic.records[-2:]
    for number in (20, 21):
        commit(log, number)
    log._let_through(0)
    assert log._publisher.acknowledged().offset == topic.end and published_seq(tmp_path / "a") == 6
    log.close()
    follow(tmp_path / "f", topic)
    assert difference(tmp_path / "a", tmp_path / "f") == ""


def test_nobody_leads_where_followers_would_pass_over_what_comes(tmp_path, topic):
    topic.append(record(seq=2, term=2))
    for _ in range(2):
        with pytest.raises(FencedError, match="term 2"):
            leader(tmp_path / "a", topic)
    fork = Topic()
    fork.records = topic.records[:-1]
    topic.records += on_their_way(tmp_path / "b", fork, 20)[0]
    follow(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == 4, "of a leader that was deposed"
