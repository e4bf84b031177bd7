"""Ranks of the real trainer, started as users start them, are killed and frozen at any moment: every window is learned, none twice."""

import os
import random
import signal
import subprocess
import time

import pytest

from streamd.processes import PYTHON
from streamd.registry import Registry
from streamd.settings.loading import as_environment
from streamd.windows.history import HistoryReader
from tests.processes import children, is_alive, soon
from tests.ranks.test_trainer import check_alike
from tests.ranks.worlds import World

SMALL = {"training__nice": 0, "training__rank_timeout_seconds": 5, "telemetry__log_format": "json"}


STARTING = ("spawned", "kernels_ready", "rank_joined", "trainer_started")
"""Moments of ranks that start: they load libraries and kernels; have kernels, and wait for one another; have not exchanged anything
yet, and load a checkpoint; have loaded it. All but the first are events of their log."""


class Learning:
    """A log that ranks learn, and the agent that starts them."""

    def __init__(self, path, size, wanted):
        self.world, self.path, self.size, self.wanted = World(path, training__ranks=size, **SMALL).grow(), path, size, wanted
        self.agent, self.seen, self.struck, self.said = None, set(), set(), 0

    def start(self, size=None):
        """size: how many ranks from now on."""
        if size is not None:
            training = self.world.settings.training.model_copy(update={"ranks": size})
            self.size, self.world.settings = size, self.world.settings.model_copy(update={"training": training})
        env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | as_environment(self.world.settings)
        with (self.path / "output").open("ab") as output:
            self.agent = subprocess.Popen((*PYTHON, "-m", "streamd", "run", "--role", "train"), env=env, stdout=output, stderr=output)

    def ranks(self):
        """Process ids of the ranks, once all are there; those that were struck do not count, nor those that end with them."""
        found = soon(lambda: len(found := set(children(self.agent.pid)) - self.struck) >= self.size and sorted(found), "ranks are there")
        self.seen |= set(found)
        return found

    def wait_to_start(self, moment):
        """Wait until the ranks that were started last are at one of `STARTING`."""
        self.ranks()
        if moment != "spawned":
            said = f'"event": "{moment}"'.encode()
            soon(lambda: said in (self.path / "output").read_bytes()[self.said:], f"a rank says {moment}", 180)

    def done(self):
        """Windows that are learned and recorded."""
        return len(HistoryReader(self.path).refresh())

    def wait_for(self, count):
        """Wait until so many windows are learned, or all."""
        soon(lambda: self.done() >= min(count, self.wanted), f"{count} windows are learned", 180)

    def strike(self, victim, number):
        """Send a signal; a killed agent leaves no rank, and is started again."""
        self.said, self.struck = (self.path / "output").stat().st_size, set(children(self.agent.pid))
        assert is_alive(victim), "what is struck runs"
        os.kill(victim, number)
        if victim == self.agent.pid:
            self.agent.wait()
            soon(lambda: not any(map(is_alive, self.seen)), "no rank outlives its agent")
            self.start()

    def stop(self):
        self.seen |= set(children(self.agent.pid))
        self.agent.send_signal(signal.SIGTERM)
        assert self.agent.wait(30) == 0
        assert not any(map(is_alive, self.seen)), "none is left"

    def close(self):
        for pid in [self.agent.pid, *children(self.agent.pid), *self.seen]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait()


def learned_in_spite_of(path, alone, size, rng, moments, number=signal.SIGKILL, what="rank"):
    """Learn a log by ranks, of which one, or their agent, gets a signal at some moments: while they learn, or one of `STARTING`.

    Returns: seconds from each signal to the next learned window."""
    learning, seconds, struck = Learning(path, size, wanted=len(HistoryReader(alone.path).refresh())), [], []

    def goes_on(count):
        learning.wait_for(count)
        seconds.extend(time.monotonic() - begun for begun in struck)
        struck.clear()

    learning.start()
    try:
        at = 0
        for moment in moments:
            # Ranks that are to be struck while they start may be those that follow others which were.
            if moment == "learning":
                goes_on(at + 1)
            else:
                learning.wait_to_start(moment)
            time.sleep(rng.uniform(0, 1.2 if moment == "spawned" else 0.4))
            at, victim = learning.done(), learning.agent.pid if what == "agent" else rng.choice(learning.ranks())
            if at == learning.wanted:
                break
            struck.append(time.monotonic())
            learning.strike(victim, number)
        if struck:
            goes_on(at + 1)
        learning.wait_for(learning.wanted)
        learning.stop()
    finally:
        learning.close()

    check_whole(learning.world, alone)
    return seconds


def check_whole(world, alone, num_changes=0):
    """Each window is there once, and is what one trainer makes of it. num_changes: how often the number of ranks changed by a kill, which
    may leave a version of other bits of the window that was cut short."""
    check_alike(world.path, alone.path)
    names, wanted = (Registry.of(w.settings).names() for w in (world, alone))
    again = [name for name in names if name not in wanted]
    assert len(set(names)) == len(names) and set(wanted) <= set(names) and len(again) <= num_changes
    assert {name.rpartition("-")[0] for name in again} <= set(wanted), "each of them is of a window that was cut short"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("alone") / "log", training__nice=0).grow()
    world.learn(1)
    return world


def said(what, seconds):
    load = os.getloadavg()[0]
    print(f"{what}: next window learned after {', '.join(f'{s:.1f}' for s in seconds)} s, load {load:.1f}", flush=True)


@pytest.mark.slow
def test_windows_are_learned_once_although_a_rank_was_killed_three_times(tmp_path, alone):
    moments = ("learning", "rank_joined", "learning")
    assert len(learned_in_spite_of(tmp_path / "log", alone, 2, random.Random(2), moments)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(34))
def test_ranks_killed_at_a_hundred_moments(tmp_path, alone, seed):
    """Three a run, as often as an agent starts its ranks again; more is its supervisor's. Two of three come while they learn."""
    rng = random.Random(seed)
    size, moments = rng.choice([2, 2, 3]), [rng.choice(["learning", "learning", rng.choice(STARTING)]) for _ in range(3)]
    said(f"seed {seed}, {size} ranks, {', '.join(moments)}", learned_in_spite_of(tmp_path / "log", alone, size, rng, moments))


@pytest.mark.slow
@pytest.mark.parametrize("moment", STARTING)
@pytest.mark.parametrize("what", ["rank", "agent"])
def test_ranks_or_agents_killed_again_and_again_while_ranks_start(tmp_path, alone, moment, what):
    said(f"{what}, {moment}", learned_in_spite_of(tmp_path / "log", alone, 3, random.Random(5), [moment] * 3, what=what))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "what"), [(signal.SIGSTOP, "rank"), (signal.SIGKILL, "agent")])
def test_a_frozen_rank_or_a_killed_agent_costs_no_window(tmp_path, alone, number, what):
    seconds = learned_in_spite_of(tmp_path / "log", alone, 2, random.Random(3), ["learning"] * 2, number=number, what=what)
    said(f"{number.name} of a {what}", seconds)


@pytest.mark.slow
def test_two_then_three_ranks_are_killed_and_one_goes_on(tmp_path, alone):
    learning = Learning(tmp_path / "log", 2, wanted=len(HistoryReader(alone.path).refresh()))
    learning.start()
    try:
        for size in (3, 1):
            learning.ranks()
            learning.wait_for(learning.done() + 1)
            assert learning.done() < learning.wanted, "something is left to learn"
            learning.agent.kill()
            learning.agent.wait()
            soon(lambda: not any(map(is_alive, learning.seen)), "no rank outlives its agent")
            learning.start(size)
        learning.wait_for(learning.wanted)
        learning.stop()
    finally:
        learning.close()
    check_whole(learning.world, alone, num_changes=2)
