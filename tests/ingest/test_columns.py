import json

import numpy as np
import pytest

from streamd.decode.block import NO_STAMP, ROW, Block
from streamd.decode.node_ids import KeyTable
from streamd.errors import KafkaError
from streamd.events import DELETE, EDGE, LABEL, NODE, Schema, SetKey
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters, TopicDeadLetters
from streamd.ingest.order.batch_builder import BatchBuilder, as_json

SCHEMA = Schema(1, 2, 1)


def edge(time, a, b, item=0):
    return time, item, EDGE, a, b, [float(item)]


def block_of(events, table):
    rows, values, extras = [], [], []
    for time, item, kind, a, b, carried in events:
        extra = -1
        if kind != EDGE and carried:
            extra = len(extras)
            extras.append(carried)
        rows.append((time, NO_STAMP, 0, 0, item, kind, table.number(a, "a"), -1 if b is None else table.number(b, "b"), extra))
        values.append(carried if kind == EDGE else [0.0])
    return Block(np.array(rows, ROW), np.array(values, np.float32).reshape(-1, 1), extras)


def build(events, keys=None, watermark=0, max_nodes=100, policy="clamp", count_edges=lambda src, *more: src >= 0):
    keys = {} if keys is None else keys
    table = KeyTable(256)
    builder = BatchBuilder(SCHEMA, keys, max_nodes, policy, count_edges)
    return builder.build(block_of(events, table), table.keys, table.epoch, watermark, len(keys))


def test_keys_keep_their_sets_when_the_table_shrinks():
    table = KeyTable(256)
    first = table.numbers(["a", "b"]), table.numbers(["a", "b"], 3)
    assert [x.tolist() for x in first] == [[0, 1], [2, 3]] and table.keys == ["a", "b", SetKey(3, "a"), SetKey(3, "b")]
    table.shrink(np.array([1, 2]))
    assert table.keys == ["b", SetKey(3, "a")]
    assert table.number("a", "", 3) == 1 and table.number("b", "", 3) == 2 and table.number("b", "") == 0


def test_letters_of_a_deleted_key_of_any_set_are_purged(tmp_path):
    letters = LocalDeadLetters(tmp_path, 10**6)
    for i, key in enumerate(("8", "9")):
        letters.add(DeadLetter(topic="t", partition=0, offset=i, index=-1, reason="late", error="x", time_us=0, value=b'{"edge_set": "buys", "src": "%s"}' % key.encode()))
    letters.flush()
    list(letters.purge([SetKey(1, "8")]))
    assert [json.loads(line)["offset"] for line in (tmp_path / "current.jsonl").read_text().splitlines()] == [1]


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
    events = [edge(1, "a", "b"), (1, 1, NODE, "a", None, [1, 2]), edge(2, "a", "b", 2),
              (2, 3, LABEL, "b", None, [1.0]), (2, 4, NODE, "new", None, [3, 4])]
    batch, _, _ = build(events)
    assert batch.node_row_F.tolist() == [1, 4] and batch.node_edge_F.tolist() == [1, 2] and batch.node_F.tolist() == [0, 2]
    assert batch.label_node_L.tolist() == [1] and batch.label_time_L.tolist() == [2] and batch.num_rows == 5
    np.testing.assert_array_equal(batch.node_values_F, [[1, 2], [3, 4]])


def test_a_deleted_key_comes_back_under_a_new_id():
    keys = {}
    events = [edge(1, "a", "b"), (1, 1, DELETE, "a", None, ()), edge(2, "a", "b", 2), (2, 3, DELETE, "b", "a", [7, 0]),
              (2, 4, DELETE, "nobody", None, ()), (2, 5, DELETE, "a", "nobody", [7, 0]), edge(3, "b", "a", 6)]
    batch, _, refused = build(events, keys)
    assert batch.src_E.tolist() == [0, 2, 1] and batch.dst_E.tolist() == [1, 1, 2]
    assert [(r.row, r.reason) for r in refused] == [(4, "unmatched_delete"), (5, "unmatched_delete")]
    assert batch.new_keys == ("a", "b", "a") and keys == {"a": 2, "b": 1}
    assert batch.deletions_X[["row", "edge", "src", "dst", "time"]].tolist() == [(1, 1, 0, -1, -1), (3, 2, 1, 2, 7)]


def test_a_delete_of_an_edge_is_taken_where_the_log_or_the_block_before_it_holds_that_edge():
    asked = []

    def count_edges(*columns):
        asked.extend(zip(*(c.tolist() for c in columns), strict=True))
        return np.array([edge == (1, 0, 3, 0) for edge in asked])

    events = [edge(5, "a", "b"), (0, 1, DELETE, "a", "b", [5, 0]), (0, 2, DELETE, "a", "b", [6, 0]), edge(6, "a", "b", 3),
              (0, 4, DELETE, "b", "a", [3, 0])]
    batch, _, refused = build(events, {"a": 0, "b": 1}, count_edges=count_edges)
    assert [(r.row, r.reason) for r in refused] == [(2, "unmatched_delete")] and asked == [(0, 1, 6, 0), (1, 0, 3, 0)]
    assert batch.deletions_X[["src", "dst", "time"]].tolist() == [(0, 1, 5), (1, 0, 3)]
    table = KeyTable(256)
    assert as_json(block_of(events, table), 2, table.keys, "us", Schema()) == b'{"type":"delete","src":"a","dst":"b","time":6}'


def test_a_builder_used_again_remembers_keys_and_forgets_deleted_ones():
    keys, table = {}, KeyTable(256)
    builder = BatchBuilder(SCHEMA, keys, 100, "clamp", lambda src, *more: src >= 0)
    nodes = 0
    for events, src in (([edge(1, "a", "b")], [0]), ([(1, 0, DELETE, "a", None, ())], []), ([edge(2, "a", "b")], [2])):
        batch, _, _ = builder.build(block_of(events, table), table.keys, table.epoch, 0, nodes)
        nodes += len(batch.new_keys)
        assert batch.src_E.tolist() == src
    table.shrink(np.zeros(0, np.int64))
    batch, _, _ = builder.build(block_of([edge(3, "b", "c")], table), table.keys, table.epoch, 0, nodes)
    assert batch.src_E.tolist() == [1] and batch.dst_E.tolist() == [3]


def test_an_event_is_written_back_as_its_producer_could_have_sent_it():
    table = KeyTable(256)
    block = block_of([edge(5_000, "a", 7, 2), (6_000, 0, LABEL, "a", None, [1.5]), (0, 0, NODE, "a", None, [1, 2])], table)
    assert [as_json(block, i, table.keys, "ms", SCHEMA) for i in range(3)] == [
        b'{"src":"a","dst":7,"time":5,"features":[2.0]}', b'{"type":"label","node":"a","time":6,"target":[1.5]}',
        b'{"type":"node","id":"a","features":[1,2]}']


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

    def flush(self, timeout=None):
        self.flushed += 1

    def get(self, timeout):
        return None


def test_a_letter_that_failed_once_does_not_fail_the_letters_after_it(monkeypatch):
    producer = Producer()
    letters = TopicDeadLetters(lambda: producer, "dead")
    letters.add(letter(7))
    with monkeypatch.context() as away:
        away.setattr(producer, "flush", lambda timeout: 1 / 0)
        with pytest.raises(KafkaError, match="did not acknowledge"):
            letters.flush()
    monkeypatch.setattr(producer, "get", lambda timeout: 1 / 0)
    letters.flush()
    assert producer.flushed == 0, "ingest sends the letters since its last commit again"


def test_dead_letters_of_a_topic_carry_their_provenance_and_are_acknowledged():
    producer = Producer()
    letters = TopicDeadLetters(lambda: producer, "dead")
    letters.add(letter(7))
    letters.flush()
    topic, value, headers = producer.sent[0]
    assert (topic, value, producer.flushed) == ("dead", b"x" * 10, 1)
    assert headers == {"topic": b"t", "partition": b"0", "offset": b"7", "index": b"-1", "reason": b"bad_json", "error": b"why",
                       "timestamp": b"-1"}
