"""What the API takes and gives beyond single scores: batches, searches, the inference protocol, moves, trust."""

import json
import os
import socket
import time
import types
from contextlib import closing

import hypothesis
import numpy as np
import pytest
import schemathesis
from kafka.errors import KafkaTimeoutError

from streamd.decode.decoder import make_decoder
from streamd.errors import KafkaError, SettingsError
from streamd.eventlog.delivery import Wait
from streamd.eventlog.writer import LogWriter
from streamd.registry.registry import read_manifests
from streamd.server.http.event_forwarding import Forwarder
from streamd.settings.loading import check_access, load_settings, schema_of
from streamd.settings.sets import EdgeSetSettings, FeatureSettings
from streamd.settings.sources import SourceSettings
from streamd.telemetry.api_keys import Keys
from tests.builders import HOUR, settings, stream, write_log
from tests.server.world import SCHEMA, World, listening, wait

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("api")
    write_log(path, *stream(600, hours=6), SCHEMA, watermark=100 * HOUR)
    made = World(path, server__max_candidates=8)
    made.train()
    made.start()
    wait(lambda: made.engine.status.version == made.registry.champion())
    yield made
    made.stop()


def post(world, path, body, status=200, **headers):
    answer = world.client.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_batch_is_answered_in_order_by_one_version_as_single_requests_are(world):
    asked = [{"src": f"n:{i}", "dst": ["n:20", "n:25"]} for i in range(5)]
    together, singly = post(world, "/v1/score/batch", {"requests": asked}), [post(world, "/v1/score", one) for one in asked]
    assert [(a["src"], a["as_of"]) for a in together] == [(a["src"], a["as_of"]) for a in singly]
    np.testing.assert_allclose(*([s["score"] for a in answers for s in a["scores"]] for answers in (together, singly)), atol=1e-5)
    asked = [{"src": "n:3", "k": 3}, {"src": "n:4", "k": 2, "exclude_seen": True}]
    assert [len(a["scores"]) for a in post(world, "/v1/recommend/batch", {"requests": asked})] == [3, 2]
    nodes = ["n:3", "stranger", 7]
    found = post(world, "/v1/embeddings", {"nodes": nodes})
    assert [f["node"] for f in found] == nodes and [f["known"] for f in found] == [True, False, False]
    assert "at most 32" in post(world, "/v1/embeddings", {"nodes": ["a"] * 33}, 422)["detail"]
    assert "predicts no labels" in post(world, "/v1/labels", {"nodes": ["n:3"]}, 404)["detail"]


def test_a_time_in_another_unit_than_the_logs_gets_a_hint(world):
    asked, now = {"src": "n:3", "dst": ["n:20"]}, int(time.time())
    unit = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}
    own = world.state.settings.stream.time_unit
    assert "hint" not in post(world, "/v1/score", asked | {"time": now * unit[own]})
    finer = now * unit[own] * 1000
    assert post(world, "/v1/score", asked | {"time": finer})["hint"].startswith(f"time {finer} looks like ")
    assert "valid integer" in post(world, "/v1/score", asked | {"time": "2026"}, 422)["detail"]


def test_a_request_that_nobody_made_is_not_found_on_the_trainers_machine(world):
    assert world.client.get("/v1/models/requests/abc").json()["detail"] == "there is no request 'abc'"


def test_an_exact_recommendation_is_the_best_of_all_nodes_and_others_are_answered_between_its_slices(world):
    everyone = [f"n:{i}" for i in range(20, 35)]
    scored = [s for i in (0, 8) for s in post(world, "/v1/score", {"src": "n:3", "dst": everyone[i:i + 8]})["scores"]]
    best = sorted(scored, key=lambda s: -s["score"])
    exact = post(world, "/v1/recommend", {"src": "n:3", "k": 12, "exact": True})
    np.testing.assert_allclose([s["score"] for s in exact["scores"]], [s["score"] for s in best[:12]], atol=1e-5)
    assert len(post(world, "/v1/recommend", {"src": "n:3", "k": 12})["scores"]) <= 8
    both = post(world, "/v1/recommend/batch", {"requests": [{"src": "n:3", "k": 12, "exact": True}, {"src": "n:4", "k": 1}]})
    assert [s["dst"] for s in both[0]["scores"]] == [s["dst"] for s in exact["scores"]] and len(both[1]["scores"]) == 1


@pytest.mark.parametrize("path, says", [
    ("/v1/nodes?prefx=n:2&limit=2", "query.prefx: no such parameter; did you mean 'prefix'?"),
    ("/v1/embeddings/34?interger=true", "query.interger: no such parameter; did you mean 'integer'?"),
    ("/v1/labels/n:3?q=1", "query.q: no such parameter; there are integer, node_set"),
    ("/v1/schema?q=1", "query.q: no such parameter"), ("/v1/models?q=", "query.q: no such parameter"), ("/v1/erase/x?q=1", "query.q: no such parameter"),
    ("/v1/models/requests/x?q=1", "query.q: no such parameter")])
def test_an_unknown_query_parameter_is_refused_as_an_unknown_field_is(world, path, says):
    answer = world.client.get(path)
    assert answer.status_code == 422 and answer.json()["detail"] == says
    assert answer.headers["content-type"] == "application/problem+json"


def test_routes_of_operators_take_any_query_parameter(world):
    for path in ("/livez?q=1", "/readyz?q=1", "/metrics?q=1", "/docs?q=1", "/status.json?windows=1&q=1"):
        assert world.client.get(path).status_code == 200, path
    assert len(world.client.get("/v1/nodes?prefix=n:2&limit=2").json()["nodes"]) == 2


def test_recall_of_recommendations_is_measured_against_all_nodes(world):
    for i in range(60):
        post(world, "/v1/recommend", {"src": f"n:{i % 20}", "k": 5})
    wait(lambda: "streamd_recommend_recall_count 0.0" not in world.client.get("/metrics").text)
    lines = dict(line.rsplit(" ", 1) for line in world.client.get("/metrics").text.splitlines() if "recommend_recall" in line and "#" not in line)
    assert 0.3 < float(lines["streamd_recommend_recall_sum"]) / float(lines["streamd_recommend_recall_count"]) <= 1


def test_a_search_that_takes_too_long_ends_and_the_engine_goes_on(world, monkeypatch):
    monkeypatch.setattr("streamd.server.engine.search.time", types.SimpleNamespace(monotonic=lambda: 2**40))
    assert "deadline" in post(world, "/v1/recommend", {"src": "n:3", "exact": True}, 503)["detail"]
    monkeypatch.undo()
    assert post(world, "/v1/recommend", {"src": "n:3", "exact": True})["scores"]


def infer(world, body, status=200, path="/v2/models/streamd/infer"):
    return post(world, path, body, status)


def test_the_open_inference_protocol_tells_of_server_and_model(world):
    get = world.client.get
    assert get("/v2").json()["name"] == "streamd" and get("/v2").json()["extensions"] == [
        "binary_tensor_data", "model_configuration", "statistics"]
    assert get("/v2/health/live").json() == {"live": True} and get("/v2/health/ready").json() == {"ready": True}
    served = world.engine.status.version
    for path in ("/v2/models/streamd", f"/v2/models/streamd/versions/{served}"):
        told = get(path).json()
        assert told["versions"] == [served] and [t["name"] for t in told["inputs"]] == ["src", "dst", "time"]
        assert get(path + "/ready").json() == {"name": "streamd", "ready": True}
    for path in ("/v2/models/other", "/v2/models/streamd/versions/1-1", "/v2/models/other/ready"):
        assert get(path).status_code == 404 and set(get(path).json()) == {"error"}


def test_inference_takes_the_protocols_forms_and_answers_what_score_does(world):
    """Flat and nested data, `id`, chosen outputs and unknown parameters: the forms of the protocol's published examples."""
    src = {"name": "src", "shape": [2], "datatype": "BYTES", "data": ["n:3", "n:4"]}
    flat = {"name": "dst", "shape": [2, 2], "datatype": "BYTES", "data": ["n:20", "n:21", "n:22", "n:23"]}
    nested = {**flat, "data": [["n:20", "n:21"], ["n:22", "n:23"]], "parameters": {"binary_data": False}}
    answer = infer(world, {"id": "42", "inputs": [src, flat], "outputs": [{"name": "score"}]})
    assert answer["id"] == "42" and answer["model_name"] == "streamd" and answer["model_version"] == world.engine.status.version
    output, = answer["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("score", [2, 2], "FP32")
    singles = [s["score"] for u, a, b in (("n:3", "n:20", "n:21"), ("n:4", "n:22", "n:23"))
               for s in post(world, "/v1/score", {"src": u, "dst": [a, b]})["scores"]]
    np.testing.assert_allclose(output["data"], singles, atol=1e-5)
    again = infer(world, {"parameters": {"any": 1}, "inputs": [src, nested]})
    assert "id" not in again and [o["name"] for o in again["outputs"]] == ["score", "known"]
    assert again["outputs"][0]["data"] == output["data"] and again["outputs"][1]["data"] == [True] * 4
    numbers = infer(world, {"inputs": [{"name": "src", "shape": [1], "datatype": "UINT32", "data": [7]},
                                       {"name": "dst", "shape": [1, 2], "datatype": "INT64", "data": [1, -2]}]})
    assert numbers["outputs"][1]["data"] == [False, False]
    path = f"/v2/models/streamd/versions/{world.engine.status.version}/infer"
    assert infer(world, {"inputs": [src, flat]}, path=path)["outputs"] == again["outputs"]


@pytest.mark.parametrize(("change", "said"), [
    ({"shape": [3]}, "but its shape is [3]"), ({"datatype": "FP32"}, "not all of its values"), ({"data": [1, 2]}, "not all of its values"),
    ({"name": "nothing"}, "'src' is required"), ({"shape": [2, 1], "data": [["n:1"], ["n:2"]]}, "with 1 dimension"), ({"data": [["n:3"], "x"]}, "not all")])
def test_inference_refuses_tensors_that_do_not_fit_with_the_protocols_error(world, change, said):
    src = {"name": "src", "shape": [2], "datatype": "BYTES", "data": ["n:3", "n:4"]} | change
    dst = {"name": "dst", "shape": [2, 1], "datatype": "BYTES", "data": ["n:20", "n:21"]}
    assert said in infer(world, {"inputs": [src, dst]}, 400)["error"]


@pytest.mark.parametrize("body", [{"src": "n:1", "dst": "n:20"}, [{"src": "n:1", "dst": "n:20"}], {"user": 1, "page": 2}, []])
def test_events_that_are_not_wrapped_are_refused_with_the_body_that_they_should_have(world, body):
    told = post(world, "/v1/events", body, 422)["detail"]
    assert told.startswith('body: send events as {"events": [{"src": ..., "dst": ...}, ...]}, and records of a topic')
    assert post(world, "/v1/events", {}, 422)["detail"] == told.removeprefix("body: ")


def test_a_version_is_promoted_and_rolled_back_by_rest_with_a_reason(tmp_path):
    write_log(tmp_path, *stream(400), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, server__api_keys=["reader"], server__admin_keys=["admin"])
    world.train()
    world.start()
    older, why = world.registry.names()[0], {"why": "it was better"}
    path, admin = f"/v1/models/{older}/promote", {"X-API-Key": "admin"}
    assert world.client.post(path, json=why).status_code == 401
    for key, says, challenge in ((None, "an API key is needed", "Bearer"), ("reade", "the API key is wrong", 'Bearer error="invalid_token"')):
        refused = world.client.get("/v1/models", headers={} if key is None else {"X-API-Key": key})
        assert refused.status_code == 401 and refused.json()["detail"].startswith(says) and refused.headers["www-authenticate"] == challenge
    assert "wrong" in world.client.get("/metrics", headers={"Authorization": "Bearer x"}).json()["detail"]
    assert "admin_keys" in world.client.post(path, json=why, headers={"X-API-Key": "reader"}).json()["detail"]
    assert post(world, path, why, **admin)["champion"] == older == world.registry.champion()
    assert post(world, path, {}, 422, **admin)["detail"] == "body.why: Field required"
    assert "there is no version" in post(world, "/v1/models/1-1/promote", why, 404, **admin)["detail"]
    last = world.registry.journal.last()
    assert (last.who, last.why) == ("api", "it was better")
    back = world.client.post("/v1/models/rollback", json=why, headers=admin)
    assert back.status_code == (409 if last.shadow == older else 200)
    world.stop()


@pytest.mark.usefixtures("ingest_asleep")
def test_a_promotion_that_ingest_does_not_commit_in_time_is_accepted_and_made_once_it_does(tmp_path):
    write_log(tmp_path, *stream(400), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path)
    world.train()
    world.registry.journal.wait = Wait(0.02)
    world.start()
    older = next(m.name for m in read_manifests(world.registry) if world.registry.is_servable(m) and m.name != world.registry.champion())
    with closing(LogWriter(tmp_path, SCHEMA)) as ingest:
        request = post(world, f"/v1/models/{older}/promote", {"why": "better"}, 202)["request"]
        assert world.client.get(f"/v1/models/requests/{request}").json()["state"] == "waiting" and world.registry.champion() != older
        assert "has not taken earlier lines" in post(world, "/v1/models/rollback", {"why": "and back"}, 503)["detail"]
        ingest.show_acknowledged()
        outcome = world.client.get(f"/v1/models/requests/{request}").json()
        assert outcome["state"] == "done" and outcome["moved"]["champion"] == older == world.registry.champion()
        assert world.client.get("/v1/models/requests/unknown").status_code == 404
    wait(lambda: world.engine.status.version == older)
    world.stop()


def test_keys_of_a_file_are_rotated_without_a_restart_and_survive_its_absence(tmp_path):
    path = tmp_path / "keys"
    with pytest.raises(SettingsError, match="holds no key"):
        Keys((), path)
    path.write_text("one\ntwo\n")
    keys = Keys((), path)
    assert keys.holds("two") and not keys.holds("three") and not keys.holds("") and not keys.holds(None)
    new = tmp_path / "new"
    new.write_text("three\n")
    new.replace(path)
    assert keys.holds("three") and not keys.holds("two")
    path.unlink()
    assert keys.holds("three"), "a file that is gone for a moment closes nothing"
    path.write_text("\n")
    assert keys.holds("three") and not keys.holds("")


def test_without_keys_only_this_machine_may_ask_under_its_own_name(world):
    for host, status in (("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("evil.example", 403), ("evil.example:8000", 403)):
        assert world.client.get("/v1/models", headers={"host": host}).status_code == status, host


def test_a_request_has_an_id_and_a_line_in_the_log_without_its_content(tmp_path, logged):
    write_log(tmp_path, *stream(100), SCHEMA)
    world = World(tmp_path, telemetry__access_log=True, server__api_keys=["sesame"]).start()
    get = world.client.get
    assert get("/v1/embeddings/user:private?integer=false", headers={"X-API-Key": "sesame", "X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    strange = get("/v1/models", headers={"X-API-Key": "wrong", "X-Request-ID": "a\tb"}).headers["x-request-id"]
    get("/livez")
    world.stop()
    lines = [line for line in logged() if line["event"] == "request"]
    assert [(x["id"], x["status"], x["route"]) for x in lines] == [
        ("abc-1", 404, "/v1/embeddings/{node:path}"), (strange, 401, "/v1/models")] and len(strange) == 32
    assert not any(word in json.dumps(lines) for word in ("private", "sesame", "wrong"))


def test_events_by_rest_are_checked_before_any_is_sent(world, monkeypatch):
    sent = []
    monkeypatch.setattr(world.state.forwarder, "produce", lambda events: sent.extend(events) or [(0, i) for i in range(len(events))])
    good = {"src": "n:1", "dst": "n:30", "time": 1, "features": [1, 2]}
    told = post(world, "/v1/events", {"events": [good, {"type": "delete", "node": "n:1"}]}, 202)
    assert told == {"topic": "events", "after": "events:0:1", "events": [
        {"partition": 0, "offset": 0, "position": "events:0:0"}, {"partition": 0, "offset": 1, "position": "events:0:1"}]}
    assert sent[0][0] == b"n:1" and json.loads(sent[0][1]) == {"type": "edge", **good} and sent[1][0] == b"n:1"
    for bad in ({"src": "n:1", "dst": "n:2", "time": 1, "features": [1]}, {"src": "n:1"}, {"dst": "x" * 300, "src": 1, "time": 1, "features": [1, 2]}):
        assert "event 1" in post(world, "/v1/events", {"events": [good, bad]}, 422)["detail"]
    assert "the stream has 2; has src. As" in post(world, "/v1/events", {"events": [{"src": "n:1"}]}, 422)["detail"]
    assert len(sent) == 2

    def broken(_):
        raise KafkaError("Kafka did not acknowledge the events: away.", "send them again.")

    monkeypatch.setattr(world.state.forwarder, "produce", broken)
    assert "away" in post(world, "/v1/events", {"events": [good]}, 503)["detail"]


def test_a_silent_broker_is_named_to_the_sender_of_events(world, monkeypatch):
    def silent(*_, **__):
        raise KafkaTimeoutError("Timeout waiting for future")

    producer = types.SimpleNamespace(send=silent)
    monkeypatch.setattr(world.state.forwarder, "open_producer", lambda: producer)
    said = post(world, "/v1/events", {"events": [{"src": "n:1", "dst": "n:30", "time": 1, "features": [1, 2]}]}, 503)["detail"]
    assert "did not acknowledge the events: " in said and "did not answer within 10 s. Operator action: send them again" in said


def test_events_by_rest_say_where_the_newest_of_each_partition_is(world, monkeypatch):
    places = [(2, 9), (0, 30), (2, 10), (0, 4), (11, 0)]
    monkeypatch.setattr(world.state.forwarder, "produce", lambda events: places)
    good = {"src": "n:1", "dst": "n:30", "time": 1, "features": [1, 2]}
    told = post(world, "/v1/events", {"events": [good] * 5}, 202)
    assert "hint" not in told
    assert [e["position"] for e in told["events"]] == [f"events:{p}:{o}" for p, o in places]
    assert told["after"] == "events:0:30, events:2:10, events:11:0"


def test_times_by_rest_that_all_look_like_another_unit_get_a_hint_with_every_request(world, monkeypatch):
    monkeypatch.setattr(world.state.forwarder, "produce", lambda events: [(0, i) for i in range(len(events))])
    now = 1_700_000_000
    seconds, right = ({"src": "n:1", "dst": "n:30", "time": time, "features": [1, 2]} for time in (now, now * 1_000_000))
    gone = {"type": "delete", "node": "n:1"}
    says = f"all times look like seconds, not microseconds: {now} was read as 1970-01-01T00:28:20Z; send microseconds, or set stream.time_unit to s"
    for events, hint in (([right], None), ([seconds, gone], says), ([seconds, right], None), ([gone], None), ([seconds] * 2, says)):
        assert post(world, "/v1/events", {"events": events}, 202).get("hint") == hint


@pytest.mark.parametrize(("path", "body", "says"), [
    ("/v1/recommend", {"src": "n:1", "n": 3}, "body.n: no such field; there are src, k, kind, "),
    ("/v1/score", {"scr": "n:1", "dst": ["n:2"]}, "body.scr: no such field; did you mean 'src'?"),
    ("/v1/recommend", {"src": "n:1", "knid": "x"}, "body.knid: no such field; did you mean 'kind'?"),
    ("/v1/recommend", {"src": "n:1", "diversity": {"featur": "a", "max_per_value": 1}}, "body.diversity.featur: no such field; did you mean 'feature'?"),
    ("/v1/events", {"events": [{"src": "n:1", "dest": "n:2"}]}, "body.events.0.dest: no such field; did you mean 'dst'?"),
    ("/v1/score/batch", {"requests": [{"src": "n:1", "dsts": ["n:2"], "dst": ["n:2"]}]}, "body.requests.0.dsts: no such field; did you mean 'dst'?"),
    ("/v1/score", {"src": "n:1", "dst": []}, "body.dst is empty"), ("/v1/embeddings", {"nodes": []}, "body.nodes is empty")])
def test_a_body_that_is_refused_is_named_with_the_nearest_field(world, path, body, says):
    assert post(world, path, body, 422)["detail"].startswith(says)


def test_a_route_that_does_not_exist_leads_to_those_that_do(world):
    assert post(world, "/v1/recomend", {}, 404)["detail"] == "no such route; see /docs"


def replace_forwarder(world, monkeypatch, chosen, sent):
    """Check events by other settings, and only list those that would be produced."""
    other = Forwarder(chosen.kafka, chosen.sources, lambda: make_decoder(chosen, schema_of(chosen)))
    monkeypatch.setattr(other, "produce", lambda events: sent.extend(events) or [(0, i) for i in range(len(events))])
    monkeypatch.setattr(world.state, "forwarder", other)


def test_records_by_rest_are_checked_by_the_topics_source(world, monkeypatch):
    sent = []
    record = {"u": 1, "v": 30, "t": 5, "f": [1, 2]}
    assert 'send them as {"events": [...]}' in post(world, "/v1/events", {"records": [record]}, 422)["detail"]
    feature = FeatureSettings(vector=2)
    mapping = {"topic": "events", "fields": {"src": {"path": "u", "prefix": "n:"}, "dst": "v", "time": "t", "features": {"both": "f"}}, "where": {"v": 30}}
    s = world.state.settings
    graph = s.graph.model_copy(update={"edge_sets": {"default": EdgeSetSettings(features={"both": feature})}})
    replace_forwarder(world, monkeypatch, s.model_copy(update={"graph": graph, "sources": (SourceSettings(**mapping),)}), sent)
    # One that is skipped belongs to the topic too.
    told = post(world, "/v1/events", {"records": [record, record | {"v": 7}]}, 202)
    assert [e["offset"] for e in told["events"]] == [0, 1]
    assert [(key, json.loads(value)) for key, value in sent] == [(b"n:1", record), (b"", record | {"v": 7})]
    assert "event 1: time (t) is text" in post(world, "/v1/events", {"records": [record, record | {"t": "x"}]}, 422)["detail"]
    assert 'send them as {"records": [...]}' in post(world, "/v1/events", {"events": [{"src": 1, "dst": 2}]}, 422)["detail"]
    for wrong in ({}, {"events": [{"src": 1, "dst": 2}], "records": [record]}, {"records": []}, {"records": [5]}, {"records": [record | {"u": 10**30}]}):
        post(world, "/v1/events", wrong, 422)
    assert len(sent) == 2


def test_the_schema_names_sets_and_features(world, tmp_path, monkeypatch):
    told = world.client.get("/v1/schema").json()
    assert told == {"node_sets": [{"name": "default", "width": 0, "features": []}], "label_dim": 0, "time_unit": "us",
                    "edge_sets": [{"name": "default", "width": 2, "features": [], "source": "default", "target": "default"}]}
    sets = {"graph.node_sets": {"user": {}, "item": {"features": {"price": {"type": "number", "missing": 1}}}},
            "graph.edge_sets": {"buys": {"source": "user", "target": "item", "features": {"how": {"categories": ["card", "cash"]}, "v": {"vector": 2}}}}}
    monkeypatch.setattr(world.state, "settings", load_settings(None, {"data_dir": tmp_path} | sets, {})[0])
    told = world.client.get("/v1/schema").json()
    plain = {"categories": None, "missing": None}
    assert told["node_sets"][1] == {"name": "item", "width": 1, "features": [{"name": "price", "kind": "number", "width": 1, "categories": None, "missing": 1}]}
    assert told["edge_sets"] == [{"name": "buys", "source": "user", "target": "item", "width": 5, "features": [
        {"name": "how", "kind": "categories", "width": 3} | plain | {"categories": ["card", "cash"]}, {"name": "v", "kind": "vector", "width": 2} | plain]}]


def test_events_by_rest_name_their_sets(world, tmp_path, monkeypatch):
    sent = []
    sets = {"graph.node_sets": {"user": {}, "item": {}},
            "graph.edge_sets": {"views": {"source": "user", "target": "item"}, "buys": {"source": "item", "target": "user", "features": {"how": {"categories": ["card"]}}}}}
    replace_forwarder(world, monkeypatch, load_settings(None, {"data_dir": tmp_path} | sets, {})[0], sent)
    buy = {"edge_set": "buys", "src": "8", "dst": "41", "time": 5, "features": {"how": "card"}}
    gone = {"type": "delete", "node_set": "item", "node": "8"}
    post(world, "/v1/events", {"events": [buy, gone]}, 202)
    # Keyed by the source as the producer named it.
    assert [(key, json.loads(value)) for key, value in sent] == [(b"8", {"type": "edge"} | buy), (b"8", gone)]
    for wrong, says in (({"edge_set": "bys"}, "unknown_set: event 1"), ({"features": {"hwo": 1}}, "has no feature hwo"), ({"node_set": "user"}, "wrong_type")):
        assert says in post(world, "/v1/events", {"events": [buy, buy | wrong]}, 422)["detail"]
    assert len(sent) == 2


@pytest.fixture(scope="module")
def address(world):
    """The same application behind a real socket."""
    with listening(world) as at:
        yield at


def test_what_the_api_says_of_itself_holds_for_random_requests(world, address, monkeypatch):
    """schemathesis: no 5xx but those declared, every answer as its schema has it, every example accepted."""
    monkeypatch.setattr(world.state.forwarder, "produce", lambda events: [(0, i) for i in range(len(events))])
    schema = schemathesis.openapi.from_url(f"http://{address[0]}:{address[1]}/openapi.json")
    examples = int(os.environ.get("FUZZ_EXAMPLES", "15"))
    seen = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=operation.as_strategy())
        def check(case):
            answer = case.call()
            assert answer.status_code != 500, answer.text
            case.validate_response(answer, excluded_checks=[
                schemathesis.checks.not_a_server_error, schemathesis.checks.ignored_auth, schemathesis.checks.positive_data_acceptance, schemathesis.checks.unsupported_method])

        check()
        seen.append(operation.path)
    assert len(seen) >= 35 and {"/v1/explain", "/v1/nodes", "/v1/models/requests/{request}", "/status.json"} <= set(seen)


def test_a_slow_client_is_cut_off_and_others_are_answered_meanwhile(world, address, monkeypatch):
    link = socket.create_connection(address)
    link.sendall(b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    begun = time.monotonic()
    assert post(world, "/v1/score", {"src": "n:3", "dst": ["n:20"]})["known"]
    answer = link.recv(4096)
    assert b" 408 " in answer.split(b"\r\n")[0] and time.monotonic() - begun < 30
    link.close()


@pytest.mark.parametrize("junk", [
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n", b"\x00\xff\x16\x03\x01", b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\n"
    b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n"])
def test_junk_on_the_wire_harms_nobody(world, address, junk):
    with socket.create_connection(address, timeout=10) as link:
        link.sendall(junk)
        first = link.recv(4096)
        assert not first or first.split(b" ")[1].startswith(b"4")
    assert world.client.get("/livez").status_code == 200


def test_a_head_that_never_ends_is_cut_off(world, address, monkeypatch):
    monkeypatch.setattr("streamd.server.http.connections.HEAD_SECONDS", 0.3)
    with socket.create_connection(address, timeout=10) as link:
        link.sendall(b"GET /livez HTTP/1.1\r\nhost: loc")
        assert link.recv(100) == b""
    with socket.create_connection(address, timeout=10) as link:
        for _ in range(2):
            link.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            # The head and the body may come apart.
            while not answer.endswith(b"}"):
                answer += link.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.4)


def test_values_no_decoder_should_choke_on_are_answered(world):
    for body in (b'{"src": NaN, "dst": ["a"]}', b'{"src": 1e999, "dst": ["a"]}', b'{"src": "\\ud800", "dst": ["a"]}', b'{"src": ' + b"9" * 5000 + b', "dst": ["a"]}',
                 b'{"src": "a", "dst": ' + b"[" * 900 + b"]" * 900 + b"}", "{\"src\": \"\u202e\U0001f600\", \"dst\": [\"\\u0000\"]}".encode()):
        assert world.client.post("/v1/score", content=body, headers=JSON).status_code in (200, 400, 422), body[:40]


def test_settings_of_trust_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(SettingsError):
        settings(tmp_path, server__tls_cert_file="a.pem")
    with pytest.raises(SettingsError):
        check_access(settings(tmp_path, server__host="0.0.0.0").server)
