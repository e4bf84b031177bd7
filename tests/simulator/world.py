"""A seed's world: machines whose roles run streamd's own code, the broker, what goes wrong, and the checks."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

from streamd.daemon.log_roles import run_ingest
from streamd.daemon.run_role import TRIED_AGAIN
from streamd.errors import DataLossError, FencedError, StreamdError
from streamd.eventlog.journal import journal
from streamd.eventlog.upkeep.verify import verify_log
from tests.builders import settings
from tests.simulator import seams
from tests.simulator.broker import Broker
from tests.simulator.checks import Checks, Directory
from tests.simulator.disk import MachineDisk
from tests.simulator.faults import Faults
from tests.simulator.scheduler import Failure, Process, Scheduler
from tests.simulator.workload import Producers

SECONDS = 120.0
"""Virtual time with load and faults."""
CALM_SECONDS = 150.0
"""Longest time after it until all is read and shown everywhere."""
IN_MEMORY = "/dev/shm"
"""Where directories lie if there is such a file system: no real disk is waited for."""
LINES = 40
"""Lines of a journal file, so that files end often."""


class Machine:
    """One data directory and its disk. process: None while nothing runs. is_wanted: whether its supervisor starts it again."""

    def __init__(self, world, name, **values):
        self.world, self.name = world, name
        self.folder = world.folder / name
        self.data_dir = self.folder / "data"
        self.disk = MachineDisk(self.folder, f"{world.seed} {name}")
        self.data_dir.mkdir()
        self.settings = settings(self.data_dir, **values)
        self.directory = Directory(self.data_dir)
        self.process, self.stop, self.skew, self.is_wanted, self.loses_power, self.num_starts = None, None, 0.0, True, False, 0
        self.errors = []

    def start(self):
        """Run its role in a new process."""
        world = self.world
        self.num_starts += 1
        world.checks.begin(self.directory)
        self.stop = seams.Event(world.scheduler)
        self.process = process = Process(f"{self.name}{self.num_starts}", self, self._ended)
        scheduler = world.scheduler

        def main():
            try:
                run_ingest(self.settings, self.stop)
                process.ended = "stopped"
            except StreamdError as error:
                process.ended = error
                scheduler.note(f"{process.name} ends: {type(error).__name__} {error}")
            finally:
                scheduler.kill(process)

        scheduler.spawn(process, "main", main)

    def _ended(self, process):
        """Its last thread is over: the kernel closes what it had open, and the supervisor starts it again."""
        for fd, path in process.locks:
            try:
                if str(Path(f"/proc/self/fd/{fd}").readlink()) == path:
                    os.close(fd)
            except OSError:
                continue
        self.disk.end_process(has_power=not self.loses_power)
        self.loses_power, self.process = False, None
        self.directory.reader = None
        gc.collect()
        error = process.ended
        is_known = isinstance(error, TRIED_AGAIN) and not isinstance(error, DataLossError)
        if isinstance(error, StreamdError) and not is_known and not isinstance(error, FencedError):
            self.world.scheduler.fail(f"{process.name} ended for good: {type(error).__name__} {error}")
        if isinstance(error, StreamdError):
            self.errors.append(error)
        if self.is_wanted:
            self.world.scheduler.at(self.world.scheduler.random.uniform(0.1, 2.0), self._start_again)

    def _start_again(self):
        if self.is_wanted and self.process is None:
            self.start()


class World:
    """All of one seed. Owner: who runs it."""

    def __init__(self, seed, stop_at=None):
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.scheduler.stop_at = stop_at
        self.odds = self.scheduler.random.choice([0, 1, 10])
        """How much likelier the broker's small faults are than usual."""
        self.broker = Broker(self.scheduler, self.scheduler.random.choice([1, 3]))
        self.checks = Checks(self.broker)
        base = IN_MEMORY if Path(IN_MEMORY).is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"simulator-{seed}-", dir=base))
        self.machines, self.faults, self.producers = [], Faults(self), Producers(self)

    def stamp(self, machine):
        """Wall time in milliseconds; of the world where `machine` is None."""
        return int((seams.EPOCH + self.scheduler.now + (0.0 if machine is None else machine.skew)) * 1000)

    def shown(self, machine):
        """A machine has just written what readers may see."""
        task, self.scheduler.current = self.scheduler.current, None
        try:
            self.checks.look(machine.directory)
        except Failure as failure:
            self.scheduler.fail(str(failure))
        except Exception as error:  # noqa: BLE001 - what a reader cannot read is a finding
            self.scheduler.fail(f"a reader of {machine.name} failed: {type(error).__name__} {error}")
        finally:
            self.scheduler.current = task

    def draw_settings(self):
        chance = self.scheduler.random
        return {
            "kafka__topics": ["events"], "stream__edge_feature_dim": 1, "stream__time_unit": "ms",
            "windows__width_seconds": chance.choice([60, 3600]),
            "ingest__segment_edges": chance.choice([256, 4096]),
            "ingest__commit_interval_seconds": chance.choice([0.01, 0.1, 1.0]),
            "ingest__merge_wait_seconds": chance.choice([0.0, 0.2, 2.0]),
            "ingest__late_policy": chance.choice(["clamp", "clamp", "dead_letter"]),
            "ingest__idle_timeout_seconds": chance.choice([0, 10, 60]),
        }

    def run(self, seconds=SECONDS):
        """Run all of the seed. Raises: Failure."""
        lines, journal.FILE_LINES = journal.FILE_LINES, LINES
        with seams.installed(self):
            try:
                self._run(seconds)
            finally:
                journal.FILE_LINES = lines
                self._end()

    def _run(self, seconds):
        chance = self.scheduler.random
        self.broker.create("events", chance.randint(1, 4))
        self.machines = [Machine(self, "a", **self.draw_settings())]
        for machine in self.machines:
            machine.start()
        self.producers.begin()
        self.faults.begin()
        self.scheduler.run(seconds)
        self._calm()

    def _calm(self):
        """Nothing more goes wrong: all must be read, shown, and end when told to."""
        self.producers.end()
        self.faults.end()
        self.scheduler.note("all faults are over")
        until = self.scheduler.now + CALM_SECONDS
        while (why := self._unsettled()) and self.scheduler.now < until:
            self.scheduler.run(1.0)
        if why:
            raise Failure(f"{CALM_SECONDS:.0f} s after the faults ended: {why}")
        for machine in self.machines:
            machine.is_wanted = False
            machine.stop.set()
        self.scheduler.run(30.0)
        for machine in self.machines:
            if machine.process is not None:
                raise Failure(f"{machine.name} does not stop")
            if damaged := verify_log(machine.data_dir)[1]:
                raise Failure(f"{machine.name} has damage: {damaged}")

    def _unsettled(self):
        return self.checks.unread()

    def _end(self):
        """End all threads of the seed, and remove its files."""
        self.scheduler.failure = ""
        self.scheduler.stop_at = None
        for machine in self.machines:
            machine.is_wanted = False
            if machine.process is not None:
                self.scheduler.kill(machine.process)
        self.scheduler.run(0.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def run_seed(seed, seconds=SECONDS, stop_at=None):
    """Run a seed. Returns: the world, and why it failed, "" where it did not."""
    world = World(seed, stop_at)
    try:
        world.run(seconds)
    except Failure as failure:
        return world, str(failure)
    return world, ""
