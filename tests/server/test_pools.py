"""Recommendations among more nodes than are kept as popular, while events, features and deletes come."""

import dataclasses

import numpy as np
import pytest

from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.settings.loading import schema_of
from tests.builders import HOUR, batch
from tests.server.shop import BARE, ITEMS, SETS, USERS, catalogue, names, open_shop, post, update
from tests.server.world import World, wait

LIMIT = 10
"""At most 60 of 300 items are kept as popular."""
ASKED = {"src": "user:3", "k": LIMIT}
BAGS = {"category": "bags"}


@pytest.fixture
def world(tmp_path):
    made = open_shop(tmp_path, server__max_candidates=LIMIT, model__name="pair").start()
    yield made
    made.stop()


def write(world, make):
    """Commits what `make` gives for a writer and a schema, and waits until answers have it."""
    schema = schema_of(world.settings)
    writer = LogWriter(world.path, schema, 100_000)
    make(writer, schema)
    seq = writer.seq
    writer.close()
    position = {"streamd-after": f"0.{seq}"}
    assert world.client.post("/v1/score", json={"src": "user:3", "dst": ["item:3"]}, headers=position).status_code == 200


def recommended(world, **more):
    return names(post(world, "/v1/recommend", ASKED | more))


def delete(*keys):
    def make(writer, schema):
        gone = np.zeros(len(keys), DELETION)
        gone["src"], gone["dst"], gone["time"] = [writer.keys.pop(key) for key in keys], -1, -1
        gone["edge"] = writer.num_edges
        writer.commit(dataclasses.replace(empty_batch(schema), deletions_X=gone), Progress(), 100 * HOUR)
    return make


def send(item, times):
    def make(writer, schema):
        dst = np.full(times, writer.keys[item])
        writer.commit(batch(schema, np.arange(times) % USERS, dst, 200 * HOUR + np.arange(times)), Progress(), 201 * HOUR)
    return make


def test_a_node_that_gets_events_is_recommended_at_once_and_never_after_its_delete(world):
    exact = recommended(world, k=1000, exact=True)
    late = exact[-1]
    assert late not in recommended(world)
    write(world, send(late, 30))
    assert recommended(world)[0] == late and recommended(world, exact=True)[0] == late
    write(world, delete(late))
    found = recommended(world)
    assert late not in found and len(found) == LIMIT and late not in recommended(world, k=1000, exact=True)


def test_deletes_of_most_nodes_leave_all_others_to_be_recommended(world):
    """Of 300 so many go, popular ones among them, that those kept are too few."""
    every = recommended(world, k=1000, exact=True)
    popular = recommended(world)
    kept = [key for key in every if key not in popular][-12:]
    write(world, delete(*(key for key in every if key not in kept)))
    assert set(recommended(world, k=1000, exact=True)) == set(kept)
    found = recommended(world)
    assert len(found) == LIMIT and set(found) <= set(kept)


def test_a_filter_follows_the_features_of_nodes(world):
    bags = [i for i, one in catalogue().items() if one["category"] == "bags"]
    assert {*recommended(world, where=BAGS)} == {f"item:{i}" for i in bags}
    shoe, one = next((i, one) for i, one in catalogue().items() if one["category"] == "shoes" and i != 1)
    write(world, lambda writer, schema: update(writer, schema, {shoe: one | {"category": "bags"}, bags[0]: one}))
    assert {*recommended(world, where=BAGS)} == {f"item:{i}" for i in [*bags[1:], shoe]}
    assert {*recommended(world, where=BAGS, exact=True)} == {*recommended(world, where=BAGS)}


def test_a_restart_recommends_the_same(world, tmp_path):
    write(world, send(f"item:{ITEMS - 1}", 30))
    asked = [{}, {"where": BAGS}, {"kind": "item"}, {"exclude": recommended(world)}, {"exclude_seen": True}]
    before = [recommended(world, **one) for one in asked]
    assert all(before) and not {*before[0]} & {*before[3]}
    world.stop()
    again = World.of(tmp_path, world.settings).start()
    assert [recommended(again, **one) for one in asked] == before
    again.stop()


def test_a_swap_of_versions_keeps_the_popular_nodes(world):
    world.train()
    wait(lambda: world.engine.status.version != "rule")
    found = recommended(world)
    assert len(found) == LIMIT and {*found} <= {*recommended(world, k=1000, exact=True)}
    write(world, send(f"item:{ITEMS - 1}", 30))
    assert f"item:{ITEMS - 1}" in recommended(world, k=LIMIT)


def test_many_filters_are_answered_though_few_are_kept(world):
    shop = catalogue()
    for i in range(2, 60):
        price = shop[i]["price"]
        want = {f"item:{n}" for n, one in shop.items() if one["price"] == price and n != 1}
        assert {*recommended(world, where={"price": price})} == want
    requests = [ASKED | {"where": {"price": shop[i]["price"]}} for i in range(2, 30)]
    answers = post(world, "/v1/recommend/batch", {"requests": requests})
    assert all(f"item:{i}" in names(answer) for i, answer in enumerate(answers, 2))


def test_each_edge_set_has_popular_nodes_of_its_own(tmp_path):
    world = open_shop(tmp_path, server__max_candidates=LIMIT, model__name="pair", **SETS).start()
    for edge_set, count in (("views", ITEMS - 1), ("follows", USERS)):
        asked = {"src": 3, "k": LIMIT, "edge_set": edge_set}
        best = names(post(world, "/v1/recommend", asked | {"k": 1000, "exact": True}))
        assert len(best) == count
        found = names(post(world, "/v1/recommend", asked))
        assert len(found) == LIMIT and {*found} <= {*best}
    bare = {"where": {"in_stock": True, "category": "bags"}}
    want = [i for i, one in catalogue().items() if one["category"] == "bags" and one["in_stock"]]
    found = names(post(world, "/v1/recommend", {"src": 3, "k": LIMIT, "edge_set": "views"} | bare))
    assert sorted(found) == want and max(want) < ITEMS - BARE
    world.stop()
