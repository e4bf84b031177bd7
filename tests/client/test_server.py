"""A client of a real server: every call, both ways, and answers of the server's own types."""

import asyncio
import inspect
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from streamd.client import (
    AsyncClient,
    Client,
    ContextEvent,
    NotAllowed,
    NotFound,
    NotPossible,
    NotReached,
    RecommendRequest,
    Refused,
    Retries,
    ScoreRequest,
    answers,
    calls,
)
from streamd.server.v1 import erase_routes, request_parts, schemas, trial_routes
from streamd.serving.requests import NotReady
from tests.builders import settings
from tests.server.recorded import TGN, make_log, publish
from tests.server.world import World, listening, wait

ONCE = Retries(most=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("client")
    make_log(path)
    publish(path, TGN, 300)
    made = World.of(path, settings(path, **TGN, server__api_keys=["reader"], server__admin_keys=["admin"])).start()
    wait(lambda: made.engine.status.version != "rule", 60)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def url(world):
    with listening(world) as (host, port):
        yield f"http://{host}:{port}"


ASKS = [
    ("score", ("u:3", ["i:0", "i:7", 7]), {}),
    ("score", ("u:3", ["i:0"]), {"as_of": 2**60, "edge_set": "default"}),
    ("score", ("new", ["i:0", "i:7"]), {"features": [0.5, 1], "context": [ContextEvent("i:1", 5, [1, 2]), ContextEvent("i:2", features=[0, 1])]}),
    ("recommend", ("new", 3), {"context": [ContextEvent("i:1", features=[1, 2])]}),
    ("score_batch", ([ScoreRequest("u:3", ["i:0"]), ScoreRequest(7, ["i:1"], time=5)],), {}),
    ("recommend", ("u:3", 4), {"exclude_seen": True}),
    ("recommend", ("u:3",), {"kind": "i", "exact": True}),
    ("recommend", ("u:3",), {"only": ["i:1", "i:2"], "exclude": ["i:2"]}),
    ("similar", ("i:3",), {"k": 4, "exclude": ["i:2"]}),
    ("similar", ("i:3",), {"by": "partners", "only": ["i:1", "i:2"]}),
    ("recommend_batch", ([RecommendRequest("u:3", k=2), RecommendRequest("nobody", exact=True)],), {}),
    ("explain", ("u:3", "i:0"), {}),
    ("explain", ("nobody", 7), {"as_of": 2**60}),
    ("embedding", ("u:3",), {}),
    ("embedding", (7,), {"node_set": "default"}),
    ("embeddings", (["u:3", 7, "a/b?c d%é☃"],), {"node_set": "default"}),
    ("embedding", ("a/b?c d%é☃",), {}),
    ("labels", ("u:3",), {}),
    ("labels_of", (["u:3", 7],), {}),
    ("nodes", ("u:1", 3), {}),
    ("schema", (), {}),
    ("models", (), {})]


def steady(answer):
    """An answer without what differs from one call to the next."""
    return msgspec.to_builtins(answer)


@pytest.mark.parametrize(("name", "given", "named"), ASKS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(ASKS)])
def test_every_call_is_answered_alike_both_ways(world, url, name, given, named):
    async def awaited():
        async with AsyncClient(url, api_key="reader", retries=ONCE) as client:
            return await getattr(client, name)(*given, **named)

    with Client(url, api_key="reader", retries=ONCE) as client:
        found = getattr(client, name)(*given, **named)
    assert steady(asyncio.run(awaited())) == steady(found)


def test_answers_are_those_of_the_server(world, url):
    with Client(url, api_key="reader") as client:
        found = client.score("u:3", ["i:0", "nobody"])
        assert [s.known for s in found.scores] == [True, False] and found.as_of.version == world.engine.status.version
        raw = world.client.post("/v1/score", json={"src": "u:3", "dst": ["i:0", "nobody"]}, headers={"X-API-Key": "reader"}).json()
        assert steady(found) == raw
        assert client.embedding("a/b?c d%é☃").node == "a/b?c d%é☃" and client.embedding(7).node == 7
        best = client.recommend("u:3", 3)
        assert len(best.scores) == 3 and best.scores[0].score >= best.scores[1].score
        told = client.explain("u:3", "i:0")
        assert told.score == pytest.approx(told.baseline + sum(g.share for g in told.groups), abs=1e-4)
        later = client.score("u:3", ["i:0"], as_of=2**60)
        assert later.as_of.time == 2**60


def test_errors_are_those_of_the_server(world, url):
    with Client(url, retries=ONCE) as nobody, Client(url, api_key="reader", retries=ONCE) as client:
        with pytest.raises(NotAllowed, match="an API key is needed"):
            nobody.models()
        with pytest.raises(NotAllowed, match="admin_keys") as told:
            client.promote("1-1", "to see")
        assert told.value.status == 403 and len(told.value.request_id) == 32
        with pytest.raises(Refused, match="no edge_set 'likes'"):
            client.score("u:3", ["i:0"], edge_set="likes")
        with pytest.raises(Refused, match="at most 8"):
            client.score("u:3", ["i:0"] * 9)
        with Client(url, api_key="admin", retries=ONCE) as admin:
            with pytest.raises(NotFound, match="no version"):
                admin.promote("1-1", "to see")
            with pytest.raises(NotPossible, match="no version to roll back to"):
                admin.rollback("to see")
            with pytest.raises(NotFound, match="there is no request"):
                admin.move_outcome("nobody's")
            champion = admin.models().champion
            assert admin.promote(champion, "it is so already").champion == champion


def test_a_write_that_does_not_come_is_said_so(world, url, monkeypatch):
    monkeypatch.setattr(world.state.forwarder, "produce", lambda events: [(0, 41) for _ in events])
    monkeypatch.setattr(world.engine, "_deadline_seconds", 0.2)
    with Client(url, api_key="reader", retries=ONCE) as client:
        event = answers.Event(src="u:3", dst="i:0", time=1, features=[1.0, 2.0])
        assert client.events([event]).after == "events:0:41"
        with pytest.raises(NotReached):
            client.score("u:3", ["i:0"])
        client.forget_writes()
        assert client.score("u:3", ["i:0"]).known
        with pytest.raises(Refused, match="event 0"):
            client.events([{"src": "u:3"}])


def test_calls_are_safe_over_threads(world, url):
    with Client(url, api_key="reader") as client, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: client.score(f"u:{i % 5}", ["i:0"]).src, range(40)))
    assert found == [f"u:{i % 5}" for i in range(40)]


def test_a_server_that_starts_again_is_waited_for(world):
    with listening(world) as (host, port):
        client = Client(f"http://{host}:{port}", api_key="reader", retries=Retries(most=50, base_seconds=0.02, longest_seconds=0.1))
        assert client.score("u:3", ["i:0"]).known
    with ThreadPoolExecutor(1) as pool, client:
        # Its kept connection is closed, and nobody listens.
        asked = pool.submit(client.score, "u:3", ["i:0"])
        time.sleep(0.2)
        assert not asked.done()
        with listening(world, port):
            assert asked.result(10).known


def test_a_server_that_is_not_ready_yet_is_asked_again_after_what_it_says(world, url, monkeypatch):
    begun, whole, refused = time.monotonic(), world.engine.ask_all, []

    async def first_not_ready(*asked):
        if not refused:
            refused.append(asked)
            raise NotReady("reading the log")
        return await whole(*asked)

    monkeypatch.setattr(world.engine, "ask_all", first_not_ready)
    with Client(url, api_key="reader") as client:
        assert client.score("u:3", ["i:0"]).known and refused
    assert time.monotonic() - begun >= 1, "Retry-After says a second"


# What it is made of


def struct_types():
    return {n: t for n, t in vars(answers).items() if inspect.isclass(t) and t.__module__ == answers.__name__ and not n.startswith("_")}


@pytest.mark.parametrize("name", struct_types())
def test_types_are_those_of_the_servers_schemas(name):
    """The same fields, of the same JSON types, in the same places."""
    ours, theirs = struct_types()[name], next(getattr(module, name) for module in (erase_routes, trial_routes, schemas, request_parts) if hasattr(module, name))
    assert [f.name for f in msgspec.structs.fields(ours)] == list(theirs.model_fields)
    mine = msgspec.json.schema(ours)["$defs"][name]["properties"]
    want = theirs.model_json_schema()["properties"]
    assert {n: kinds(s) for n, s in mine.items()} == {n: kinds(s) for n, s in want.items()}


def kinds(schema):
    """What JSON types a schema allows, whatever their bounds."""
    if "anyOf" in schema:
        return set().union(*(kinds(s) for s in schema["anyOf"]))
    if "$ref" in schema:
        return {schema["$ref"].rsplit("/", 1)[1]}
    if "enum" in schema:
        return set(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return {("array", frozenset(kinds(schema["items"])))}
    if kind is None:
        return {"any"}
    return set(kind) if isinstance(kind, list) else {kind}


def test_every_call_is_a_method_of_both_clients_with_its_words():
    made = {n for n, f in vars(calls).items() if inspect.isfunction(f) and f.__module__ == calls.__name__ and not n.startswith("_")}
    for kind in (Client, AsyncClient):
        assert made <= set(vars(kind))
        for name in made:
            method = getattr(kind, name)
            assert method.__doc__ == getattr(calls, name).__doc__ and "self" not in str(inspect.signature(getattr(calls, name)))
    assert {n for n in vars(Client) if not n.startswith("_")} - made == {"send", "close"}


def test_every_route_of_v1_has_a_call(world):
    routes = {(m.upper(), p) for p, item in world.client.get("/openapi.json").json()["paths"].items() if p.startswith("/v1/") for m in item}
    asked = {(c.method, c.path.partition("?")[0].replace("x-1", "{version}").replace("a-node", "{node}").replace("a-request", "{request}")) for c in (
        calls.score(1, [2]), calls.score_batch([]), calls.recommend(1), calls.recommend_batch([]), calls.similar(1), calls.explain(1, 2), calls.embedding("a-node"),
        calls.embeddings([]), calls.labels("a-node"), calls.labels_of([]), calls.events([]), calls.schema(), calls.models(), calls.promote("x-1", ""),
        calls.rollback(""), calls.move_outcome("a-request"), calls.nodes(), calls.erase([1]), calls.erasure("a-request"), calls.trials())}
    assert asked == routes


def test_a_client_loads_nothing_heavy():
    code = ("import sys, streamd.client; print(sorted({m.split('.')[0] for m in sys.modules} & "
            "{'torch', 'numba', 'kafka', 'numpy', 'pydantic', 'fastapi', 'starlette', 'structlog', 'prometheus_client', 'opentelemetry', 'anyio'}), "
            "sorted(m for m in sys.modules if m.startswith('streamd.') and not m.startswith('streamd.client')))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[] []"


def test_without_its_extra_the_client_names_it():
    code = "import sys; sys.modules['httpx2'] = None; import streamd.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ModuleNotFoundError: streamd.client needs the package httpx2." in done.stderr
    assert "pip install 'streamd-gnn[client]'" in done.stderr
