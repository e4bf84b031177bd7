"""Completion of keys: bounded, typed, without deleted nodes."""

import asyncio

from streamd.events import SetKey
from streamd.schema import DEFAULT_SET
from streamd.server.http import completion
from streamd.server.http.completion import complete_prefix
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World


def complete(keys, prefix, node_set=None, limit=10, is_wanted=None):
    return asyncio.run(complete_prefix(keys, prefix, node_set, limit, is_wanted))


def test_newest_nodes_come_first_and_the_equal_key_before_all():
    keys = ["ab", "a", "abc", None, "b", 12, 1, "1"]
    assert complete(keys, "a") == (["a", "abc", "ab"], True)
    assert complete(keys, "1") == (["1", 1, 12], True), "integers stay integers"
    assert complete(keys, "") == (["1", 1, 12, "b", "abc", "a", "ab"], True)
    assert complete(keys, "zz") == ([], True)


def test_a_node_set_leaves_out_the_others():
    keys = ["a1", SetKey(1, "a2"), SetKey(1, 7), SetKey(2, "a3")]
    assert complete(keys, "a", 0)[0] == ["a1"] and complete(keys, "a", 1)[0] == ["a2"] and complete(keys, "7", 1)[0] == [7]
    assert complete(keys, "a")[0] == ["a3", "a2", "a1"]


def test_only_nodes_that_are_wanted_are_given(monkeypatch):
    monkeypatch.setattr(completion, "SLICE_KEYS", 3)
    keys = [f"k{i}" for i in range(10)]
    assert complete(keys, "k", is_wanted=lambda node_N: node_N % 4 == 1) == (["k9", "k5", "k1"], True)
    assert complete(keys, "k6", is_wanted=lambda node_N: node_N % 4 == 1) == ([], True)


def test_it_looks_at_so_many_keys_and_says_when_there_may_be_more(monkeypatch):
    monkeypatch.setattr(completion, "SLICE_KEYS", 10)
    monkeypatch.setattr(completion, "MAX_KEYS", 50)
    keys = [f"k{i}" for i in range(200)]
    assert complete(keys, "k1", limit=3) == (["k199", "k198", "k197"], True)
    assert complete(keys, "k0") == ([], False), "it lies before those that are looked at"
    assert complete(keys[:50], "k0") == (["k0"], True)


def test_keys_that_come_meanwhile_spoil_nothing(monkeypatch):
    monkeypatch.setattr(completion, "SLICE_KEYS", 2)
    keys = [f"k{i}" for i in range(20)]

    async def both():
        asking = asyncio.create_task(complete_prefix(keys, "k", None, 50))
        for i in range(5):
            await asyncio.sleep(0)
            keys.append(f"k{20 + i}")
        return await asking

    found, complete_ = asyncio.run(both())
    assert found == [f"k{i}" for i in range(19, -1, -1)] and complete_


def test_the_route_bounds_what_is_asked(tmp_path):
    write_log(tmp_path, *stream(200), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, server__api_keys=["reader"]).start()
    key = {"X-API-Key": "reader"}
    assert world.client.get("/v1/nodes", params={"prefix": "n:1"}).status_code == 401
    got = world.client.get("/v1/nodes", params={"prefix": "n:1"}, headers=key).json()
    assert got["nodes"][0] == "n:1" and len(set(got["nodes"])) == 10 and set(got["nodes"]) < {"n:1", *(f"n:1{i}" for i in range(10))}
    sources = world.client.get("/v1/nodes", params={"prefix": "n:2", "limit": 50, "source_in": DEFAULT_SET}, headers=key).json()["nodes"]
    assert sources == ["n:2"], "users are n:0 to n:19, items n:20 to n:34"
    for wrong in ({"limit": 51}, {"source_in": "none"}, {"limit": 0}, {"prefix": "x" * 1025}, {"node_set": "none"}):
        assert world.client.get("/v1/nodes", params=wrong, headers=key).status_code == 422
    world.stop()
