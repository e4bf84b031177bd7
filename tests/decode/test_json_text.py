"""JSON as text inside a field: MongoDB's rows, outbox payloads, Postgres' jsonb."""

import json

import pytest

from streamd.decode.sources import topic as mapped
from tests.decode.mapped import Topic, source

CLICK = {"u": 1, "item": {"id": "a"}, "t": 5}
EDGE = (5_000_000, 1, "a")
FIELDS = "time: s, fields: {src: %su, dst: %sitem.id, time: %st}"


def fields(at):
    return FIELDS.replace("%s", at)


def text(value):
    return json.dumps(value)


def edges(topic, *values):
    events, rejected = topic.decode(*values)
    assert not rejected, rejected
    return [(e.time, e.a, e.b) for e in events]


ROWS = [
    ("", "payload.", {"payload": text(CLICK)}),
    ("", "payload.", {"payload": f"\n  {text(CLICK)}"}),
    ("", "a.payload.", {"a": text({"payload": text(CLICK)})}),
    ("", "rows.0.", {"rows": text([CLICK])}),
    ("", "rows.0.", {"rows": [text(CLICK)]}),
    ("", "", text(CLICK)),
    ("envelope: debezium,", "", {"op": "c", "before": None, "after": text(CLICK)}),
    ("envelope: debezium,", "", {"schema": {}, "payload": {"op": "c", "before": None, "after": text(CLICK)}}),
    ("envelope: debezium,", "doc.", {"op": "c", "before": None, "after": {"doc": text(CLICK)}}),
    ("envelope: connect,", "", {"schema": {"type": "string"}, "payload": text(CLICK)}),
    ("envelope: cloudevents,", "", {"specversion": "1.0", "data": text(CLICK)}),
]


@pytest.mark.parametrize(("envelope", "at", "value"), ROWS)
def test_a_path_leads_into_text_that_holds_json(tmp_path, envelope, at, value):
    topic = Topic(source(f"{{{envelope} {fields(at)}}}"), tmp_path)
    assert edges(topic, value) == [EDGE]


@pytest.mark.parametrize(("envelope", "at", "value"), [row for row in ROWS if isinstance(row[2], dict)])
def test_text_is_taken_by_columns_among_objects_and_equals_each_record_alone(tmp_path, envelope, at, value, monkeypatch):
    topic = Topic(source(f"{{{envelope} {fields(at)}}}"), tmp_path)
    as_object = json.loads(text(value), object_hook=lambda row: {k: json.loads(v) if type(v) is str and v[:1] == "{" else v for k, v in row.items()})
    monkeypatch.setattr(mapped.MappedTopic, "open", None)
    assert edges(topic, *[value, as_object] * 20) == [EDGE] * 40


def test_mongodbs_rows_are_text(tmp_path):
    # Debezium's connector writes the document as text of MongoDB's JSON.
    topic = Topic(source("{envelope: debezium, time: ms, fields: {src: user_id.$numberLong, dst: item, time: at.$date}}"), tmp_path)
    after = {"_id": {"$oid": "596e275826f08b2730779e1f"}, "user_id": {"$numberLong": "8"}, "item": "b41", "at": {"$date": 1764000000000}}
    change = {"before": None, "after": text(after), "op": "c", "ts_ms": 1764000000000}
    assert edges(topic, change) == [(1764000000000000, "8", "b41")]
    # The object around a value is named by the error.
    whole = Topic(source("{envelope: debezium, time: ms, fields: {src: user_id, dst: item, time: at.$date}}"), tmp_path)
    reason, error = whole.refused(change)
    assert reason == "bad_key" and "user_id) is an object" in error and error.endswith("MongoDB's value is inside it: add .$numberLong to the path")


@pytest.mark.parametrize("word", ["none", "{broken", '{"u": 1', "[1", "", '"{}"'])
def test_an_error_says_that_a_field_is_text(tmp_path, word):
    topic = Topic(source(f"{{{fields('a.payload.')}}}"), tmp_path)
    reason, error = topic.refused({"a": {"payload": word}})
    assert reason == "missing_field" and error.endswith("is missing; a.payload is text, and not JSON") and (not word or word not in error)
    assert topic.refused({"a": {"other": word}})[1] == "src (a.payload.u) is missing"


def test_text_without_json_is_no_value_and_a_default_counts(tmp_path):
    topic = Topic(source("{time: s, fields: {src: {path: a.u, default: 7}, dst: v, time: t}}"), tmp_path)
    rows = [{"a": "plain", "v": 2, "t": 5}, {"a": text({"u": 3}), "v": 2, "t": 5}, {"a": {"u": 4}, "v": 2, "t": 5}]
    assert [a for _, a, _ in edges(topic, *rows)] == [7, 3, 4]
    assert [a for _, a, _ in edges(topic, *rows[:2] * 20)] == [7, 3] * 20


@pytest.mark.parametrize("inner", ['{"u": ' * 4000 + "1" + "}" * 4000, "[" * 4000, text({"u": text({"u": text(1)})})])
def test_deep_and_nested_text_is_refused_alone(tmp_path, inner):
    topic = Topic(source(f"{{{fields('p.')}}}"), tmp_path)
    events, rejected = topic.decode({"p": CLICK}, {"p": inner}, {"p": text(CLICK)})
    assert [e.offset for e in events] == [0, 2] and [r.offset for r in rejected] == [1]


def test_rows_of_other_formats_hold_json_as_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    topic = Topic(source(f"{{format: arrow, {fields('payload.')}}}"), tmp_path)
    table = pa.table({"payload": [text(CLICK), text(CLICK | {"u": 9})]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert edges(topic, sink.getvalue().to_pybytes()) == [EDGE, (5_000_000, 9, "a")]
