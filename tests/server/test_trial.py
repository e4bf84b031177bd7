"""A server in a trial: the arm of a unit answers, and the topic gets an impression of each answer."""

import json
import time

import pytest
from kafka import TopicPartition

from streamd.demo.standin import StandIn
from streamd.ingest.kafka.client import make_consumer
from streamd.models.rule import POPULARITY
from streamd.trials.arms import Arms
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


def impressions(world, number):
    """The records of the topic, once there are so many."""
    consumer = make_consumer(world.settings.kafka)
    parts = [TopicPartition("shown", i) for i in range(4)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    found, deadline = [], time.monotonic() + 20
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number}"
        found += [json.loads(r.value) | {"key": r.key} for rs in consumer.poll(timeout_ms=200).values() for r in rs]
    consumer.close()
    return {one["answer"]: one for one in found}


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

    found = impressions(world, 9)
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
    before = len(impressions(world, 0))
    down = True
    open_sink = sender._open_sink

    def opened():
        from streamd.errors import KafkaError

        if down:
            raise KafkaError("The broker is away.")
        return open_sink()

    monkeypatch.setattr(sender, "_open_sink", opened)
    sender._sink.abandon()
    asked = [post(world, "/v1/recommend", {"src": "n:5", "trial": {"unit": f"user:{i}"}})["answer"] for i in range(20)]
    down = False
    assert {*asked} <= impressions(world, before + 20).keys()
