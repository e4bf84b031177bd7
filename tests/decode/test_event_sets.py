"""Events that name their edge set or node set, in our own shape: JSON, Arrow, tombstones and dead letters."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.decoder import make_decoder
from streamd.decode.wire import ARROW, NDJSON
from streamd.events import DELETE, EDGE, LABEL, NODE, Schema, SetKey
from streamd.ingest.order.batch_builder import as_json
from streamd.settings.loading import load_settings, schema_of
from tests.builders import Record, spell
from tests.ingest.world import World

NOW = 1_700_000_000_000_000
USER, ITEM = 0, 1
SETS = {
    "graph.node_sets": {"user": {"features": {"age": "number", "country": {"categories": ["de", "fr"]}}}, "item": {}},
    "graph.edge_sets": {
        "views": {"source": "user", "target": "item", "features": {"seconds": "number", "deep": {"type": "bool", "missing": False}}},
        "buys": {"source": "user", "target": "item", "features": {"price": "number", "how": {"categories": ["card", "cash"], "missing": "?"}}},
        "knows": {"source": "user", "target": "user"}},
    "stream.label_dim": 1, "stream.time_unit": "ms", "ingest.tombstones": "delete",
}
"""Rows of edges: a mark for views, buys and knows; seconds, deep; price, card, cash, other."""
VIEW = {"edge_set": "views", "src": "8", "dst": "8", "time": 5, "features": {"seconds": 2.5, "deep": True}}
BUY = {"edge_set": "buys", "src": "8", "dst": "41", "time": 6, "features": {"price": 3.5, "how": "card"}}
KNOWS = {"edge_set": "knows", "src": "8", "dst": "9", "time": 7}
VIEW_ROW, BUY_ROW, KNOWS_ROW = [1, 0, 0, 2.5, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 3.5, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0]


class Stream:
    """A decoder of a declaration; `decode` gives the events of one record, or of several."""

    def __init__(self, values, path="/nowhere"):
        self.settings = load_settings(None, {"data_dir": path} | values, {})[0]
        self.schema = schema_of(self.settings)
        self.decoder = make_decoder(self.settings, self.schema)

    def decode(self, *values, headers=(), key=None):
        records = [Record(v if v is None or isinstance(v, bytes) else json.dumps(v).encode(), i, NOW // 1000, 0, tuple(headers), key)
                   for i, v in enumerate(values)]
        block, rejected = self.decoder.decode(records, 0, NOW)
        return spell(block, self.decoder.keys.keys), rejected

    def refused(self, value, **more):
        events, (bad,) = self.decode(value, **more)
        assert not events
        return bad.reason, bad.error


@pytest.fixture
def stream():
    return Stream(SETS)


def test_an_edge_names_its_set_and_its_features(stream):
    (event,), bad = stream.decode(BUY)
    assert bad == [] and event == (6000, 0, 0, 0, EDGE, "8", SetKey(ITEM, "41"), BUY_ROW)


def test_keys_are_unique_within_a_node_set(stream):
    (view,), _ = stream.decode(VIEW)
    (knows,), _ = stream.decode(KNOWS | {"dst": "8"})
    assert (view.a, view.b, knows.b) == ("8", SetKey(ITEM, "8"), "8")


def test_sets_and_forms_are_taken_together_as_they_are_alone(stream, monkeypatch):
    """One call takes all of them, and so does each record alone, where the fast path is off."""
    as_array = VIEW | {"features": [2.5, 1]}
    events = [VIEW, BUY, KNOWS, as_array, VIEW | {"features": {"seconds": 2.5}}, BUY | {"features": [3.5, 1, 0, 0]}, KNOWS | {"features": []},
              dict(reversed(VIEW.items()))] * 3
    rows = [VIEW_ROW, BUY_ROW, KNOWS_ROW, VIEW_ROW, [*VIEW_ROW[:4], 0, 0, 0, 0, 0], BUY_ROW, KNOWS_ROW, VIEW_ROW] * 3
    reject = []
    monkeypatch.setattr(stream.decoder.own.checker, "event", lambda *a: reject.append(a))
    fast = [stream.decode(events)[0], stream.decode(*events)[0],
            stream.decode("\n".join(map(json.dumps, events)).encode(), headers=[("content-type", NDJSON.encode())])[0]]
    assert not reject
    for decoded in fast:
        assert [e.values for e in decoded] == rows
        assert [e.b for e in decoded] == [e["dst"] if e["edge_set"] == "knows" else SetKey(ITEM, e["dst"]) for e in events]
    monkeypatch.undo()
    monkeypatch.setattr(stream.decoder.own, "_edges", lambda *a: None)
    slow, bad = stream.decode(events)
    assert bad == [] and [(e.a, e.b, e.values, e.time) for e in slow] == [(e.a, e.b, e.values, e.time) for e in fast[0]]


@pytest.mark.parametrize(("change", "reason", "says"), [
    ({"edge_set": None}, "missing_field", "edge_set is missing: views, buys, knows"), ({"edge_set": "buy"}, "unknown_set", "edge_set is none of those declared: views, buys, knows"),
    ({"edge_set": 1}, "wrong_type", "edge_set"), ({"node_set": "user"}, "wrong_type", "an edge has src"), ({"features": {"price": 3.5, "hwo": "card"}}, "bad_features", "edge set buys has no feature hwo; it has price, how"),
    ({"features": {"how": "card"}}, "missing_field", "feature price is missing"), ({"features": None}, "missing_field", "feature price is missing"), ({"features": {"price": None}}, "missing_field", "price"),
    ({"features": {"price": "much"}}, "bad_features", "feature price is text, not number"), ({"features": {"price": True}}, "bad_features", "true or false, not number"), ({"features": {"price": 1e20}}, "bad_features", "max_feature"),
    ({"features": {"price": 1, "how": 1.5}}, "bad_features", "feature how is a number, not categories"), ({"features": [1, 2]}, "feature_width", "features has 2 values, edge set buys has 4"),
    ({"features": {"seconds": 1}}, "bad_features", "has no feature seconds"), ({"edge_set": "knows"}, "wrong_type", "edge set knows declares no features"), ({"features": "x"}, "wrong_type", "features"),
    ({"type": "delete", "features": None, "edge_set": None}, "missing_field", "edge_set is missing"), ({"type": "delete", "node_set": "user"}, "wrong_type", "a delete of an edge has an edge_set"),
])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "in an array"])
def test_an_event_that_fits_no_set_is_refused_by_name(stream, change, reason, says, beside):
    event = {k: v for k, v in (BUY | change).items() if v is not None}
    if not beside:
        got, text = stream.refused(event)
    else:
        taken, (bad,) = stream.decode([VIEW, event, KNOWS])
        assert [e.values for e in taken] == [VIEW_ROW, KNOWS_ROW]
        got, text = bad.reason, bad.error
    assert got == reason and says in text, text


def test_the_text_shows_an_event_of_the_set_that_was_meant(stream):
    _, text = stream.refused({"edge_set": "buys", "src": "8", "time": 5, "features": {"price": 1}})
    assert text.endswith('As an edge should be: {"edge_set": "buys", "src": "8", "dst": "3", "time": 1672531200123, "features": {"price": 0.5, "how": "card"}}')
    _, text = stream.refused({"type": "node", "id": "8", "features": [1]})
    assert '{"type": "node", "node_set": "user", "id": "8", "features": {"age": 0.5, "country": "de"}}' in text


def test_a_name_given_twice_counts_as_it_does_alone(stream):
    """msgspec's fast path takes no set that contradicts itself; alone the last counts, in a batch too."""
    twice = b'{"edge_set":"views","src":"8","dst":"9","time":7,"edge_set":"knows"}'
    alone, together = stream.decode(twice)[0][0], stream.decode(b"[%s,%s]" % (twice, json.dumps(KNOWS).encode()))[0][0]
    assert alone.values == together.values == KNOWS_ROW and alone.b == together.b == "9"


def test_nodes_labels_and_deletes_name_their_sets(stream):
    events, bad = stream.decode([
        {"type": "node", "node_set": "user", "id": 8, "features": {"age": 30, "country": "fr"}}, {"type": "node", "node_set": "item", "id": 8},
        {"type": "label", "node_set": "item", "node": 8, "time": 3, "target": [1]}, {"type": "delete", "node_set": "item", "node": 8},
        {"type": "delete", "edge_set": "knows", "src": "8", "dst": "9", "time": 7}, {"type": "delete", "edge_set": "buys", "src": "8", "dst": "9", "time": 7}])
    assert bad == []
    assert [(e.kind, e.a, e.b, e.values) for e in events] == [
        (NODE, 8, None, [1, 0, 30, 0, 1, 0]), (NODE, SetKey(ITEM, 8), None, [0, 1, 0, 0, 0, 0]), (LABEL, SetKey(ITEM, 8), None, [1]),
        (DELETE, SetKey(ITEM, 8), None, []), (DELETE, "8", "9", [7000, 2]), (DELETE, "8", SetKey(ITEM, "9"), [7000, 1])]


@pytest.mark.parametrize(("event", "reason", "says"), [
    ({"type": "node", "id": 8}, "missing_field", "node_set is missing: user, item"), ({"type": "label", "node_set": "users", "node": 8, "target": [1]}, "unknown_set", "node_set is none"),
    ({"type": "delete", "node": 8}, "missing_field", "node_set is missing"), ({"type": "node", "edge_set": "views", "id": 8}, "wrong_type", "a node has a node_set"),
    ({"type": "delete", "edge_set": "views", "node": 8}, "wrong_type", "a delete has a node_set"), ({"type": "node", "node_set": "item", "id": 8, "features": [1]}, "feature_width", "node set item has 0"),
])
def test_a_node_that_fits_no_set_is_refused_by_name(stream, event, reason, says):
    got, text = stream.refused(event)
    assert got == reason and says in text, text


def test_a_null_value_of_several_node_sets_needs_a_source(stream):
    assert stream.refused(None, key=b"8") == ("tombstone", "the value is null, and the node set of its key is unknown: give the topic a source with deletes")
    one, = Stream({"graph.edge_sets": {"a": {}, "b": {}}, "ingest.tombstones": "delete"}).decode(None, key=b"8")[0]
    assert (one.kind, one.a) == (DELETE, "8")


def arrow(columns):
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64())])
def test_arrow_rows_name_their_sets(stream, monkeypatch, kind):
    rows = [VIEW | {"features": [2.5, 1]}, BUY | {"features": [3.5, 1, 0, 0]}, KNOWS | {"features": []}] * 5
    columns = {name: pa.array([r[name] for r in rows], kind if name == "features" else None) for name in BUY}
    headers = [("content-type", ARROW.encode())]
    monkeypatch.setattr("streamd.decode.arrow.rows_of", None)
    fast, bad = stream.decode(arrow(columns), headers=headers)
    assert bad == [] and [e.values for e in fast] == [VIEW_ROW, BUY_ROW, KNOWS_ROW] * 5
    assert [e.b for e in fast[:3]] == [SetKey(ITEM, "8"), SetKey(ITEM, "41"), "9"]
    # A slice of a table has offsets that do not begin at 0.
    part, _ = stream.decode(arrow({n: c.slice(1) for n, c in columns.items()}), headers=headers)
    assert [e.values for e in part] == [e.values for e in fast[1:]]
    monkeypatch.undo()

    # Row by row where one does not fit.
    columns["edge_set"] = pa.array([*columns["edge_set"].to_pylist()[:-2], "none", None])
    slow, bad = stream.decode(arrow(columns), headers=headers)
    assert [e.values for e in slow] == [e.values for e in fast[:13]] and [b.reason for b in bad] == ["unknown_set", "missing_field"]


def test_a_dead_letter_is_what_its_producer_could_have_sent(stream):
    sent = [VIEW | {"features": [2.5, 1.0]}, BUY | {"features": [3.5, 1.0, 0.0, 0.0]}, KNOWS, {"type": "node", "node_set": "user", "id": 8, "features": [30.0, 0.0, 1.0, 0.0]},
            {"type": "node", "node_set": "item", "id": 8, "features": []}, {"type": "label", "node_set": "item", "node": 8, "time": 3, "target": [1.0]},
            {"type": "delete", "node_set": "item", "node": 8}, {"type": "delete", "edge_set": "buys", "src": "8", "dst": "41", "time": 6}]
    block, bad = stream.decoder.decode([Record(json.dumps(sent).encode(), 0, NOW // 1000)], 0, NOW)
    assert not bad
    written = [json.loads(as_json(block, i, stream.decoder.keys.keys, "ms", stream.schema)) for i in range(len(block))]
    assert written == sent


def test_a_log_that_declares_nothing_takes_the_name_of_its_set():
    plain = Stream({"stream.edge_feature_dim": 1})
    edge = {"src": 1, "dst": 2, "time": 5, "features": [1]}
    assert plain.decode(edge | {"edge_set": "default"}, edge)[0][0].values == [1]
    assert plain.decode({"type": "delete", "node_set": "default", "node": 1})[0][0].kind == DELETE
    assert plain.refused(edge | {"edge_set": "views"})[0] == "unknown_set"
    assert plain.refused({"type": "node", "id": 1, "node_set": "user"})[0] == "unknown_set"


def test_features_of_the_set_default_have_names_too():
    plain = Stream({"graph.edge_sets": {"default": {"features": {"seconds": "number", "how": {"categories": ["card"]}}}}})
    by_name = {"src": 1, "dst": 2, "time": 5, "features": {"seconds": 1, "how": "card"}}
    as_array = by_name | {"features": [1, 1, 0]}
    for decoded in (plain.decode(by_name, as_array), plain.decode([as_array, by_name, by_name])):
        assert not decoded[1] and {tuple(e.values) for e in decoded[0]} == {(1, 1, 0)}
    assert plain.refused(by_name | {"features": [1]})[0] == "feature_width"
    assert "the stream has no feature a" in plain.refused(by_name | {"features": {"a": 1}})[1]


def test_text_of_a_number_and_names_msgspec_cannot_read_are_taken_one_by_one():
    odd = Stream({"graph.edge_sets": {"default": {"features": {'a"b': "number", "c": "number"}}}})
    events, bad = odd.decode([{"src": 1, "dst": 2, "time": 5, "features": {'a"b': 1, "c": "2"}}])
    assert not bad and events[0].values == [1, 2]
    assert Stream(SETS).decode(BUY | {"features": {"price": "3.5", "how": "card"}})[0][0].values == BUY_ROW


def test_ingest_writes_each_set_and_refuses_by_set(tmp_path):
    world = World(tmp_path, stream__label_dim=1, ingest__max_nodes=5, **{k.replace(".", "__"): v for k, v in SETS.items() if k.startswith("graph")})
    now = world.clock.now_us()
    at = {"time": now}
    world.send(0, *({**e, **at} for e in (VIEW, BUY, KNOWS)))
    world.send(0, {"type": "delete", "edge_set": "views", "src": "8", "dst": "41", "time": now}, {"type": "delete", "edge_set": "buys", "src": "8", "dst": "41", "time": now})
    world.send(0, {"type": "node", "node_set": "item", "id": "8"}, {"type": "label", "node_set": "item", "node": "8", "time": now, "target": [1]},
               {**KNOWS, **at, "src": "a", "dst": "b"})
    world.run(2)
    assert [e[:2] for e in world.events()] == [("8", SetKey(ITEM, "8")), ("8", "9")]
    letters = {x["reason"]: x for x in world.dead_letters()}
    # Only the edge of the set that the delete names is one of the log's.
    assert set(letters) == {"unmatched_delete", "node_limit"} and len(world.reader().keys) == 4
    world.stop()
    log = world.reader()
    assert log.state.schema == schema_of(world.settings) and isinstance(log.state.schema, Schema)
    assert np.array_equal(log.features_of(np.arange(3))[:, :3], np.eye(3, dtype=np.float32))


VALUES = st.sampled_from([0, 1, 2.5, -1, True, False, None, "card", "2.5", "", "x" * 70, 10**18, 10**40, 1e16, [1], {"a": 1}, "de"])
NAMED = st.dictionaries(st.sampled_from(["seconds", "deep", "price", "how", "age", "none"]), VALUES, max_size=3)
ODD = st.fixed_dictionaries({}, optional={
    "edge_set": st.sampled_from(["views", "buys", "knows", "none", None, 1]), "src": VALUES, "dst": st.sampled_from(["a", "b", 1, "8"]), "time": st.sampled_from([5, 6, None, -1, 2.5]),
    "features": NAMED | st.lists(VALUES, max_size=4) | st.none(), "type": st.sampled_from(["edge", "node", "label", "delete"]), "node_set": st.sampled_from(["user", None]), "more": VALUES})
LIKELY = st.sampled_from([VIEW, BUY, KNOWS, VIEW | {"features": [1, 0]}, BUY | {"features": {"price": 1}}])


@given(st.lists(LIKELY | ODD | st.builds(lambda a, b: a | b, LIKELY, ODD), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_many_at_once_are_what_each_is_alone(events):
    at_once, alone = Stream(SETS), Stream(SETS)
    alone.decoder.own._edges = lambda *a: None
    told = []
    for stream in (at_once, alone):
        for values in ([events], events):
            taken, bad = stream.decode(*values)
            told.append(([e[4:] + (e.time,) for e in taken], [(b.reason, b.error) for b in bad] if values == events else [b.reason for b in bad]))
    assert told[0] == told[2] and told[1] == told[3]
