"""Several sources of one topic, and an event of each element of a list."""

import json
import random
import re
from pathlib import Path

import pytest

from streamd.decode.sources import topic as mapped
from streamd.errors import SettingsError
from streamd.events import DELETE, EDGE, NODE
from streamd.ingest.order.batch_builder import as_json
from streamd.settings.loading import schema_of
from streamd.telemetry import metrics
from tests.decode.mapped import NOW, TOPIC, Topic, record, source

SETS = {"node_sets": {"user": {}, "item": {"features": {"price": {"type": "number", "missing": 0}}}},
        "edge_sets": {"view": {"source": "user", "target": "item", "features": {"seconds": {"type": "number", "missing": 0}}},
                      "order": {"source": "user", "target": "item"}, "follow": {"source": "user", "target": "user"}}}
BUS = """
edge_set: view
time: ms
where: {type: [view, preview]}
fields: {src: user, dst: item, time: ts, features: {seconds: s}}
---
edge_set: order
each: lines
time: iso8601
where: {type: order}
fields: {src: buyer.id, dst: lines.sku, time: at}
---
edge_set: follow
time: s
where: {type: follow}
fields: {src: a, dst: b, time: t}
deletes: {where: {type: unfollow}, edge_set: follow, fields: {src: a, dst: b, time: t}}
labels: {where: {type: rating}, node_set: item, fields: {node: item, time: t, target: stars}}
nodes: {where: {type: catalog}, node_set: item, fields: {id: item, features: {price: p}}}
"""
VIEW = {"type": "view", "user": 8, "item": "a", "ts": 5000, "s": 2}
ORDER = {"type": "order", "buyer": {"id": 8}, "at": "1970-01-01T00:00:06Z", "lines": [{"sku": "a"}, {"sku": "b"}]}
FOLLOW = {"type": "follow", "a": 1, "b": 2, "t": 7}
OTHERS = [FOLLOW | {"type": "unfollow"}, {"type": "rating", "item": "a", "t": 8, "stars": 4}, {"type": "catalog", "item": "a", "p": 9}]


@pytest.fixture
def bus(tmp_path):
    return Topic(source(BUS, graph=SETS, stream={"label_dim": 1}), tmp_path)


def skipped():
    return metrics.skipped.labels(TOPIC)._value.get()


def places(events):
    return [(e.offset, e.item) for e in events]


def lists(tmp_path, body="", **values):
    return Topic(source(f"each: items\ntime: s\nfields: {{src: u, dst: items.id, time: t}}\n{body}"), tmp_path, **values)


def basket(*ids, **more):
    return {"u": 1, "t": 5, "items": [{"id": i} for i in ids]} | more


def events_of(topic, *values, **more):
    """(offset, item) and the event as JSON, of each event of some records; and the rejected ones."""
    records = [record(v, i, **more) for i, v in enumerate(values)]
    block, rejected = topic.decoder.decode(records, 0, NOW, TOPIC)
    keys, schema = topic.decoder.keys.keys, schema_of(topic.settings)
    return [((int(row["offset"]), int(row["item"])), json.loads(as_json(block, i, keys, "s", schema))) for i, row in enumerate(block.rows)], rejected


def edges(topic, *values, **more):
    events, rejected = events_of(topic, *values, **more)
    assert not rejected, rejected
    return [(place, e["src"], e["dst"], e["time"]) for place, e in events]


def test_each_record_goes_to_the_source_that_takes_it(bus):
    before = skipped()
    events, rejected = events_of(bus, VIEW, ORDER, FOLLOW, *OTHERS, {"type": "login", "user": 8}, VIEW | {"type": "preview"})
    assert not rejected and skipped() - before == 1
    view = {"src": 8, "dst": "a", "time": 5, "edge_set": "view", "features": [2]}
    order = {"src": 8, "dst": "a", "time": 6, "edge_set": "order"}
    follow = {"src": 1, "dst": 2, "edge_set": "follow"}
    assert [(place, {k: v for k, v in e.items() if v != []}) for place, e in events] == [
        ((0, 0), view), ((1, 0), order), ((1, 1), order | {"dst": "b"}), ((2, 0), follow | {"time": 7}), ((3, 0), follow | {"type": "delete", "time": 7}),
        ((4, 0), {"type": "label", "node": "a", "node_set": "item", "time": 8, "target": [4]}),
        ((5, 0), {"type": "node", "id": "a", "node_set": "item", "features": [9]}), ((7, 0), view)]


def test_many_records_are_taken_by_columns_and_equal_each_alone(bus, monkeypatch):
    values = [VIEW, ORDER, FOLLOW, *OTHERS, {"type": "login"}, ORDER | {"lines": []}, VIEW | {"user": 9}] * 10
    random.Random(3).shuffle(values)
    alone = [((i, item), e) for i, value in enumerate(values) for (_, item), e in events_of(bus, value)[0]]
    monkeypatch.setattr(mapped.MappedTopic, "open", None)
    before = skipped()
    assert events_of(bus, *values) == (alone, []) and skipped() - before == 20


def test_the_items_of_one_record_are_numbered_together_however_they_are_decoded(bus, monkeypatch):
    values = [VIEW, ORDER, {"type": "login"}, OTHERS[0], ORDER | {"lines": []}, ORDER, FOLLOW]
    by_columns = events_of(bus, values)
    # An order of two lines takes two numbers, whatever else one.
    assert [item for (_, item), _ in by_columns[0]] == [0, 1, 2, 4, 6, 7, 8]
    monkeypatch.setattr(mapped.MappedTopic, "_block", lambda *_: None)
    assert events_of(bus, values) == by_columns


def test_the_first_source_takes_a_record_and_others_do_if_they_say_also(tmp_path):
    body = "time: s\nwhere: {k: [1, 2]}\nfields: {src: u, dst: v, time: t}\n---\n%stime: s\nwhere: {k: [2, 3]}\nfields: {src: v, dst: u, time: t}\n---\ntime: s\nfields: {src: u, dst: {constant: other}, time: t}"
    rows = [{"k": k, "u": 1, "v": 2, "t": 5} for k in range(5)] * 5
    for word, of_two in (("", [(0, 1, 2)]), ("also: true\n", [(0, 1, 2), (1, 2, 1)])):
        topic = Topic(source(body.replace("%s", word)), tmp_path)
        by_kind = {0: [(1, 1, "other")], 1: [(0, 1, 2)], 2: of_two, 3: [(1, 2, 1)], 4: [(1, 1, "other")]}
        found = edges(topic, *rows)
        wanted = [(i, src, dst) for i in range(25) for _, src, dst in by_kind[i % 5]]
        assert [(place[0], src, dst) for place, src, dst, _ in found] == wanted
        if word:
            assert [place[1] for place, *_ in found[:6]] == [2, 0, 0, 1, 1, 2]


def test_a_record_of_which_one_event_is_bad_is_refused_as_a_whole(tmp_path):
    body = "time: s\nfields: {src: u, dst: v, time: t}\n---\nalso: true\ntime: s\nfields: {src: v, dst: w, time: t}"
    topic = Topic(source(body), tmp_path)
    row = {"u": 1, "v": 2, "w": 3, "t": 5}
    events, (bad,) = topic.decode(row, row | {"w": None}, row)
    assert places(events) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert (bad.offset, bad.index, bad.reason, bad.error, json.loads(bad.raw)) == (1, 0, "missing_field", "dst (w) is missing", row | {"w": None})
    # The letter, once it is mended, gives the whole record.
    assert places(topic.decode(bad.raw.replace(b"null", b"4"))[0]) == [(0, 0), (0, 1)]


def test_each_element_of_a_list_is_an_edge(tmp_path, monkeypatch):
    topic = lists(tmp_path)
    alone = edges(topic, basket("a", "b", "c")) + edges(topic, basket("a", u=2))
    assert alone == [((0, 0), 1, "a", 5), ((0, 1), 1, "b", 5), ((0, 2), 1, "c", 5), ((0, 0), 2, "a", 5)]
    monkeypatch.setattr(mapped.MappedTopic, "open", None)
    assert edges(topic, basket("a", "b", "c"), basket("a", u=2)) == [(((i, item)), *rest) for i, ((_, item), *rest) in zip([0, 0, 0, 1], alone, strict=True)]


@pytest.mark.parametrize(("each", "dst", "value", "keys"), [
    ("tags", "tags", {"tags": ["x", "y", 3]}, ["x", "y", 3]), ("o.lines", "o.lines.p.id", {"o": {"lines": [{"p": {"id": 1}}, {"p": {"id": 2}}]}}, [1, 2]),
    ("pairs", "pairs.1", {"pairs": [[1, 2], [3, 4]]}, [2, 4]), ("items", "items.id", {"items": '[{"id": "x"}, {"id": "y"}]'}, ["x", "y"]),
    ("items", "items.id", {"items": ['{"id": "x"}', {"id": "y"}]}, ["x", "y"]), (r"a\.b", r"a\.b.id", {"a.b": [{"id": "x"}]}, ["x"]),
    (r"\$items", r"\$items.id", {"$items": [{"id": "x"}, {"id": "y"}]}, ["x", "y"]), ("items", "[items.id, items.sku]", {"items": [{"sku": 1}, {"id": 2}]}, [1, 2]),
    ("items", "items.id", {"items": []}, []), ("items", "items.id", {"items": None}, []), ("items", "items.id", {}, [])])
def test_paths_lead_into_the_element_if_they_begin_with_the_list(tmp_path, each, dst, value, keys):
    topic = Topic(source(f"each: {each}\ntime: s\nfields: {{src: u, dst: {dst}, time: t}}"), tmp_path)
    before = skipped()
    assert [e[2] for e in edges(topic, value | {"u": 1, "t": 5})] == keys and skipped() - before == (not keys)
    assert [e[2] for e in edges(topic, *[value | {"u": 1, "t": 5}] * 20)] == keys * 20


def test_elements_have_conditions_times_features_and_other_rules(tmp_path):
    features = {"edge_sets": {"default": {"features": {"qty": {"type": "number", "missing": 1}, "total": "number"}}}, "node_sets": {"default": {"features": {"price": "number"}}}}
    topic = Topic(source("""
each: items
time: s
where: {kind: order, items.gift: [null, false]}
fields: {src: u, dst: {path: items.id, prefix: "i:"}, time: [items.at, t], features: {qty: items.qty, total: total}}
deletes: {where: {kind: cancel}, fields: {src: u, dst: {path: items.id, prefix: "i:"}, time: t}}
nodes: {where: {kind: prices}, fields: {id: {path: items.id, prefix: "i:"}, features: {price: items.price}}}
""", graph=features), tmp_path)
    order = {"kind": "order", "u": 1, "t": 5, "total": 7, "items": [{"id": 1, "qty": 2}, {"id": 2, "gift": True}, {"id": 3, "at": 6}]}
    rows = [order, {"kind": "cancel", "u": 1, "t": 5, "items": [{"id": 1}, {"id": 3}]}, {"kind": "prices", "items": [{"id": 1, "price": 3}, {"id": 2, "price": 4}]}]
    events, rejected = topic.decode(*rows)
    assert not rejected and [(e.offset, e.item, e.kind, e.time, e.a, e.b, e.values) for e in events] == [
        (0, 0, EDGE, 5_000_000, 1, "i:1", [2, 7]), (0, 2, EDGE, 6_000_000, 1, "i:3", [1, 7]), (1, 0, DELETE, 0, 1, "i:1", [5_000_000, 0]),
        (1, 1, DELETE, 0, 1, "i:3", [5_000_000, 0]), (2, 0, NODE, 0, "i:1", None, [3]), (2, 1, NODE, 0, "i:2", None, [4])]


@pytest.mark.parametrize(("items", "reason", "says"), [
    ([{"id": "a"}, {"id": None}, {"id": "c"}], "missing_field", "dst (items.id) is missing, in items.1"), ([{"id": "a"}, 5], "missing_field", "dst (items.id) is missing, in items.1"),
    ([{"id": 1.5}], "bad_key", "dst (items.id) is a number: keys are text or integers; write such ids as text, in items.0"), ({"id": "a"}, "wrong_type", "items is an object, but `each` reads a list"),
    ("a", "wrong_type", "items is text, but `each` reads a list"), ("[1", "wrong_type", "items is text"), (5, "wrong_type", "items is a number")])
def test_a_bad_element_refuses_its_record_alone(tmp_path, items, reason, says):
    topic = lists(tmp_path)
    bad = basket() | {"items": items}
    events, (letter,) = topic.decode(basket("a", "b"), bad, basket("c"))
    assert places(events) == [(0, 0), (0, 1), (2, 0)] and (letter.offset, letter.index, letter.reason, json.loads(letter.raw)) == (1, 0, reason, bad)
    assert letter.error.startswith(says)
    # Among the items of one record, too: the letter holds the item as it came.
    events, (letter,) = topic.decode([basket("a", "b"), bad, basket("c")])
    assert [e.b for e in events] == ["a", "b", "c"] and (letter.index, json.loads(letter.raw)) == (2, bad)
    assert events[2].item == 2 + (len(items) if isinstance(items, list) else 1)


def test_a_list_that_no_source_would_take_need_not_be_one(tmp_path):
    topic = lists(tmp_path, "where: {k: order}\n---\ntime: s\nfields: {src: u, dst: {constant: x}, time: t}")
    values = [basket("a") | {"k": "order"}, {"u": 2, "t": 5, "items": 7}, {"u": 3, "t": 5, "items": {"id": 1}, "k": "view"}]
    assert [e[1:3] for e in edges(topic, *values * 10)] == [(1, "a"), (2, "x"), (3, "x")] * 10


def test_lists_make_no_more_events_than_a_record_may_hold(tmp_path):
    topic = lists(tmp_path, ingest__max_record_events=5)
    assert len(edges(topic, *[basket(*range(5))] * 20)) == 100
    events, (letter,) = topic.decode(basket(*range(5)), basket(*range(6)), basket(1))
    assert len(events) == 6 and (letter.offset, letter.index, letter.reason) == (1, -1, "too_many_events")
    # Those of one record are counted together.
    assert len(edges(topic, [basket(1, 2), basket(3, 4, 5)])) == 5
    assert topic.refused([basket(1, 2), basket(3, 4, 5, 6)])[0] == "too_many_events"
    assert topic.refused([basket(1, 2), basket(None), basket(3, 4, 5)])[0] == "too_many_events"


def test_a_key_that_is_dropped_in_a_list_drops_its_edge_alone(tmp_path):
    topic = Topic(source("each: items\ntime: s\ndrop_keys: [nan]\nfields: {src: u, dst: items.id, time: t}"), tmp_path)
    assert [e[2] for e in edges(topic, basket("a", "nan", "b"))] == ["a", "b"]


@pytest.mark.parametrize("wrap", [lambda change: change, lambda change: {"schema": {}, "payload": change}])
def test_a_change_of_a_row_with_a_list_makes_and_deletes_its_edges(tmp_path, wrap):
    topic = Topic(source("envelope: debezium\neach: items\ntime: s\nfields: {src: u, dst: items.id, time: t}"), tmp_path)
    rows = [wrap({"op": "c", "before": None, "after": basket("a", "b")}), wrap({"op": "d", "before": basket("a", "b"), "after": None})]
    events, rejected = topic.decode(*rows)
    assert not rejected and [(e.offset, e.item, e.kind, e.b) for e in events] == [(0, 0, EDGE, "a"), (0, 1, EDGE, "b"), (1, 0, DELETE, "a"), (1, 1, DELETE, "b")]


def test_deleted_rows_go_to_the_source_that_took_them(tmp_path):
    body = "envelope: debezium\ntime: s\nwhere: {k: 1}\nfields: {src: u, dst: v, time: t}\n---\nenvelope: debezium\ntime: s\nwhere: {k: 2}\nfields: {src: v, dst: u, time: t}\n---\nenvelope: debezium\ntime: s\nlabels: {where: {k: 3}, fields: {node: u, time: t, target: v}}"
    topic = Topic(source(body, stream={"label_dim": 1}), tmp_path)
    before = skipped()
    events, rejected = topic.decode(*[{"op": "d", "before": {"k": k, "u": 1, "v": 2, "t": 5}, "after": None} for k in range(5)])
    assert not rejected and [(e.offset, e.kind, e.a, e.b) for e in events] == [(1, DELETE, 1, 2), (2, DELETE, 2, 1)] and skipped() - before == 3


@pytest.mark.parametrize(("second", "outcome"), [
    ("fields: {src: a, dst: b, time: t}", 5), ("deletes: {where: {k: y}, fields: {node: $key}}", 5),
    ("deletes: {where: {k: y}, fields: {node: {path: $key, prefix: p}}}", "it is unknown whether")])
def test_a_null_value_deletes_what_all_sources_with_deletes_agree_on(tmp_path, second, outcome):
    body = "time: s\nwhere: {k: z}\nfields: {src: u, dst: v, time: t}\ndeletes: {where: {k: x}, fields: {node: $key}}\n---\ntime: s\n" + second
    topic = Topic(source(body), tmp_path, ingest__tombstones="delete")
    events, rejected = topic.decode(None, key=b"5")
    if outcome == 5:
        assert [(e.kind, e.a) for e in events] == [(DELETE, "5")] and not rejected
    else:
        assert not events and rejected[0].reason == "tombstone" and outcome in rejected[0].error


def test_the_settings_in_the_documents_make_the_events_they_promise(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    bus, items = (re.search(rf"## {title}\n.*?```yaml\n(.*?)```", text, re.S)[1] for title in ("Several sources for one topic", "An event of each element of a list"))
    topic = Topic(items.replace("shop.orders", TOPIC), tmp_path)
    row = json.loads(re.search(r"`(\{\"user\": 8, .*?\]\})` is two edges", text)[1])
    events, rejected = topic.decode(row)
    assert not rejected and [(e.a, e.b, e.values) for e in events] == [(8, "a", [1]), (8, "b", [2])]
    topic = Topic(bus.replace("shop.events", TOPIC), tmp_path)
    assert [e[1:3] for e in edges(topic, VIEW, {"type": "order", "buyer": {"id": 8}, "at": "2026-11-22", "lines": [{"sku": "a"}]}, {"type": "login"})] == [(8, "a"), (8, "a")]


TWO = "time: s\nwhere: {k: 1}\nfields: {src: u, dst: v, time: t}\n---\n"


@pytest.mark.parametrize(("body", "says"), [
    (TWO + "format: ndjson\ntime: s\nfields: {src: u, dst: v, time: t}", "a topic has one format, and it is json"),
    (TWO + "envelope: debezium\ntime: s\nfields: {src: u, dst: v, time: t}", "a topic has one envelope, and it is none"),
    ("time: s\nfields: {src: u, dst: v, time: t}\n---\ntime: s\nfields: {src: v, dst: u, time: t}", "nothing is left for it"),
    ("time: s\nnodes: {fields: {id: u}}\n---\ntime: s\nfields: {src: v, dst: u, time: t}", "nothing is left for it"),
    ("format: arrow\ntime: s\nwhere: {k: 1}\nfields: {src: u, dst: v, time: t}\n---\nformat: arrow\ntime: ms\nfields: {src: u, dst: v, time: t}", "a topic of arrow has one form, and it is s"),
    ("each: items\ntime: s\nfields: {src: u, dst: id, time: t}", "no field leads into an element of items: a path such as items.id does"),
    ("each: $key.items\ntime: s\nfields: {src: u, dst: $key.items.id, time: t}", "is outside it"), ("each: ''\ntime: s\nfields: {src: u, dst: v, time: t}", "names with dots"),
    ("each: items\ntime: s\nalso: 1\nfields: {src: u, dst: items.id, time: t}", "valid boolean")])
def test_sources_that_cannot_be_of_one_topic_are_refused(tmp_path, body, says):
    with pytest.raises(SettingsError, match=says.replace("$", r"\$")):
        Topic(source(body), tmp_path)
