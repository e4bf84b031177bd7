"""The newest events around a node, and the stream that follows them."""

import asyncio
import dataclasses
import json
import socket
from contextlib import closing

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.server.engine import recent_activity as around
from streamd.server.engine.recent_activity import MAX_STREAMS, follow
from tests.builders import HOUR, declared, sets_stream, settings, stream, write_log, write_sets_log
from tests.server.world import SCHEMA, World, ask, listening, wait


@pytest.fixture
def world(tmp_path):
    write_log(tmp_path, *stream(400), SCHEMA, watermark=100 * HOUR)
    made = World(tmp_path).start()
    yield made
    made.stop()


def look(world, key="n:3", edge_set=0):
    _, found = world.engine.around(key, edge_set)
    return found().content(*world.state.sets.names)


def test_the_newest_events_of_a_node_and_of_its_neighbors_are_told(world):
    got = look(world)
    log = LogReader.open(world.path)
    src, dst, time = log.edges(0, log.num_edges)
    keys = [n["key"] for n in got["nodes"]]
    own = [i for i in range(len(src)) if 3 in (src[i], dst[i])][-12:]
    told = {e["id"]: e for e in got["events"]}
    assert set(own) <= set(told) and 1 < len(keys) <= 50 and len(set(keys)) == len(keys)
    for event, e in told.items():
        assert (keys[e["src"]], keys[e["dst"]], e["time_us"]) == (f"n:{src[event]}", f"n:{dst[event]}", time[event])
    assert [n["key"] for n in got["nodes"] if n["hops"] == 0] == ["n:3"]
    near = {x for i in own for x in (f"n:{src[i]}", f"n:{dst[i]}")} - {"n:3"}
    assert {n["key"] for n in got["nodes"] if n["hops"] == 1} == near
    assert set(got["partners"]) <= {f"n:{dst[i]}" for i in range(len(src)) if src[i] == 3} and got["partners"]


@pytest.mark.parametrize(("since", "is_hub"), [(31, False), (32, True)])
def test_a_hub_tells_nothing_of_its_own(tmp_path, since, is_hub):
    """0 -> 1 (the hub), 0 -> 2, 9 -> 2; then `since` others -> 1."""
    src = np.array([0, 0, 9, *range(10, 10 + since)])
    dst = np.array([1, 2, 2, *[1] * since])
    write_log(tmp_path, src, dst, np.arange(len(src)) * 1000, SCHEMA, watermark=100 * HOUR)
    made = World(tmp_path).start()
    try:
        got = look(made, "n:0")
    finally:
        made.stop()
    assert {e["id"] for e in got["events"]} == ({0, 1, 2} if is_hub else {0, 1, 2, *range(len(src) - 3, len(src))})
    assert {n["key"] for n in got["nodes"] if n["hops"] == 1} == {"n:1", "n:2"}, "the hub itself is shown"


def test_of_a_node_never_seen_and_of_a_deleted_one_nothing_is_told(world):
    assert look(world, "nobody") == {"edge": 400, "nodes": [{"key": "nobody", "node_set": "default", "hops": 0}], "events": [], "partners": []}
    gone = next(n["key"] for n in look(world)["nodes"] if n["hops"] == 1)
    with closing(LogWriter(world.path, SCHEMA, 100_000)) as writer:
        rows = np.zeros(1, DELETION)
        rows["src"], rows["dst"], rows["time"] = int(gone[2:]), -1, -1
        writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), 100 * HOUR)
        wait(lambda: gone not in [n["key"] for n in look(world)["nodes"]])
    assert gone not in json.dumps(look(world)) and look(world, gone)["events"] == []


def test_events_of_several_sets_name_theirs(tmp_path):
    write_sets_log(tmp_path, *sets_stream(400), watermark=100 * HOUR)
    world = World.of(tmp_path, settings(tmp_path, **{k.replace(".", "__"): v for k, v in declared().items()})).start()
    got = look(world, 3, 1)
    assert {e["edge_set"] for e in got["events"]} == {"views", "buys", "follows"}
    assert {n["node_set"] for n in got["nodes"]} == {"user", "item"}
    log = LogReader.open(tmp_path)
    src, dst, _ = log.edges(0, 400)
    bought = dst[(src == 3) & (log.edge_sets(0, 400) == 1)] - 20
    assert set(got["partners"]) == set(bought.tolist()[-16:])
    refused = world.client.get("/around/3", params={"integer": True})
    assert refused.status_code == 422 and "edge_set is required" in refused.text
    world.stop()


def test_a_stream_sends_what_changed_beats_and_ends_with_the_server(monkeypatch):
    monkeypatch.setattr(around, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(around, "KEEP_ALIVE_SECONDS", 0.02)
    edge, content, stopping = [1], [{"edge": 1, "nodes": ["a"]}], [False]

    async def read():
        got = []
        async for part in follow(lambda: (edge[0], lambda: content[0]), lambda: stopping[0]):
            got.append(part)
            if len(got) == 1:
                edge[0], content[0] = 2, {"edge": 2, "nodes": ["a"]}
            elif len(got) == 2:
                edge[0], content[0] = 3, {"edge": 3, "nodes": ["a", "b"]}
            elif len(got) == 3:
                stopping[0] = True
        return got

    first, beat, second, end = asyncio.run(read())
    assert first == b'event: around\ndata: {"edge":1,"nodes":["a"]}\n\n'
    assert beat.startswith(b": "), "more events elsewhere are no news"
    assert json.loads(second.split(b"data: ")[1])["nodes"] == ["a", "b"] and end.startswith(b"event: end\n")


def test_a_line_break_in_a_key_cannot_forge_an_event(monkeypatch):
    monkeypatch.setattr(around, "CHECK_SECONDS", 0.0)
    once = iter([False, True])

    async def read():
        return [part async for part in follow(lambda: (1, lambda: {"key": "a\n\nevent: around\ndata: {}\n\n"}), lambda: next(once))]

    parts = asyncio.run(read())
    assert len(parts) == 2 and parts[0].count(b"\n\n") == 1


def test_a_stream_needs_a_key_and_there_are_so_many_of_them(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(200), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, server__api_keys=["reader"]).start()
    assert world.client.get("/around/n:3").status_code == 401
    key = {"X-API-Key": "reader"}
    world.state.draining = True
    answer = world.client.get("/around/n:3", headers=key)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == "event: end\ndata: {}\n\n", "a server that drains ends streams at once"
    assert world.state.streams.num_open == 0
    monkeypatch.setattr(world.state.streams, "num_open", around.MAX_STREAMS)
    full = world.client.get("/around/n:3", headers=key)
    assert full.status_code == 503 and full.headers["retry-after"] == "30" and world.state.streams.num_open == around.MAX_STREAMS
    world.stop()


@pytest.mark.parametrize(("node", "query", "says"), [
    ("u" * 10_000, {}, "at most 1024 characters"), ("", {}, "at least 1 character"), ("n:3", {"edge_set": "likes"}, "no edge_set 'likes'"),
    ("n:3", {"edge_set": "x" * 10_000}, "at most 256 characters"), ("n:3", {"integer": "true"}, "'n:3' is not an integer key"),
    ("9" * 30, {"integer": "true"}, "does not fit int64")])
def test_a_question_that_does_not_fit_is_refused_before_the_stream_begins(world, node, query, says):
    answer = world.client.get(f"/around/{node}", params=query)
    assert answer.status_code == 422 and says in answer.json()["detail"] and world.state.streams.num_open == 0


def test_many_clients_get_a_stream_or_are_told_to_come_again_and_those_who_read_slowly_harm_nobody(tmp_path, monkeypatch):
    """Five hundred at once, most of whom never read; then all of them go without a word."""
    monkeypatch.setattr(around, "CHECK_SECONDS", 0.05)
    write_log(tmp_path, *stream(400), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path).start()
    with listening(world) as address:
        links = [socket.create_connection(address, timeout=30) for _ in range(500)]
        for link in links:
            link.sendall(b"GET /around/n:3 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        heads = [link.recv(12) for link in links]
        assert heads.count(b"HTTP/1.1 200") == MAX_STREAMS and heads.count(b"HTTP/1.1 503") == 500 - MAX_STREAMS
        assert world.state.streams.num_open == MAX_STREAMS and ask(world)["known"]
        for link in links:
            link.close()
        wait(lambda: world.state.streams.num_open == 0)
        with socket.create_connection(address, timeout=30) as link:
            link.sendall(b"GET /around/n:3 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert link.recv(12) == b"HTTP/1.1 200", "there is room again"
        world.state.draining = True
    world.stop()


def test_before_it_is_ready_a_stream_is_refused(tmp_path):
    world = World(tmp_path)
    world.run()
    assert world.client.get("/around/n:3").status_code == 503
    world.stop()
