"""Records of a mapped topic become events in the order in which the topic holds them, whatever types they are of."""

import pytest

from tests.decode.mapped import Topic, record, source

BODY = """
fields: {src: u, dst: v, time: t}
time: s
where: {kind: view}
deletes: {where: {kind: forget}, fields: {node: u}}
"""
NOW = 1_795_400_000


def view(user, item):
    return {"kind": "view", "u": user, "v": item, "t": NOW}


def forget(user):
    return {"kind": "forget", "u": user}


EVENTS = [view(1, 2), forget(1), view(1, 3), {"kind": "none"}, forget(2), forget(1), view(2, 3), view(1, 4)]


@pytest.mark.parametrize("size", [1, 4, 8])
def test_edges_stay_between_the_deletes_that_surround_them(tmp_path, size):
    topic = Topic(source(BODY), tmp_path)
    records = [record(EVENTS[i] if size == 1 else EVENTS[i: i + size], offset=i // size) for i in range(0, len(EVENTS), size)]
    events, rejected = topic.of(records)
    want = [divmod(i, size) for i, event in enumerate(EVENTS) if event["kind"] != "none"]
    assert not rejected and [(e.offset, e.item) for e in events] == want
