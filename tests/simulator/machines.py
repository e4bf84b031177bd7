"""Simulated machines: a data directory, its disk, and the processes of the roles that write its log and store it."""

import contextlib
import gc
import itertools
import os
import shutil
from functools import partial
from pathlib import Path

from streamd.daemon.log_roles import run_archive, run_follow, run_ingest
from streamd.daemon.run_role import RETRIED_ERRORS, _as_disk_error
from streamd.errors import DataLossError, FencedError, StreamdError
from streamd.eventlog.upkeep.verify import verify_log
from streamd.store import manifests
from streamd.store.objects import Store
from streamd.store.restore import choose, restore
from tests.builders import settings
from tests.simulator import seams
from tests.simulator.checks import Directory
from tests.simulator.disk import MachineDisk
from tests.simulator.scheduler import Process
from tests.simulator.scribe import run_scribe
from tests.simulator.trainer import run_train

PAUSES = 0.1, 2.0
"""Seconds after which a supervisor starts a process again."""
WRITERS = ("ingest", "follow")
"""Roles that write the log."""
PROCESS_IDS = itertools.count(1_000_000)


class Machine:
    """roles: name -> the process that runs it, None while none does. is_wanted: whether the supervisor starts them again. skew: of its wall
    clock, seconds."""

    def __init__(self, world, name, **values):
        self.world, self.name = world, name
        folder = world.folder / name
        self.disk = MachineDisk(folder, f"{world.seed} {name}")
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        self.values = values
        self.settings = settings(self.data_dir, **values)
        self.directory = Directory(name, self.data_dir)
        log = self.settings.log
        self._mains = {"follow": run_follow} if log.member == "replica" else {"ingest": run_ingest}
        if log.store and log.member != "replica":
            self._mains["archive"] = run_archive
        if world.has_trainers and log.member != "replica" and bool(log.store) == bool(log.name):
            self._mains["train"] = partial(run_train, chance=world.scheduler.stream(f"trainer of {name}"))
        if (scribes := world.checks.model.learned.scribes) is not None and log.member != "replica":
            self._mains["scribe"] = partial(run_scribe, chance=world.scheduler.stream(f"scribe of {name}"), scribes=scribes)
        self.roles, self._stops, self._num_starts = dict.fromkeys(self._mains), {}, itertools.count(1)
        self.skew, self.is_wanted, self.has_left, self._loses_power = 0.0, True, False, None
        self.visitors = []
        """Processes besides the roles', such as that of a backup."""
        self.has_lost_syncs = False
        """Whether its disk lost what it had called durable, so that a role may refuse what is left."""
        self._then = None
        """Called once all processes have ended, before any begins again."""

    def configure(self, **values):
        """Change settings, for processes that start from now on."""
        self.values |= values
        self.settings = settings(self.data_dir, **self.values)

    @property
    def processes(self):
        return [process for process in (*self.roles.values(), *self.visitors) if process is not None]

    def start(self):
        """Run all roles."""
        for role in self.roles:
            self._start(role)

    def stop(self):
        """As SIGTERM to all of them does."""
        for role, process in self.roles.items():
            if process is not None:
                self._stops[role].set()

    def cut_power(self, role, seams_left):
        """Lose power after some seams of one of its processes."""
        if self.roles[role] is not None:
            self.roles[role].kill_in, self._loses_power = seams_left, self.roles[role]

    def kill_at(self, role, kind, has_power):
        """Kill a process at the next seam of a kind, and take the power away with it where it has none any more."""
        if (process := self.roles[role]) is not None:
            process.kill_at = kind
            if not has_power:
                self._loses_power = process

    def strike(self, then):
        """End all processes at once, and then call something before any begins again."""
        self._then = then
        for process in self.processes:
            self.world.scheduler.kill(process)
        self._settle()

    def _settle(self):
        if self._then is not None and not self.processes:
            then, self._then = self._then, None
            then()

    def _lose_power(self):
        """The operator of a machine whose disk lied verifies its log, and gives it an empty volume if that or a role's end shows damage."""
        if not self.disk.lies:
            self.disk.lose_power()
            return
        self.world.checks.lose(self.directory)
        self.disk.lose_power()
        self.has_lost_syncs = True
        if self._is_damaged():
            self.begin_anew()

    def _is_damaged(self):
        try:
            return bool(verify_log(self.data_dir)[1])
        except (StreamdError, OSError) as error:
            self.world.scheduler.note(f"{self.name} does not verify: {type(error).__name__} {error}")
            return True

    def lose_volume(self):
        """Lose the volume. The operator gives the machine an empty one, and a fixed leader the newest manifest, as docs/replicas.md says."""
        self.strike(self.begin_anew)

    def begin_anew(self):
        """Take an empty volume; no process runs."""
        self.world.scheduler.note(f"{self.name} gets an empty volume")
        self.world.checks.lose(self.directory)
        self._empty()
        self.data_dir.mkdir()
        if self.settings.log.member == "leader":
            store = Store(self.settings.log.store)
            if manifests.names(store):
                restore(store, choose(store), self.data_dir)

    def begin_from(self, backup):
        """Take an empty volume, and restore a backup there; no process runs."""
        self.world.scheduler.note(f"{self.name} begins from {backup.name}")
        self.world.checks.lose(self.directory)
        self._empty()
        backup.restore(self.data_dir)

    def _empty(self):
        self.has_lost_syncs = False
        shutil.rmtree(self.data_dir)
        self.disk.forget()
        self.world.faults.operator.forget(self)
        self.world.moves.forget(self)

    def repair(self):
        """Nothing that was planned goes wrong any more."""
        self.disk.at, self.disk.lies, self.skew, self._loses_power = -1, False, 0.0, None
        for process in self.processes:
            process.kill_in, process.kill_at = None, ""

    def _start(self, role):
        if not self.is_wanted or self.roles[role] is not None:
            return
        scheduler = self.world.scheduler
        if role in WRITERS:
            self.world.checks.begin(self.directory)
        stop = self._stops[role] = seams.Event(scheduler)
        name = f"{self.name}-{role}-{next(self._num_starts)}"
        self.roles[role] = process = self._process(name, role, lambda ended: self._ended(role, ended))

        def main():
            try:
                with _as_disk_error(role, self.settings):
                    self._mains[role](self.settings, stop)
            except StreamdError as error:
                process.ended = error
                scheduler.note(f"{process.name} ends: {type(error).__name__} {error}")
            finally:
                scheduler.kill(process)

        scheduler.spawn(process, "main", main)

    def visit(self, name, main):
        """Run something once in a process of its own, beside the roles. Raises nothing: what it refuses is a line of the trace."""
        scheduler = self.world.scheduler
        process = self._process(f"{self.name}-{name}-{next(self._num_starts)}", name, self._left)
        self.visitors.append(process)

        def guarded():
            try:
                main()
            except (StreamdError, OSError) as error:
                scheduler.note(f"{process.name} ends: {type(error).__name__} {error}")
            finally:
                scheduler.kill(process)

        scheduler.spawn(process, "main", guarded)

    def _process(self, name, role, on_end):
        return Process(name, self, on_end, next(PROCESS_IDS), self.world.scheduler.seams.setdefault(role, set()))

    def _left(self, process):
        self.visitors.remove(process)
        self._close(process)
        self._after(process)

    def _ended(self, role, process):
        """Its last thread is over: the kernel closes what it had open, and the supervisor starts it again."""
        self.roles[role] = None
        self._close(process)
        if role in WRITERS:
            self.directory.reader = None
        self._after(process)
        if isinstance(process.ended, StreamdError) and not self._begins_again(process.ended):
            operator = self.world.faults.operator
            if self.has_lost_syncs or operator.restores(process.ended, self):
                self.lose_volume()
            elif not operator.is_expected(process.ended):
                self.world.scheduler.fail(f"{process.name} ended for good: {type(process.ended).__name__} {process.ended}")
            elif not operator.starts_again(process.ended):
                return
        pause = self.world.scheduler.random.uniform(*PAUSES)
        self.world.scheduler.at(pause, lambda: self._start(role))

    def _close(self, process):
        for fd, path in process.locks:
            with contextlib.suppress(OSError):
                if str(Path(f"/proc/self/fd/{fd}").readlink()) == path:
                    os.close(fd)
        self.disk.end_process(process)

    def _after(self, process):
        if self._loses_power is process:
            self._loses_power = None
            self.strike(self._lose_power)
        self._settle()
        gc.collect()

    def _begins_again(self, error):
        """As `run_role` and the supervisor decide it."""
        if isinstance(error, FencedError):
            return self.settings.log.member != "leader" or self.world.faults.fences(error)
        return isinstance(error, RETRIED_ERRORS) and not isinstance(error, DataLossError)
