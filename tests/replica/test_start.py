"""What a member does with its lines at its start, who is fenced, and what is told of a difference."""

import dataclasses
import struct

import numpy as np
import pytest
from crc32c import crc32c

from streamd.errors import ChangelogError, DivergedError, FencedError
from streamd.eventlog.journal.changelog_position import CHANGELOG, read_position
from streamd.eventlog.journal.journal import decode_line
from streamd.eventlog.layout import KEYS
from streamd.eventlog.node_keys import without_keys
from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import published_seq
from streamd.eventlog.writer import LogWriter
from streamd.events import Schema
from streamd.replica.changelog.interface import OutOfRange
from streamd.replica.changelog.records import Claim, Heartbeat
from streamd.replica.changelog.verify import compare
from streamd.replica.follower.follower import Follower
from streamd.replica.leader.leader import lead
from tests.eventlog import test_crash as life
from tests.properties.test_log_machine import GrowingMachine
from tests.replica.directories import difference, lines_of
from tests.replica.twin import Topic, record


def leader(path, topic, schema=None):
    return LogWriter(path, schema or life.SCHEMA, life.SEGMENT_EDGES, publisher=lead(path, topic.producer(), topic.reader(), member="m"))


def follow(path, topic):
    follower = Follower(path, topic.reader())
    while follower.step(0):
        pass
    follower.close()


def test_a_commit_is_shown_when_it_is_acknowledged_and_sixteen_may_wait(tmp_path):
    topic = Topic()
    log = LogWriter(tmp_path, Schema(2), publisher=lead(tmp_path, topic.producer(), topic.reader(), member="m"))
    topic.hold = True
    one = dataclasses.replace(life.empty_batch(Schema(2)))
    for number in range(16):
        log.commit(one, life.Progress(), number)
    assert (log.seq, log.show_acknowledged(), published_seq(tmp_path), log.is_waiting) == (16, 0, 0, True)
    topic.store(3)
    topic.acknowledge(2)
    assert log.show_acknowledged() == published_seq(tmp_path) == 2
    assert LogReader.open(tmp_path).state.seq == 2 and read_position(tmp_path).offset == 3
    topic.turns = 0
    for number in range(16, 20):
        log.commit(one, life.Progress(), number)
    assert log.seq - log.commits.published_seq <= 16 < 20 and topic.turns > 0, "the seventeenth waited for the broker"
    log.close()
    assert published_seq(tmp_path) == 20


def test_a_directory_that_exists_begins_at_its_present_commit(tmp_path):
    log = LogWriter(tmp_path / "a", life.SCHEMA, life.SEGMENT_EDGES)
    life.live(log, 3, housekeeping=False)
    log.close()
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 5, housekeeping=False)
    log.close()
    with pytest.raises(OutOfRange):
        follow(tmp_path / "b", topic)
    log = leader(tmp_path / "a", topic)
    life.live(log, 6, housekeeping=False)
    log.close()
    assert published_seq(tmp_path / "a") == 6
    (tmp_path / "a" / CHANGELOG).unlink()
    leader(tmp_path / "a", topic).close()
    assert read_position(tmp_path / "a").offset == topic.end


@pytest.mark.parametrize("changed", [{"cluster": "another"}, {"topic_id": "id-2"}, {"topic": "u.changelog"}])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_member_is_not_led_into_another_changelog(tmp_path, changed, who):
    """As by a changed log.name or broker, or a topic that was made anew, though offsets and commits would fit."""
    topic, other = Topic(), Topic()
    other.changelog = topic.changelog._replace(**changed)
    for number, one in enumerate((topic, other)):
        log = leader(tmp_path / f"leader-{number}", one)
        life.live(log, 3 + number, housekeeping=False)
        log.close()
    path = tmp_path / "leader-0"
    if who == "follower":
        path = tmp_path / "b"
        follow(path, topic)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(ChangelogError) as error:
        leader(path, other) if who == "leader" else follow(path, other)
    assert f"belongs to {topic.changelog.shown}, not to {other.changelog.shown}" in str(error.value)
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before
    assert read_position(path).changelog == topic.changelog

    # With the right one it goes on.
    leader(path, topic).close() if who == "leader" else follow(path, topic)


def test_a_position_of_the_release_before_learns_its_changelog_at_the_next_start(tmp_path):
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 3, housekeeping=False)
    log.close()
    follow(tmp_path / "b", topic)
    for name in "ab":
        place = read_position(tmp_path / name)
        numbers = struct.pack("<4Q", 1, place.term, place.seq, place.offset)
        (tmp_path / name / CHANGELOG).write_bytes(numbers + struct.pack("<Q", crc32c(numbers)))
    leader(tmp_path / "a", topic).close()
    follow(tmp_path / "b", topic)
    for name in "ab":
        assert read_position(tmp_path / name).changelog == topic.changelog and published_seq(tmp_path / name) == 3


def test_each_commit_names_the_term_of_the_leader_that_made_it(tmp_path):
    """Answers say it as `streamd-position`: on every machine the same."""
    topic, terms = Topic(), []
    for number in (3, 5, 8):
        log = leader(tmp_path / "a", topic)
        life.live(log, number, housekeeping=False)
        log.close()
        follow(tmp_path / "b", topic)
        for name in "ab":
            state = LogReader.open(tmp_path / name).state
            assert (state.seq, state.term) == (number, read_position(tmp_path / name).term)
        terms.append(state.term)
    assert terms == [2, 3, 4]
    assert [decode_line(line)["term"] for _, line in sorted(lines_of(tmp_path / "b").items())] == [2, 2, 2, 3, 3, 4, 4, 4]

    # A line that was durable and not yet acknowledged keeps its term when the next leader publishes it.
    log = leader(tmp_path / "a", topic)
    topic.hold, topic.patience = True, 10**9
    log.commit(life.empty_batch(life.SCHEMA), log.progress, 10**6)
    topic.lose()
    log.commits._pending.clear()
    log.close()
    topic.hold = False
    leader(tmp_path / "a", topic).close()
    follow(tmp_path / "b", topic)
    assert LogReader.open(tmp_path / "b").state.term == 5 and read_position(tmp_path / "b").term == 6
    assert difference(tmp_path / "a", tmp_path / "b") == ""

    # Where the topic is made anew, terms in it begin again; those of commits never fall, or tokens would be lost.
    (tmp_path / "a" / CHANGELOG).unlink()
    log = leader(tmp_path / "a", Topic())
    log.commit(life.empty_batch(life.SCHEMA), log.progress, 10**7)
    log.close()
    assert LogReader.open(tmp_path / "a").state.term == 5 and read_position(tmp_path / "a").term == 2


def copy(old, new):
    import shutil
    shutil.copytree(old, new)
    return new


@pytest.mark.parametrize("other", [20, 22, 24, 29])
def test_lines_whose_place_another_record_took_are_taken_back(tmp_path, other):
    """Two directories go on from the same commit, as where a power cut took the other's lines: the changelog's count."""
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 4, housekeeping=False)
    log.close()
    copy(tmp_path / "a", tmp_path / "b")

    # One writes a line that never arrives; some begin a segment.
    held = Topic()
    held.records = list(topic.records)
    late = leader(tmp_path / "b", held)
    held.hold, held.patience = True, 10**9
    late.commit(life.commit_number(other), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(5)}}), 10**4)
    late.commits._pending.clear()
    late.close()
    assert published_seq(tmp_path / "b") == 4 and max(lines_of(tmp_path / "b")) == 5
    log = leader(tmp_path / "a", topic)
    life.live(log, 8, housekeeping=False)
    log.close()
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_a_commit_that_was_shown_and_is_another_ends_the_member(tmp_path):
    topic = Topic()
    for name in "ab":
        log = leader(tmp_path / name, topic if name == "a" else Topic())
        life.live(log, 3, housekeeping=False)
        log.commit(life.commit_number(9 if name == "a" else 8), life.Progress("c", {"t": "id"}, {"t": {0: life.Position(4)}}), 100)
        log.close()
    (tmp_path / "b" / CHANGELOG).unlink()
    with pytest.raises(DivergedError, match="another commit 4"):
        Follower(tmp_path / "b", topic.reader())
    with pytest.raises(DivergedError, match="another commit 4"):
        leader(tmp_path / "b", topic)


@pytest.mark.parametrize("foreign", [record(seq=3, term=2, line="0badf00d"), record(seq=3, term=3), Claim(0, 3, "n", "id", 2), Heartbeat(0, 2, "n"),
                                     Heartbeat(0, 3, "n")])
def test_a_leader_that_finds_a_foreign_record_between_its_own_shows_nothing_more(tmp_path, foreign):
    topic = Topic()
    log = leader(tmp_path, topic)
    life.live(log, 2, housekeeping=False)
    assert log.show_acknowledged() == 2 or log.commits.await_acks() is None
    topic.hold, topic.patience = True, 10**9
    life.live(log, 3, housekeeping=False)
    topic.append(foreign)
    topic.store()
    topic.acknowledge()
    with pytest.raises(FencedError, match=f"term {foreign.term}"):
        log.show_acknowledged()
    assert published_seq(tmp_path) == 2
    log.close()


def test_a_topic_made_anew_and_a_log_that_went_on_alone_are_refused_by_name(tmp_path):
    topic = Topic()
    log = leader(tmp_path, topic)
    life.live(log, 3, housekeeping=False)
    log.close()
    with pytest.raises(ChangelogError, match="created again"):
        leader(tmp_path, Topic())
    with pytest.raises(ChangelogError, match="to which this process would send nothing"):
        LogWriter(tmp_path, life.SCHEMA, life.SEGMENT_EDGES)
    again = leader(tmp_path, topic)
    assert again.seq == 3
    again.close()


def test_records_that_are_gone_need_a_newer_manifest(tmp_path):
    topic = Topic(10**6)
    log = leader(tmp_path / "a", topic)
    life.live(log, 3, housekeeping=False)
    follow(tmp_path / "b", topic)
    life.live(log, 8, housekeeping=False)
    log.close()
    topic.delete_before(6)
    with pytest.raises(OutOfRange):
        follow(tmp_path / "b", topic)
    with pytest.raises(OutOfRange):
        follow(tmp_path / "c", topic)


def test_a_schema_that_grows_is_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(life, "SCHEMA", GrowingMachine.stages[0])
    topic, path = Topic(), tmp_path / "a"
    for number, schema in enumerate(GrowingMachine.stages):
        log = leader(path, topic, schema)
        if number == 0:
            life.live(log, 4, housekeeping=False)
        else:
            log.commit(dataclasses.replace(life.empty_batch(schema), new_keys=(f"stage{number}",)), log.progress, 100 + number)
        log.close()
        follow(tmp_path / "b", topic)
        assert difference(path, tmp_path / "b") == "", number
    assert LogReader.open(tmp_path / "b").state.schema == GrowingMachine.stages[-1]


def test_verify_names_the_first_byte_that_differs(tmp_path):
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log)
    log.close()
    follow(tmp_path / "b", topic)
    found = compare(tmp_path / "b", topic.reader())
    assert found.difference is None and found.commits == published_seq(tmp_path / "a") and found.num_bytes > 1000 and found.behind == 0
    assert compare(tmp_path / "a", topic.reader()).difference is None
    place = tmp_path / "b" / KEYS
    data = place.read_bytes()
    place.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    where = compare(tmp_path / "b", topic.reader()).difference
    assert (where.path, where.offset) == (KEYS, len(data) - 3) and where.seq > 10
    follow(tmp_path / "c", topic)
    segment = LogReader.open(tmp_path / "c").state.segments[-1]
    place = tmp_path / "c" / segment.path
    data = bytearray(place.read_bytes())
    data[4096] ^= 1
    place.write_bytes(data)
    where = compare(tmp_path / "c", topic.reader()).difference
    assert (where.path, where.offset) == (segment.path, 4096)


def test_rows_of_a_line_that_is_taken_back_are_zeroed(tmp_path):
    """The line that counts has fewer rows, and nothing comes behind it."""
    topic = Topic()
    log = leader(tmp_path / "a", topic)
    life.live(log, 1, housekeeping=False)
    log.close()
    copy(tmp_path / "a", tmp_path / "b")
    held = Topic()
    held.records = list(topic.records)
    for name, broker, number in (("b", held, 3), ("a", topic, 1)):
        log = leader(tmp_path / name, broker)
        held.hold, held.patience = True, 10**9
        assert log.remaining_rows() >= 3
        ends = np.zeros(number, np.int64)
        log.commit(dataclasses.replace(life.empty_batch(life.SCHEMA), src_E=ends, dst_E=ends + 1, time_E=ends + 500,
                                       msg_ED=np.ones((number, 2), np.float32)), log.progress, 500)
        if name == "b":
            log.commits._pending.clear()
        log.close()
    follow(tmp_path / "b", topic)
    assert difference(tmp_path / "a", tmp_path / "b") == ""


def test_a_replaced_file_gets_its_name_when_the_changelog_has_the_commit(tmp_path):
    topic = Topic()
    log = leader(tmp_path, topic)
    life.live(log, 6, housekeeping=False)
    log.commits.await_acks()
    old, shown = (tmp_path / KEYS).read_bytes(), log.commits.published_seq
    seen = []
    topic.hold, topic.turns, topic.patience = True, 0, 4
    topic.on_turn = lambda: seen.append(((tmp_path / KEYS).read_bytes(), published_seq(tmp_path)))
    new = without_keys(old, {1, 2})
    list(log.replacing(KEYS, [new]))
    assert len(seen) >= 4 and set(seen) == {(old, shown)} and new != old
    assert (tmp_path / KEYS).read_bytes() == new and log.commits.published_seq == shown + 1 == published_seq(tmp_path)
    log.close()
