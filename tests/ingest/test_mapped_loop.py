"""Mapped topics through the real loop into the real log."""

import base64
import json

import numpy as np
import pytest

from streamd.decode import decoder
from streamd.decode.wire import OWN_EVENT_US
from streamd.errors import JournalError, SchemaRegistryError
from streamd.eventlog.reader import LogReader
from streamd.ingest import loop
from streamd.ingest.dead_letters.sinks import DeadLetter, make_dead_letters
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import read_beat
from tests.builders import settings
from tests.ingest.world import World
from tests.readings import reading

DECLARED = {
    "graph__edge_sets": {"default": {"features": {"seconds": {"type": "number", "missing": 0}, "how": {"categories": ["card"], "missing": "?"}}}},
    "graph__node_sets": {"default": {"features": {"age": "number"}}},
    "stream__label_dim": 1,
    "sources": [{
        "topic": "events", "time": "s", "where": {"kind": "buy"},
        "fields": {"src": {"path": "u", "prefix": "user:"}, "dst": "item.id", "time": "t", "features": {"seconds": "s", "how": "how"}},
        "deletes": {"where": {"kind": "forget"}, "fields": {"node": {"path": "u", "prefix": "user:"}}},
        "labels": {"where": {"kind": "rate"}, "fields": {"node": {"path": "u", "prefix": "user:"}, "time": "t", "target": "stars"}},
        "nodes": {"where": {"kind": "profile"}, "fields": {"id": {"path": "u", "prefix": "user:"}, "features": {"age": "age"}}}}]}
NATIVE = {name: value for name, value in DECLARED.items() if name != "sources"}


def both(now_s, i):
    """A record of a mapped topic and the same event as our own."""
    user = {"u": i % 7}
    if i % 60 == 10:
        return user | {"kind": "forget"}, {"type": "delete", "node": f"user:{i % 7}"}
    if i % 5 == 3:
        return user | {"kind": "profile", "age": i}, {"type": "node", "id": f"user:{i % 7}", "features": [i]}
    if i % 7 == 2:
        return user | {"kind": "rate", "t": now_s, "stars": i}, {"type": "label", "node": f"user:{i % 7}", "time": now_s * 10**6, "target": [i]}
    return (user | {"kind": "buy", "item": {"id": i % 4}, "t": now_s, "s": i / 2, "how": "card" if i % 2 else None},
            {"src": f"user:{i % 7}", "dst": i % 4, "time": now_s * 10**6, "features": [i / 2, i % 2, 1 - i % 2]})


def contents(world):
    """All that a log holds."""
    log = world.reader()
    span = log.first_edge, log.num_edges
    columns = [*log.edges(*span), log.features_of(np.arange(*span)), log.hidden(*span), *log.labels()]
    return [c.tolist() for c in columns], list(log.keys), [(n.tolist(), v.tolist()) for n, v, _ in log.feature_updates().until(2**62)]


@pytest.mark.parametrize("size", [1, 7])
def test_a_mapped_topic_makes_the_log_that_our_own_events_make(tmp_path, size):
    own, other = World(tmp_path / "own", **NATIVE), World(tmp_path / "other", **DECLARED)
    now_s = own.clock.now_us() // 10**6
    pairs = [both(now_s, i) for i in range(210)]
    for first in range(0, len(pairs), size):
        part = pairs[first: first + size]
        other.send(0, *(a for a, _ in part))
        own.send(0, *(b for _, b in part))
    for world in (own, other):
        world.run(2).stop()
    assert contents(own) == contents(other)
    assert len(own.events()) > 50 and contents(own)[2]
    reasons = [[(x["offset"], x["index"], x["reason"]) for x in w.dead_letters()] for w in (own, other)]
    assert reasons[0] == reasons[1]


def test_places_stay_where_they_are_when_ingest_is_killed_within_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_COMMIT_EVENTS", 3)
    world = World(tmp_path, **DECLARED)
    now_s = world.clock.now_us() // 10**6
    # Every other event of a record is skipped, and some are refused.
    record = [{"u": i, "kind": "buy" if i % 2 else "look", "item": {"id": i if i % 5 else None}, "t": now_s} for i in range(40)]
    world.send(0, *record)
    world.send(0, *record)
    for _ in range(12):
        world.step()
        world.loop.commit(world.source)
        world.kill().start()
    world.run(2).stop()
    want = [f"user:{i}" for i in range(40) if i % 2 and i % 5] * 2
    assert [src for src, _, _ in world.events()] == want
    assert {(x["offset"], x["index"]) for x in world.dead_letters()} == {(o, i) for o in (0, 1) for i in (5, 15, 25, 35)}


OF_EDGES = {"fields": {"src": "u", "dst": "v", "time": "t"}}
OF_NODES = {"nodes": {"fields": {"id": "u"}}}


@pytest.mark.parametrize("rows", [OF_EDGES, OF_NODES])
@pytest.mark.parametrize("stops", [True, False])
def test_a_restart_between_a_deleted_row_and_its_tombstone_makes_no_dead_letter(tmp_path, rows, stops):
    world = World(tmp_path, sources=[{"topic": "events", "envelope": "debezium", "time": "s", **rows}])
    row, key = {"u": 1, "v": 2, "t": world.clock.now_us() // 10**6}, b'{"u": 1}'
    world.send(0, {"op": "c", "before": None, "after": row}, key=key)
    world.send(0, {"op": "d", "before": row, "after": None}, key=key)
    world.run(2)
    if stops:
        world.stop().start()
    else:
        # The partitions are numbered again, as where a topic got another one.
        assert world.loop.begin(world.source)
    world.send(0, value=b"", key=key)
    world.parts[0][-1] = world.parts[0][-1]._replace(value=None)
    world.run(2)
    assert not world.dead_letters() and not world.events()
    # Another one finds no node any more; its key names no edge.
    world.stop().start()
    world.parts[0].append(world.parts[0][-1]._replace(offset=3))
    world.run(2).stop()
    assert not world.dead_letters()


@pytest.mark.parametrize(("rows", "known", "unknown"), [(OF_NODES, {"u": 1}, {"u": 7}), (OF_EDGES, {"u": 1, "v": 2}, {"u": 7, "v": 2})])
def test_a_lone_tombstone_deletes_the_row_that_the_log_has_and_is_counted_otherwise(tmp_path, rows, known, unknown):
    """Compaction removed the change that deleted the row, and perhaps also all that made it."""
    world = World(tmp_path, sources=[{"topic": "events", "envelope": "debezium", "time": "s", **rows}])
    t = {"t": world.clock.now_us() // 10**6}
    world.send(0, {"op": "c", "before": None, "after": known | t}, key=json.dumps(known).encode())
    for key in (unknown, known):
        world.send(0, value=b"", key=json.dumps(key | t).encode())
        world.parts[0][-1] = world.parts[0][-1]._replace(value=None)
    before = reading(metrics.skipped.labels("events"))
    world.run(2).stop()
    assert not world.dead_letters() and not world.events() and reading(metrics.skipped.labels("events")) - before == 1
    assert LogReader.open(tmp_path).deletions.count == 1


class Away:
    """A format whose registry does not answer until it is told to."""

    answers = False

    def value_of(self, record):
        return record.value

    def prepare(self, values, waiting): ...

    def decode(self, value):
        if not self.answers:
            raise SchemaRegistryError("http://registry does not answer.", "check it.")
        return json.loads(value)


def test_ingest_waits_for_a_registry_and_loses_nothing(tmp_path, monkeypatch):
    registry = Away()
    monkeypatch.setattr(decoder, "make_format", lambda source, settings, max_rows: registry)
    world = World(tmp_path, **DECLARED | {"sources": [DECLARED["sources"][0] | {"format": "arrow"}]})
    now_s = world.clock.now_us() // 10**6
    for i in range(10):
        world.send(0, value=json.dumps([{"u": i, "kind": "buy", "item": {"id": 1}, "t": now_s}]).encode())
    # A step that returns False asks for a new assignment, as the role's loop does.
    for _ in range(3):
        assert not world.loop.step(world.source)
        assert read_beat(tmp_path, "ingest").state == "schema registry away"
        assert world.loop.begin(world.source)
    assert world.writer.num_edges == 0 and not world.dead_letters()
    registry.answers = True
    world.run(2).stop()
    assert [src for src, _, _ in world.events()] == [f"user:{i}" for i in range(10)]


def test_what_the_log_refuses_can_be_sent_again_as_our_own_event(tmp_path):
    world = World(tmp_path, ingest__late_policy="dead_letter", **DECLARED)
    now_s = world.clock.now_us() // 10**6
    world.send(0, {"u": 1, "kind": "buy", "item": {"id": 1}, "t": now_s})
    world.run(1)
    world.send(0, {"u": 2, "kind": "buy", "item": {"id": 1}, "t": now_s - 5})
    world.run(1)
    (letter,) = world.dead_letters()
    assert (letter["reason"], letter["content_type"]) == ("late", OWN_EVENT_US)
    mended = json.loads(base64.b64decode(letter["value_base64"])) | {"time": now_s * 10**6}
    headers = (("content-type", letter["content_type"].encode()),)
    world.send(0, mended, headers=headers)
    # One that is refused a second time is still told as ours.
    world.send(0, mended | {"time": "soon"}, headers=headers)
    world.run(1).stop()
    assert [src for src, _, _ in world.events()] == ["user:1", "user:2"]
    assert [f["content_type"] for f in world.dead_letters()] == [OWN_EVENT_US] * 2


def test_a_delete_that_came_before_its_edge_finds_it_when_it_is_sent_again(tmp_path):
    deletes = {"where": {"kind": "undo"}, "fields": {"src": "u", "dst": "v", "time": "t"}}
    fields = {"src": "u", "dst": "v", "time": "t"}
    world = World(tmp_path, stream__time_unit="ms", sources=[{"topic": "events", "time": "us", "fields": fields, "deletes": deletes}])
    # Finer than the stream's unit, which is a millisecond.
    event = {"u": 1, "v": 2, "t": world.clock.now_us() // 1000 * 1000 - 123}
    world.send(0, event | {"kind": "undo"})
    world.run(1)
    (letter,) = world.dead_letters()
    assert letter["reason"] == "unmatched_delete"
    world.send(0, event)
    world.send(0, value=base64.b64decode(letter["value_base64"]), headers=(("content-type", letter["content_type"].encode()),))
    world.run(1).stop()
    assert len(world.dead_letters()) == 1


def test_a_changed_mapping_reads_what_comes_next_and_a_changed_width_is_refused(tmp_path):
    world = World(tmp_path, **DECLARED)
    now_s = world.clock.now_us() // 10**6
    world.send(0, {"u": 1, "kind": "buy", "item": {"id": 1}, "t": now_s})
    world.run(1).stop()
    world.send(0, {"who": 2, "what": 1, "t": now_s})
    changed = {"topic": "events", "time": "s", "fields": {"src": {"path": "who", "prefix": "user:"}, "dst": "what", "time": "t"}}
    world.settings = settings(tmp_path, **DECLARED | {"sources": [changed]})
    world.start().run(1).stop()
    assert [src for src, _, _ in world.events()] == ["user:1", "user:2"]
    world.settings = settings(tmp_path, **DECLARED | {"graph__edge_sets": {"default": {"features": {"seconds": {"hash": 9, "missing": ""}}}}, "sources": [changed]})
    with pytest.raises(JournalError, match="graph.edge_sets.default has the features"):
        world.start()


def test_letters_of_a_deleted_key_are_found_without_its_prefix(tmp_path):
    world = World(tmp_path, **DECLARED)
    letters = make_dead_letters(world.settings)
    for at, value in enumerate([{"u": 8}, {"u": "8"}, {"u": 9}, {"x": {"y": [8]}}, {"data_base64": "e30="}]):
        letters.add(DeadLetter("events", 0, at, 0, "bad_time", "", 5, json.dumps(value).encode()))
    list(letters.purge(["user:8"]))
    assert [json.loads(line)["offset"] for line in (tmp_path / "deadletter/current.jsonl").read_text().splitlines()] == [2]
    world.stop()


BASKETS = {"sources": [
    {"topic": "events", "time": "s", "each": "items", "where": {"kind": "buy"}, "fields": {"src": "u", "dst": "items.id", "time": "t"}},
    {"topic": "events", "time": "s", "also": True, "where": {"kind": ["buy", "visit"]}, "fields": {"src": "u", "dst": {"constant": "shop"}, "time": "t"}}]}


def test_records_of_several_events_are_taken_once_however_often_ingest_is_killed_within_one(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_COMMIT_EVENTS", 3)
    world = World(tmp_path, **BASKETS)
    now_s = world.clock.now_us() // 10**6
    rows = [{"kind": ("buy", "visit", "none")[i % 3], "u": i, "t": now_s, "items": [{"id": f"{i}.{k}" if (i, k) != (9, 1) else None} for k in range(4)]} for i in range(14)]
    world.send(0, *rows)
    world.send(0, rows[0])
    for _ in range(18):
        world.step()
        world.loop.commit(world.source)
        world.kill().start()
    world.run(2)
    want = [(i, dst) for i in [*range(14), 0] if i % 3 < 2 and i != 9 for dst in ([*(f"{i}.{k}" for k in range(4)), "shop"] if i % 3 == 0 else ["shop"])]
    assert [(src, dst) for src, dst, _ in world.events()] == want

    # The record with a bad element is one letter, and makes all its events once it is mended.
    letters = world.dead_letters()
    letter = letters[0]
    # Four elements and the edge to the shop, of each of the nine records before it.
    assert {(x["offset"], x["index"], x["reason"]) for x in letters} == {(0, 45, "missing_field")} and letter["error"].startswith("dst (items.id) is missing, in items.1")
    sent = json.loads(base64.b64decode(letter["value_base64"]))
    sent["items"][1]["id"] = "9.1"
    world.send(0, sent)
    world.run(1).stop()
    assert [(src, dst) for src, dst, _ in world.events()][len(want):] == [(9, "9.0"), (9, "9.1"), (9, "9.2"), (9, "9.3"), (9, "shop")]


def test_a_mapping_that_changes_within_a_record_reads_its_other_events_by_their_index(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_COMMIT_EVENTS", 2)
    world = World(tmp_path, **BASKETS)
    row = {"kind": "buy", "u": 1, "t": world.clock.now_us() // 10**6, "items": [{"id": f"a{k}", "sku": f"b{k}"} for k in range(4)]}
    world.send(0, row)
    world.step()
    world.loop.commit(world.source)
    world.kill()
    before = len(world.events())
    assert 0 < before < 5
    first, second = BASKETS["sources"]
    world.settings = settings(tmp_path, sources=[first | {"fields": first["fields"] | {"dst": "items.sku"}}, second])
    world.start()
    world.send(0, row)
    world.run(2).stop()
    assert [dst for _, dst, _ in world.events()] == [*[f"a{k}" for k in range(4)][:before], *[f"b{k}" for k in range(4)][before:], "shop", "b0", "b1", "b2", "b3", "shop"]
