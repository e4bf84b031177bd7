"""Topics in a shape of their own: what a mapping makes of their records."""

import datetime
import json
import re
from pathlib import Path

import pytest

from streamd.decode import decoder
from streamd.decode.decoder import make_decoder
from streamd.decode.sources import topic as mapped
from streamd.decode.wire import ARROW, NDJSON, OWN_EVENT, OWN_ROW
from streamd.errors import SchemaRegistryError
from streamd.events import DELETE, EDGE, LABEL, NODE
from streamd.settings.loading import schema_of
from streamd.telemetry import metrics
from tests.builders import spell
from tests.decode.mapped import CLICKS, NOW, TOPIC, Topic, click, record, settings_of, source
from tests.decode.ngrams_reference import numbers_of_text

TEN = 1_795_341_600_000_000
"""2026-11-22T10:00:00Z in microseconds."""


@pytest.fixture
def clicks(tmp_path):
    return Topic(CLICKS, tmp_path)


def skipped():
    return metrics.skipped.labels(TOPIC)._value.get()


def test_a_record_in_its_own_shape_becomes_an_edge(clicks):
    e = clicks.one(click())
    assert (e.time, e.kind, e.a, e.b, e.values) == (TEN, EDGE, "user:8", "b41", [3.5, 1, 0, 0])


def test_a_batch_is_taken_by_columns_and_equals_each_record_alone(clicks, monkeypatch):
    values = [click(user_id=i, pay=p) for i, p in enumerate(["card", "cash", "x", None] * 10)]
    alone = [clicks.one(v)._replace(offset=i) for i, v in enumerate(values)]
    monkeypatch.setattr(mapped.MappedTopic, "open", None)
    assert clicks.decode(*values) == (alone, [])


def test_records_whose_condition_does_not_hold_are_skipped_and_counted(clicks):
    before = skipped()
    # What is skipped need not fit.
    events, rejected = clicks.decode(click(), {"kind": "search", "user_id": []}, click(kind=["view"]), click(kind="preview"))
    assert [e.offset for e in events] == [0, 3] and not rejected
    assert skipped() - before == 2


def test_places_in_a_record_count_skipped_and_refused_events(clicks):
    many = [click(), click(kind="x"), click(user_id=None), click(user_id=9)]
    events, rejected = clicks.decode(many)
    assert [(e.offset, e.item) for e in events] == [(0, 0), (0, 3)]
    assert [(r.index, r.reason, json.loads(r.raw)) for r in rejected] == [(2, "missing_field", click(user_id=None))]


CUT_IN_THREE = [b'{"u": 1, "v": 2, "t": 5, "x":', b'{"y": 1}}', 2 * b'{"u": 3, "v": 4, "t": 6}']
"""Three values that are no JSON alone, and three objects where they are read as one text."""


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_an_object_cut_in_two_and_two_objects_in_one_value_are_no_three_events(tmp_path, form):
    topic = Topic(source(f"{{format: {form}, time: s, fields: {{src: u, dst: v, time: t}}}}"), tmp_path)
    whole = {"u": 1, "v": 2, "t": 5}
    events, rejected = topic.decode(whole, *CUT_IN_THREE, whole)
    assert [e.offset for e in events] == [0, 4] and [(r.offset, r.reason) for r in rejected] == [(i, "bad_json") for i in (1, 2, 3)]
    if form == "ndjson":
        events, rejected = topic.decode(b"\n".join([json.dumps(whole).encode(), *CUT_IN_THREE]))
        assert [e.item for e in events] == [0] and [(r.index, r.raw) for r in rejected] == list(enumerate(CUT_IN_THREE, 1))


def test_ndjson_is_many_records_of_one_value(tmp_path):
    topic = Topic(CLICKS.replace("time: iso8601", "time: iso8601\n    format: ndjson"), tmp_path)
    value = b"\n".join(json.dumps(v).encode() for v in (click(), click(kind="x"), click(ts=5), click(user_id=9))) + b"\n\n"
    events, (bad,) = topic.decode(value)
    assert [(e.item, e.a) for e in events] == [(0, "user:8"), (3, "user:9")]
    assert (bad.index, bad.reason) == (2, "bad_time")
    assert topic.one(click()).a == "user:8"


@pytest.mark.parametrize(("value", "reason", "says"), [
    (click(user_id=None), "missing_field", "src (user_id) is missing"), (click(user_id=True), "bad_key", "src (user_id) is true or false"),
    (click(user_id=1.5), "bad_key", "src (user_id) is a number"), (click(user_id=2.0**53), "bad_key", "write such ids as text"), (click(user_id=""), "bad_key", "src (user_id) is empty"),
    (click(user_id="\x00"), "bad_key", "control character"), (click(user_id="x" * 300), "bad_key", "300 bytes|305 bytes"),
    (click(user_id=2**63), "bad_key", "does not fit int64"), (b'{"kind": "view", "user_id": ' + b"9" * 4_000 + b"}", "bad_key", "does not fit int64"),
    (b'{"kind": "view", "user_id": ' + b"9" * 5_000 + b"}", "bad_json|bad_key", ""), (click(item={"id": 2**63}), "bad_key", "does not fit int64"), (click(item={"id": 10**30}), "bad_key", "does not fit int64"),
    (click(item=[{"id": 1}]), "missing_field", "dst (item.id) is missing"), (click(item="b41"), "missing_field", "item.id"),
    (click(ts=None), "missing_field", "time (ts) is missing"), (click(ts="yesterday"), "bad_time", "time (ts) is text that is not ISO 8601"),
    (click(ts=1.5), "bad_time", "time (ts) is a number that is not ISO 8601"), (click(ts="1969-12-31T23:59:59Z"), "bad_time", "time is 1969-12-31T23:59:59Z, before 1970"),
    (click(ts="9999-12-31T23:59:59Z"), "time_ahead", "ahead of the wall clock"), (click(ts="2026-02-30T00:00:00Z"), "bad_time", "ISO 8601"),
    (click(dwell={"s": "long"}), "bad_features", "feature seconds (dwell.s) is text, not number"),
    (click(dwell={"s": True}), "bad_features", "seconds (dwell.s) is true or false"), (click(dwell=3), "missing_field", "feature seconds (dwell.s)"),
    (click(dwell={"s": 1e39}), "bad_features", "max_feature"), (click(pay=["card"]), "bad_features", "feature how (pay) is a list, not categories"),
    (b'{"user_id": 1e400}', "bad_json", "out of range"), (b'{"user_id": NaN}', "bad_json", "malformed"), (b"\xff\xfe", "bad_json", ""),
    (b'{"user_id": "\xff"}', "bad_json", "utf-8"), (b"5", "wrong_type", "an event is an object, not a number"), (b"", "bad_json", ""),
    (b"[5]", "wrong_type", "not a number"), (b"[]", "empty", ""), (b"[", "bad_json", ""), (b"{" * 10, "bad_json", ""),
    (b'{"user_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep", "nested"), (b"\x00\x00\x00\x00\x07{}", "bad_json", "schema registry header, id 7"),
])
def test_a_record_that_cannot_be_mapped_is_refused_with_its_path(clicks, value, reason, says):
    got = clicks.refused(value)
    assert got[0] in reason.split("|")
    assert any(s in got[1] for s in says.split("|")), got[1]
    # Its neighbors go in, whatever it was.
    values = [click()] * 20
    values[11] = value
    events, (bad,) = clicks.decode(*values)
    assert [e.offset for e in events] == [i for i in range(20) if i != 11]
    assert (bad.offset, bad.reason) == (11, got[0])


def test_errors_show_no_values(clicks):
    for value in (click(user_id={"hush": "hush"}), click(ts="hush"), click(dwell={"s": "hush"}), click(pay=["hush"]), b"hush", b'{"user_id": hush'):
        assert "hush" not in clicks.refused(value)[1]


def test_the_last_of_equal_names_counts(clicks):
    assert clicks.one(json.dumps(click()).encode()[:-1] + b', "user_id": 9}').a == "user:9"


# Times.

@pytest.mark.parametrize(("form", "value", "time"), [
    ("s", 5, 5_000_000), ("s", 5.25, 5_250_000), ("s", "5", 5_000_000), ("s", "5.5", 5_500_000), ("ms", 5, 5_000), ("us", 5, 5),
    ("days", 20417, 1_764_028_800_000_000), ("days", "0.5", 43_200_000_000), ("ns", 1_764_000_000_123_456_789, 1_764_000_000_123_456),
    ("ns", "1764000000123456789", 1_764_000_000_123_456), ("ns", 5_500.0, 6),
    ("iso8601", "2026-11-22T10:00:00Z", TEN), ("iso8601", "2026-11-22T10:00:00", TEN), ("iso8601", "2026-11-22 12:00:00+02:00", TEN),
    ("iso8601", "2026-11-22T10:00:00.123456789Z", TEN + 123_456), ("iso8601", "20261122T100000Z", TEN), ("iso8601", " 2026-11-22T10:00:00Z ", TEN),
    ("iso8601", "2026-11-22", TEN - 36_000_000_000), ("iso8601", "2026-11-22T09:59:60Z", TEN), ("iso8601", "2026-11-22T09:59:60.5Z", TEN + 500_000),
])
def test_times_of_each_form(tmp_path, form, value, time):
    topic = Topic(source(f"{{time: {form}, fields: {{src: u, dst: v, time: t}}}}"), tmp_path)
    assert topic.one({"u": "a", "v": "b", "t": value}).time == time
    # The same in company, where a column is read at once.
    others = {"days": 7, "s": 7, "ms": 7, "us": 7, "ns": 7, "iso8601": "2026-11-22T11:00:00Z"}[form]
    events, rejected = topic.decode(*({"u": "a", "v": "b", "t": t} for t in [others] * 9 + [value] + [others] * 9))
    assert events[9].time == time and not rejected


@pytest.mark.parametrize(("form", "value"), [
    ("s", True), ("s", "5x"), ("s", "0x5"), ("s", "1_000"), ("s", "nan"), ("s", "1e400"), ("s", 1e300), ("s", 10**30), ("s", -1), ("ms", []),
    ("us", 2**62 + 1), ("iso8601", "NaT"), ("iso8601", "now"), ("iso8601", "2026-11"), ("iso8601", "2026-11-22T25:00:00Z"), ("iso8601", "0001-01-01T00:00:00Z"),
    ("iso8601", "2026-11-22T10:00:00Z" + "0" * 100), ("iso8601", True), ("iso8601", {}), ("iso8601", "2026-11-22T10:00:61Z"), ("iso8601", "")])
def test_what_is_no_time_of_a_form(tmp_path, form, value):
    topic = Topic(source(f"{{time: {form}, fields: {{src: u, dst: v, time: t}}}}"), tmp_path)
    assert topic.refused({"u": "a", "v": "b", "t": value})[0] in ("bad_time", "time_ahead")


def test_the_time_may_be_the_records(tmp_path):
    topic = Topic(source("{time: record, fields: {src: u, dst: v}}"), tmp_path)
    assert topic.one({"u": "a", "v": "b"}, timestamp=5_000).time == 5_000_000
    assert topic.refused({"u": "a", "v": "b"}, timestamp=-1)[0] == "bad_time"


def test_without_a_form_times_are_in_the_streams_unit(tmp_path):
    topic = Topic(source("{fields: {src: u, dst: v, time: t}}", stream={"time_unit": "s"}), tmp_path)
    assert topic.one({"u": "a", "v": "b", "t": 5}).time == 5_000_000
    reason, error = topic.refused({"u": "a", "v": "b", "t": NOW // 1000})
    assert reason == "time_ahead" and "looks like ms, time in the source of clicks is s" in error


# Paths and fields.

@pytest.mark.parametrize(("path", "value", "key"), [
    ("a", {"a": 5}, 5), ("a.b.c", {"a": {"b": {"c": "x"}}}, "x"), ("a.0.id", {"a": [{"id": 7}]}, 7), ("a.1", {"a": [1, 2]}, 2), ("a.0", {"a": {"0": "x"}}, "x"),
    ("0.a", {"0": {"a": "x"}}, "x"), (r"a\.b", {"a.b": "x"}, "x"), ("$key", {}, '{"id": [4]}'), ("$key.id.0", {}, 4), ("$headers.tenant", {}, "t1"),
    ("type", {"type": "x"}, "x"), ("a b.ü", {"a b": {"ü": "x"}}, "x"), (r"\$set.$id", {"$set": {"$id": "x"}}, "x"), (r"\$set.\$id", {"$set": {"$id": "x"}}, "x"),
    (r"\$key", {"$key": "x"}, "x"), (r"\$headers.tenant", {"$headers": {"tenant": "x"}}, "x"), (r"\$envelope", {"$envelope": 5}, 5), (r"id\.orig_h", {"id.orig_h": "x"}, "x"),
    (r"\$a\.b.c", {"$a.b": {"c": "x"}}, "x")])
def test_paths(tmp_path, path, value, key):
    topic = Topic(source(f"{{time: record, fields: {{src: '{path}', dst: {{constant: d}}}}}}"), tmp_path)
    more = {"key": b'{"id": [4]}', "headers": (("tenant", b"t0"), ("tenant", b"t1"))}
    assert topic.one(value, **more).a == key
    events, rejected = topic.decode(*[value] * 20, **more)
    assert [e.a for e in events] == [key] * 20 and not rejected


@pytest.mark.parametrize(("path", "value"), [("a.0", {"a": []}), ("a.0", {"a": "xyz"}), ("a.b", {"a": 5}), ("a.b", {"a": None}), ("a.b", {"a": "b"}),
                                             ("a", {"a": {"b": 5}}), ("$key.id", {}), ("$headers.other", {})])
def test_paths_that_lead_nowhere(tmp_path, path, value):
    topic = Topic(source(f"{{time: record, fields: {{src: '{path}', dst: {{constant: d}}}}}}"), tmp_path)
    assert topic.refused(value, key=b"\xff", headers=(("tenant", b"\xff"),))[0] in ("missing_field", "bad_key")


FIRST = [({"a": 1, "b": {"c": 2}}, 1), ({"a": None, "b": {"c": 2}}, 2), ({"b": {"c": 2}}, 2), ({"a": "", "b": {"c": "x"}}, "x"),
         ({"a": {}, "b": {"c": 2}}, None), ({"a": 0, "b": {"c": 2}}, 0), ({"b": {}}, None), ({"a": "", "b": {"c": ""}}, None)]


@pytest.mark.parametrize(("value", "key"), FIRST)
def test_the_first_of_several_paths_that_has_a_value_counts(tmp_path, value, key):
    topic = Topic(source("{time: record, fields: {src: [a, b.c], dst: {constant: d}}}"), tmp_path)
    if key is None:
        reason, error = topic.refused(value)
        assert reason in ("missing_field", "bad_key") and "src (a or b.c)" in error
    else:
        assert topic.one(value).a == key


def test_the_first_of_several_paths_in_columns_equals_each_record_alone(tmp_path, monkeypatch):
    topic = Topic(source("{time: s, fields: {src: {path: [a, b.c], default: x}, dst: {path: [d, $headers.d], prefix: 'p:'}, time: [t, u], features: {n: [n, m]}}}",
                         graph={"edge_sets": {"default": {"features": {"n": {"type": "number", "missing": 9}}}}}), tmp_path)
    rows = [value | more for value, key in FIRST if value.get("a") != {}
            for more in ({"d": 5, "t": 7, "m": 3}, {"d": "", "t": None, "u": "8", "n": 4})]
    alone = [topic.one(v, headers=(("d", b"h"),))._replace(offset=i) for i, v in enumerate(rows)]
    monkeypatch.setattr(mapped.MappedTopic, "open", None)
    assert topic.decode(*rows, headers=(("d", b"h"),)) == (alone, [])
    assert [e.a for e in alone] == [1, 1, 2, 2, 2, 2, "x", "x", 0, 0, "x", "x", "x", "x"]
    assert {(e.b, e.time, *e.values) for e in alone} == {("p:5", 7_000_000, 3), ("p:h", 8_000_000, 4)}


def test_a_path_may_be_the_beginning_of_another(tmp_path):
    topic = Topic(source("{time: record, fields: {src: a.b, dst: a.b.c}}"), tmp_path)
    assert topic.refused({"a": {"b": {"c": "x"}}})[1].startswith("src (a.b) is an object")
    assert topic.refused({"a": {"b": "x"}})[1].startswith("dst (a.b.c) is missing")


def test_prefixes_defaults_and_constants(tmp_path):
    topic = Topic(source("{time: record, fields: {src: {path: u, prefix: 'u:', default: nobody}, dst: {constant: 5}}}"), tmp_path)
    events, _ = topic.decode({"u": "a"}, {"u": 1}, {"u": "1"}, {})
    assert [(e.a, e.b) for e in events] == [("u:a", 5), ("u:1", 5), ("u:1", 5), ("u:nobody", 5)]


def test_keys_keep_their_type_where_they_have_no_prefix(tmp_path):
    topic = Topic(source("{time: record, fields: {src: u, dst: v}}"), tmp_path)
    events, _ = topic.decode({"u": "1", "v": 1})
    assert [(e.a, e.b) for e in events] == [("1", 1)]


def test_true_is_not_one_in_company_of_ones(tmp_path):
    topic = Topic(source("{time: record, fields: {src: {path: u, prefix: 'u:'}, dst: v}, where: {n: [1]}}"), tmp_path)
    events, rejected = topic.decode(*[{"u": 1, "v": 2, "n": 1}] * 10, {"u": True, "v": 2, "n": 1}, {"u": 1, "v": 2, "n": True}, {"u": 1, "v": 1.5, "n": 1})
    assert len(events) == 10 and [r.offset for r in rejected] == [10, 12]


# Features.

FEATURES = """{time: record, fields: {src: u, dst: v, features: {x: f}}}"""
CAT = numbers_of_text("a cat", 8)


@pytest.mark.parametrize(("declared", "value", "values"), [
    ("number", 3, [3.0]), ("number", "2.5", [2.5]), ("number", -1e10, [-1e10]), ({"type": "number", "missing": 7}, None, [7.0]),
    ("bool", True, [1.0]), ("bool", False, [0.0]), ("bool", "TRUE", [1.0]), ("bool", "f", [0.0]), ("bool", 1.0, [1.0]),
    ({"type": "number", "missing": 7}, "", [7.0]), ({"hash": 1, "missing": "?"}, "", [1.0]), ({"categories": ["", "a"], "missing": "a"}, "", [1.0, 0.0, 0.0]),
    ({"categories": [1, 2]}, 2.0, [0.0, 1.0, 0.0]), ({"vector": 2}, "[1.5, 2]", [1.5, 2.0]), ({"vector": 2, "missing": [1, 2]}, "", [1.0, 2.0]), ("bool", 1, [1.0]), ({"type": "bool", "missing": False}, None, [0.0]),
    ({"categories": ["a", "b"]}, "a", [1.0, 0.0, 0.0]), ({"categories": ["a", "b"]}, "z", [0.0, 0.0, 1.0]), ({"categories": [1, True]}, "1", [1.0, 0.0, 0.0]),
    ({"categories": [1, True]}, True, [0.0, 1.0, 0.0]), ({"categories": ["a"], "missing": "a"}, None, [1.0, 0.0]), ({"categories": ["a"], "missing": "?"}, None, [0.0, 1.0]),
    ({"hash": 4}, "a", [0.0, 0.0, 0.0, 1.0]), ({"hash": 1}, 5, [1.0]), ({"vector": 2}, [1, 2.5], [1.0, 2.5]), ({"vector": 2, "missing": [0, 1]}, None, [0.0, 1.0]),
    ({"text": 8}, "", [0.0] * 8), ({"text": 8}, "?!", [0.0] * 8), ({"text": 8}, "A cat", CAT), ({"text": 8, "missing": "a cat"}, None, CAT), ({"text": 8, "missing": "a cat"}, "", CAT), ({"text": 1}, 5, [numbers_of_text("5", 1)[0]])])
def test_features_of_each_type(tmp_path, declared, value, values):
    from crc32c import crc32c

    text = source(FEATURES, graph={"edge_sets": {"default": {"features": {"x": declared}}}})
    topic = Topic(text, tmp_path)
    if declared == {"hash": 4}:
        values = [float(crc32c(b"a") % 4 == i) for i in range(4)]
    assert topic.one({"u": 1, "v": 2, "f": value}).values == pytest.approx(values)
    events, rejected = topic.decode(*[{"u": 1, "v": 2, "f": value}] * 20)
    assert [e.values for e in events] == [pytest.approx(values)] * 20 and not rejected
    # Beside one of another type, so that values are looked at one by one.
    events, rejected = topic.decode({"u": 1, "v": 2, "f": {}}, {"u": 1, "v": 2, "f": value})
    assert events[0].values == pytest.approx(values) and [r.reason for r in rejected] == ["bad_features"]


@pytest.mark.parametrize(("declared", "value"), [
    ("number", "x"), ("number", True), ("number", "inf"), ("number", 10**400), ("bool", 2), ("bool", "yes"), ("bool", 0.5), ({"categories": ["a"]}, 1.5), ({"vector": 2}, "[1"), ({"vector": 1}, "1"), ({"hash": 4}, []), ({"text": 4}, 1.5), ({"text": 4}, ["a"]),
    ({"vector": 2}, [1]), ({"vector": 2}, [1, True]), ({"vector": 2}, [1, None]), ({"vector": 1}, 5), ({"vector": 1}, [1e300]), ({"vector": 1}, ["x"])])
def test_values_that_are_none_of_a_type(tmp_path, declared, value):
    topic = Topic(source(FEATURES, graph={"edge_sets": {"default": {"features": {"x": declared}}}}), tmp_path)
    assert topic.refused({"u": 1, "v": 2, "f": value})[0] in ("bad_features", "bad_json")


# Other events.

OTHERS = source("""
time: ms
fields: {src: u, dst: v, time: t}
where: {kind: edge}
deletes: {where: {kind: [forget]}, fields: {node: u}}
labels: {where: {kind: rate, ok: true}, fields: {node: u, time: t, target: [stars, more]}}
nodes: {where: {kind: profile}, fields: {id: u, features: {age: age}}}
""", stream={"label_dim": 3}, graph={"node_sets": {"default": {"features": {"age": "number"}}}})


def test_a_condition_makes_deletes_labels_and_node_features(tmp_path):
    topic = Topic(OTHERS, tmp_path)
    events, rejected = topic.decode(
        {"kind": "edge", "u": "a", "v": "b", "t": 5}, {"kind": "forget", "u": "a"}, {"kind": "rate", "ok": True, "u": "a", "t": 6, "stars": 4, "more": [1, 0]},
        {"kind": "rate", "ok": 1, "u": "a"}, {"kind": "profile", "u": "a", "age": 30}, {"kind": "rate", "ok": True, "u": "a", "t": 6, "stars": 4, "more": [1]})
    assert [(e.offset, e.kind, e.time, e.a, e.values) for e in events] == [
        (0, EDGE, 5000, "a", []), (1, DELETE, 0, "a", []), (2, LABEL, 6000, "a", [4.0, 1.0, 0.0]), (4, NODE, 0, "a", [30.0])]
    assert [(r.offset, r.reason) for r in rejected] == [(5, "feature_width")]


def test_a_topic_may_hold_node_features_alone(tmp_path):
    text = source("{nodes: {fields: {id: u, features: {age: age}}}}", graph={"node_sets": {"default": {"features": {"age": "number"}}}})
    topic = Topic(text, tmp_path)
    events, rejected = topic.decode(*[{"u": i, "age": i} for i in range(20)])
    assert [(e.kind, e.a, e.values) for e in events] == [(NODE, i, [float(i)]) for i in range(20)] and not rejected


def test_an_edge_is_deleted_by_its_ends_and_time(tmp_path):
    topic = Topic(source("""{fields: {src: u, dst: v, time: t}, where: {op: add}, deletes: {where: {op: remove}, fields: {src: u, dst: v, time: t}}}"""), tmp_path)
    event = topic.one({"op": "remove", "u": "a", "v": "b", "t": 5})
    assert (event.kind, event.a, event.b, event.values) == (DELETE, "a", "b", [5000, 0])


@pytest.mark.parametrize(("tombstones", "deletes", "key", "outcome"), [
    ("delete", "deletes: {where: {x: [1]}, fields: {node: $key.id}}", b'{"id": 5}', 5), ("delete", "deletes: {where: {x: [1]}, fields: {node: $key}}", b"5", "5"),
    ("delete", "deletes: {where: {x: [1]}, fields: {node: id}}", b'{"schema": {}, "payload": {"id": 5}}', 5), ("delete", "", b"5", "no deletes"),
    ("delete", "deletes: {where: {x: [1]}, fields: {node: $key.id}}", b"x", "missing"), ("delete", "deletes: {where: {x: [1]}, fields: {node: $key}}", None, "null too"),
    ("dead_letter", "deletes: {where: {x: [1]}, fields: {node: $key}}", b"5", "ingest.tombstones is dead_letter")])
def test_tombstones(tmp_path, tombstones, deletes, key, outcome):
    topic = Topic(source("fields: {src: u, dst: v, time: t}\n" + deletes), tmp_path, ingest__tombstones=tombstones)
    events, rejected = topic.decode(None, key=key)
    assert [e.a for e in events] == [outcome] and not rejected if not rejected else (outcome in rejected[0].error and rejected[0].reason == "tombstone")


# Headers and formats.

def test_our_own_events_in_a_mapped_topic_are_told_by_their_header(clicks):
    own = {"src": "a", "dst": "b", "time": TEN // 1000, "features": [1, 2, 3, 4]}
    headers = (("content-type", OWN_EVENT.encode()),)
    events, rejected = clicks.of([record(click(), 0), record(own, 1, headers=headers), record(click(), 2), record(own, 3)])
    assert [(e.offset, e.a) for e in events] == [(0, "user:8"), (1, "a"), (2, "user:8")] and not rejected
    assert clicks.one(click(), headers=(("content-type", b"text/plain"), ("x", None))).a == "user:8"


def arrow(rows):
    import pyarrow as pa

    return arrow_of(pa.Table.from_pylist(rows))


def arrow_of(table):
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_columns_of_any_name(tmp_path):
    topic = Topic(CLICKS.replace("time: iso8601", "time: iso8601\n    format: arrow"), tmp_path)
    when = datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC)
    rows = [click(ts=when), click(kind="x", ts=when), click(user_id=None, ts=when), click(user_id=9, ts=when)]
    events, (bad,) = topic.decode(arrow(rows))
    assert [(e.item, e.a, e.time, e.values) for e in events] == [(0, "user:8", TEN, [3.5, 1, 0, 0]), (3, "user:9", TEN, [3.5, 1, 0, 0])]
    assert (bad.index, bad.reason, bad.content_type) == (2, "missing_field", OWN_ROW)
    # The letter of one row among several is read again as JSON.
    fixed = json.loads(bad.raw) | {"user_id": 10}
    again = record(fixed, headers=(("content-type", OWN_ROW.encode()),))
    assert [e.a for e in topic.of([again])[0]] == ["user:10"] == [e.a for e in topic.of([again, record(arrow(rows[1:2]), 1)])[0]]
    assert topic.refused(b"x")[0] == "bad_arrow"
    assert len(topic.of([record(arrow([click(ts=when, user_id=i)]), i) for i in range(20)])[0]) == 20


@pytest.mark.parametrize("form", ["s", "ms", "us", "iso8601"])
def test_the_letter_of_an_arrow_row_reads_as_the_row_did(tmp_path, form):
    features = {"x": {"type": "number", "missing": 0}}
    topic = Topic(source(f"{{format: arrow, time: {form}, fields: {{src: u, dst: v, time: t, features: {{x: x}}}}}}",
                         graph={"edge_sets": {"default": {"features": features}}}), tmp_path)
    when = datetime.datetime(2026, 11, 22, 10, 0, 0, 123_457)
    _, rejected = topic.decode(arrow([{"u": None, "v": 1, "t": when, "x": 1.0}, {"u": 1, "v": 2, "t": when, "x": float("inf")}]))
    assert [r.reason for r in rejected] == ["missing_field", "bad_features"]
    # A mended one has its own time; infinity is not taken for text.
    headers = (("content-type", OWN_ROW.encode()),)
    assert topic.one(json.loads(rejected[0].raw) | {"u": 3}, headers=headers).time == TEN + 123_457
    assert topic.refused(rejected[1].raw, headers=headers)[0] == "bad_features"


def test_arrow_times_of_every_unit_are_exact_and_one_beyond_them_refuses_its_record_alone(tmp_path):
    import pyarrow as pa

    topic = Topic(source("{format: arrow, time: us, fields: {src: u, dst: v, time: s.t}}"), tmp_path)

    def row(stamp, unit, zone=None):
        when = pa.array([stamp], pa.int64()).cast(pa.timestamp(unit, zone))
        return arrow_of(pa.table({"u": [1], "v": [2], "s": pa.StructArray.from_arrays([when], ["t"])}))

    for unit, scale in (("s", 10**6), ("ms", 1000), ("us", 1)):
        assert topic.one(row(TEN // scale, unit, "Mars/Phobos")).time == TEN
        # More microseconds than int64 holds, and dates that Python has not.
        for stamp in (2**62, -(2**62), (2**64 + TEN) // scale if scale > 1 else 2**63 - 1):
            events, (bad,) = topic.decode(row(stamp, unit), row(TEN // scale, unit))
            assert [e.time for e in events] == [TEN] and (bad.offset, bad.reason) == (0, "bad_arrow")
    assert topic.one(row(TEN * 1000 + 999, "ns")).time == TEN


def test_other_content_types_do_not_change_the_format(clicks):
    for kind in (NDJSON, ARROW):
        assert clicks.one(click(), headers=(("content-type", kind.encode()),)).a == "user:8"


class Rows:
    """A format that a registry would decode; it may be away."""

    away = False

    def value_of(self, record):
        return record.value

    def decode(self, value):
        if self.away:
            raise SchemaRegistryError("The registry does not answer.")
        return json.loads(value)


def test_a_format_that_cannot_be_decoded_now_stops_the_call_and_takes_nothing(tmp_path, monkeypatch):
    rows = Rows()
    monkeypatch.setattr(decoder, "make_format", lambda source, registry, max_rows: rows)
    topic = Topic(CLICKS.replace("time: iso8601", "time: iso8601\n    format: arrow"), tmp_path)
    values = [record(json.dumps([click(user_id=i)]).encode(), i) for i in range(20)]
    rows.away = True
    with pytest.raises(SchemaRegistryError):
        topic.of(values)
    rows.away = False
    assert [e.a for e in topic.of(values)[0]] == [f"user:{i}" for i in range(20)]


@pytest.mark.parametrize("page", ["README.md", "docs/sources.md"])
def test_the_settings_in_the_documents_map_the_record_beside_them(tmp_path, page):
    text = (Path(__file__).parents[2] / page).read_text()
    settings = re.search(r"```yaml\n(.*?)```", text, re.S)[1]
    told = settings_of(settings, tmp_path)
    decoder = make_decoder(told, schema_of(told))
    value = re.search(r"`(\{\"user_id\".*?\}\})`", text)[1]
    block, rejected = decoder.decode([record(value.encode())], 0, NOW, "shop.clicks")
    (event,) = spell(block, decoder.keys.keys)
    assert (event.time, event.a, event.b, event.values) == (TEN, "user:8", "b41", [3.5]) and not rejected
    assert page != "README.md" or len(settings.splitlines()) == 10
