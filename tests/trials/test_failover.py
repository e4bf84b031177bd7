"""A trial whose machine is lost: another one that has topic and log leads, and each answer and outcome counts once, wherever it is read."""

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.telemetry.heartbeat import Heartbeat
from streamd.trials import joining
from streamd.trials.arms import Arms
from streamd.trials.figures import look
from streamd.trials.joining import HOLD_SECONDS, TrialLoop
from streamd.trials.trial_state import read_sums
from tests.builders import SECOND
from tests.trials.test_joining import ARMS, ITEMS, STOP, USERS, World


class Machine:
    """A member with the topic and the log of a world. leads: whether it joins now."""

    def __init__(self, world, name):
        self.world, self.path, self.leads = world, world.path / name, False
        self.path.mkdir()
        self.start()

    def start(self):
        self.loop = TrialLoop(self.world.path, self.path / "t.sqlite", self.world.definition, SECOND, Heartbeat(self.path, "trial"),
                              lambda: self.leads, self.world.topic.open)
        self.log = LogReader.open(self.world.path)

    def kill(self):
        """Start again from its files alone."""
        self.loop._state.close()
        self.start()

    def turn(self, now):
        """As a pass of `TrialLoop.run`."""
        if self.leads:
            self.loop.step(self.log, now, STOP)
        else:
            self.loop._seen.clear()

    @property
    def sums(self):
        return read_sums(self.path / "t.sqlite")


@pytest.mark.parametrize("seed", range(6))
def test_leaders_that_change_at_any_time_count_each_answer_and_outcome_once(tmp_path, seed):
    world = World(tmp_path)
    machines = [Machine(world, name) for name in "abc"]
    rng, arms = np.random.default_rng(seed), Arms("t", ARMS)
    want = {arm: {"impressions": 0, "outcomes": 0, "value": 0.0} for arm in ARMS}
    leader, now, at = machines[0], 0.0, 10
    leader.leads = True
    for i in range(60):
        # An answer, some of them sent again, and an edge or a record as its outcome.
        at += int(rng.integers(1, 40))
        user, shown = f"u{rng.integers(USERS)}", [f"i{n}" for n in rng.permutation(ITEMS)[:2]]
        unit = f"{user} {i}"
        arm, parts = arms.arm_of(unit), [int(rng.integers(2)) for _ in range(1 + i % 3)]
        for part in parts:
            world.show(f"a{i}", user, shown, at, arm, unit, part)
        want[arm]["impressions"] += 1
        if i % 2:
            # Within the second, so that no other answer of the user is nearer.
            world.event(user, shown[0], at + 1)
            want[arm]["outcomes"] += 1
            want[arm]["value"] += 1
            at += 1
        if i % 5 == 0:
            for _ in range(1 + i % 2):
                world.outcome(f"a{i}", at + 3, 2.5, int(rng.integers(2)))
            want[arm]["outcomes"] += 1
            want[arm]["value"] += 2.5

        # A pass of each machine; then the leader may die, or lose the lead and follow.
        now += float(rng.choice([1.0, HOLD_SECONDS / 2, HOLD_SECONDS]))
        for one in machines:
            one.turn(now)
        if rng.random() < 0.3:
            leader.leads = False
            if rng.random() < 0.5:
                leader.kill()
            leader = machines[int(rng.integers(3))]
            leader.leads = True
    world.event("u3", "i5", 100_000)

    # Each of them comes to the same sums once it leads, although none saw all of it happen.
    for last in machines:
        for one in machines:
            one.leads = one is last
        for _ in range(3):
            now += HOLD_SECONDS
            last.turn(now)
        sums = last.sums
        found = {arm: {"impressions": sums.impressions[arm], "outcomes": sums.outcomes[arm], "value": sums.sums[arm].total} for arm in ARMS}
        assert found == want, last.path.name
        assert set(sums.reasons) == {"double"} and sums.sums == machines[0].sums.sums
        assert [a.difference for a in look(sums)[0].arms] == [a.difference for a in look(machines[0].sums)[0].arms]
        last.loop._state.close()
    world.loop._state.close()
    world.writer.close()


class Passes:
    """Stops a loop after some passes, of which each begins a hold after the one before."""

    def __init__(self, monkeypatch, num):
        self.left, self.now = num, 0.0
        monkeypatch.setattr(joining.time, "monotonic", lambda: self.now)

    def is_set(self):
        return self.left <= 0

    def wait(self, _):
        self.left, self.now = self.left - 1, self.now + HOLD_SECONDS


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leader_joins(tmp_path, monkeypatch, leads):
    world = World(tmp_path)
    machine = Machine(world, "a")
    machine.leads = leads
    world.show("a", "u1", ["i1"], 10)
    world.event("u1", "i1", 11)
    world.event("u3", "i5", 100_000)
    machine.loop.run(Passes(monkeypatch, 3))
    assert machine.sums.outcomes["rule"] == leads and machine.sums.opened["rule"] == leads
    world.loop._state.close()
    world.writer.close()
