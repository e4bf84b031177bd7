"""The engine follows the log and the versions, and answers: asked over REST, as clients do."""

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamd.clock import SystemClock
from streamd.errors import DeviceMemoryError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, empty_batch
from streamd.graph.negatives import SCORED
from streamd.models.architectures import ARCHITECTURES
from streamd.models.loading import load_model
from streamd.registry import Registry
from streamd.registry.registry import read_manifests
from streamd.server.engine import answerer
from streamd.server.engine.log_follower import LogFollower
from streamd.server.engine.status import EngineState, EngineStatus
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.builders import HOUR, batch, learning, settings, stream, write_log
from tests.readings import reading
from tests.server.world import SCHEMA, World, ask, wait


@pytest.fixture
def world(tmp_path, request):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    made = World(tmp_path, model__name=getattr(request, "param", "tgn"), model__snapshot_seconds=3600)
    yield made
    made.stop()


def test_before_a_version_the_rule_answers_and_says_so(world):
    world.start()
    answer = ask(world)
    assert answer["as_of"]["version"] == "rule" and answer["as_of"]["trained_until"] is None
    assert answer["as_of"]["last_edge"] == 499 and answer["known"] is True
    assert [s["dst"] for s in answer["scores"]] == ["n:20", "n:21", "n:22"]


def test_a_version_is_swapped_in_while_clients_ask_and_no_request_fails(world):
    world.train(2)
    world.start()
    wait(lambda: world.engine.status.version != "rule")
    first, versions = world.engine.status.version, set()

    def client(_):
        while True:
            answer = world.client.post("/v1/score", json={"src": "n:3", "dst": ["n:20", "n:21"]})
            assert answer.status_code == 200, answer.text
            versions.add(answer.json()["as_of"]["version"])
            if world.registry.champion() in versions and len(versions) > 1:
                return answer.json()

    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(client, i) for i in range(4)]
        world.train()
        assert all(a.result(60)["known"] for a in answers)
    assert first in versions and len(versions) >= 2


@pytest.mark.parametrize("world", ARCHITECTURES, indirect=True)
def test_answers_equal_what_the_trainer_would_have_scored(world):
    world.train()
    world.start()
    wait(lambda: world.engine.status.version == world.registry.champion())
    from streamd.training.recorder import Recorder

    log = LogReader.open(world.path)
    recorder = Recorder(learning(world.settings), log)
    recorder.rebuild(log.num_edges)
    version = world.registry.load(world.registry.champion())
    model, memory = load_model(version, log.state.schema)
    assert memory.edge == log.num_edges
    candidates = np.resize(np.arange(20, 35), (1, 111))
    when = int(log.time_of(np.array([499]))[0]) + 1
    facts = recorder.live.facts.all.compute(np.array([3]), np.array([when]), candidates)
    inputs, _ = recorder._inputs(np.array([500]), facts, np.array([3]), candidates, 500, when - 1)
    with torch.no_grad():
        want = model(inputs, memory.gather(inputs.node_M, model.updated(memory)))[0, :15]
    got = [s["score"] for s in ask(world, dst=[f"n:{c}" for c in candidates[0, :15]])["scores"]]
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["tgn", "tgat", "pair"])
def test_published_scores_are_what_the_server_answers_event_by_event(tmp_path, name):
    """A stream through both under one version: each group of equal times is asked before any of it is produced."""
    from streamd.training.learner import Learner
    from streamd.training.recorder import Recorder
    from streamd.training.replay import ReplayStore
    from streamd.windows import recorded_windows

    src, dst, time_E = stream(420, hours=4)
    time_E[200:203] = time_E[200]
    write_log(tmp_path, src[:260], dst[:260], time_E[:260], SCHEMA)
    world = World(tmp_path, model__name=name, registry__keep=1)
    world.train()
    champion = world.registry.load(world.registry.champion())
    world.start()
    wait(lambda: world.engine.status.version == champion.manifest.name)
    whole = tmp_path / "whole"
    write_log(whole, src, dst, time_E, SCHEMA)
    log = LogReader.open(whole)
    recorder, learner = Recorder(learning(world.settings), log), Learner(learning(world.settings), log, ReplayStore(None, 1, 0))
    learner.restore_weights(champion.weights, None)
    _, learner.memory = load_model(champion, SCHEMA)
    recorder.rebuild(champion.manifest.edge)
    want, asked_by_edge, cuts = {}, {}, []
    for window in recorded_windows(log, HOUR):
        for chunk in recorder.chunks(window) if window.first_edge >= champion.manifest.edge else ():
            logits = learner.score(chunk)
            cuts.append(chunk.edges.first_edge)
            if chunk.score is not None:
                nodes = chunk.score.node_M[chunk.score.hops[0].root_U][chunk.score.candidate_EC][:, SCORED]
                want.update(zip(chunk.score.event_E.tolist(), logits, strict=True))
                asked_by_edge.update(zip(chunk.score.event_E.tolist(), nodes.tolist(), strict=True))
    writer = LogWriter(tmp_path, SCHEMA, 100_000)
    at, compared = 260, 0
    while at < 420:
        end = int(np.searchsorted(time_E, time_E[at], side="right"))
        for e in range(at, end):
            answer = ask(world, f"n:{src[e]}", [f"n:{c}" for c in asked_by_edge[e]], time=int(time_E[e]))
            # The stream has few destinations: columns without one of their own have no score.
            is_candidate = np.isfinite(want[e])
            got = np.array([s["score"] for s in answer["scores"]])
            np.testing.assert_allclose(got[is_candidate], want[e][is_candidate], atol=1e-5, err_msg=f"edge {e}")
            assert is_candidate.sum() == len(set(asked_by_edge[e]))
            compared += 1
        rows = batch(SCHEMA, src[at:end], dst[at:end], time_E[at:end])
        rows = dataclasses.replace(rows, msg_ED=log.features_of(np.arange(at, end)))
        writer.commit(rows, Progress(), int(time_E[end - 1]))
        at = end
        wait(lambda edge=end: world.engine.status.edge == edge)
    writer.close()
    world.stop()
    assert compared == 160 and sum(cut >= 260 for cut in cuts) >= 4, "chunks were opened on the way"


def test_a_version_of_other_settings_is_answered_for_with_its_own_facts(world):
    world.train()
    old = world.registry.champion()
    world.start()
    wait(lambda: world.engine.status.version == old)
    before = ask(world)["scores"]
    chosen = settings(world.path, stream__edge_feature_dim=2, model__half_lives_seconds=(10, 100, 1000, 5000, 9000),
                      model__memory_chunk=30, bootstrap__max_events=10_000)
    log = LogReader.open(world.path)
    trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, Registry.of(chosen), SystemClock(), Heartbeat(world.path, "train"))
    trainer.bootstrap()
    assert world.registry.champion() == old
    new, = (m.name for m in read_manifests(world.registry) if m.model_settings() == chosen.model)
    world.registry.promote(new, "someone", "to see it")
    wait(lambda: world.engine.status.version == new)
    fresh = World(world.path).start()
    wait(lambda: fresh.engine.status.version == new)
    assert ask(world)["scores"] == ask(fresh)["scores"] != before
    fresh.stop()
    world.registry.promote(old, "someone", "and back")
    wait(lambda: world.engine.status.version == old)
    assert ask(world)["scores"] == before


def test_an_event_is_visible_in_the_next_answers(world):
    world.train()
    world.start()
    wait(lambda: world.engine.status.version != "rule")
    before = ask(world, src="n:5", dst=["n:20", "n:34"])
    measured = reading(metrics.event_to_answer_seconds, "_sum")
    writer = LogWriter(world.path, SCHEMA)
    later = writer.watermark + 5_000_000
    writer.commit(batch(SCHEMA, np.array([5]), np.array([34]), np.array([later])), Progress(), later)
    writer.close()
    wait(lambda: world.engine.status.edge == 501, 5)
    after = ask(world, src="n:5", dst=["n:20", "n:34"])
    assert after["as_of"]["last_edge"] == 500 and after["as_of"]["newest_event"] == later
    assert after["scores"][1]["score"] > before["scores"][1]["score"]
    assert 0 < reading(metrics.event_to_answer_seconds, "_sum") - measured < 20


def test_a_time_in_the_past_is_answered_as_of_now_and_one_ahead_as_asked(world):
    world.start()
    now = ask(world)
    assert ask(world, time=5)["as_of"] == now["as_of"]
    ahead = now["as_of"]["newest_event"] + 10**9
    assert ask(world, time=ahead)["as_of"]["time"] == ahead


def test_nodes_never_seen_are_answered_and_marked(world):
    world.train()
    world.start()
    answer = ask(world, src="nobody", dst=["n:20", "nothing", 7])
    assert answer["known"] is False and [s["known"] for s in answer["scores"]] == [True, False, False]
    assert all(np.isfinite(s["score"]) for s in answer["scores"])


def test_recommendations_are_the_best_of_all_destinations_in_order(world):
    world.train()
    world.start()
    wait(lambda: world.engine.status.version != "rule")
    answer = world.client.post("/v1/recommend", json={"src": "n:3", "k": 5}).json()
    everyone = ask(world, dst=[f"n:{i}" for i in range(20, 35)])
    best = sorted(everyone["scores"], key=lambda s: -s["score"])[:5]
    assert [s["dst"] for s in answer["scores"]] == [s["dst"] for s in best]
    none = world.client.post("/v1/recommend", json={"src": "n:3", "kind": "no such kind"}).json()
    assert none["scores"] == []
    unseen = world.client.post("/v1/recommend", json={"src": "n:3", "k": 50, "exclude_seen": True}).json()
    assert 0 < len(unseen["scores"]) < 15


def test_labels_are_predicted_by_a_version_with_a_head_and_refused_by_others(world, tmp_path_factory):
    from tests.training.test_labels import trained

    world.start()
    assert world.client.get("/v1/labels/n:3").status_code == 404
    path = tmp_path_factory.mktemp("labels")
    s, _, _ = trained(path, 1, lambda camp: [camp], model__labels="classification")
    labelled = World.of(path, s).start()
    wait(lambda: labelled.engine.status.version == labelled.registry.champion())
    answers = [labelled.client.get(f"/v1/labels/n:{user}").json() for user in range(20)]
    assert all(a["known"] and len(a["labels"]) == 1 and a["memory_edge"] > 0 for a in answers)
    assert min(a["labels"][0] for a in answers[1::2]) > max(a["labels"][0] for a in answers[::2])
    assert labelled.client.get("/v1/labels/nobody").json()["known"] is False
    labelled.stop()


@pytest.mark.parametrize("declared, status, words", [
    ({"model__labels": "classification", "stream__label_dim": 1}, 503, "version rule predicts no labels yet; the next that the trainer learns does"),
    ({"stream__label_dim": 1}, 404, "version rule predicts no labels: set model.labels"),
])
def test_labels_are_to_be_waited_for_only_if_the_settings_declare_them(declared, status, words, tmp_path):
    write_log(tmp_path, *stream(600, hours=6), dataclasses.replace(SCHEMA, label_dim=1), watermark=100 * HOUR)
    world = World(tmp_path, **declared).start()
    told = [world.client.get("/v1/labels/n:3"), world.client.post("/v1/labels", json={"nodes": ["n:3"]})]
    assert [answer.status_code for answer in told] == [status] * 2 and all(words in answer.json()["detail"] for answer in told)
    assert all(("retry-after" in answer.headers) == (status == 503) for answer in told)
    world.stop()


def test_embeddings_and_models_are_told(world):
    world.train()
    world.start()
    wait(lambda: world.engine.status.version != "rule")
    answer = world.client.get("/v1/embeddings/n:3").json()
    assert len(answer["embedding"]) == 8 and answer["known"]
    assert world.client.get("/v1/embeddings/3?integer=true").json()["known"] is False
    models = world.client.get("/v1/models").json()
    assert models["champion"] == world.registry.champion() and models["versions"][-1]["name"] == models["champion"]


@pytest.mark.parametrize(("body", "status"), [
    ({"src": "a"}, 422), ({"src": "a", "dst": []}, 422), ({"src": 1.5, "dst": ["a"]}, 422), ({"src": "a", "dst": ["b"] * 1001}, 422),
    ({"src": "a", "dst": ["b"], "time": -1}, 422), ({"src": "a", "dst": ["b"], "extra": 1}, 422), ({"src": True, "dst": ["b"]}, 422),
    ({"src": 2**70, "dst": ["b"]}, 422), ({"src": "é☃\u0000", "dst": ["b"]}, 200), ({"src": "a", "dst": ["b"], "time": 2**61}, 200)])
def test_requests_that_do_not_fit_get_a_problem(world, body, status):
    world.start()
    answer = world.client.post("/v1/score", json=body)
    assert answer.status_code == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json" and answer.json()["detail"]


def test_bodies_that_are_not_json_or_too_large_are_refused(world):
    world.start()
    post = world.client.post
    for junk in (b"\xff{", b"[" * 5000, b"", b"17", b"null"):
        assert post("/v1/score", content=junk, headers={"content-type": "application/json"}).status_code in (400, 422)
    assert post("/v1/score", content=b"x" * 1_100_000, headers={"content-type": "application/json"}).status_code == 413
    for kind, status in (("application/json; charset=utf-8", 200), ("application/x+json", 200), ("text/plain", 422), ("", 422)):
        answer = post("/v1/score", content=b'{"src": "n:1", "dst": ["n:21"]}', headers={"content-type": kind})
        assert answer.status_code == status and (status == 200 or "content-type" in answer.json()["detail"])


def test_pages_and_metrics_need_nothing_from_outside(world):
    world.start()
    for path in ("/", "/docs", "/static/swagger-ui-bundle.js"):
        page = world.client.get(path)
        assert page.status_code == 200
        if "javascript" not in page.headers["content-type"]:
            assert "//cdn" not in page.text and 'src="http' not in page.text and 'href="http' not in page.text
    wait(lambda: "streamd_served_edges 500.0" in world.client.get("/metrics").text)
    status = world.client.get("/status.json").json()
    assert status["edges"] == 500 and status["roles"]["serve"]["alive"]


def test_with_keys_set_only_health_is_open(tmp_path):
    write_log(tmp_path, *stream(100), SCHEMA)
    world = World(tmp_path, server__api_keys=["one", "two"]).start()
    get = world.client.get
    for path in ("/v1/models", "/metrics", "/status.json"):
        assert get(path).status_code == 401
        assert get(path, headers={"X-API-Key": "three"}).status_code == 401
        assert get(path, headers={"X-API-Key": "two"}).status_code == 200
        assert get(path, headers={"Authorization": "Bearer one"}).status_code == 200
    assert get("/livez").status_code == get("/readyz").status_code == 200
    for path, operations in get("/openapi.json").json()["paths"].items():
        for method, told in operations.items():
            answer = world.client.request(method, re.sub(r"{\w+}", "x", path), json={})
            assert (answer.status_code == 401) == ("security" in told), (method, path)
    world.stop()


def test_more_requests_than_may_wait_are_told_to_come_again(tmp_path):
    write_log(tmp_path, *stream(100), SCHEMA)
    world = World(tmp_path, server__max_queue=1, server__deadline_seconds=0.3)
    world.engine.status.state = EngineState.READY
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: world.client.post("/v1/score", json={"src": 1, "dst": [2]}), range(4)))
    assert sorted(a.status_code for a in answers) == [429, 429, 429, 503]
    assert all(a.headers["Retry-After"] == "1" for a in answers)


def test_memory_advances_while_the_graph_is_still_behind_a_log_that_grows(tmp_path):
    write_log(tmp_path, *stream(100), SCHEMA)
    s, advanced = settings(tmp_path), []
    follower = LogFollower(ServingSettings.of(s, "serve"), Registry.of(s), LogReader.open(tmp_path), EngineStatus())
    log = SimpleNamespace(num_edges=100, committed_at=0.0)
    follower.view = SimpleNamespace(follow=lambda answering: (5, False), log=log, edge=10, watermark=0)
    follower.served = SimpleNamespace(follow_until=lambda *asked: advanced.append(asked) or False, manifest=SimpleNamespace(name="a"))
    assert follower._follow_log(0.0), "the graph has more to take in"
    assert len(advanced) == 1


def test_the_server_catches_up_with_a_log_that_was_there_before(tmp_path):
    src, dst, time_E = stream(500)
    write_log(tmp_path, src, dst, time_E, SCHEMA, watermark=100 * HOUR)
    a = World(tmp_path)
    a.train(3)
    a.start()
    wait(lambda: a.engine.status.version != "rule")
    wait(lambda: a.engine.status.memory_edge == 500)
    b = World(tmp_path).start()
    wait(lambda: b.engine.status.memory_edge == 500)
    x, y = (ask(w, dst=[f"n:{i}" for i in range(20, 35)]) for w in (a, b))
    np.testing.assert_allclose([s["score"] for s in x["scores"]], [s["score"] for s in y["scores"]], atol=1e-5)
    a.stop()
    b.stop()


def test_a_restarted_server_goes_on_from_its_own_memory_and_answers_the_same(world, monkeypatch):
    from streamd.roles import MEMORY, folder_of
    from streamd.serving import retention_hold
    from streamd.serving.memory_store import INDEX, MemoryStore

    monkeypatch.setattr(retention_hold, "MEMORY_EVERY", 50)
    world.train(2)
    world.start()
    version, folder = world.registry.champion(), folder_of(world.path, "serve")
    wait(lambda: world.engine.status.version == version and (folder / MEMORY / INDEX).exists())
    wait(lambda: (found := MemoryStore(folder).stored()) is not None and found.version == version)
    answer = ask(world)
    stored = MemoryStore(folder).stored()
    assert world.registry.manifest(version).edge + 50 <= stored.edge <= 500
    again = World(world.path)
    followed = []
    monkeypatch.setattr("streamd.serving.loaded_version.LoadedVersion.advance", lambda self, log, first, chunks, _own=LoadedVersion.advance: (
        followed.extend(first + a for a, _ in chunks), _own(self, log, first, chunks)))
    again.start()
    wait(lambda: again.engine.status.version == version)
    assert ask(again) == answer and all(edge >= stored.edge for edge in followed)
    again.stop()
    (folder / MEMORY / INDEX).write_bytes(b"damaged")
    assert MemoryStore(folder).stored() is None, "said, and replayed from the version instead"


def test_stored_memory_goes_for_a_second_delete_without_an_event_between_them(world, monkeypatch):
    """Compaction waits for the server, whose memory is as of the newest event and lacks the delete."""
    from streamd.eventlog.upkeep.holds import ask_to_compact
    from streamd.roles import MEMORY, folder_of
    from streamd.serving import retention_hold
    from streamd.serving.memory_store import INDEX
    from streamd.store.compaction_waits import late_roles

    world.train(2)
    world.start()
    index = folder_of(world.path, "serve") / MEMORY / INDEX
    wait(lambda: world.engine.status.version == world.registry.champion())
    event = world.engine.log.num_edges
    for node in (3, 4):
        monkeypatch.setattr(retention_hold, "MEMORY_EVERY", 0)
        wait(index.exists)
        monkeypatch.setattr(retention_hold, "MEMORY_EVERY", 10**9)
        with closing(LogWriter(world.path, SCHEMA, 1000)) as writer:
            rows = np.zeros(1, DELETION)
            rows["src"], rows["dst"], rows["time"] = node, -1, -1
            writer.commit(dataclasses.replace(empty_batch(SCHEMA), deletions_X=rows), Progress(), writer.watermark)
        ask_to_compact(world.path, event)
        wait(lambda: "serve" not in late_roles(world.path, event))
        assert not index.exists(), "it may hold the node"


def test_health_says_why(tmp_path):
    waiting = World(tmp_path)
    waiting.run()
    assert waiting.client.get("/livez").status_code == 200
    ready = waiting.client.get("/readyz")
    assert ready.status_code == 503 and "ingest" in ready.json()["why"]
    assert waiting.client.post("/v1/score", json={"src": 1, "dst": [2]}).status_code == 503
    waiting.engine.status.beat -= 100
    waiting.stop()
    waiting.engine.status.beat -= 100
    assert waiting.client.get("/livez").status_code == 503


def test_an_error_nobody_foresaw_while_a_version_is_loaded_ends_the_server_rather_than_its_answers(tmp_path, monkeypatch):
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path)
    monkeypatch.setattr(Registry, "load", lambda self, name: {}["nothing"])
    world.train(2)
    world.run()
    wait(lambda: world.failures)
    assert not world.engine.status.ready and "the engine failed" in world.client.get("/readyz").json()["why"]
    world.stop()


def test_where_a_gpu_lacks_memory_the_error_says_what_to_do(world, monkeypatch):
    def short(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    world.start()
    with monkeypatch.context() as without, pytest.raises(DeviceMemoryError, match=r"no memory for answers: CUDA out of memory.*gpu.placement"):
        without.setattr(answerer, "answers_of", short)
        ask(world)
    assert ask(world), "the next may find room"
    monkeypatch.setattr(ServerGraph, "follow", short)
    wait(lambda: world.failures)
    assert re.search(r"the engine failed: .* no memory for following the log.*set device: cpu", world.client.get("/readyz").json()["why"])
