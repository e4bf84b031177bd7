"""Arms with versions of their own: last midnight, and a version by name."""

import numpy as np
import pytest

from streamd.demo.standin import StandIn
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.registry import Registry
from streamd.telemetry import trial_metrics
from streamd.trials.arms import Arms
from tests.builders import HOUR, batch, stream, write_log
from tests.server.world import SCHEMA, World, wait

MIDNIGHT = 24 * HOUR
ITEMS = [f"n:{i}" for i in range(20, 30)]
ASKED = [("/v1/recommend", {"src": "n:3", "k": 4}), ("/v1/recommend", {"src": "n:3", "k": 4, "exact": True, "reasons": True}),
         ("/v1/score", {"src": "n:3", "dst": ITEMS})]


@pytest.fixture
def broker():
    broker = StandIn()
    broker.create_topic("shown", 4)
    yield broker
    broker.close()


def opened(path, broker, *arms):
    """A server in a trial with these arms and the champion."""
    shares = dict.fromkeys(["champion", *arms], 1 / (1 + len(arms)))
    return World(path, trials__name="ranking", trials__arms=shares, trials__topic="shown", registry__keep=2,
                 kafka__bootstrap_servers=broker.bootstrap_servers, kafka__client=broker.client)


def unit_of(world, arm):
    arms = Arms("ranking", world.settings.trials.arms)
    return next(f"user:{i}" for i in range(1000) if arms.arm_of(f"user:{i}") == arm)


def ask(world, arm, path="/v1/score", body=ASKED[2][1]):
    answer = world.client.post(path, json=body | ({"trial": {"unit": unit_of(world, arm)}} if arm else {}))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found.get("arm", "") == arm
    return {key: value for key, value in found.items() if key not in ("arm", "answer")}


def version_of(world, arm):
    return ask(world, arm)["as_of"]["version"]


def fallbacks(arm):
    return trial_metrics.fallbacks.labels(arm)._value.get()


def is_at_midnight(name):
    return int(name.split("-")[0]) == MIDNIGHT


def grow(path, src, dst, time):
    writer = LogWriter(path, SCHEMA, 100_000)
    writer.commit(batch(SCHEMA, src, dst, time), Progress(), int(time[-1]))
    writer.close()


def champion_by_hand(world, name):
    """The answers of a version as champion."""
    world.registry.promote(name, "test", "to compare")
    wait(lambda: world.engine.status.version == name)
    return [ask(world, "", *asked) for asked in ASKED]


def test_a_registry_that_cannot_be_read_leaves_the_arms_their_versions(tmp_path, broker, monkeypatch):
    write_log(tmp_path, *stream(900, hours=27), SCHEMA, watermark=28 * HOUR)
    world = opened(tmp_path, broker, "last_midnight")
    world.train()
    world.start()
    wait(lambda: is_at_midnight(version_of(world, "last_midnight")))
    looks = []

    def damaged(*_):
        looks.append(1)
        raise OSError("Input/output error")

    monkeypatch.setattr(Registry, "arm_versions", damaged)
    wait(lambda: len(looks) >= 2)
    assert is_at_midnight(version_of(world, "last_midnight")) and world.engine.status.ready
    world.stop()


def test_a_version_answers_in_its_arm_as_it_would_as_champion(tmp_path, broker):
    write_log(tmp_path, *stream(900, hours=27), SCHEMA, watermark=28 * HOUR)
    first = opened(tmp_path, broker, "last_midnight")
    first.train(25)
    named = first.registry.champion()
    # This one is kept, with its memory, for as long as it is an arm: of the others only the newest two and the shadow are.
    world = opened(tmp_path, broker, "last_midnight", named, "rule")
    world.train()
    midnight, champion = world.registry.arm_versions(world.registry.champion())["last_midnight"], world.registry.champion()
    assert is_at_midnight(midnight) and len({midnight, named, champion}) == 3
    assert {midnight, named, champion} <= set(world.registry.names()) and len(world.registry.names()) == 5
    world.start()
    answers = {arm: [ask(world, arm, *asked) for asked in ASKED] for arm in ("champion", "last_midnight", named)}
    assert fallbacks("last_midnight") == fallbacks(named) == 0
    assert answers["champion"] == [ask(world, "", *asked) for asked in ASKED]
    for arm, name in (("last_midnight", midnight), (named, named)):
        assert answers[arm] == champion_by_hand(world, name)
    world.stop()


def test_the_arm_of_last_midnight_changes_at_the_next_one(tmp_path, broker):
    src, dst, time = stream(1600, hours=52)
    cut = int(np.searchsorted(time, 47 * HOUR))
    write_log(tmp_path, src[:cut], dst[:cut], time[:cut], SCHEMA)
    world = opened(tmp_path, broker, "last_midnight")
    world.train()
    world.start()
    assert is_at_midnight(version_of(world, "last_midnight"))
    for hour in range(48, 52):
        end = int(np.searchsorted(time, hour * HOUR))
        grow(tmp_path, src[cut:end], dst[cut:end], time[cut:end])
        cut = end
        world.train()
        wait(lambda: world.engine.status.version == world.registry.champion())
        midnight = world.registry.arm_versions(world.registry.champion())["last_midnight"]
        wait(lambda midnight=midnight: version_of(world, "last_midnight") == midnight)
        held = world.engine._follower.arms
        assert len(held.by_arm) <= 1 and len(held.versions) <= 2, "memory is bounded"
    assert int(midnight.split("-")[0]) == 2 * MIDNIGHT and fallbacks("last_midnight") == 0
    world.stop()


def test_the_champion_answers_in_an_arm_whose_version_is_gone_and_it_is_counted(tmp_path, broker):
    write_log(tmp_path, *stream(400, hours=6), SCHEMA, watermark=28 * HOUR)
    named = "7200000000-100"
    world = opened(tmp_path, broker, "last_midnight", named)
    world.train()
    world.start()
    champion = world.registry.champion()
    before = fallbacks("last_midnight"), fallbacks(named)
    # No midnight has passed, and there never was such a version.
    for arm in ("last_midnight", named):
        assert version_of(world, arm) == champion
        ask(world, arm, *ASKED[1])
    assert (fallbacks("last_midnight"), fallbacks(named)) == (before[0] + 2, before[1] + 2)
    assert version_of(world, "champion") == champion
    world.stop()


def test_a_version_that_is_removed_answers_no_more_and_leaves_no_memory(tmp_path, broker):
    write_log(tmp_path, *stream(900, hours=27), SCHEMA, watermark=28 * HOUR)
    first = opened(tmp_path, broker, "last_midnight")
    first.train(25)
    named = first.registry.champion()
    world = opened(tmp_path, broker, "last_midnight", named)
    world.train()
    world.start()
    champion, arms = world.registry.champion(), world.engine._follower.arms
    assert version_of(world, named) == named

    # A purge of deleted data drops versions that may have it.
    dropped = {named, version_of(world, "last_midnight")}
    world.registry.drop_before(2**40)
    wait(lambda: version_of(world, named) == champion, 30)
    # The shadow is kept, and may be of the day before.
    wait(lambda: version_of(world, "last_midnight") not in dropped)
    assert not dropped & {one.manifest.name for one in arms.versions}
    world.stop()


def test_a_version_that_is_not_finite_answers_no_more_in_its_arm(tmp_path, broker, monkeypatch):
    write_log(tmp_path, *stream(900, hours=27), SCHEMA, watermark=28 * HOUR)
    world = opened(tmp_path, broker, "last_midnight")
    world.train()
    world.start()
    arms, champion = world.engine._follower.arms, world.registry.champion()
    assert version_of(world, "last_midnight") != champion
    broken = arms.by_arm["last_midnight"]
    for one in (broken, broken._at_query):
        if one is not None:
            monkeypatch.setattr(one, "scores", lambda facts, *_: np.full(len(facts), np.nan, np.float32))
    before = fallbacks("last_midnight")
    answers = [version_of(world, arm) for arm in ("last_midnight", "champion")]
    assert answers == [champion, champion] and world.engine.status.version == champion
    assert fallbacks("last_midnight") == before + 1
    world.stop()
