"""Nodes that are like another, compared with plain computations."""

import dataclasses
import math

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.serving.following_graph import ServerGraph
from streamd.serving.requests import Similar
from streamd.serving.serving_settings import ServingSettings
from tests.builders import HOUR, batch, settings, stream, write_log
from tests.server.shop import BARE, GONE, ITEMS, SETS, USERS, catalogue, open_shop, post
from tests.server.world import World, wait

SHOP = catalogue()


def similar(world, node, status=200, **more):
    answer = post(world, "/v1/similar", {"node": node} | more, status)
    return answer["detail"] if status != 200 else [(one["node"], one["score"]) for one in answer["similar"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = open_shop(tmp_path_factory.mktemp("similar"), model__name="sage")
    made.train()
    made.start()
    wait(lambda: made.engine.status.version == made.registry.champion())
    yield made
    made.stop()


def test_by_embedding_they_are_those_of_the_largest_cosine(world):
    keys = [f"item:{i}" for i in range(ITEMS) if i != GONE - USERS]
    vectors = {}
    for at in range(0, len(keys), 30):
        for one in post(world, "/v1/embeddings", {"nodes": keys[at:at + 30]}):
            vectors[one["node"]] = np.array(one["embedding"]) / np.linalg.norm(one["embedding"])
    for node in ("item:3", "item:299"):
        cosines = {key: float(vectors[key] @ vectors[node]) for key in keys if key != node}
        found = similar(world, node, k=1000)
        assert {key for key, _ in found} == set(cosines)
        np.testing.assert_allclose([score for _, score in found], [cosines[key] for key, _ in found], atol=1e-4)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        where = {"category": "shoes", "in_stock": True}
        matching = [(key, s) for key, s in found if int(key[5:]) < ITEMS - BARE
                    and SHOP[int(key[5:])]["category"] == "shoes" and SHOP[int(key[5:])]["in_stock"]]
        # Cosines that are equal but for rounding may change places, since other nodes are compared.
        filtered, three = similar(world, node, k=1000, where=where), similar(world, node, k=3, exclude=[found[0][0]])
        assert dict(filtered) == pytest.approx(dict(matching), abs=1e-6) and len(filtered) == len(matching)
        np.testing.assert_allclose([s for _, s in three], [s for _, s in found[1:4]], atol=1e-6)
        assert found[0][0] not in dict(three) and dict(three) == pytest.approx({key: dict(found)[key] for key in dict(three)}, abs=1e-6)
    assert similar(world, "never seen") == [] and similar(world, f"item:{GONE - USERS}") == []


def test_among_more_nodes_than_are_compared_there_are_still_k(tmp_path):
    world = open_shop(tmp_path, model__name="sage", server__max_candidates=20)
    world.train()
    world.start()
    wait(lambda: world.engine.status.version == world.registry.champion())
    found = similar(world, "item:3", k=15)
    assert len(found) == 15 and "item:3" not in dict(found)
    assert {key for key, _ in similar(world, "item:3", k=3, where={"category": "bags"})} == {"item:50", "item:150", "item:250"}
    world.stop()


def test_what_does_not_fit_is_refused(world):
    assert "node set default has no feature 'colour'" in similar(world, "item:3", 422, where={"colour": 1})
    assert "body.by" in similar(world, "item:3", 422, by="price")
    assert "at most 1000" in similar(world, "item:3", 422, only=["a"] * 1001)


def test_without_embeddings_it_is_refused_and_partners_are_answered(tmp_path):
    world = open_shop(tmp_path, **SETS).start()
    assert "version rule has no embeddings; use by=partners" in similar(world, 3, 404, edge_set="views")
    got = world.client.get("/v1/embeddings/3?integer=true&node_set=user")
    assert got.status_code == 404 and got.json()["detail"] == "version rule has no embeddings"
    assert post(world, "/v1/embeddings", {"nodes": [3], "node_set": "user"}, 404)["detail"] == "version rule has no embeddings"
    items = similar(world, 3, edge_set="views", by="partners", k=50)
    assert items and all(0 <= key < ITEMS for key, _ in items) and 3 not in dict(items)
    assert "edge_set is required" in similar(world, 3, 422, by="partners")
    world.stop()


def test_by_partners_they_are_weighed_by_how_few_partners_those_have(tmp_path):
    """
    u0 -- a, b, c      a and b share u0 and u1, a and c share u0, a and d share u2
    u1 -- a, b
    u2 -- a, d         e shares nothing with a
    u3 -- e
    """
    pairs = ["0a", "0b", "0c", "1a", "1b", "2a", "2d", "3e"]
    keys = [*(f"u:{i}" for i in range(4)), *"abcde"]
    src = np.array([int(p[0]) for p in pairs])
    dst = np.array([keys.index(p[1]) for p in pairs])
    writer = LogWriter(tmp_path, Schema(), 1000)
    writer.keys.update({key: i for i, key in enumerate(keys)})
    writer.commit(batch(Schema(), src, dst, np.arange(len(pairs)) * 1000, keys), Progress(), HOUR)
    world = World.of(tmp_path, settings(tmp_path)).start()
    two, three = 1 / math.log(2), 1 / math.log(3)
    found = dict(similar(world, "a", by="partners"))
    assert found == pytest.approx({"b": two + three, "d": two, "c": three}) and list(found) == ["b", "d", "c"]
    assert [key for key, _ in similar(world, "a", by="partners", only=["c", "e", "d"])] == ["d", "c"]
    assert similar(world, "e", by="partners") == similar(world, "nobody", by="partners") == []

    # A deleted user is shared by none, and a deleted item is like none.
    gone = np.zeros(2, DELETION)
    gone["src"], gone["dst"], gone["time"] = [1, keys.index("d")], -1, -1
    writer.commit(rows_of_deletes(gone), Progress(), writer.watermark)
    writer.close()
    wait(lambda: "d" not in dict(similar(world, "a", by="partners")))
    assert dict(similar(world, "a", by="partners")) == pytest.approx({"b": three, "c": three})
    world.stop()


def rows_of_deletes(gone):
    return dataclasses.replace(empty_batch(Schema()), deletions_X=gone)


def test_sharing_partners_is_the_plain_sum_over_last_partners(tmp_path):
    write_log(tmp_path, *stream(3000, 60, 80, seed=2))
    chosen = settings(tmp_path)
    view = ServerGraph(ServingSettings.of(chosen, "serve"), LogReader.open(tmp_path), chosen.model)
    while not view.caught_up or view.follow():
        view.follow()
    last = {n: set(view.facts.partners(n, 0).tolist()) for n in range(140)}
    assert max(map(len, last.values())) > 5
    for node in range(140):
        want = {}
        for shared in last[node]:
            for other in last[shared] - {node}:
                want[other] = want.get(other, 0) + 1 / math.log(max(2, len(last[shared])))
        nodes, scores = view.candidates.sharing_partners(node, 0)
        assert dict(zip(nodes.tolist(), scores.tolist(), strict=True)) == pytest.approx(want)
        assert [(-s, n) for n, s in zip(nodes.tolist(), scores.tolist(), strict=True)] == sorted(
            (-s, n) for n, s in zip(nodes.tolist(), scores.tolist(), strict=True))
    assert (view.candidates.alike(Similar(node="n:70"), 70, None) != 70).all()
