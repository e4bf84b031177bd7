"""The models topic touched by others: a stray, a damaged, a trimmed, a removed, a re-created record or topic, and what must happen."""

import json

import pytest

from streamd.errors import FencedError, KafkaError
from streamd.replica.models import records
from streamd.replica.models.state import ModelsState
from streamd.store.checkpoints import newest_term
from streamd.telemetry import replica_metrics
from tests.replica.models_world import ReplicaSide, TrainerSide, content

STRAYS = (None, b"", b"hello", b"{}", b"\x00\x00source\x00target\x00", b'{"crc": "00000000", "record": {"type": "kept"}}')


@pytest.fixture
def trainer(tmp_path, log, url):
    made = TrainerSide(tmp_path / "trainer", log, url)
    for n in (1, 2, 3):
        made.learn(n)
        made.settle()
    return made


@pytest.fixture
def replica(tmp_path, log, url, trainer):
    made = ReplicaSide(tmp_path / "replica", log, url)
    made.step()
    assert content(made.settings.data_dir) == content(trainer.settings.data_dir)
    return made


def turn(side):
    """One step, as of the thread that makes the side again where Kafka fails."""
    try:
        side.step()
    except KafkaError:
        side.publish() if isinstance(side, TrainerSide) else side.start()


def settle(trainer, replica):
    """Turns of both, in which the replica never loses what it serves by."""
    had = set(replica.registry.names())
    served = replica.registry.shown()
    for _ in range(4):
        turn(replica)
        turn(trainer)
        names = replica.registry.names()
        assert had & set(trainer.registry.names()) <= set(names), "followers keep what they have"
        assert replica.registry.journal.moves().index(replica.registry.shown()) >= replica.registry.journal.moves().index(served)
    turn(replica)
    assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)


def trim(log):
    log.begin = len(log.values) // 2


def trim_all(log):
    log.begin = len(log.values)


def remove(log):
    log.values = []


def damage(log):
    at = next(i for i, v in enumerate(log.values) if json.loads(v)["record"]["type"] == "version")
    log.values[at] = log.values[at].replace(b'"version"', b'"Version"', 1)


def stray(log):
    log.values[3:3] = STRAYS
    log.values.extend(STRAYS)


def stray_at_the_begin(log):
    log.values[:0] = STRAYS


TOUCHED = {
    "strays": stray,
    "strays at the beginning": stray_at_the_begin,
    "a damaged version": damage,
    "a trimmed topic": trim,
    "one trimmed to its end": trim_all,
    "a topic that was removed": remove,
}


CASES = [(what, who) for what in TOUCHED for who in ("nobody", "the replica", "the trainer", "both")
         # What was read already is not read again.
         if who != "nobody" or not what.startswith(("strays", "a damaged"))]


@pytest.mark.parametrize(("what", "restarts"), CASES)
def test_a_touched_topic_has_all_again_and_replicas_follow(trainer, replica, log, what, restarts):
    before = newest_term(trainer.store())
    TOUCHED[what](log)
    if restarts in ("the replica", "both"):
        replica.start()
    if restarts in ("the trainer", "both"):
        trainer.start()
    if restarts == "the replica" and what == "a damaged version":
        # It has the version: its own copy stays until the trainer starts, and sends it again.
        turn(replica)
        assert content(replica.settings.data_dir) == content(trainer.settings.data_dir)
        trainer.start()
    settle(trainer, replica)
    trainer.learn(4)
    settle(trainer, replica)
    assert replica.registry.champion() == "14-4"
    if what in ("a trimmed topic", "one trimmed to its end", "a topic that was removed"):
        assert trainer.publisher.state.term > before == 2
    # Another trainer goes on from what is stored, and one machine that is new follows.
    turn(again := ReplicaSide(replica.settings.data_dir.parent / "new", log, replica.url))
    assert content(again.settings.data_dir) == content(trainer.settings.data_dir)
    TrainerSide(trainer.settings.data_dir.parent / "b", log, trainer.url)
    with pytest.raises(FencedError):
        trainer.step()


def test_a_replica_that_reads_while_all_is_sent_again_keeps_what_it_has(trainer, replica, log):
    trim_all(log)
    names, moves = set(replica.registry.names()), replica.registry.journal.moves()

    def read():
        log.on_append = lambda: None  # The replica appends as well: it joins again.
        turn(replica)
        log.on_append = read
        assert set(replica.registry.names()) == names and replica.registry.shown() == moves[-1]
    log.on_append = read
    for _ in range(4):
        turn(trainer)
    assert trainer.publisher.state.moves == moves
    log.on_append = lambda: None
    settle(trainer, replica)


def test_strays_are_counted(trainer, replica, log):
    log.values.extend(STRAYS)
    before = replica_metrics.stray_records.labels("models")._value.get()
    replica.step()
    assert replica_metrics.stray_records.labels("models")._value.get() - before == len(STRAYS)


def test_a_topic_that_grew_beyond_what_was_read_since_it_was_made_anew_is_noticed(trainer, replica, log, tmp_path):
    """As where a process was paused while others removed the topic and went on."""
    numbers = len(log.values)
    log.values = []
    other = TrainerSide(tmp_path / "b", log, trainer.url)
    for n in (1, 2, 3, 4, 5):
        other.learn(n, at=10.0 + n)
        other.settle()
    assert len(log.values) > numbers
    with pytest.raises(KafkaError, match="was replaced after it was opened"):
        replica.step()
    replica.start()
    replica.step()
    assert content(replica.settings.data_dir) == content(other.settings.data_dir)
    with pytest.raises(KafkaError, match="was replaced after it was opened"):
        trainer.step()
    trainer.publish()
    with pytest.raises(FencedError):
        trainer.step()


def claim(term, id, **more):
    return records.encode(records.Claimed(term=term, member="m", id=id * 32, at=1.0, **more))


def kept(term, number):
    return records.encode(records.Kept(term=term, number=number, versions={}))


def test_what_is_left_of_a_trimmed_topic_counts_for_nothing_until_a_trainer_begins_anew():
    state = ModelsState()
    state.take([kept(57, 9), claim(58, "a"), kept(58, 1), kept(58, 2)])
    assert not state.has_begun and (state.term, state.highest_term) == (1, 58)
    state.take([claim(60, "b", anew=True), kept(60, 1), claim(60, "c", anew=True), claim(59, "d", anew=True), claim(61, "e")])
    assert (state.term, state.trainer) == (61, "e" * 32), "the first claim of a term counts, as elsewhere"


def test_members_join_again_where_a_trainer_begins_anew():
    state = ModelsState()
    state.take([claim(2, "a"), records.encode(records.Joined(term=2, member="m", at=1.0)), claim(5, "b", anew=True)])
    assert state.members == {}


def test_a_replica_at_the_same_number_of_a_later_term_reads_on(trainer, replica, log, tmp_path):
    """The number counts from 1 in each term: that of before is no sign that all is here."""
    number = replica.follower.state.number
    other = TrainerSide(tmp_path / "b", log, trainer.url)
    for n in range(4, 40):
        if other.publisher.state.number >= number:
            break
        other.learn(n)
        other.settle()
    replica.follower._settled = replica.follower.state.term, other.publisher.state.number
    replica.step()
    assert content(replica.settings.data_dir) == content(other.settings.data_dir)
