"""Sources that name sets: topics in a shape of their own that fill a log of several sets."""

import base64
import json

import pytest
import yaml

from streamd.decode.wire import OWN_EVENT_US
from streamd.events import SetKey
from streamd.ingest import loop
from tests.decode.mapped import TOPIC, Topic
from tests.ingest.test_mapped_loop import contents
from tests.ingest.world import World

USER, ITEM = 0, 1
SETS = {
    "node_sets": {"user": {"features": {"age": "number"}}, "item": {"features": {"size": {"categories": ["s", "l"]}}}},
    "edge_sets": {"views": {"source": "user", "target": "item", "features": {"seconds": {"type": "number", "missing": 0}}},
                  "buys": {"source": "user", "target": "item", "features": {"price": "number", "how": {"categories": ["card"], "missing": "?"}}},
                  "knows": {"source": "user", "target": "user"}}}
TOPICS = [
    {"topic": "events", "edge_set": "views", "time": "s", "where": {"kind": "view"},
     "fields": {"src": {"path": "u", "prefix": "u"}, "dst": "item", "time": "t", "features": {"seconds": "s"}},
     "deletes": {"where": {"kind": "undo"}, "edge_set": "buys", "fields": {"src": {"path": "u", "prefix": "u"}, "dst": "item", "time": "t"}},
     "labels": {"where": {"kind": "rate"}, "node_set": "item", "fields": {"node": "item", "time": "t", "target": "stars"}},
     "nodes": {"where": {"kind": "item"}, "node_set": "item", "fields": {"id": "item", "features": {"size": "size"}}}},
    {"topic": "orders", "edge_set": "buys", "time": "s", "where": {"kind": "buy"},
     "fields": {"src": {"path": "u", "prefix": "u"}, "dst": "item", "time": "t", "features": {"price": "p", "how": "how"}},
     "deletes": {"where": {"kind": "forget"}, "node_set": "user", "fields": {"node": {"path": "u", "prefix": "u"}}},
     "nodes": {"where": {"kind": "user"}, "node_set": "user", "fields": {"id": {"path": "u", "prefix": "u"}, "features": {"age": "age"}}}}]
NATIVE = {"graph__node_sets": SETS["node_sets"], "graph__edge_sets": SETS["edge_sets"], "stream__label_dim": 1}


def declared(body, **values):
    """Settings of one topic beside SETS, whose order counts."""
    return yaml.safe_dump({"sources": [{"topic": TOPIC} | yaml.safe_load(body)], "graph": SETS, **values}, sort_keys=False)


def both(now_s, i):
    """The topic of a record, the record, and the same event as our own. Users and items share their numbers."""
    user, item, now_us = i % 7, f"u{i % 5}", now_s * 10**6
    named = {"u": user, "item": item, "t": now_s}
    if i % 60 == 10:
        return 1, named | {"kind": "forget"}, {"type": "delete", "node_set": "user", "node": f"u{user}"}
    if i % 30 == 24:
        return 0, named | {"kind": "undo"}, {"type": "delete", "edge_set": "buys", "src": f"u{user}", "dst": item, "time": now_us}
    if i % 7 == 2:
        return 0, named | {"kind": "rate", "stars": i}, {"type": "label", "node_set": "item", "node": item, "time": now_us, "target": [i]}
    if i % 11 == 3:
        return 1, named | {"kind": "user", "age": i}, {"type": "node", "node_set": "user", "id": f"u{user}", "features": {"age": i}}
    if i % 11 == 4:
        return 0, named | {"kind": "item", "size": "l"}, {"type": "node", "node_set": "item", "id": item, "features": [0, 1, 0]}
    ends = {"src": f"u{user}", "dst": item, "time": now_us}
    if i % 2:
        return 0, named | {"kind": "view", "s": i / 2}, {"edge_set": "views", "features": {"seconds": i / 2}} | ends
    return 1, named | {"kind": "buy", "p": i, "how": "card" if i % 4 else None}, {"edge_set": "buys", "features": {"price": i, "how": "card" if i % 4 else None}} | ends


@pytest.mark.parametrize("size", [1, 7])
def test_topics_of_several_sets_make_the_log_that_our_own_events_make(tmp_path, size):
    own, other = World(tmp_path / "own", 2, **NATIVE), World(tmp_path / "other", 2, topics=("events", "orders"), **NATIVE, sources=TOPICS)
    now_s = own.clock.now_us() // 10**6
    made = [both(now_s, i) for i in range(210)]
    for part in (0, 1):
        mine = [m for m in made if m[0] == part]
        for first in range(0, len(mine), size):
            other.send(part, *(a for _, a, _ in mine[first: first + size]))
            own.send(part, *(b for _, _, b in mine[first: first + size]))
    for world in (own, other):
        world.run(2).stop()
    assert contents(own) == contents(other)
    (src, _, _, rows, *_), keys, _ = contents(other)
    assert len(src) > 100 and {tuple(r[:3]) for r in rows} == {(1, 0, 0), (0, 1, 0)} and {"u3", SetKey(ITEM, "u3")} <= {*keys}
    reasons = [[(x["offset"], x["index"], x["reason"]) for x in w.dead_letters()] for w in (own, other)]
    assert reasons[0] == reasons[1]


def test_topics_of_different_sets_lose_nothing_when_ingest_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_COMMIT_EVENTS", 3)

    def made(name):
        world = World(tmp_path / name, 2, topics=("events", "orders"), **NATIVE, sources=TOPICS, segment_edges=16)
        now_s = world.clock.now_us() // 10**6
        for i in range(0, 120, 6):
            for part in (0, 1):
                world.send(part, *[record for p, record, _ in (both(now_s, j) for j in range(i, i + 6)) if p == part] or [{"kind": "none"}])
        return world

    killed, spared = made("killed"), made("spared")
    spared.run(2).stop()
    for _ in range(25):
        killed.step()
        killed.loop.commit(killed.source)
        killed.kill().start()
    killed.run(2).stop()
    assert contents(killed) == contents(spared) and len(killed.reader().state.segments) > 2


def test_an_event_that_the_log_refused_is_sent_again_as_what_it_is(tmp_path):
    """A letter of a mapped topic is our own event, which names its set."""
    world = World(tmp_path, 2, topics=("events", "orders"), **NATIVE, sources=TOPICS, ingest__late_policy="dead_letter")
    now_s = world.clock.now_us() // 10**6
    world.send(1, {"u": 1, "item": "a", "t": now_s, "kind": "buy", "p": 3})
    world.run(2)
    world.send(1, {"u": 1, "item": "a", "t": now_s - 9, "kind": "buy", "p": 4, "how": "card"})
    world.run(2)
    letter, = world.dead_letters()
    value = base64.b64decode(letter["value_base64"])
    assert json.loads(value) == {"edge_set": "buys", "src": "u1", "dst": "a", "time": (now_s - 9) * 10**6, "features": [4, 1, 0]}
    again = World(tmp_path / "again", 2, topics=("events", "orders"), **NATIVE, sources=TOPICS)
    again.send(1, value=value, headers=[("content-type", OWN_EVENT_US.encode())])
    by_name = [{"edge_set": "buys", "src": "u1", "dst": "a", "time": now_s * 10**6, "features": {"price": p}} for p in (5, 6)]
    again.send(1, *by_name, headers=[("content-type", OWN_EVENT_US.encode())])
    again.run(2).stop()
    assert contents(again)[0][3] == [[0, 1, 0, 0, 4, 1, 0], [0, 1, 0, 0, 5, 0, 1], [0, 1, 0, 0, 6, 0, 1]] and again.events()[0][:2] == ("u1", SetKey(ITEM, "a"))
    world.stop()


def test_a_tombstone_deletes_of_the_set_that_the_source_names(tmp_path):
    body = """{edge_set: views, time: s, fields: {src: u, dst: i, time: t},
        deletes: {where: {gone: true}, node_set: item, fields: {node: $key.id}}}"""
    topic = Topic(declared(body, ingest={"tombstones": "delete"}), tmp_path)
    (event,), bad = topic.decode(None, key=b'{"id": 8}')
    assert not bad and event.a == SetKey(ITEM, 8)


def test_the_rows_of_a_change_stream_are_deleted_from_their_set(tmp_path):
    body = """{envelope: debezium, edge_set: knows, time: s, fields: {src: u, dst: i, time: t}}"""
    topic = Topic(declared(body), tmp_path)
    made, = topic.decode({"op": "c", "before": None, "after": {"u": 1, "i": 2, "t": 5}})[0]
    gone, = topic.decode({"op": "d", "before": {"u": 1, "i": 2, "t": 5}, "after": None})[0]
    assert made.values == [0, 0, 1, 0, 0, 0, 0] and (gone.a, gone.b, gone.values) == (1, 2, [5_000_000, 2])
