"""Simulated machines: a data directory, its disk, and the process of the role that writes its log."""

import contextlib
import gc
import os
from pathlib import Path

from streamd.daemon.log_roles import run_follow, run_ingest
from streamd.daemon.run_role import TRIED_AGAIN
from streamd.errors import DataLossError, FencedError, StreamdError
from tests.builders import settings
from tests.simulator import seams
from tests.simulator.checks import Directory
from tests.simulator.disk import MachineDisk
from tests.simulator.scheduler import Process

PAUSES = 0.1, 2.0
"""Seconds after which a supervisor starts a process again."""


class Machine:
    """process: the one that writes the log here, None while none runs. is_wanted: whether the supervisor starts it again. skew: of its wall
    clock, seconds. loses_power: whether the end of the process is that of the machine."""

    def __init__(self, world, name, **values):
        self.world, self.name = world, name
        folder = world.folder / name
        self.disk = MachineDisk(folder, f"{world.seed} {name}")
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        self.settings = settings(self.data_dir, **values)
        self.directory = Directory(name, self.data_dir)
        self.process, self.stop, self.num_starts = None, None, 0
        self.skew, self.is_wanted, self.loses_power = 0.0, True, False

    def start(self):
        """Run its role in a new process."""
        scheduler = self.world.scheduler
        self.num_starts += 1
        self.world.checks.begin(self.directory)
        self.stop = seams.Event(scheduler)
        self.process = process = Process(f"{self.name}{self.num_starts}", self, self._ended)
        role = run_follow if self.settings.log.member == "replica" else run_ingest

        def main():
            try:
                role(self.settings, self.stop)
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
            with contextlib.suppress(OSError):
                if str(Path(f"/proc/self/fd/{fd}").readlink()) == path:
                    os.close(fd)
        self.disk.end_process(has_power=not self.loses_power)
        self.loses_power, self.process = False, None
        self.directory.reader = None
        gc.collect()
        if isinstance(process.ended, StreamdError) and not self._begins_again(process.ended):
            self.world.scheduler.fail(f"{process.name} ended for good: {type(process.ended).__name__} {process.ended}")
        self.world.scheduler.at(self.world.scheduler.random.uniform(*PAUSES), self._start_again)

    def _begins_again(self, error):
        """As `run_role` and the supervisor decide it."""
        if isinstance(error, FencedError):
            return self.settings.log.member != "leader"
        return isinstance(error, TRIED_AGAIN) and not isinstance(error, DataLossError)

    def _start_again(self):
        if self.is_wanted and self.process is None:
            self.start()
