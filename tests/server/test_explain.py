"""Explanations add up to the score, and a group that is removed changes it as they say."""

import asyncio
import dataclasses
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, SetKey, empty_batch
from streamd.graph.facts.columns import NUM_FACTS
from streamd.graph.facts.groups import GROUPS
from streamd.models.architectures import ARCHITECTURES, architecture_of
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.inference.torch_model import TorchModel
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.rule import rule_scores
from streamd.server.engine.answers import answers_of, query_states
from streamd.server.engine.queue import RequestQueue
from streamd.server.v1.schemas import ExplainedGroup
from streamd.serving.following_graph import ServerGraph
from streamd.serving.loaded_version import LoadedVersion
from streamd.serving.requests import Explain, NotFinite, Score, Seen
from streamd.serving.serving_settings import ServingSettings
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
from tests.server.recorded import SCHEMA as WITH_LABELS
from tests.server.recorded import drawn_model, make_log, publish
from tests.server.world import SCHEMA, World, ask, wait

TOLERANCE = 1e-4
SMALL = {"model__snapshot_seconds": 3600, "model__neighbors": 4}
MODELS = {name: {"model__name": name} for name in ARCHITECTURES} | {
    "no pair facts": {"model__name": "tgn", "model__pair_facts": False}, "rule": {}}


class Explained:
    """A graph and a version with drawn weights, asked without a server."""

    def __init__(self, path, schema, write, rule=False, **values):
        write(path)
        self.schema, self.settings = schema, settings(path, **SMALL, **values)
        self.log = LogReader.open(path)
        self.view = ServerGraph(ServingSettings.of(self.settings, "serve"), self.log, self.settings.model)
        while not self.view.caught_up or not self.view._began:
            self.view.follow(False)
        self.served = None
        if not rule:
            self.served = self.loaded()

    def loaded(self, unweighed=(), bias=None):
        """A version of drawn weights. unweighed: columns of facts that it does not look at; bias: of its last layer over facts."""
        model = drawn_model(self.settings.model, self.schema)
        model.load_state_dict(model.state_dict())  # what follows from the statistics drawn
        with torch.no_grad():
            model.pair[0].weight[:, list(unweighed)] = 0
            if bias is not None:
                model.pair[-1].bias.fill_(bias)
        memory = model.new_memory()
        for first in range(0, 400, 40):
            model.advance(memory, EdgeRows.of(self.log, first, first + 40))
        in_numpy = architecture_of(self.settings.model).in_numpy
        answers = NumpyModel(model.settings, self.schema, model.arrays()) if in_numpy else TorchModel(model)
        manifest = SimpleNamespace(name="drawn", window_seconds=3600, window_end_us=0)
        return LoadedVersion(manifest, answers, memory)

    def ask(self, *requests):
        return answers_of(requests, query_states(self.view, self.served, requests, Seen()))

    def state(self, request):
        """What a request is answered from: memory as its time sees it."""
        return query_states(self.view, self.served, [request], Seen())[0]

    def explain(self, src, dst, time_us=None, edge_set=0):
        answer, = self.ask(Explain(src, dst, time_us, edge_set))
        return answer.explanation


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory):
    plain = {"stream__edge_feature_dim": 2}
    return Explained(tmp_path_factory.mktemp("explain"), SCHEMA, lambda path: write_log(path, *stream(600), SCHEMA),
                     rule=request.param == "rule", **MODELS[request.param], **plain)


@pytest.fixture(scope="module", params=["tgn", "sage", "pair", "rule"])
def several(request, tmp_path_factory):
    values = {k.replace(".", "__"): v for k, v in declared().items()}
    return Explained(tmp_path_factory.mktemp("explain"), SETS, lambda path: write_sets_log(path, *sets_stream()),
                     rule=request.param == "rule", **MODELS[request.param], **values)


nodes = st.one_of(st.integers(0, 34).map("n:{}".format), st.just("nobody"))
quick = hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(made, src, dst, time_us=None, edge_set=0):
    """All that must hold of one explanation. Returns: it."""
    found = made.explain(src, dst, time_us, edge_set)
    scored, = made.ask(Score(src, (dst,), time_us, edge_set))
    assert found.score == pytest.approx(scored.scores[0], abs=1e-5)
    assert found.baseline + sum(group.share for group in found.groups) == pytest.approx(found.score, abs=TOLERANCE)
    numbers = [found.score, found.baseline, *(x for g in found.groups for x in (g.share, g.without, *(f.value for f in g.facts)))]
    assert np.isfinite(numbers).all()
    assert [abs(g.share) for g in found.groups] == sorted((abs(g.share) for g in found.groups), reverse=True)
    assert len(found.groups) == (9 if made.served is not None and made.served.has_embeddings else 8)

    # Each group, removed by hand.
    ids = made.view.ids([src, dst])
    state = made.state(Score(src, (dst,), time_us, edge_set))
    row = made.view.facts.compute(ids[:1], np.array([state.as_of_us]), ids[None, 1:], np.array([edge_set]))[0]
    for group in found.groups:
        assert group.without == pytest.approx(removed(state, group.name, row, ids, edge_set), abs=TOLERANCE), group.name
    return found


def removed(state, name, row, ids, edge_set):
    """The score of a pair without a group, by what answers scores."""
    if name == "graph":
        return float(state.served.model.pair_logits(row)[0])
    columns = next(group.columns for group in GROUPS if group.name == name)
    columns = [c + first for c in columns for first in ((0, NUM_FACTS) if row.shape[1] > NUM_FACTS else (0,))]
    row = row.copy()
    if state.served is None:
        unknown = state.view.facts.compute(np.array([-1]), np.array([0]), np.array([[-1]]), np.array([edge_set]))[0, 0]
        row[0, columns] = unknown[columns]
        return float(rule_scores(row)[0])
    row[0, columns] = state.served.model.mean_facts[columns]
    return float(state.served.scores(row, ids[:1], ids[1:], state.view.live)[0])


@quick
@given(nodes, nodes, st.sampled_from([None, 1, 7 * HOUR, 300 * HOUR]))
def test_shares_add_up_and_a_removed_group_changes_the_score_as_said(made, src, dst, time_us):
    check(made, src, dst, time_us)


@quick
@given(st.integers(0, 22), st.integers(0, 19), st.sampled_from([None, 9 * HOUR]), st.integers(0, 2))
def test_so_they_do_in_each_of_several_edge_sets(several, src, dst, time_us, edge_set):
    found = check(several, src, dst if edge_set == 2 else SetKey(1, dst), time_us, edge_set)
    assert {fact.all_sets for group in found.groups for fact in group.facts} == {False, True}


OF_THE_RULE = {"frequency", "popularity", "source", "paths"}
"""The groups of facts that the rule looks at."""


def test_a_group_that_a_model_does_not_weigh_has_no_share(made):
    if made.served is None:
        assert {g.name for g in made.explain("n:3", "n:24").groups if g.share} <= OF_THE_RULE
        return
    hour = [group for group in GROUPS if group.name == "hour"][0].columns
    saved, made.served = made.served, made.loaded(hour)
    found = check(made, "n:3", "n:24")
    made.served = saved
    assert {g.name: g.share for g in found.groups}["hour"] == pytest.approx(0, abs=1e-7), "but for float32's rounding"


def test_neighbors_are_events_before_memorys_cut_with_their_weights(made):
    src, dst, time = stream(600)
    found = made.explain("n:3", "n:24")
    if made.served is None or not made.served.has_embeddings:
        assert (found.neighbors, found.weights) == ((), "none")
        return
    name = made.settings.model.name
    assert found.weights == ("uniform" if name in ("sage", "gcn") else "attention")
    cut = made.state(Explain("n:3", "n:24")).served.memory.edge
    for of, node in (("src", 3), ("dst", 24)):
        mine = [n for n in found.neighbors if n.of == of]
        events = [(int(v) if u == node else int(u), int(t)) for u, v, t in zip(src[:cut], dst[:cut], time[:cut], strict=True) if node in (u, v)]
        got = [(int(n.node[2:]), n.time_us) for n in mine]
        if name in ("tgat", "dysat"):
            assert set(got) <= set(events) and got
        else:
            assert sorted(got) == sorted(events[-4:])
        total = sum(n.weight for n in mine)
        assert (0 < total <= 1 + 1e-5) if name in ("gat", "dysat") else total == pytest.approx(1, abs=1e-5)
        assert [n.weight for n in mine] == sorted((n.weight for n in mine), reverse=True)


def test_weights_that_are_not_finite_are_not_explained(several):
    if several.served is None:
        return
    broken, asked = several.loaded(bias=float("nan")), [Explain(3, SetKey(1, 4))]
    with pytest.raises(NotFinite):
        answers_of(asked, query_states(several.view, broken, asked, Seen()))


def test_the_page_has_every_group():
    section = (Path(__file__).parents[2] / "docs" / "api.md").read_text().split("## Explanations\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| ", section, re.M)[1:]
    assert rows == [*(group.name for group in GROUPS), "graph"]
    named = ExplainedGroup.model_fields["name"].description
    assert all(name in named for name in rows)


# By HTTP


def explain(world, src, dst, status=200, headers=None, **more):
    answer = world.client.post("/v1/explain", json={"src": src, "dst": dst, **more}, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


ROWS = {"stream__edge_feature_dim": 2, "stream__node_feature_dim": 2, "stream__label_dim": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("asked")
    make_log(path)
    world = World.of(path, settings(path, **ROWS)).start()
    world.by_rule = explain(world, "u:3", "i:0")
    publish(path, ROWS, 300)
    wait(lambda: world.engine.status.version != "rule", 60)
    yield world
    world.stop()


def test_the_rule_is_explained_before_there_is_a_version(world):
    told = world.by_rule
    assert told["version"] == told["as_of"]["version"] == "rule" and told["neighbors"] == [] and told["weights"] == "none"
    assert told["baseline"] == 0 and {g["name"] for g in told["groups"] if g["share"]} <= OF_THE_RULE
    assert told["baseline"] + sum(g["share"] for g in told["groups"]) == pytest.approx(told["score"], abs=TOLERANCE)


def test_an_answer_says_what_scored_says_and_what_it_is_of(world):
    told = explain(world, "u:3", "i:0")
    assert told["score"] == pytest.approx(ask(world, "u:3", ("i:0",))["scores"][0]["score"], abs=1e-6)
    assert (told["src"], told["dst"], told["edge_set"]) == ("u:3", "i:0", "default") and told["known"] and told["dst_known"]
    assert told["version"] == world.engine.status.version and {g["name"] for g in told["groups"]} == {*(g.name for g in GROUPS), "graph"}
    assert all(n["node_set"] == "default" and n["time"] <= told["as_of"]["newest_event"] for n in told["neighbors"])
    headers = world.client.post("/v1/explain", json={"src": "u:3", "dst": "i:0"}).headers
    assert headers["streamd-position"] == told["position"]
    assert explain(world, "u:3", "i:0", headers={"streamd-after": told["position"]})["position"] == told["position"]


def test_the_time_that_is_asked_for_is_that_of_the_facts(world):
    now = explain(world, "u:3", "i:0")
    later = explain(world, "u:3", "i:0", time=now["as_of"]["time"] + 5 * HOUR)
    assert later["as_of"]["time"] == now["as_of"]["time"] + 5 * HOUR

    def since(told):
        return next(f["value"] for g in told["groups"] for f in g["facts"] if f["name"] == "log_seconds_since_source")

    assert np.exp(since(later)) - np.exp(since(now)) == pytest.approx(5 * 3600, rel=1e-3)
    assert later["score"] == pytest.approx(ask(world, "u:3", ("i:0",), time=later["as_of"]["time"])["scores"][0]["score"], abs=1e-6)


def test_strangers_are_explained_as_such(world):
    told = explain(world, "nobody", 8)
    assert not told["known"] and not told["dst_known"] and told["neighbors"] == []
    assert next(g["words"] for g in told["groups"] if g["name"] == "frequency") == "the two never met"


def test_a_pass_takes_a_few_explanations_so_that_others_do_not_wait_for_many(world):
    """Of 32 requests a pass takes 32 scores, or 4 explanations; all are answered in their order."""
    async def passes(requests):
        queue = RequestQueue(world.settings.server)
        waiting = [asyncio.create_task(queue.answers([r], time.monotonic() + 60)) for r in requests]
        await asyncio.sleep(0)
        taken = []
        while queue:
            taken.append([r for batch in queue.take() for r in batch.requests])
        for one in waiting:
            one.cancel()
        return taken

    scores, explanations = [Score("u:3", (f"i:{i}",)) for i in range(40)], [Explain("u:3", f"i:{i}") for i in range(10)]
    assert [len(p) for p in asyncio.run(passes(scores))] == [32, 8]
    assert [len(p) for p in asyncio.run(passes(explanations))] == [4, 4, 2]
    assert [r for p in asyncio.run(passes(scores + explanations)) for r in p] == scores + explanations


@pytest.mark.parametrize(("body", "says"), [
    ({"src": "u" * 10_000}, "body.src: String should have at most 1024 characters"),
    ({"dst": ""}, "body.dst: String should have at least 1 character"),
    ({"dst": 2**64}, "body.dst: Input should be less than or equal to 9223372036854775807"),
    ({"src": None}, "body.src: Input should be an integer or text"), ({"dst": True}, "body.dst: Input should be an integer or text"),
    ({"edge_set": "x" * 10_000}, "body.edge_set: String should have at most 256 characters"),
    ({"time": 1.5}, "body.time: Input should be a valid integer"), ({"k": 0}, "body.k: no such field; there are src, dst, time, edge_set")])
def test_what_is_wrong_with_a_question_is_said(world, body, says):
    assert explain(world, status=422, **({"src": "u:3", "dst": "i:0"} | body))["detail"].startswith(says)


@pytest.mark.parametrize(("src", "dst"), [("u:3", "u:3"), ("zz", "zz"), ("u" * 1024, "\U0001f600" * 1024), ("\0", -(2**63 - 1))])
@pytest.mark.parametrize("time_us", [None, 0, 2**62])
def test_the_strangest_question_that_fits_has_shares_that_add_up(world, src, dst, time_us):
    """A source as its own candidate, keys as long as they may be, the end of all times."""
    told = explain(world, src, dst, time=time_us)
    assert told["baseline"] + sum(g["share"] for g in told["groups"]) == pytest.approx(told["score"], abs=TOLERANCE)


def test_what_does_not_fit_is_refused(world):
    assert "no edge_set 'likes'" in explain(world, "u:3", "i:0", 422, edge_set="likes")["detail"]
    for body in ({"src": "u:3"}, {"src": "u:3", "dst": ["i:0"]}, {"src": "u:3", "dst": "i:0", "time": -1}, {"src": "u:3", "dst": ""}):
        assert world.client.post("/v1/explain", json=body).status_code == 422


def test_a_deleted_node_is_no_neighbor_and_no_partner(tmp_path):
    make_log(tmp_path)
    publish(tmp_path, ROWS, 300)
    world = World.of(tmp_path, settings(tmp_path, **ROWS)).start()
    wait(lambda: world.engine.status.version != "rule", 60)
    gone = explain(world, "u:3", "i:0")["neighbors"][0]["node"]
    before = explain(world, "u:3", gone)
    assert before["dst_known"] and any(n["of"] == "dst" for n in before["neighbors"])

    # The node is deleted while the server runs.
    writer = LogWriter(tmp_path, WITH_LABELS)
    deletion = np.zeros(1, DELETION)
    deletion["src"], deletion["dst"], deletion["time"] = writer.keys.pop(gone), -1, -1
    writer.commit(dataclasses.replace(empty_batch(WITH_LABELS), deletions_X=deletion), Progress(), writer.watermark)
    writer.close()
    wait(lambda: not explain(world, "u:3", gone)["dst_known"])
    assert gone not in [n["node"] for n in explain(world, "u:3", "i:0")["neighbors"]]
    after = explain(world, "u:3", gone)
    assert not any(n["of"] == "dst" for n in after["neighbors"])
    assert next(g["words"] for g in after["groups"] if g["name"] == "frequency") == "the two never met"
    world.stop()
