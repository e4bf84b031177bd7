"""A request may bring a source that the log does not have: the answer is the one after its events, and nothing stays."""

import numpy as np
import pytest
from fastapi import HTTPException

from streamd.decode.event_sets import EventSets, named_features
from streamd.events import SetKey
from streamd.graph.jit import Kernel
from streamd.server.engine import answers
from streamd.server.engine.set_names import Sets
from streamd.server.v1.new_sources import NewSources
from streamd.server.v1.schemas import ScoreRequest
from streamd.serving.following_graph import ServerGraph
from streamd.serving.requests import NewSource, SourceEvent
from streamd.settings.loading import schema_of
from tests.builders import HOUR, SECOND, SETS, declared, sets_stream, settings, write_sets_log
from tests.server.recorded import SCHEMA, SMALL, make_log, publish
from tests.server.supposed import after, gauges, traces
from tests.server.world import World, wait

OTHERS = ("several in order", "a window later", "features alone")
"""Cases for every model."""
MODELS = ("tgn", "tgat", "dysat", "sage", "gat", "gcn", "pair")
ROW = [0.5, -1.5]
DST = ["i:0", "i:1", "i:7", "i:9", "u:3", "nothing", "new page", 7]


def chosen(model):
    values = SMALL | {"model__name": model, "server__max_candidates": 30, "server__max_batch": 40}
    return values | ({"model__snapshot_seconds": 3600, "model__snapshots": 2} if model == "dysat" else {})


@pytest.fixture(scope="module")
def world(tmp_path_factory, request):
    path = tmp_path_factory.mktemp(request.param)
    make_log(path)
    publish(path, chosen(request.param), 300)
    made = World.of(path, settings(path, **chosen(request.param))).start()
    wait(lambda: made.engine.status.version != "rule" and made.engine.status.memory_edge > 400, 90)
    yield made
    made.stop()


def post(world, path, body, status=200):
    answer = world.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def scored(answer):
    return [(s["dst"], s["known"]) for s in answer["scores"]], np.array([s["score"] for s in answer["scores"]])


def newest(world):
    return world.engine.status.newest_us


# Features, and what its events are relative to the newest one: seconds later, None for no time.
CASES = {
    "features alone": (ROW, []),
    "one partner": (None, [("i:1", None)]),
    "one and its features": (ROW, [("i:1", 0)]),
    "several in order": (ROW, [("i:1", 1), ("i:7", 2), ("i:1", 2), ("new page", 9), ("i:9", 9)]),
    "early and out of order": (None, [("i:3", -5000), ("i:4", 50), ("i:5", 20), ("i:4", None)]),
    "unknown partners": (None, [("new page", 1), ("page 2", 2), ("page 3", 3), ("new page", 4)]),
    "an erased partner": (None, [("u:6", 1), ("i:1", 2)]),
    "itself": (None, [("new user", 1), ("i:1", 2), ("new user", 3)]),
    "a window later": (ROW, [("i:1", 3700), ("i:2", 3800), ("i:1", 9000)]),
    "days later": (ROW, [("i:1", 3 * 86_400), ("i:2", 4 * 86_400)]),
    "as many as there may be": (ROW, [(f"i:{n % 13}", n) for n in range(64)]),
}


def asked(world, case, source="new user"):
    """The request's parts of a case, and the same as commits."""
    features, events = CASES[case]
    context = [{"dst": d, "features": [1.0, float(n)]} | ({} if t is None else {"time": newest(world) + t * SECOND})
               for n, (d, t) in enumerate(events)]
    written = [(c["dst"], c.get("time"), c["features"], 0) for c in context]
    return {"src": source, "features": features, "context": context}, (source, features, written)


@pytest.mark.parametrize(("world", "case"), [(m, c) for m in MODELS for c in (CASES if m == "tgn" else OTHERS)], indirect=["world"])
def test_answers_are_those_of_a_server_whose_log_has_the_events(world, tmp_path, case):
    # An erased key is that of no node.
    body, (source, features, events) = asked(world, case, "u:6" if case == "an erased partner" else "new user")
    later = max([newest(world), *(c.get("time", 0) for c in body["context"])])
    before, told = traces(world), gauges()
    with after(world.path, tmp_path / "other", lambda p: settings(p, **chosen(world.settings.model.name)), SCHEMA, source, features, events) as other:
        for time in (None, later + 40 * SECOND, later + 2 * HOUR):
            for path, more in (("/v1/score", {"dst": DST}), ("/v1/recommend", {"k": 12}), ("/v1/recommend", {"k": 5, "exclude_seen": True, "reasons": True})):
                asks = more | {"time": time}
                got, want = post(world, path, body | asks), post(other, path, {"src": source} | asks)
                assert got["known"] == want["known"] and scored(got)[0] == scored(want)[0], (path, asks)
                np.testing.assert_allclose(scored(got)[1], scored(want)[1], rtol=1e-6, atol=1e-6)
                assert [s.get("reason") and s["reason"]["group"] for s in got["scores"]] == [s.get("reason") and s["reason"]["group"] for s in want["scores"]]
                assert got["as_of"]["time"] == want["as_of"]["time"]
    assert traces(world) == before and gauges() == told


def test_a_rule_answers_as_after_the_events_too(tmp_path):
    make_log(tmp_path / "one")
    world = World.of(tmp_path / "one", settings(tmp_path / "one", **chosen("tgn"))).start()
    try:
        before = traces(world)
        body, (source, features, events) = asked(world, "several in order")
        with after(world.path, tmp_path / "other", lambda p: settings(p, **chosen("tgn")), SCHEMA, source, features, events) as other:
            got, want = (post(w, "/v1/score", b | {"dst": DST}) for w, b in ((world, body), (other, {"src": source})))
        assert got["as_of"]["version"] == "rule" and scored(got)[0] == scored(want)[0]
        np.testing.assert_allclose(scored(got)[1], scored(want)[1], rtol=1e-6)
        assert traces(world) == before
    finally:
        world.stop()


# Several kinds of nodes and edges


def of_sets(path):
    return settings(path, model__name="tgn", **{k.replace(".", "__"): v for k, v in declared().items()})


def test_events_of_several_edge_sets_are_supposed(tmp_path):
    path = tmp_path / "one"
    write_sets_log(path, *sets_stream())
    world = World.of(path, of_sets(path))
    world.train(1)
    world.start()
    wait(lambda: world.engine.status.version == world.registry.champion())
    try:
        before = traces(world)
        events = [(2, "views", [1.0]), (14, "buys", [2.0, 3.0]), (3, "follows", []), (99, "views", [0.0]), (2, "views", [4.0]), (777, "follows", [])]
        body = {"src": 500, "edge_set": "buys", "features": [1, -1],
                "context": [{"dst": d, "features": f, "edge_set": s, "time": newest(world) + n * SECOND} for n, (d, s, f) in enumerate(events)]}
        written = [(d if s == "follows" else SetKey(1, d), newest(world) + n * SECOND, f, SETS.edge_set_names.index(s)) for n, (d, s, f) in enumerate(events)]
        with after(path, tmp_path / "other", of_sets, SETS, 500, [1.0, -1.0], written) as other:
            for time in (None, newest(world) + 3 * HOUR):
                for asks in ({"dst": [0, 2, 14, 99, 1000]}, {"k": 12}):
                    route = "/v1/score" if "dst" in asks else "/v1/recommend"
                    got, want = (post(w, route, b | asks | {"time": time}) for w, b in ((world, body), (other, {"src": 500, "edge_set": "buys"})))
                    assert scored(got)[0] == scored(want)[0] and got["known"] and want["known"]
                    np.testing.assert_allclose(scored(got)[1], scored(want)[1], rtol=1e-5, atol=1e-6)
        assert traces(world) == before

        follows = body | {"dst": [1], "context": [{"dst": 1, "edge_set": "likes"}]}
        assert "no edge_set 'likes'" in post(world, "/v1/score", follows, 422)["detail"]
    finally:
        world.stop()


def test_features_are_read_by_their_names(tmp_path):
    chosen = of_sets(tmp_path)
    schema = schema_of(chosen)
    sources = NewSources(Sets(schema), EventSets(schema, named_features(chosen)), "us")
    context = [{"dst": 4, "features": {"f0": 2.5}, "edge_set": "views"}, {"dst": 5, "time": 9, "features": {"f1": 2, "f0": 1}}]
    body = ScoreRequest(src=3, dst=[4], features={"f1": 3, "f0": 1}, context=context)
    events = (SourceEvent(SetKey(1, 4), None, 0, (2.5,)), SourceEvent(SetKey(1, 5), 9, 1, (1.0, 2.0)))
    assert sources.read(body, 1) == NewSource((1.0, 3.0), events)
    assert sources.read(ScoreRequest(src=3, dst=[4]), 1) is None
    for more, why in (({"features": {"f9": 1}}, "features: node set user has no feature f9"), ({"features": {"f0": "x", "f1": 1}}, "features: feature f0 is text, not number"),
                      ({"context": context[:1] * 2 + [{"dst": 4, "features": {}}]}, r"context\[2\].features: feature f0 is missing")):
        with pytest.raises(HTTPException, match=why) as told:
            sources.read(ScoreRequest(src=3, dst=[4], **more), 1)
        assert told.value.status_code == 422


# Refusals, and several requests together


@pytest.fixture(scope="module")
def tgn(tmp_path_factory):
    path = tmp_path_factory.mktemp("refused")
    make_log(path)
    publish(path, chosen("tgn"), 300)
    made = World.of(path, settings(path, **chosen("tgn"))).start()
    wait(lambda: made.engine.status.version != "rule" and made.engine.status.memory_edge > 400, 90)
    yield made
    made.stop()


@pytest.mark.parametrize(("more", "why"), [
    ({"src": "u:3", "features": ROW}, "the log has events of this one"),
    ({"src": "u:3", "context": [{"dst": "i:1", "features": ROW}]}, "the log has events of this one"),
    ({"features": [1]}, "features has 1 value, the stream has 2"),
    ({"features": [1, 1e300]}, "features: features[1] is out of range"),
    ({"features": {"age": 3}}, "declares no features"),
    ({"features": ["x", 1]}, "features"),
    ({"context": [{"dst": "i:1"}]}, "context[0].features has 0 values"),
    ({"context": [{"dst": "i:1", "features": ROW, "time": -1}]}, "context"),
    ({"context": [{"dst": 1.5, "features": ROW}]}, "context"),
    ({"context": [{"src": "i:1", "features": ROW}]}, "context"),
    ({"context": [{"dst": "i:1", "features": ROW, "edge_set": "likes"}]}, "no edge_set 'likes'"),
    ({"context": [{"dst": "i:1", "features": ROW}] * 65}, "at most 64"),
])
def test_other_sources_and_values_are_refused(tgn, more, why):
    before = traces(tgn)
    for path, asks in (("/v1/score", {"dst": ["i:1"]}), ("/v1/recommend", {})):
        assert why in post(tgn, path, {"src": "new user"} | asks | more, 422)["detail"]
    assert traces(tgn) == before


def test_a_batch_has_sources_of_both_kinds_and_counts_the_new_ones_more(tgn):
    one = {"src": "new user", "dst": ["i:1", "i:7"], "context": [{"dst": "i:7", "features": ROW}]}
    two = one | {"context": [{"dst": "i:1", "features": ROW}] * 3}
    plain = {"src": "u:3", "dst": ["i:1", "i:7"]}
    together = post(tgn, "/v1/score/batch", {"requests": [one, plain, two, one]})
    alone = [post(tgn, "/v1/score", body) for body in (one, plain, two, one)]
    for got, want in zip(together, alone, strict=True):
        assert scored(got)[0] == scored(want)[0]
        np.testing.assert_allclose(scored(got)[1], scored(want)[1], rtol=1e-5, atol=1e-6)
    assert scored(together[0])[1].tolist() == scored(together[3])[1].tolist() != scored(together[2])[1].tolist()
    assert "48 in one batch, at most 40" in post(tgn, "/v1/score/batch", {"requests": [one] * 6}, 422)["detail"]
    known = one | {"src": "u:3"}
    assert "the log has events of this one" in post(tgn, "/v1/score/batch", {"requests": [one, known]}, 422)["detail"]


def test_a_search_of_all_nodes_takes_no_new_source(tgn):
    body = {"src": "new user", "context": [{"dst": "i:7", "features": ROW}]}
    assert "exact runs between other requests" in post(tgn, "/v1/recommend", body | {"exact": True}, 422)["detail"]
    batch = {"requests": [body, {"src": "u:3", "exact": True}]}
    assert "exact runs between other requests" in post(tgn, "/v1/recommend/batch", batch, 422)["detail"]


def test_a_failure_amid_a_supposition_leaves_no_trace(tgn, monkeypatch):
    def fails(*_):
        raise ValueError("amid it")

    before = traces(tgn)
    body = {"src": "new user", "dst": ["i:1"], "features": ROW, "context": [{"dst": "i:7", "features": ROW}]}
    monkeypatch.setattr(answers, "answers_of", fails)
    with pytest.raises(ValueError, match="amid it"):
        tgn.client.post("/v1/score", json=body)
    monkeypatch.undo()
    assert traces(tgn) == before


def test_a_new_source_waits_for_a_graph_that_lags(tgn, monkeypatch):
    turns = iter(range(5))
    whole = ServerGraph.caught_up.fget
    monkeypatch.setattr(ServerGraph, "caught_up", property(lambda view: next(turns, None) is None and whole(view)))
    body = {"src": "new user", "dst": ["i:1"], "context": [{"dst": "i:1", "features": ROW}]}
    assert post(tgn, "/v1/score", body)["known"] and next(turns, None) is None


def test_the_first_new_source_calls_no_kernel_that_the_warm_up_did_not(tmp_path, monkeypatch):
    called, whole = set(), Kernel.__call__

    def noted(self, *args):
        called.add(self.dispatcher.__name__)
        return whole(self, *args)

    monkeypatch.setattr(Kernel, "__call__", noted)
    make_log(tmp_path)
    publish(tmp_path, chosen("tgn"), 300)
    world = World.of(tmp_path, settings(tmp_path, **chosen("tgn"))).start()
    try:
        warm = set(called)
        called.clear()
        body, _ = asked(world, "a window later")
        post(world, "/v1/score", body | {"dst": DST})
        post(world, "/v1/recommend", body)
        assert called and called <= warm
    finally:
        world.stop()
