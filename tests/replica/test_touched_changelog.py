"""The changelog touched by others: a stray, a damaged, a trimmed, a re-created record or topic, and what must happen."""

import pytest

from streamd.errors import ChangelogError
from streamd.eventlog.journal.changelog_position import ChangelogId
from streamd.eventlog.recovery import published_seq
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import Claim
from streamd.replica.changelog.verify import compare
from streamd.telemetry import replica_metrics
from tests.replica.rivals import commit, difference, drain, leader
from tests.replica.twin import Topic, record


def headers(**values):
    """Headers of a record whose numbers are all in order, but whose checksum is not."""
    return record(**{"crc": 1, "line": "0" * 8, "before": "f" * 8, **values}).headers()


CLAIM = Claim(0, 3, "m", "id", 0)
STRAYS = {
    "a line of a console producer": ([], b"hello"),
    "a tombstone": ([], None),
    "a mirroring tool's heartbeat": ([], b"\x00\x00source\x00target\x00"),
    "a refused record of the client": ([("streamd-refused-batch", b"")], b"cannot be read: a header"),
    "headers of another program": ([("term", b"first"), ("seq", None)], b"{}"),
    "a kind that nobody knows": ([("kind", b"merger"), ("term", b"3")], b"{}"),
    "a number out of range": (headers(term=2, seq=0), b"x"),
    "a claim with another value": (CLAIM.headers(), CLAIM.value[:-1] + b" "),
    "a higher term without its checksum": (headers(term=99, seq=3), b"x"),
    "a commit far ahead without its checksum": (headers(term=2, seq=1000), b"x"),
}


def strays():
    return replica_metrics.stray_records.labels("changelog")._value.get()


@pytest.mark.parametrize("what", STRAYS)
def test_a_stray_is_skipped_and_counted_by_the_leader_and_all_followers(tmp_path, what):
    topic = Topic(10**6)
    topic.records.append(STRAYS[what])
    log = leader(tmp_path / "a", topic)
    for number in range(4):
        commit(log, number)
        topic.turn()
        log.show_acknowledged()
        topic.records.append(STRAYS[what])
        assert published_seq(tmp_path / "a") == number + 1, "and leads on"
    log.close()

    before = strays()
    drain(tmp_path / "f", topic)
    assert strays() - before >= 5
    assert published_seq(tmp_path / "f") == 4 and difference(tmp_path / "a", tmp_path / "f") == ""
    assert compare(tmp_path / "f", topic.reader()).difference is None

    # All of them start once more, and another one leads.
    drain(tmp_path / "f", topic)
    log = leader(tmp_path / "f", topic)
    commit(log, 9)
    topic.records.append(STRAYS[what])
    log.close()
    drain(tmp_path / "a", topic)
    assert difference(tmp_path / "a", tmp_path / "f") == "" and published_seq(tmp_path / "a") == 5


def test_strays_between_the_parts_of_a_commit_do_not_part_them(tmp_path):
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    for number in range(3):
        commit(log, number)
    log.close()
    assert any(dict(h).get("parts", b"1") != b"1" for h, _ in topic.records)
    topic.records = [one for kept in topic.records for one in (kept, STRAYS["a tombstone"])]
    drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == 3 and difference(tmp_path / "a", tmp_path / "f") == ""


def told(tmp_path, commits=4):
    topic = Topic(10**6)
    log = leader(tmp_path / "a", topic)
    for number in range(commits):
        commit(log, number)
    log.close()
    return topic


def damage_value(topic):
    h, value = topic.records[3]
    topic.records[3] = h, value[:-1] + bytes([value[-1] ^ 1])


def damage_headers(topic):
    _, value = topic.records[3]
    topic.records[3] = [], value


def trim(topic):
    topic.delete_before(3)


def remove(topic):
    topic.records, topic.changelog = [], ChangelogId("cluster", "id-2", "t.changelog")


def empty(topic):
    topic.records = []


HARMED = {
    "the next commit is damaged": (damage_value, ChangelogError, "differs from its checksum"),
    # Followers must not take what comes after it for commits that the broker refused, and wait for ever.
    "the headers of a commit are damaged": (damage_headers, OutOfRange, "ends with commit 1, the changelog continues with 3"),
    "records were trimmed that nobody read": (trim, OutOfRange, "begins at offset 3"),
    "the topic was made anew": (remove, ChangelogError, "belongs to .*id-1.*not to.*id-2"),
    "the topic lost its records": (empty, ChangelogError, "created again, or lost records"),
}


@pytest.mark.parametrize("what", HARMED)
def test_what_is_lost_or_damaged_is_an_error_by_name(tmp_path, what):
    harm, kind, why = HARMED[what]
    topic = told(tmp_path, 1)
    drain(tmp_path / "f", topic)
    log = leader(tmp_path / "a", topic)
    for number in range(1, 5):
        commit(log, number)
    log.close()
    harm(topic)
    with pytest.raises(kind, match=why):
        drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") <= 2


@pytest.mark.parametrize("stray", ["a line of a console producer", "a tombstone", "a mirroring tool's heartbeat"])
def test_a_stray_before_commits_behind_a_refused_one_leaves_leaders_and_followers(tmp_path, stray):
    """The broker refused the third of several commits on their way and took those behind it; a stray lies in its place."""
    topic = Topic(10**6)
    log = leader(tmp_path / "a", topic)
    for number in range(4):
        commit(log, number)
    log.close()
    third = next(i for i, (h, _) in enumerate(topic.records) if dict(h).get("seq") == b"3")
    topic.records[third] = STRAYS[stray]
    drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == 2
    log = leader(tmp_path / "f", topic)
    commit(log, 9)
    log.close()
    assert published_seq(tmp_path / "f") == 3
