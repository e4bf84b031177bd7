import numpy as np

from streamd.events import EDGE, LABEL, NODE, Event, Schema
from streamd.ingest.columns import build_batch
from streamd.ingest.deadletter import DeadLetter, LocalDeadLetters, TopicDeadLetters

SCHEMA = Schema(1, 2, 1)


def edge(time, a, b, item=0):
    return Event(time, 0, 0, item, EDGE, a, b, [float(item)])


def build(events, keys=None, watermark=0, max_nodes=100, policy="clamp"):
    return build_batch(events, {} if keys is None else keys, SCHEMA, watermark, max_nodes, policy)


def test_keys_become_ids_in_order_of_first_sight():
    keys = {"old": 0}
    batch, watermark, refused = build([edge(5, "a", "old"), edge(6, 1, "a", 1), edge(6, "1", 1, 2)], keys)
    assert batch.src_E.tolist() == [1, 2, 3] and batch.dst_E.tolist() == [0, 1, 2]
    assert batch.new_keys == ("a", 1, "1") and keys == {"old": 0, "a": 1, 1: 2, "1": 3}
    assert batch.msg_ED.tolist() == [[0.0], [1.0], [2.0]] and watermark == 6 and not refused


def test_late_events_get_the_watermark_and_keep_their_own_time_aside():
    batch, watermark, _ = build([edge(3, "a", "b"), edge(12, "a", "c", 1), edge(11, "b", "c", 2)], watermark=10)
    assert batch.time_E.tolist() == [10, 12, 12] and watermark == 12
    assert batch.late_edge == (0, 2) and batch.late_time == (3, 11)


def test_late_events_are_refused_where_the_policy_says_so_and_leave_no_key_behind():
    keys = {}
    batch, watermark, refused = build([edge(3, "late", "b"), edge(12, "a", "c", 1)], keys, 10, policy="dead_letter")
    assert batch.num_edges == 1 and [r.reason for r in refused] == ["late"] and "late" not in keys and watermark == 12


def test_the_node_limit_refuses_new_nodes_only():
    batch, _, refused = build([edge(1, "a", "b"), edge(2, "c", "a", 1), edge(3, "b", "a", 2), edge(4, "z", "z", 3)], max_nodes=2)
    assert batch.num_edges == 2 and [r.reason for r in refused] == ["node_limit"] * 2


def test_rows_remember_their_order_among_one_another():
    events = [edge(1, "a", "b"), Event(1, 0, 0, 1, NODE, "a", "", [1, 2]), edge(2, "a", "b", 2),
              Event(2, 0, 0, 3, LABEL, "b", "", [1.0]), Event(2, 0, 0, 4, NODE, "new", "", [3, 4])]
    batch, _, _ = build(events)
    assert batch.node_row_F.tolist() == [1, 4] and batch.node_edge_F.tolist() == [1, 2] and batch.node_F.tolist() == [0, 2]
    assert batch.label_node_L.tolist() == [1] and batch.label_time_L.tolist() == [2] and batch.num_rows == 5
    np.testing.assert_array_equal(batch.node_values_F, [[1, 2], [3, 4]])


def letter(n, size=10):
    return DeadLetter("t", 0, n, -1, "bad_json", "why", 5, b"x" * size)


def test_local_dead_letters_are_bounded_and_keep_the_newest(tmp_path):
    letters = LocalDeadLetters(tmp_path, 4000)
    for n in range(100):
        letters.add(letter(n))
        letters.flush()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [f.name for f in files] == ["current.jsonl", "previous.jsonl"]
    assert sum(f.stat().st_size for f in files) <= 4000
    assert '"offset":99' in files[0].read_text()
    letters.add(letter(100, 10**6))
    assert sum(f.stat().st_size for f in files) <= 4000 and '"num_bytes":1000000' in (tmp_path / "current.jsonl").read_text()


class Producer:
    def __init__(self):
        self.sent, self.flushed = [], 0

    def send(self, topic, value, headers):
        self.sent.append((topic, value, dict(headers)))
        return self

    def flush(self):
        self.flushed += 1

    def get(self, timeout):
        return None


def test_dead_letters_of_a_topic_carry_their_provenance_and_are_acknowledged():
    producer = Producer()
    letters = TopicDeadLetters(lambda: producer, "dead")
    letters.add(letter(7))
    letters.flush()
    topic, value, headers = producer.sent[0]
    assert (topic, value, producer.flushed) == ("dead", b"x" * 10, 1)
    assert headers == {"topic": b"t", "partition": b"0", "offset": b"7", "index": b"-1", "reason": b"bad_json", "error": b"why"}
