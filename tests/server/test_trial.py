"""A server in a trial: the arm of a unit answers, and the topic gets an impression of each answer."""

import asyncio
import json
import time

import msgspec
import pytest
from kafka import TopicPartition

from streamd.demo.standin import StandIn
from streamd.ingest.kafka.client import make_consumer
from streamd.models.rule import POPULARITY
from streamd.roles import TRIAL, make_folder
from streamd.server.page.trial_on_page import TrialOnPage
from streamd.trials.arms import Arms
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import Definition, TrialState, state_path
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait

ARMS = {"champion": 0.4, "rule": 0.3, "popularity": 0.3}
ITEMS = [f"n:{i}" for i in range(20, 30)]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """A server in a trial, and one of the same log without."""
    broker = StandIn()
    broker.create_topic("shown", 4)
    path = tmp_path_factory.mktemp("trial")
    write_log(path, *stream(600, hours=6), SCHEMA, watermark=100 * HOUR)
    kafka = {"kafka__bootstrap_servers": broker.bootstrap_servers, "kafka__client": broker.client}
    made = World(path, trials__name="ranking", trials__arms=ARMS, trials__topic="shown", **kafka)
    made.train()
    made.start()
    plain = World(path, **kafka).start()
    for one in (made, plain):
        wait(lambda world=one: world.engine.status.version == world.registry.champion())
    yield made, plain
    made.stop()
    plain.stop()
    broker.close()


def post(world, path, body, status=200):
    answer = world.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def unit_of(arm):
    arms = Arms("ranking", ARMS)
    return next(f"user:{i}" for i in range(1000) if arms.arm_of(f"user:{i}") == arm)


def impressions(world, wanted):
    """The records of the topic by their answers, once it has the wanted ones."""
    consumer = make_consumer(world.settings.kafka)
    parts = [TopicPartition("shown", i) for i in range(4)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    found, deadline = {}, time.monotonic() + 60
    while not wanted <= found.keys():
        assert time.monotonic() < deadline, wanted - found.keys()
        new = [json.loads(r.value) | {"key": r.key} for rs in consumer.poll(timeout_ms=200).values() for r in rs]
        found |= {one["answer"]: one for one in new}
    consumer.close()
    return found


def test_each_arm_answers_as_its_model_does_and_the_topic_has_what_was_shown(worlds):
    world, plain = worlds
    asked = [("/v1/recommend", {"src": "n:3", "k": 4}), ("/v1/recommend", {"src": "n:3", "k": 4, "exact": True}),
             ("/v1/score", {"src": "n:3", "dst": ITEMS})]
    answers = {}
    for arm in ARMS:
        for path, body in asked:
            answer = post(world, path, body | {"trial": {"unit": unit_of(arm)}})
            assert answer["arm"] == arm
            answers[answer["answer"]] = (path, arm, answer)
            version = world.registry.champion() if arm == "champion" else arm
            assert answer["as_of"]["version"] == version
    assert len(answers) == 9

    # The champion answers as without a trial; the others by their formulas, which rank otherwise.
    for path, body in asked:
        same = post(plain, path, body)
        own = next(a for p, arm, a in answers.values() if arm == "champion" and a["scores"] == same["scores"])
        assert {k: v for k, v in own.items() if k not in ("answer", "arm")} == same
        assert "arm" not in same and "answer" not in same
    scored = {arm: [s["score"] for s in a["scores"]] for path, arm, a in answers.values() if path == "/v1/score"}
    assert scored["rule"] != scored[POPULARITY] != scored["champion"]
    assert max(scored[POPULARITY]) <= 0, "logarithms of shares"

    found = impressions(world, answers.keys())
    for number, (_, arm, answer) in answers.items():
        shown = found[number]
        best = sorted(answer["scores"], key=lambda s: -s["score"])
        assert shown == {
            "type": "impression", "answer": number, "trial": "ranking", "arm": arm, "unit": unit_of(arm), "key": unit_of(arm).encode(),
            "version": answer["as_of"]["version"], "src": "n:3", "dst": [s["dst"] for s in best], "edge_set": "default",
            "edge": answer["as_of"]["last_edge"] + 1, "time_us": answer["as_of"]["time"], "schema": 1}


def test_requests_of_a_batch_have_arms_of_their_own(worlds):
    units = {arm: unit_of(arm) for arm in ARMS}
    requests = [{"src": "n:4", "k": 3, "reasons": True, "trial": {"unit": unit}} for unit in units.values()] + [{"src": "n:4", "k": 3}]
    answers = post(worlds[0], "/v1/recommend/batch", {"requests": requests})
    assert [a.get("arm") for a in answers] == [*ARMS, None]
    assert len({a["answer"] for a in answers[:3]}) == 3
    # Of popularity nothing but the candidate's own popularity can be a reason.
    groups = {s["reason"]["group"] for s in answers[2]["scores"] if s["reason"]}
    assert groups == {"popularity"}


def test_a_unit_is_refused_without_a_trial_and_a_request_needs_none(worlds):
    world, plain = worlds
    asked = {"src": "n:3", "trial": {"unit": "user:1"}}
    assert "no trial runs" in post(plain, "/v1/recommend", asked, 422)["detail"]
    assert "arm" not in post(world, "/v1/recommend", {"src": "n:3"})
    assert "unit" in post(world, "/v1/recommend", {"src": "n:3", "trial": {}}, 422)["detail"]


def test_answers_come_while_the_topic_is_away_and_their_impressions_later(worlds, monkeypatch):
    world, _ = worlds
    sender = world.state.trial.sender
    down = True
    open_sink = sender._open_sink

    def opened():
        from streamd.errors import KafkaError

        if down:
            raise KafkaError("The broker is away.")
        return open_sink()

    first = post(world, "/v1/recommend", {"src": "n:5", "trial": {"unit": "user:0"}})["answer"]
    assert impressions(world, {first})
    monkeypatch.setattr(sender, "_open_sink", opened)
    sender._sink.abandon()
    asked = [post(world, "/v1/recommend", {"src": "n:5", "trial": {"unit": f"user:{i}"}})["answer"] for i in range(20)]
    down = False
    assert len({*asked}) == 20 and impressions(world, {*asked})


def test_the_figures_of_the_running_trial(worlds):
    world, plain = worlds
    assert "no trial runs" in plain.client.get("/v1/trials").json()["detail"]
    assert world.client.get("/v1/trials").status_code == 404, "nothing has joined yet"
    make_folder(world.path, TRIAL)
    definition = Definition(name="ranking", shares=ARMS, horizon_seconds=10, edge_set=None)
    state = TrialState(state_path(world.path, "ranking"), definition, 1)
    records = [Impression(answer=f"a{i}", trial="ranking", arm=arm, unit=f"u{i}", version="v", src="a", dst=["b"], edge_set="default", edge=0, time_us=1)
               for i, arm in enumerate(["champion"] * 150 + ["rule"] * 120 + ["popularity"] * 90)]
    outcomes = [{"type": "outcome", "answer": one.answer, "time": 2, "value": 1 + i % 3} for i, one in enumerate(records[:200]) if i % 2]
    state.take_records(map(msgspec.json.encode, [*records, *outcomes, {}]), {0: 1}, 10)
    state.close_before(10**12)
    answer = world.client.get("/v1/trials").json()
    assert answer["trial"] == "ranking" and not answer["mismatch"] and answer["uncounted"] == {"malformed": 1}
    assert [(a["arm"], a["units"], a["answers"], a["outcomes"]) for a in answer["arms"]] == [
        ("champion", 150, 150, 75), ("popularity", 90, 90, 0), ("rule", 120, 120, 25)]
    assert [a["outcomes_a_unit"] for a in answer["arms"]] == [75 / 150, 0, 25 / 120] and not answer["arms"][0]["is_sure"]
    # Too few outcomes in one arm, and none of its own in the champion.
    assert [a["difference"] is None for a in answer["arms"]] == [True, True, False] and answer["arms"][2]["radius"] > 0
    state.close()

    # A damaged state is an answer too.
    state_path(world.path, "ranking").write_bytes(b"no database" * 1000)
    damaged = world.client.get("/v1/trials")
    assert damaged.status_code == 503 and "the state of the trial cannot be read" in damaged.json()["detail"]


def test_a_damaged_state_of_a_trial_leaves_the_page_without_figures(tmp_path):
    make_folder(tmp_path, TRIAL)
    state_path(tmp_path, "ranking").write_bytes(b"no database" * 1000)
    part = TrialOnPage(tmp_path, "ranking")
    asyncio.run(part.refresh())
    assert part.content() is None
