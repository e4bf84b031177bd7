"""Disks of simulated machines: real files, and a model of what is synced, by which a power cut loses the rest."""

import contextlib
import itertools
import os

from streamd.ingest.dead_letters.purge import FOLDER as LETTERS
from streamd.storage import Disk
from tests.faults import Crash, FaultyDisk
from tests.simulator.scheduler import Kill

STALLS = 0.003
"""Share of the syncs that take long."""


class MachineDisk(FaultyDisk):
    """The disk of one machine. Killed processes leave their bytes in the page cache; only a power cut takes what was not synced."""

    def __init__(self, folder, seed):
        super().__init__(seed=seed)
        self._seed = seed
        self.prefix = f"{folder}/"
        """Of the paths of its files."""
        self._stash = folder / "stash"
        self._stash.mkdir(parents=True)
        self._numbers = itertools.count()
        self.lies = False
        """Whether a sync makes nothing durable, and says that it did."""
        self.owners = {}
        """Descriptor -> the process that opened it."""

    def plan(self, calls, mode):
        """Strike at a later call."""
        self.at, self.mode, self.struck = self.calls + calls, mode, False
        self._random.seed(f"{mode} {self.at} {self._seed}")

    def _keep(self, path):
        kept = self._stash / f"{next(self._numbers)}"
        os.link(path, kept)
        return kept

    def _step(self, writes=False):
        super()._step(writes)
        if self.struck and self.mode != "torn":
            self.at = -1

    def sync(self, fd):
        if self.lies:
            self._step()
        else:
            super().sync(fd)

    def sync_folder(self, folder):
        if self.lies:
            self._step()
        else:
            super().sync_folder(folder)

    def end_process(self, process):
        """Close what a dead process had open, as the kernel does."""
        for fd in [fd for fd, owner in self.owners.items() if owner is process]:
            del self.owners[fd]
            if self._paths.pop(fd, None) is not None:
                os.close(fd)
        self.at, self.struck = -1, False

    def lose_power(self):
        """Lose what was not synced; no process runs."""
        # With a removed folder, all that was done to its entries before is durable.
        with contextlib.suppress(FileNotFoundError):
            self.cut_power()
        self.forget()
        self.lies = False

    def forget(self):
        """Know nothing of what is not synced any more."""
        self._dirty.clear()
        self._lost.clear()
        self._entries.clear()
        for kept in self._stash.iterdir():
            kept.unlink()


class SimulatedDisk(Disk):
    """Sends each call to the disk of the machine whose process runs, and hands over the baton before. Outside of any process it is the
    machine's own disk. world: which simulates."""

    world = None

    def _act(self, name, where, *values, seconds=0.0):
        world = SimulatedDisk.world
        task = None if world is None else world.scheduler.current
        if task is None:
            return getattr(Disk, name)(self, *values)
        machine = task.process.machine
        world.scheduler.seam(f"{name} {'?' if isinstance(where, int) else where.name}", seconds)
        if isinstance(where, int):
            # A file that no disk opened, such as an object of the store.
            return getattr(Disk, name)(self, *values)
        if not str(where).startswith(machine.disk.prefix):
            # The store and backups lose nothing, whichever machine wrote to them.
            return getattr(Disk, name)(self, *values)
        try:
            return getattr(machine.disk, name)(*values)
        except Crash:
            world.scheduler.kill(task.process)
            raise Kill from None

    def _path(self, fd):
        world = SimulatedDisk.world
        task = None if world is None else world.scheduler.current
        return fd if task is None else task.process.machine.disk._paths.get(fd, fd)

    def open(self, path, flags):
        fd = self._act("open", path, path, flags)
        world = SimulatedDisk.world
        if world is not None and world.scheduler.current is not None and not isinstance(self._path(fd), int):
            process = world.scheduler.current.process
            process.machine.disk.owners[fd] = process
        return fd

    def allocate(self, fd, num_bytes, offset=0):
        return self._act("allocate", self._path(fd), fd, num_bytes, offset)

    def write(self, fd, data, offset):
        path = self._path(fd)
        if isinstance(path, int):
            # A file that was not opened by a disk, such as a lock.
            return Disk.write(self, fd, data, offset)
        self._act("write", path, fd, data, offset)
        if path.name == "published" and path.parent == SimulatedDisk.world.scheduler.current.process.machine.data_dir:
            SimulatedDisk.world.shown(SimulatedDisk.world.scheduler.current.process.machine)
        return None

    def truncate(self, fd, num_bytes):
        return self._act("truncate", self._path(fd), fd, num_bytes)

    def sync(self, fd):
        return self._act("sync", self._path(fd), fd, seconds=self._seconds())

    def _seconds(self):
        world = SimulatedDisk.world
        if world is None or world.scheduler.current is None:
            return 0.0
        chance = world.scheduler.random
        return chance.uniform(0.1, 3.0) if chance.random() < STALLS else chance.uniform(0.0002, 0.002)

    def sync_folder(self, folder):
        return self._act("sync_folder", folder, folder, seconds=self._seconds())

    def make_folder(self, folder):
        return self._act("make_folder", folder, folder)

    def remove_folder(self, folder):
        return self._act("remove_folder", folder, folder)

    def link(self, old, new):
        return self._act("link", new, old, new)

    def replace(self, old, new):
        if new.parent.name == LETTERS and SimulatedDisk.world is not None:
            SimulatedDisk.world.checks.read_letters()
        self._act("replace", new, old, new)
        world = SimulatedDisk.world
        if new.name == "shown.json" and world is not None and world.scheduler.current is not None:
            world.models_shown(world.scheduler.current.process.machine)

    def unlink(self, path):
        return self._act("unlink", path, path)

    def close(self, fd):
        return self._act("close", self._path(fd), fd)
