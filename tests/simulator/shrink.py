"""Shrinks a seed that fails: leaves out faults and parts of the traffic, and ends the load earlier, as long as the run fails alike."""

import re
import time

from tests.simulator import world as worlds
from tests.simulator.workload import PARTS
from tests.simulator.world import run_seed


def alike(why):
    """What failures of one cause have in common: the begins of the first line and of the last, without numbers and names of machines."""
    lines = why.strip().splitlines()
    return [re.sub(r"\b[a-d]\b|\d+", "N", line)[:50] for line in (lines[0], lines[-1])]


class Shrinker:
    """Owner: who found the seed. without, seconds: of the smallest run that fails alike. runs: how many were tried."""

    def __init__(self, seed, seconds, world, why, cpu_seconds):
        """world, why: of the run that failed. cpu_seconds: time of the CPU for all tries; no try begins after it."""
        self.seed, self.seconds, self.without = seed, seconds, world.without
        self._numbers, self._alike, self._until = list(world.faults.numbers), alike(why), time.process_time() + cpu_seconds
        self._failed_at, self.runs = world.scheduler.now, 0

    def _fails(self, without, seconds):
        """Whether a smaller run fails alike; it is the smallest from now on if so."""
        if time.process_time() >= self._until:
            return False
        self.runs += 1
        world, why = run_seed(self.seed, seconds, without=without)
        if not why or alike(why) != self._alike:
            return False
        self.without, self.seconds = frozenset(without), seconds
        self._numbers, self._failed_at = list(world.faults.numbers), world.scheduler.now
        return True

    def shrink(self):
        """Find a smaller run. Returns: itself."""
        while self._failed_at > self.seconds > 1.0 and self._fails(self.without, self.seconds / 2):
            pass
        self._leave_out_faults()
        for part in PARTS:
            self._fails(self.without | {part}, self.seconds)
        self._leave_out_faults()
        return self

    def _leave_out_faults(self):
        """Leave out ever smaller runs of the faults that came."""
        size = len(self._numbers)
        while size >= 1:
            at = 0
            while at < len(self._numbers):
                if not self._fails(self.without | set(self._numbers[at:at + size]), self.seconds):
                    at += size
            size //= 2

    @property
    def options(self):
        """The options of the command that replays the smallest run."""
        left_out = ",".join(sorted(map(str, self.without)))
        trained = f" --trained {worlds.TRAINED:g}" if worlds.TRAINED else ""
        return f"1 {self.seed} --seconds {self.seconds:g}{trained}" + (f" --without {left_out}" if left_out else "")
