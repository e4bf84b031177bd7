"""Dead letters read back from files and topics, and sent again: to which topic, and with what."""

import json

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaTimeoutError, OffsetOutOfRangeError
from structlog.testing import capture_logs

from streamd.errors import CorruptionError, KafkaError
from streamd.ingest.dead_letters import replay as deadletter_replay
from streamd.ingest.dead_letters.origins import Origins
from streamd.ingest.dead_letters.replay import plan, read_letters, send
from streamd.ingest.dead_letters.search import SoughtKeys
from streamd.ingest.dead_letters.sinks import (
    MAX_KEY_BYTES,
    DeadLetter,
    LocalDeadLetters,
    TopicDeadLetters,
)
from tests.builders import settings
from tests.ingest.world import World

MADE_US, STAMP_MS = 1_700_000_000_000_000, 1_600_000_000_123
KEY = b"\xff\x00 not text"


class Broker:
    """One topic of dead letters and all that is sent elsewhere: producer and consumer in one.

    trim: offset before which letters are removed as soon as they are read. removed: the topic sends nothing more.
    """

    def __init__(self):
        self.sent, self.letters, self.at = [], [], 0
        self.first = self.trim = 0
        self.removed = False

    def send(self, topic, value=None, key=None, headers=(), timestamp_ms=None):
        if topic == "dead":
            self.letters.append(ConsumerRecord(
                "dead", 0, 0, len(self.letters), MADE_US // 1000, 0, key, value, list(headers), None, -1, len(value), -1))
        else:
            self.sent.append((topic, value, key, timestamp_ms, dict(headers)))
        return self

    def flush(self, timeout=None): ...

    def get(self, timeout=None): ...

    def partitions_for_topic(self, topic):
        return {0} if topic == "dead" else None

    def assign(self, partitions): ...

    def seek_to_beginning(self, *partitions):
        self.at = self.first

    def beginning_offsets(self, partitions, timeout_ms):
        return dict.fromkeys(partitions, self.first)

    def seek(self, tp, offset):
        self.at = offset

    def end_offsets(self, partitions, timeout_ms):
        return {tp: len(self.letters) for tp in partitions}

    def position(self, tp, timeout_ms):
        return self.at

    def poll(self, timeout_ms):
        if self.removed:
            return {}
        if self.first < self.trim:
            self.first = self.trim
            raise OffsetOutOfRangeError({TopicPartition("dead", 0): self.at})
        came, self.at = self.letters[self.at:], len(self.letters)
        return {TopicPartition("dead", 0): came}

    def close(self): ...


@pytest.fixture
def broker(monkeypatch):
    made = Broker()
    monkeypatch.setattr(deadletter_replay, "make_producer", lambda kafka: made)
    monkeypatch.setattr(deadletter_replay, "make_consumer", lambda kafka: made)
    return made


@pytest.fixture(params=["files", "topic"])
def box(request, tmp_path, broker):
    """Where letters go, and the settings under which they are read back."""
    if request.param == "files":
        return LocalDeadLetters(tmp_path / "deadletter", 10**6), settings(tmp_path, kafka__topics=("rides", "more"))
    values = {"kafka__topics": ("rides", "more"), "ingest__dead_letter_topic": "dead"}
    return TopicDeadLetters(lambda: broker, "dead"), settings(tmp_path, **values)


def letter(offset, topic="rides", key=KEY, stamp=STAMP_MS, value=b"{}", topic_id=""):
    return DeadLetter(topic, 2, offset, 0, "late", "why", MADE_US, value, "", key, stamp, topic_id)


def replay(s, reasons=(), again=False, topics=()):
    """Letters sent, sent before, not whole, and of topics that are not read."""
    chosen = plan(s, reasons, topics, again)
    send(s, chosen)
    return len(chosen.letters), chosen.before, chosen.broken, chosen.foreign


def test_a_letter_keeps_the_key_and_timestamp_of_its_record(box):
    letters, s = box
    written = [letter(0), letter(1, key=None), letter(2, key=b"", stamp=-1), letter(3, "more", topic_id="x")]
    for one in written:
        letters.add(one)
    letters.flush()
    assert [(f.letter, f.whole) for f in read_letters(s)] == [(one, True) for one in written]


def test_a_letter_goes_back_with_key_and_timestamp_only_to_a_topic_that_is_read(box, broker):
    letters, s = box
    for one in (letter(0), letter(1, "payments"), letter(2, "more", key=None), letter(3, "dead")):
        letters.add(one)
    letters.flush()
    assert replay(s, (), False) == (2, 0, 0, 2)
    assert broker.sent == [("rides", b"{}", KEY, STAMP_MS, {}), ("more", b"{}", None, STAMP_MS, {})]
    assert replay(s, (), False) == (0, 2, 0, 2) and replay(s, (), True)[0] == 2, "each once, but for --again"
    assert replay(s, again=True, topics=["more"])[0] == 1


def test_letters_of_a_topic_that_was_made_anew_are_others(box, broker):
    letters, s = box
    for topic_id in ("", "before", "now"):
        letters.add(letter(0, topic_id=topic_id))
        letters.flush()
        assert replay(s)[0] == 1
    assert replay(s) == (0, 3, 0, 0)


def test_what_an_older_release_sent_counts_as_sent_and_a_damaged_list_is_named(box, broker, tmp_path):
    letters, s = box
    letters.add(letter(0))
    letters.add(letter(1))
    letters.flush()
    (tmp_path / "deadletter").mkdir(exist_ok=True)
    (tmp_path / "deadletter/replayed.json").write_text('[["rides",2,0,0]]')
    assert replay(s) == (1, 1, 0, 0)
    (tmp_path / "deadletter/replayed.json").write_text('[["rides",2')
    with pytest.raises(CorruptionError, match="remove it"):
        replay(s)


def test_other_records_in_the_topic_of_letters_are_counted_and_passed_over(tmp_path, broker):
    s = settings(tmp_path, kafka__topics=("rides",), ingest__dead_letter_topic="dead")
    letters = TopicDeadLetters(lambda: broker, "dead")
    names = ("topic", "partition", "offset", "index", "reason", "error")
    damaged = [(n, b"x") for n in names]
    for headers in ([], damaged, damaged[:3], [(n, None) for n in names]):
        broker.send("dead", b"{}", None, headers)
    letters.add(letter(0))
    with capture_logs() as lines:
        assert replay(s) == (1, 0, 0, 0)
    assert [(x["event"], x["count"]) for x in lines] == [("records_skipped", 4)]


def test_lines_that_are_no_letters_are_passed_over(tmp_path, broker):
    letters = LocalDeadLetters(tmp_path / "deadletter", 10**6)
    letters.add(letter(0))
    letters.flush()
    path = tmp_path / "deadletter/current.jsonl"
    line = path.read_bytes()
    for damaged in (b"\xff\n", b"[]\n", b"{}\n", line.replace(b'"partition":2', b'"partition":"2"'), line.replace(b'"offset":0', b'"offset":null')):
        path.write_bytes(path.read_bytes() + damaged)
    s = settings(tmp_path, kafka__topics=("rides",))
    assert replay(s) == (1, 0, 0, 0) and replay(s) == (0, 1, 0, 0)


def test_letters_that_retention_removes_while_they_are_read_are_passed_over(tmp_path, broker):
    s = settings(tmp_path, kafka__topics=("rides",), ingest__dead_letter_topic="dead")
    letters = TopicDeadLetters(lambda: broker, "dead")
    for offset in range(5):
        letters.add(letter(offset))
    broker.trim = 3
    assert [stored.letter.offset for stored in read_letters(s)] == [3, 4]


def test_a_topic_of_letters_that_is_removed_while_it_is_read_is_named(tmp_path, broker, monkeypatch):
    monkeypatch.setattr(deadletter_replay, "SILENT_SECONDS", 0.0)
    s = settings(tmp_path, kafka__topics=("rides",), ingest__dead_letter_topic="dead")
    TopicDeadLetters(lambda: broker, "dead").add(letter(0))
    broker.removed = True
    with pytest.raises(KafkaError, match="Topic dead has more dead letters, but sent none"):
        list(read_letters(s))


def test_a_topic_that_takes_no_letter_is_named_with_what_to_do(box, broker, monkeypatch):
    def away(*_, **__):
        raise KafkaTimeoutError("no metadata")

    letters, s = box
    letters.add(letter(0))
    letters.flush()
    monkeypatch.setattr(broker, "send", away)
    with pytest.raises(KafkaError, match="dead letter of rides/2, offset 0 cannot be sent"):
        replay(s)
    with pytest.raises(KafkaError, match="Topic dead did not acknowledge"):
        TopicDeadLetters(lambda: broker, "dead").add(letter(1))


def test_a_letter_whose_key_was_cut_is_not_sent(box, broker):
    letters, s = box
    letters.add(letter(0, key=b"k" * (10**6)))
    letters.add(letter(1, key=b"k" * (MAX_KEY_BYTES - 1)))
    letters.flush()
    assert replay(s, (), False) == (1, 0, 1, 0) and len(broker.sent[0][2]) == MAX_KEY_BYTES - 1


@pytest.mark.parametrize("stamp", [-1, 10**30])
def test_a_letter_of_a_record_without_a_usable_timestamp_gets_the_time_it_was_made(box, broker, stamp):
    letters, s = box
    letters.add(letter(0, stamp=stamp if stamp < 0 or s.ingest.dead_letter_topic else 2**63 - 1))
    letters.flush()
    replay(s, (), False)
    assert broker.sent[0][3] == MADE_US // 1000


def test_letters_from_before_keys_were_kept_are_read_and_sent(tmp_path, broker):
    old = {"topic": "rides", "partition": 0, "offset": 5, "index": -1, "reason": "late", "error": "why", "time_us": MADE_US,
           "content_type": "", "num_bytes": 2, "value_base64": "e30="}
    (tmp_path / "deadletter").mkdir()
    (tmp_path / "deadletter/current.jsonl").write_text(json.dumps(old) + "\n")
    assert replay(settings(tmp_path, kafka__topics=("rides",)), (), False) == (1, 0, 0, 0)
    headers = [(n, str(old[n]).encode()) for n in ("topic", "partition", "offset", "index", "reason", "error")]
    broker.send("dead", b"{}", None, headers)
    again = settings(tmp_path / "other", kafka__topics=("rides",), ingest__dead_letter_topic="dead")
    assert replay(again, (), False) == (1, 0, 0, 0)
    assert broker.sent == [("rides", b"{}", None, MADE_US // 1000, {})] * 2


def test_a_topic_for_letters_that_is_not_there_is_named(tmp_path, broker):
    with pytest.raises(KafkaError, match="topic of dead letters, lost, does not exist"):
        list(read_letters(settings(tmp_path, ingest__dead_letter_topic="lost")))


@pytest.mark.parametrize(("key", "gone"), [
    (b"user:8", True), (b'["user:8"]', True), (b"user:9", False), (None, False),
    (b"\xff", True), (b'"\\u0075ser:8"', True), (b"user:8" + b"k" * 10**6, True)])
def test_a_letter_whose_records_key_speaks_of_a_deleted_node_goes(tmp_path, key, gone):
    letters = LocalDeadLetters(tmp_path, 10**6)
    letters.add(letter(0, key=key))
    letters.flush()
    assert SoughtKeys(keys=["user:8"]).are_in((tmp_path / "current.jsonl").read_bytes()) == gone


def test_letters_of_all_kinds_carry_what_their_own_record_carried(tmp_path):
    """Decoded in one poll, refused there, by the judge of times ahead, or at the commit."""
    world = World(tmp_path, 2, ingest__late_policy="dead_letter", ingest__merge_wait_seconds=0.05)
    now = world.clock.now_us()
    for i in range(3):
        world.send(0, {"src": "a", "dst": i, "time": now + i}, key=b"good %d" % i)
    world.run(1)
    world.send(1, {"src": "a", "dst": 9, "time": now - 10**6}, {"src": ""}, key=b"late", stamp_us=now + 5000)
    world.send(0, value=b"{", key=None, stamp_us=now + 7000)
    world.send(0, {"type": "delete", "node": "nobody"}, key=b"delete", stamp_us=now + 9000)
    world.run(1)
    found = {(x["partition"], x["offset"], x["reason"]): (x.get("key_base64"), x["timestamp_ms"]) for x in world.dead_letters()}
    assert found == {(1, 0, "late"): ("bGF0ZQ==", now // 1000 + 5), (1, 0, "bad_key"): ("bGF0ZQ==", now // 1000 + 5),
                     (0, 3, "bad_json"): (None, now // 1000 + 7),
                     (0, 4, "unmatched_delete"): ("ZGVsZXRl", now // 1000 + 9)}
    assert {x["topic_id"] for x in world.dead_letters()} == {"id"}, "Kafka's, which tells the topic from a later one of its name"
    world.stop()


def test_origins_are_found_over_gaps_and_forgotten_by_whole_polls():
    def poll(*offsets):
        return [ConsumerRecord("t", 0, 0, n, n * 10, 0, b"%d" % n, b"", [], None, -1, 0, -1) for n in offsets]

    origins = Origins()
    origins.add(poll(3, 4, 9))
    origins.add(poll(20, 22))
    origins.forget(9)
    assert [origins.of(n) for n in (3, 9, 20, 22)] == [(b"3", 30), (b"9", 90), (b"20", 200), (b"22", 220)]
    origins.forget(10)
    with pytest.raises(AssertionError, match="record 9"):
        origins.of(9)
