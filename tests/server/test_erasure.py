"""`/v1/erase` keeps requests to erase, for those with an admin key, and tells how far each is without its keys."""

import msgspec
import pytest

from streamd.events import SetKey
from streamd.server.v1 import erase_routes
from streamd.store.erasure_requests import ErasureRequests
from tests.builders import HOUR, declared, settings, stream, write_log
from tests.server.world import SCHEMA, World


@pytest.fixture
def world(tmp_path):
    write_log(tmp_path, *stream(50), SCHEMA, watermark=100 * HOUR)
    made = World(tmp_path, server__api_keys=("ask",), server__admin_keys=("admin",))
    made.run()
    yield made
    made.stop()


def key(name):
    return {"X-API-Key": name}


def test_a_request_needs_an_admin_key_and_is_kept_with_typed_keys(world):
    body = {"nodes": ["n:3", 3, "n:3"]}
    assert world.client.post("/v1/erase", json=body).status_code == 401
    refused = world.client.post("/v1/erase", json=body, headers=key("ask"))
    assert refused.status_code == 403 and "erasing need one of server.admin_keys" in refused.json()["detail"]
    requests = ErasureRequests(world.path)
    assert requests.num_open == 0
    made = world.client.post("/v1/erase", json=body, headers=key("admin"))
    assert made.status_code == 202 and made.json()["nodes"] == 2 and "n:3" not in made.text
    one, = requests.open()
    assert one.typed_keys == ["n:3", 3] and one.id == made.json()["request"] and one.topic == ""

    # Whoever has the id may look.
    path = f"/v1/erase/{one.id}"
    assert world.client.get(path).status_code == 401
    assert world.client.get(path, headers=key("ask")).json() == made.json()
    requests.write(msgspec.structs.replace(one, state="found", found=[(2, "nodes.keys")] * 200, num_unknown=1, ended_at=5.0, proof="all"))
    told = world.client.get(path, headers=key("ask"))
    assert told.json() | {"asked_at": 0} == {
        "request": one.id, "state": "found", "waits_for": "", "nodes": 2, "unknown": 1, "asked_at": 0, "ended_at": 5.0,
        "found": [{"node": 2, "where": "nodes.keys"}] * 100, "proof": "all"}
    assert world.client.get(f"/v1/erase/{'0' * 32}", headers=key("ask")).status_code == 404
    for other in ("..%2Fx", "nope", ".."):
        assert world.client.get(f"/v1/erase/{other}", headers=key("ask")).status_code == 404


@pytest.mark.parametrize(("body", "why"), [
    ({"nodes": []}, "body.nodes is empty"), ({"nodes": [1.5]}, "nodes"), ({"nodes": ["x"], "topic": "other"}, "does not read topic 'other'"),
    ({"nodes": ["x"], "node_set": "shop"}, "no node_set 'shop'"), ({"nodes": list(range(1001))}, "1,001 nodes in one request, at most 1,000"), ({"keys": ["x"]}, "nodes")])
def test_what_does_not_fit_is_refused_and_nothing_is_kept(world, body, why):
    answer = world.client.post("/v1/erase", json=body, headers=key("admin"))
    assert answer.status_code == 422 and why in answer.text, answer.text
    assert ErasureRequests(world.path).num_open == 0


def test_too_many_open_requests_are_refused(world, monkeypatch):
    monkeypatch.setattr(erase_routes, "MAX_OPEN", 2)
    codes = [world.client.post("/v1/erase", json={"nodes": ["n:3"]}, headers=key("admin")).status_code for _ in range(3)]
    assert codes == [202, 202, 429]


def test_of_several_node_sets_one_is_named(tmp_path):
    world = World.of(tmp_path, settings(tmp_path, **declared()))
    world.run()
    try:
        assert world.client.post("/v1/erase", json={"nodes": [8]}).status_code == 422
        assert world.client.post("/v1/erase", json={"nodes": [8], "node_set": "item"}).status_code == 202
        assert ErasureRequests(tmp_path).open()[0].typed_keys == [SetKey(1, 8)]
    finally:
        world.stop()
