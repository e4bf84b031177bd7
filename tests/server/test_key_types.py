"""The text "5" and the integer 5 are two nodes: the metadata says which the log has, and an answer about the wrong one says so."""

import asyncio

import pytest

from streamd.server.engine.key_types import SLICE_KEYS, KeyTypes, hint_of
from tests.builders import (
    HOUR,
    SETS,
    declared,
    sets_stream,
    settings,
    stream,
    write_log,
    write_sets_log,
)
from tests.server.world import SCHEMA, World

META, INFER = "/v2/models/streamd", "/v2/models/streamd/infer"


@pytest.fixture(scope="module")
def integers(tmp_path_factory):
    """A log whose keys are all integers."""
    path = tmp_path_factory.mktemp("integers")
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR, key_of=int)
    made = World(path).start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Sources have integer keys, destinations texts, but for one."""
    path = tmp_path_factory.mktemp("both")
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR, key_of=lambda i: i if i < 20 or i == 25 else str(i))
    made = World(path).start()
    yield made
    made.stop()


def infer(world, datatype, src, dst):
    tensors = [{"name": "src", "shape": [1], "datatype": datatype, "data": [src]},
               {"name": "dst", "shape": [1, len(dst)], "datatype": datatype, "data": [dst]}]
    answer = world.client.post(INFER, json={"inputs": tensors})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_metadata_says_the_types_of_the_logs_keys(integers, both):
    told = integers.client.get(META).json()["inputs"]
    assert told == [{"name": "src", "datatype": "INT64", "shape": [-1]}, {"name": "dst", "datatype": "INT64", "shape": [-1, -1]},
                    {"name": "time", "datatype": "INT64", "shape": [-1]}]
    config = integers.client.get(f"{META}/config").json()["input"]
    assert [(one["name"], one["data_type"]) for one in config] == [("src", "TYPE_INT64"), ("dst", "TYPE_INT64"), ("time", "TYPE_INT64")]
    src = both.client.get(META).json()["inputs"][0]
    assert src == {"name": "src", "datatype": "BYTES", "shape": [-1], "parameters": {"datatypes": ["BYTES", "INT64"]}}


def test_text_of_an_integer_key_gets_a_hint_in_every_answer_about_it(integers):
    post, get = integers.client.post, integers.client.get
    hint = 'The text "5" is no node, but the integer 5 is.'
    assert infer(integers, "BYTES", "5", ["21"])["parameters"]["hint"].startswith(hint)
    for path, body in (("score", {"src": "5", "dst": [21]}), ("recommend", {"src": "5", "k": 2}),
                       ("recommend", {"src": "5", "k": 2, "exact": True}), ("explain", {"src": "5", "dst": 21}),
                       ("score/batch", {"requests": [{"src": "5", "dst": [21]}]}), ("recommend/batch", {"requests": [{"src": "5"}]})):
        answer = post(f"/v1/{path}", json=body).json()
        answer = answer[0] if isinstance(answer, list) else answer
        assert answer["hint"].startswith(hint) and answer["known"] is False, path
    assert get("/v1/embeddings/5").status_code == 404, "the rule makes none"
    dst = post("/v1/score", json={"src": 5, "dst": [21, "22"]}).json()
    assert dst["hint"].startswith('The text "22" is no node') and dst["known"]


def test_an_answer_about_known_nodes_or_about_strangers_has_no_hint(integers):
    post, get = integers.client.post, integers.client.get
    assert "parameters" not in infer(integers, "INT64", 5, [21, 22]) and "parameters" not in infer(integers, "BYTES", "05", ["no"])
    for body in ({"src": 5, "dst": [21]}, {"src": "stranger", "dst": ["99999", 77777, "5.0", " 5", "٥"]}):
        assert "hint" not in post("/v1/score", json=body).json()
    assert "hint" not in post("/v1/explain", json={"src": 5, "dst": 21}).json() and get("/v1/embeddings/stranger").status_code == 404


def test_the_integer_of_a_text_key_gets_one_too(both):
    answer = both.client.post("/v1/score", json={"src": 5, "dst": [22, "23", 25]}).json()
    assert [s["known"] for s in answer["scores"]] == [False, True, True]
    assert answer["hint"].startswith('The integer 22 is no node, but the text "22" is.')
    assert infer(both, "INT64", 5, [22])["parameters"]["hint"].endswith("on /v2 as BYTES).")


def test_a_hint_is_about_the_node_set_that_is_asked(tmp_path):
    """Users 0 to 19 and items 0 to 14 have integer keys in two node sets."""
    write_sets_log(tmp_path, *sets_stream(300), watermark=100 * HOUR)
    world = World.of(tmp_path, settings(tmp_path, **declared())).start()
    try:
        edge_set = SETS.edge_sets[0].name
        asked = {"src": 3, "edge_set": edge_set}
        assert 'The text "4"' in world.client.post("/v1/score", json={**asked, "dst": ["4"]}).json()["hint"]
        assert "hint" not in world.client.post("/v1/score", json={**asked, "dst": ["17"]}).json(), "17 is a user and no item"
        assert {i["name"]: i["datatype"] for i in world.client.get(META).json()["inputs"]}["dst"] == "INT64"
    finally:
        world.stop()


def test_types_are_found_as_keys_come_and_a_replaced_log_is_read_again():
    types, keys = KeyTypes(), list(range(SLICE_KEYS + 5))

    def types_of(keys, node_sets):
        return asyncio.run(types.of(keys, node_sets))

    assert types_of((), {0}) == set() and types_of(keys, {0}) == {int}
    keys[3] = None
    keys.append("a")
    assert types_of(keys, {0}) == {int, str} and types_of(keys, {1}) == set()
    assert types_of(["b"], {0}) == {str}


def test_twins_are_written_alike():
    ids = {5: 0, -7: 1, "9": 2, 2**63 - 1: 3}
    for key, has_twin in (("5", True), ("-7", True), (9, True), (str(2**63 - 1), True), ("05", False), ("+5", False), ("5 ", False),
                          ("-", False), ("²", False), ("9" * 1000, False), (5, False), ("9", False), (True, False), ("", False)):
        assert bool(hint_of(ids, [key])) == has_twin, key
    assert hint_of(ids, ["none", 8, "5"]) == hint_of(ids, ["5"]) and hint_of((), ["5"]) == ""
