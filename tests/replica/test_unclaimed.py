"""A topic of the release before, whose leaders made no claims: records of two of them, or of a killed one, between each other, and
what becomes of them where the next leader claims a term."""

import shutil

import pytest

from streamd.eventlog.journal.changelog_position import CHANGELOG, ChangelogPosition
from streamd.eventlog.recovery import published_seq
from tests.eventlog import test_crash as life
from tests.replica.rivals import all_agree, commit, drain, leader
from tests.replica.twin import Topic


def as_before(records):
    """Commits as the release before wrote them."""
    told = [({**dict(headers)}, value) for headers, value in records if "kind" not in dict(headers)]
    for headers, _ in told:
        headers["term"] = b"1"
        headers.pop("before", None)
    return [(list(headers.items()), value) for headers, value in told]


def on_their_way(path, topic, *numbers):
    """What a leader sends that is killed then, by commit: the records as the broker would store them."""
    held = Topic(topic.part_bytes)
    held.records, held.begin = list(topic.records), topic.begin
    place = (path / CHANGELOG).read_bytes()
    log = leader(path, held)
    held.hold, held.patience = True, 10**9
    for number in numbers:
        commit(log, number)
    commits = {}
    for receipt in held.sent:
        commits.setdefault(receipt.record.seq, []).append((receipt.record.headers(), bytes(receipt.record.value)))
    log.commits._pending.clear()
    log.close()
    (path / CHANGELOG).write_bytes(place)
    return [as_before(parts) for parts in commits.values()]


@pytest.fixture
def topic(tmp_path):
    """Two leaders and a follower of the same four commits."""
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 4, housekeeping=False)
    log.close()
    topic.records = as_before(topic.records)
    (tmp_path / "a" / CHANGELOG).write_bytes(ChangelogPosition(1, 4, topic.end).pack())
    for name in "bf":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    return topic


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
    drain(tmp_path / "f", topic)
    assert published_seq(tmp_path / "f") == 4
    # A start that is killed may have published some of them again.
    topic.records += [record for number in range(republished) for record in commits[number]]
    leader(tmp_path / "a", topic).close()
    all_agree(tmp_path, topic, 7)


def test_whoever_never_had_a_refused_commit_leads_with_another_in_its_place(tmp_path, topic):
    topic.records += [record for parts in on_their_way(tmp_path / "a", topic, 20, 21, 23)[1:] for record in parts]
    log = leader(tmp_path / "b", topic)
    commit(log, 22)
    log.close()
    leader(tmp_path / "a", topic).close()
    all_agree(tmp_path, topic, 5)


@pytest.mark.parametrize("order", ["a0 a1 b0 b1 b2 b3", "b0 b1 b2 b3 a0 a1"])
def test_a_commit_that_was_never_whole_is_no_difference_where_all_is_compared_again(tmp_path, topic, order):
    parts = {name: on_their_way(tmp_path / name, topic, number)[0] for name, number in (("a", 20), ("b", 22))}
    topic.records += [parts[one[0]][int(one[1])] for one in order.split()]
    drain(tmp_path / "f", topic)
    (tmp_path / "f" / CHANGELOG).unlink()
    all_agree(tmp_path, topic, 5)
