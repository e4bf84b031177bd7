"""`drop_keys`: events of keys that are no nodes are dropped and counted, whatever decodes them."""

import json

import pytest

from streamd.events import DELETE, EDGE
from streamd.telemetry import metrics
from tests.decode.mapped import Topic, record, source

BODY = "{time: us, drop_keys: [nan, '[deleted]', 7], fields: {src: {path: u, prefix: 'user:'}, dst: v, time: t}, deletes: {where: {k: [gone]}, fields: {node: v}}}"


def edge(u, v, t=5, **more):
    return {"u": u, "v": v, "t": t, **more}


def dropped():
    return metrics.dropped.labels("clicks", "drop_keys")._value.get()


@pytest.mark.parametrize("alone", [False, True], ids=["together", "one by one"])
def test_events_with_such_a_key_are_dropped_and_counted(tmp_path, alone):
    topic = Topic(source(BODY), tmp_path)
    rows = [edge("ann", "a"), edge("nan", "a"), edge("ann", "[deleted]"), edge(7, "b"), edge("7x", 7), edge("bob", "7"), edge("x", "nan", k="gone"), edge("x", "b", k="gone")]
    before = dropped()
    # A record that does not fit makes the others of its batch be decoded one by one.
    events, rejected = topic.of([record(row, i) for i, row in enumerate([*rows, edge(None, "a")][: len(rows) + alone])])
    assert [(e.kind, e.a, e.b) for e in events] == [(EDGE, "user:ann", "a"), (EDGE, "user:bob", "7"), (DELETE, "b", None)]
    assert dropped() - before == 5 and len(rejected) == alone


def test_several_events_of_a_record_and_nothing_to_drop(tmp_path):
    topic = Topic(source(BODY), tmp_path)
    events, _ = topic.of([record(json.dumps([edge("ann", "a"), edge("nan", "a"), edge("bob", "a")]).encode())])
    assert [e.a for e in events] == ["user:ann", "user:bob"]
    topic = Topic(source("{time: us, fields: {src: u, dst: v, time: t}}"), tmp_path)
    assert len(topic.of([record(edge("nan", "a"))])[0]) == 1, "nothing is dropped unless a source says so"
