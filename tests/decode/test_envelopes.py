"""Records in envelopes that others defined: CloudEvents, Debezium, Kafka Connect."""

import base64
import json

import pytest
import structlog

from streamd.decode.wire import OWN_EVENT, OWN_ROW
from streamd.events import DELETE, EDGE, NODE
from streamd.telemetry import metrics
from tests.decode.mapped import Topic, record, source
from tests.readings import reading

CLOUD = source('{envelope: cloudevents, time: iso8601, fields: {src: u, dst: v, time: $envelope.time}, where: {$envelope.type: [view]}}')
ROWS = source("{envelope: debezium, time: ms, fields: {src: u, dst: v, time: t}, where: {ok: true}}")
USERS = source("{envelope: debezium, nodes: {fields: {id: {path: id, prefix: 'user:'}, features: {age: age}}}}",
               graph={"node_sets": {"default": {"features": {"age": "number"}}}})
STRUCTURED = (("content-type", b"application/cloudevents+json; charset=utf-8"),)


def cloud(**changes):
    return {"specversion": "1.0", "id": "1", "source": "/x", "type": "view", "time": "1970-01-01T00:00:05Z", "data": {"u": "a", "v": 5}} | changes


def binary(value=None, **attributes):
    """Value and headers of a binary event."""
    told = {"specversion": "1.0", "id": "1", "source": "/x", "type": "view", "time": "1970-01-01T00:00:05Z"} | attributes
    headers = (("content-type", b"application/json"), *((f"ce_{k}", v.encode()) for k, v in told.items()))
    return {"value": {"u": "a", "v": 5} if value is None else value, "headers": headers}


def change(op, **row):
    row = {"u": "a", "v": 5, "t": 7, "ok": True} | row
    return {"op": op, "before": row if op in "ud" else None, "after": row if op != "d" else None, "source": {"table": "t"}, "ts_ms": 9}


def wrapped(payload):
    return {"schema": {"type": "struct", "fields": []}, "payload": payload}


def told(events):
    return [(e.offset, e.kind, e.time, e.a, e.b) for e in events]


@pytest.mark.parametrize("headers", [(), STRUCTURED])
def test_structured_cloudevents(tmp_path, headers):
    topic = Topic(CLOUD, tmp_path)
    inlined = cloud(data_base64=base64.b64encode(b'{"u": "c", "v": 6}').decode())
    del inlined["data"]
    events, rejected = topic.decode(cloud(), cloud(type="buy"), inlined, cloud(data=None), cloud(data="x"), cloud(data_base64="?"), headers=headers)
    assert told(events) == [(0, EDGE, 5_000_000, "a", 5), (2, EDGE, 5_000_000, "c", 6)]
    assert [(r.offset, r.reason) for r in rejected] == [(3, "missing_field"), (4, "missing_field"), (5, "wrong_type")]


def test_structured_cloudevents_may_be_lines(tmp_path):
    topic = Topic(CLOUD.replace("envelope:", "format: ndjson\n  envelope:"), tmp_path)
    lines = b"\n".join(json.dumps(e).encode() for e in (cloud(), cloud(data=None), cloud(type="buy"), cloud(data={"u": "b", "v": 6})))
    events, rejected = topic.decode(lines)
    assert [(e.item, e.a) for e in events] == [(0, "a"), (3, "b")] and [r.index for r in rejected] == [1]
    # A header that says JSON means one event, on however many lines, or an array of them.
    assert topic.one(json.dumps(cloud(), indent=1).encode(), headers=STRUCTURED).a == "a"
    assert len(topic.decode([cloud(), cloud()], headers=(("content-type", b"application/cloudevents-batch+json"),))[0]) == 2


def test_a_batch_of_cloudevents(tmp_path):
    topic = Topic(CLOUD, tmp_path)
    events, rejected = topic.decode([cloud(), cloud(type="buy"), cloud(data={"u": "b", "v": 6})],
                                    headers=(("content-type", b"application/cloudevents-batch+json"),))
    assert [(e.item, e.a) for e in events] == [(0, "a"), (2, "b")] and not rejected


def test_binary_cloudevents_have_their_attributes_in_headers(tmp_path):
    topic = Topic(CLOUD, tmp_path)
    assert told([topic.one(**binary())]) == [(0, EDGE, 5_000_000, "a", 5)]
    assert topic.decode(*[binary()["value"]] * 20, headers=binary(type="buy")["headers"]) == ([], [])
    events, _ = topic.decode(*[binary()["value"]] * 20, headers=binary()["headers"])
    assert len(events) == 20


@pytest.mark.parametrize("value", [{"u": None, "v": 5}, b"{", b"\xff"])
def test_the_letter_of_a_binary_cloudevent_keeps_its_attributes(tmp_path, value):
    topic = Topic(CLOUD, tmp_path)
    _, (bad,) = topic.decode(value, headers=binary()["headers"])
    letter = json.loads(bad.raw)
    assert (letter["type"], letter["time"], bad.content_type) == ("view", "1970-01-01T00:00:05Z", OWN_ROW)
    # Sent again and mended, it is read without those headers.
    letter.pop("data_base64", None)
    assert topic.one(letter | {"data": {"u": "b", "v": 5}}, headers=(("content-type", OWN_ROW.encode()),)).a == "b"


def test_the_letter_of_a_binary_cloudevent_in_another_format_keeps_its_attributes_too(tmp_path):
    topic = Topic(CLOUD.replace("envelope:", "format: json-schema\n  envelope:"), tmp_path)
    _, (bad,) = topic.decode(b"\0\0\0\0\1" + json.dumps({"u": None, "v": 5}).encode(), headers=binary()["headers"])
    letter = json.loads(bad.raw) | {"data": {"u": "b", "v": 5}}
    assert told([topic.one(letter, headers=(("content-type", bad.content_type.encode()),))]) == [(0, EDGE, 5_000_000, "b", 5)]


@pytest.mark.parametrize("wrap", [dict, wrapped])
def test_changed_rows_are_edges_and_deleted_ones_deletes(tmp_path, wrap):
    topic = Topic(ROWS, tmp_path)
    events, rejected = topic.decode(*map(wrap, [change("c"), change("r", u="b"), change("u", u="c"), change("c", ok=False), change("d"), change("t"), change("x")]))
    assert told(events) == [(0, EDGE, 7000, "a", 5), (1, EDGE, 7000, "b", 5), (2, EDGE, 7000, "c", 5), (4, DELETE, 0, "a", 5)] and not rejected
    assert events[-1].values == [7000, 0]
    assert len(topic.decode(*[wrap(change("c"))] * 20)[0]) == 20


def test_rows_of_nodes_are_features_and_their_deletes_delete_the_node(tmp_path):
    topic = Topic(USERS, tmp_path)
    events, rejected = topic.decode({"op": "c", "before": None, "after": {"id": 1, "age": 30}}, {"op": "u", "after": {"id": 1, "age": 31}},
                                    wrapped({"op": "d", "before": {"id": 1, "age": None}, "after": None}))
    assert [(e.kind, e.a, e.values) for e in events] == [(NODE, "user:1", [30]), (NODE, "user:1", [31]), (DELETE, "user:1", [])] and not rejected


def test_the_delete_of_a_row_that_was_a_label_or_a_delete_deletes_no_edge(tmp_path):
    others = "labels: {where: {kind: rate}, fields: {node: u, time: t, target: stars}}, deletes: {where: {gone: true}, fields: {node: u}}"
    topic = Topic(source(f"{{envelope: debezium, time: ms, fields: {{src: u, dst: v, time: t}}, {others}}}", stream={"label_dim": 1}), tmp_path)
    events, rejected = topic.decode(change("d", kind="rate", stars=3), change("u", gone=True), change("d", gone=True), change("d"))
    assert [(e.offset, e.kind, e.b) for e in events] == [(1, DELETE, None), (3, DELETE, 5)] and not rejected


def test_a_tombstone_behind_its_delete_is_skipped_and_another_deletes(tmp_path):
    topic = Topic(USERS, tmp_path)
    gone = {"op": "d", "before": {"id": 1}, "after": None}
    key = b'{"schema": {}, "payload": {"id": 1}}'
    events, rejected = topic.of([record(gone, 0, key=key), record(None, 1, key=key), record(None, 2, key=key)])
    assert [(e.offset, e.kind, e.a) for e in events] == [(0, DELETE, "user:1"), (2, DELETE, "user:1")] and not rejected
    # Also where the two come in two polls; another partition's delete is none of its own.
    topic.of([record(gone, 3, key=key)])
    assert topic.of([record(None, 4, key=key)]) == ([], [])
    topic.of([record(gone, 5, key=key)])
    assert len(topic.of([record(None, 6, key=key)], partition=1)[0]) == 1
    # A table without a key.
    assert topic.of([record(None, 7)]) == ([], [])


@pytest.mark.parametrize("between", [
    # By columns, with the delete in the half that is decoded one by one; one by one; refused before it is decoded; skipped; as our own event.
    [0] * 8, [0], [b"5"], [b" " * 10**6 + b"{}"], [{"op": "t"}], [OWN_EVENT]])
def test_only_the_record_directly_before_a_tombstone_deleted_its_row(tmp_path, between):
    topic = Topic(USERS, tmp_path)
    key, row = b'{"id": 1}', {"op": "c", "before": None, "after": {"id": 2, "age": 3}}
    values = [*[row] * (len(between) - 1), {"op": "d", "before": {"id": 1}, "after": None}, *(v or row for v in between)]
    records = [record(v, i, key=key) for i, v in enumerate(values)]
    if between == [OWN_EVENT]:
        own = json.dumps({"type": "node", "id": 5, "features": [0]}).encode()
        records[-1] = record(own, 1, key=key, headers=(("content-type", OWN_EVENT.encode()),))
    tombstone = record(None, len(values), key=key)
    events, _ = topic.of([*records, tombstone])
    assert (events[-1].offset, events[-1].kind, events[-1].a) == (len(values), DELETE, "user:1")
    # In two polls as in one.
    topic.of(records)
    assert len(topic.of([tombstone])[0]) == 1


def test_a_tombstone_deletes_no_node_where_the_row_may_have_been_an_edge(tmp_path):
    topic = Topic(source("{envelope: debezium, time: ms, fields: {src: u, dst: v, time: t}, nodes: {where: {kind: user}, fields: {id: id}}}"), tmp_path)
    key = b'{"id": 5}'
    events, rejected = topic.of([record(change("d", id=5), 0, key=key), record(None, 1, key=key), record(None, 2, key=key)])
    assert [(e.offset, e.b) for e in events] == [(0, 5)] and not rejected


def test_a_tombstone_without_its_delete_is_skipped_with_one_warning(tmp_path):
    """In a compacted topic the change that deleted the row is gone, and the table's key is that of the row, not of an edge."""
    topic = Topic(ROWS, tmp_path)
    before = reading(metrics.skipped.labels("clicks"))
    with structlog.testing.capture_logs() as logged:
        events, rejected = topic.of([record(None, n, key=key) for n, key in enumerate([b'{"order_id": 5}', b'{"order_id": 6}', b"not json"])])
    assert not events and not rejected and reading(metrics.skipped.labels("clicks")) - before == 3
    warning, = (line for line in logged if line["event"] == "tombstone_skipped")
    assert "is missing" in warning["error"] and warning["topic"] == "clicks"


@pytest.mark.parametrize(("value", "says"), [
    ({"u": 1}, "op is missing"), ({"op": None, "after": {}}, "op is missing"), ({"op": "c", "after": None}, "missing"), ({"op": "d", "before": None}, ""), ([], ""),
    ({"op": "d", "before": {"ok": True, "u": 1}}, "dst (v) is missing"), ({"op": "c", "after": [1]}, ""), ({"payload": None}, "op is missing"),
    ({"op": ["c"]}, "op is a list")])
def test_what_is_no_change_event(tmp_path, value, says):
    events, rejected = Topic(ROWS, tmp_path).decode(value)
    # A row that does not meet the condition is skipped, whatever else it lacks.
    assert not events and all(says in r.error for r in rejected)


def test_an_edge_without_a_time_of_its_own_cannot_be_deleted(tmp_path):
    topic = Topic(source("{envelope: debezium, time: record, fields: {src: u, dst: v}}"), tmp_path)
    assert topic.refused(change("d"))[0] == "unsupported"


def test_connect_has_its_data_in_the_payload(tmp_path):
    topic = Topic(source("{envelope: connect, time: s, fields: {src: u, dst: v, time: t}, where: {$envelope.schema.type: struct}}"), tmp_path)
    assert topic.one(wrapped({"u": "a", "v": 5, "t": 7})).time == 7_000_000
    assert topic.refused(wrapped(None))[0] == "missing_field"


@pytest.mark.parametrize(("body", "good", "missing"), [
    ("{envelope: connect, time: record, fields: {src: u, dst: v}, where: {kind: [view]}}", wrapped({"u": 1, "v": 2, "kind": "view"}), "payload"),
    ("{envelope: cloudevents, time: record, fields: {src: u, dst: v}, where: {kind: [view]}}", cloud(data={"u": 1, "v": 2, "kind": "view"}), "specversion")])
def test_a_record_without_its_envelope_is_refused_and_not_skipped(tmp_path, body, good, missing):
    topic = Topic(source(body), tmp_path)
    values = [good] * 20
    values[7] = {"u": 1, "v": 2, "kind": "view"}
    events, (bad,) = topic.decode(*values)
    assert len(events) == 19 and (bad.offset, bad.reason) == (7, "missing_field") and bad.error.startswith(f"{missing} is missing")
    # One that has it and nothing else is another kind of record.
    assert topic.decode(wrapped({}) if missing == "payload" else cloud(data={})) == ([], [])


TRUNCATES = [{"op": "t", "source": {"table": "t"}, "ts_ms": 9}, {"op": "t", "before": None, "after": None, "source": {"table": "t"}}]


@pytest.mark.parametrize("value", [*TRUNCATES, *map(wrapped, TRUNCATES)])
def test_a_truncated_table_is_said_aloud_and_its_edges_stay(tmp_path, value):
    topic = Topic(ROWS, tmp_path)
    before = reading(metrics.dropped.labels("clicks", "truncate"))
    with structlog.testing.capture_logs() as logs:
        events, rejected = topic.decode(change("c"), value, change("u"), value)
    assert [e.offset for e in events] == [0, 2] and not rejected
    (log,) = logs
    assert log["event"] == "table_truncated" and log["topic"] == "clicks" and log["meaning"].startswith("truncated: edges before it stay")
    assert reading(metrics.dropped.labels("clicks", "truncate")) == before + 2 and reading(metrics.odd_events.labels("table_truncated")) == 1


@pytest.mark.parametrize("value", [{"op": "m", "message": {"prefix": "p", "content": "aGk="}, "source": {}}, {"op": "x"}, {"op": "T"}])
def test_another_operation_is_skipped_in_silence(tmp_path, value):
    with structlog.testing.capture_logs() as logs:
        assert Topic(ROWS, tmp_path).decode(value) == ([], []) and not logs


def test_a_delete_that_holds_its_key_only_says_what_the_table_must_send(tmp_path):
    keys_only = {"op": "d", "before": {"id": 1, "u": None, "v": None, "t": None, "ok": True}, "after": None}
    assert Topic(ROWS, tmp_path).refused(keys_only) == ("missing_field", "src (u) is missing: deletes need whole rows (Postgres: REPLICA IDENTITY FULL)")


@pytest.mark.parametrize(("key", "way_out"), [({"scale": 0, "value": "Bw=="}, "decimal.handling.mode to string"), (8.5, "write such ids as text"), ([7], "keys are text or integers")])
def test_a_number_of_oracle_that_is_no_key_names_the_setting_of_the_connector(tmp_path, key, way_out):
    reason, error = Topic(ROWS, tmp_path).refused(change("c", u=key))
    assert reason == "bad_key" and error.startswith("src (u) is ") and way_out in error


@pytest.mark.parametrize("value", [{"scale": 2, "value": "BNI="}, "BNI="])
@pytest.mark.parametrize("field", ["age", "t", "y"])
def test_a_decimal_of_bytes_is_named_in_every_field_of_a_number(tmp_path, field, value):
    labels = "labels: {where: {kind: [paid]}, fields: {node: u, time: t, target: y}}"
    topic = Topic(source(f"{{envelope: debezium, time: ms, {labels}, fields: {{src: u, dst: v, time: t, features: {{age: age}}}}}}",
                         graph={"edge_sets": {"default": {"features": {"age": "number"}}}}, stream={"label_dim": 1}), tmp_path)
    row = {"age": 1, "y": 1, "kind": "paid" if field == "y" else "new"} | {field: value}
    assert "set the connector's decimal.handling.mode to string" in topic.refused(change("c", **row))[1]


@pytest.mark.parametrize("key", ["8", 8, 8.0])
def test_numbers_of_oracle_as_text_or_whole_are_keys(tmp_path, key):
    assert str(Topic(ROWS, tmp_path).one(change("c", u=key)).a) == "8"
