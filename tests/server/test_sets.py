"""A server on a log of several kinds of nodes and edges."""

import numpy as np
import pytest
import torch

from streamd.eventlog.reader import LogReader
from streamd.models.loading import load_model
from streamd.training.recorder import Recorder
from tests.builders import HOUR, SETS, declared, learning, sets_stream, settings, write_sets_log
from tests.server.world import World, wait


@pytest.fixture(scope="module", params=["tgn", "sage", "pair"])
def world(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("sets")
    write_sets_log(path, *sets_stream(), watermark=100 * HOUR)
    made = World.of(path, settings(path, model__name=request.param, **{k.replace(".", "__"): v for k, v in declared().items()}))
    made.train()
    made.start()
    wait(lambda: made.engine.status.version == made.registry.champion())
    yield made
    made.stop()


def post(world, path, body, status=200):
    answer = world.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(("edge_set", "targets"), [("views", [0, 3, 14]), ("buys", [0, 3, 14]), ("follows", [4, 5, 19])])
def test_scores_are_those_of_the_asked_edge_set(world, edge_set, targets):
    answer = post(world, "/v1/score", {"src": 3, "dst": targets, "edge_set": edge_set})
    assert [s["dst"] for s in answer["scores"]] == targets and answer["known"] and all(s["known"] for s in answer["scores"])

    # What the trainer would have scored: the facts of the set, by the same version.
    number = SETS.edge_set_names.index(edge_set)
    log = LogReader.open(world.path)
    recorder = Recorder(learning(world.settings), log)
    recorder.rebuild(log.num_edges)
    model, memory = load_model(world.registry.load(world.registry.champion()), SETS)
    nodes = np.array(targets) + (20 if edge_set != "follows" else 0)
    when = int(log.time_of(np.array([899]))[0])
    candidates = np.resize(nodes, (1, 111))
    facts = recorder.live.facts.compute(np.array([3]), np.array([when + 1]), candidates, np.array([number]))
    inputs, _ = recorder._inputs(np.array([900]), facts, np.array([3]), candidates, 900, when)
    with torch.no_grad():
        want = model(inputs, memory.gather(inputs.node_M, model.updated(memory)))[0, :3]
    np.testing.assert_allclose([s["score"] for s in answer["scores"]], want.numpy(), atol=1e-5)


def test_recommendations_are_nodes_of_the_target_set(world):
    items = post(world, "/v1/recommend", {"src": 3, "edge_set": "views", "k": 50, "exact": True})["scores"]
    users = post(world, "/v1/recommend", {"src": 3, "edge_set": "follows", "k": 50})["scores"]
    assert {s["dst"] for s in items} <= set(range(15)) and len(items) > 10
    assert {s["dst"] for s in users} <= set(range(20)) and len(users) > 15
    unseen = post(world, "/v1/recommend", {"src": 3, "edge_set": "follows", "k": 50, "exclude_seen": True})["scores"]
    assert len(unseen) < len(users)


def test_filters_are_about_the_nodes_of_the_target_set(world):
    asked = {"src": 3, "k": 50, "exact": True}
    for edge_set, keys in (("views", {2, 4}), ("follows", {2, 4, 17})):
        answer = post(world, "/v1/recommend", asked | {"edge_set": edge_set, "only": [2, 4, 17, 99]})
        assert {s["dst"] for s in answer["scores"]} == keys, "item 17 is none"
    everyone = post(world, "/v1/recommend", asked | {"edge_set": "views"})["scores"]
    others = post(world, "/v1/recommend", asked | {"edge_set": "views", "exclude": [2, 4]})["scores"]
    assert [s["dst"] for s in others] == [s["dst"] for s in everyone if s["dst"] not in (2, 4)]
    refused = post(world, "/v1/recommend", asked | {"edge_set": "views", "where": {"f1": {"gte": 0}}}, 422)["detail"]
    assert refused == "where: node set item has no feature 'f1'; there are none", "this log knows widths alone"


def test_a_reason_is_about_the_asked_edge_set(world):
    asked = {"src": 3, "k": 6, "edge_set": "buys"}
    for one in post(world, "/v1/recommend", asked | {"reasons": True})["scores"]:
        whole = post(world, "/v1/explain", {"src": 3, "dst": one["dst"], "edge_set": "buys"})
        adds = {g["name"]: whole["score"] - g["without"] for g in whole["groups"] if g["name"] != "source"}
        if one["reason"] is None:
            assert max(adds.values()) <= 1e-4
        else:
            assert one["reason"]["adds"] == pytest.approx(adds[one["reason"]["group"]], abs=1e-4)
            assert one["reason"]["adds"] == pytest.approx(max(adds.values()), abs=1e-4)


def test_a_set_must_be_named_where_there_are_several_and_be_one_that_there_is(world):
    assert "edge_set is required; there are views, buys, follows" in post(world, "/v1/score", {"src": 3, "dst": [1]}, 422)["detail"]
    assert "no edge_set 'likes'" in post(world, "/v1/recommend", {"src": 3, "edge_set": "likes"}, 422)["detail"]
    assert "kind is for logs without" in post(world, "/v1/recommend", {"src": 3, "edge_set": "views", "kind": "a"}, 422)["detail"]
    assert "node_set is required" in post(world, "/v1/embeddings", {"nodes": [3]}, 422)["detail"]
    assert "no node_set 'x'" in world.client.get("/v1/embeddings/3?integer=true&node_set=x").json()["detail"]


def test_an_explanation_names_its_edge_set_and_the_node_sets_of_neighbors(world):
    asked = {"src": 3, "dst": 4, "edge_set": "buys"}
    told = post(world, "/v1/explain", asked)
    assert (told["src"], told["dst"], told["edge_set"]) == (3, 4, "buys") and told["known"] and told["dst_known"]
    scored = post(world, "/v1/score", asked | {"dst": [4]})["scores"][0]["score"]
    assert told["score"] == pytest.approx(scored, abs=1e-5)
    assert told["baseline"] + sum(g["share"] for g in told["groups"]) == pytest.approx(scored, abs=1e-4)
    assert {n["node_set"] for n in told["neighbors"] if n["of"] == "dst"} <= {"user"}, "who bought or viewed the item"
    assert bool(told["neighbors"]) == (world.settings.model.name != "pair")
    other = post(world, "/v1/explain", asked | {"edge_set": "views"})
    assert other["score"] != told["score"]
    assert "edge_set is required" in post(world, "/v1/explain", {"src": 3, "dst": 4}, 422)["detail"]


def test_one_key_is_another_node_in_another_set(world):
    if world.settings.model.name == "pair":
        assert "has no embeddings" in post(world, "/v1/embeddings", {"nodes": [3, 17], "node_set": "item"}, 404)["detail"]
        return
    user, item = (world.client.get(f"/v1/embeddings/3?integer=true&node_set={n}").json() for n in ("user", "item"))
    assert user["known"] and item["known"] and user["node"] == item["node"] == 3
    assert user["embedding"] != item["embedding"]
    many = post(world, "/v1/embeddings", {"nodes": [3, 17], "node_set": "item"})
    assert many[0]["embedding"] == pytest.approx(item["embedding"], abs=1e-5) and [m["known"] for m in many] == [True, False]


def test_the_open_inference_protocol_takes_an_edge_set_a_row(world):
    inputs = world.client.get("/v2/models/streamd").json()["inputs"]
    assert inputs[-1] == {"name": "edge_set", "datatype": "BYTES", "shape": [-1]}

    def infer(*sets):
        tensors = [{"name": "src", "shape": [len(sets)], "datatype": "INT64", "data": [3] * len(sets)},
                   {"name": "dst", "shape": [len(sets), 2], "datatype": "INT64", "data": [0, 3] * len(sets)},
                   {"name": "edge_set", "shape": [len(sets)], "datatype": "BYTES", "data": list(sets)}]
        return world.client.post("/v2/models/streamd/infer", json={"inputs": tensors})

    scores = infer("views", "follows").json()["outputs"][0]["data"]
    for edge_set, got in (("views", scores[:2]), ("follows", scores[2:])):
        want = post(world, "/v1/score", {"src": 3, "dst": [0, 3], "edge_set": edge_set})["scores"]
        np.testing.assert_allclose(got, [s["score"] for s in want], atol=1e-4)
    assert "no edge_set 'likes'" in infer("likes").text and infer("likes").status_code == 400
