"""Puts the world in the place of clocks, threads, disk and Kafka clients of the product, and takes it out again.

Clocks and threads: modules of streamd see another `time`, `threading` and `uuid`, and functions whose defaults are clocks get others.
Disk: `streamd.storage.DISK` is of another class. Kafka: kafka-python has threads and sockets of its own, so its clients are replaced
where streamd makes them (`streamd.ingest.kafka.client._make_client`), with the functions of `safe_records` that reach into them.
"""

import contextlib
import functools
import gc
import os
import random
import sys
import threading
import time
import types
import uuid
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

# Roles import these where they begin; all must be there before the seams are looked for.
import streamd.decode.decoder
import streamd.eventlog.upkeep.housekeeper
import streamd.eventlog.writable
import streamd.eventlog.writer
import streamd.ingest.dead_letters.sinks
import streamd.ingest.loop
import streamd.replica.follow_loop
import streamd.replica.leader.connect
import streamd.replica.leader.election
import streamd.replica.leader.leadership_check
import streamd.replica.leader.succession
import streamd.replica.parts  # noqa: F401 - see above
import streamd.store.archive
from streamd import processes, storage
from streamd.eventlog import recovery
from streamd.ingest.kafka import client, safe_records
from streamd.telemetry import heartbeat
from tests.simulator import clients
from tests.simulator.disk import SimulatedDisk
from tests.simulator.scheduler import Kill

BOOTSTRAP_SECONDS = 15.0
"""After which the changelog is trimmed up to a manifest."""
EPOCH = 1_700_000_000.0
"""Wall time at which a seed begins, seconds."""


class Clocks:
    """The module `time` of the product."""

    def __init__(self, world):
        self._world = world

    def __getattr__(self, name):
        return getattr(time, name)

    def monotonic(self):
        return self._world.scheduler.now

    def time(self):
        task = self._world.scheduler.current
        skew = 0.0 if task is None else task.process.machine.skew
        return EPOCH + self._world.scheduler.now + skew

    def monotonic_ns(self):
        return int(self.monotonic() * 1e9)

    def time_ns(self):
        return int(self.time() * 1e9)

    perf_counter = monotonic

    def sleep(self, seconds):
        self._world.scheduler.seam("sleep", seconds)


class Event:
    """As of `threading`."""

    def __init__(self, scheduler):
        self._scheduler, self._is_set, self._waiters = scheduler, False, []

    def is_set(self):
        return self._is_set

    def set(self):
        self._is_set = True
        self._scheduler.wake(self._waiters)

    def clear(self):
        self._is_set = False

    def wait(self, timeout=None):
        if not self._is_set:
            self._scheduler.wait(self._waiters, timeout, "wait")
        return self._is_set


class Lock:
    """As of `threading`."""

    def __init__(self, scheduler):
        self._scheduler, self._is_held, self._waiters = scheduler, False, []

    def acquire(self):
        while self._is_held:
            self._scheduler.wait(self._waiters, None, "lock")
        self._is_held = True
        return True

    def release(self):
        self._is_held = False
        self._scheduler.wake(self._waiters)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()


class FolderLock:
    """As `filelock.FileLock`: of processes, by a file. A thread that has it may take it again."""

    def __init__(self, world, path):
        self._scheduler, self._state = world.scheduler, world.folder_locks.setdefault(str(path), {"owner": None, "depth": 0, "waiters": []})

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *_):
        self.release()

    def acquire(self, timeout=None):
        """Gives a context that releases it."""
        state, task = self._state, self._scheduler.current
        until = None if timeout is None else self._scheduler.now + timeout
        while task is not None and state["owner"] not in (None, task):
            left = None if until is None else until - self._scheduler.now
            if left is not None and left <= 0:
                raise Timeout("a folder lock")
            self._scheduler.wait(state["waiters"], left, "folder lock")
        state["owner"], state["depth"] = task, state["depth"] + 1
        released = contextlib.ExitStack()
        released.callback(self.release)
        return released

    def release(self):
        state = self._state
        state["depth"] -= 1
        if not state["depth"]:
            state["owner"] = None
            self._scheduler.wake(state["waiters"])


class Thread:
    """As of `threading`: another thread of the process that makes it."""

    def __init__(self, scheduler, target=None, name="thread", args=(), kwargs=None, daemon=None):
        self._scheduler, self._name = scheduler, name
        self._target = functools.partial(target, *args, **(kwargs or {}))
        self._process, self._task = scheduler.current.process, None

    def start(self):
        self._task = self._scheduler.spawn(self._process, self._name, self._target)

    def join(self, timeout=None):
        if self._task is not None and not self._task.is_over:
            self._scheduler.wait(self._task.over, timeout, f"join {self._name}")

    def is_alive(self):
        return self._task is not None and not self._task.is_over


class Threads:
    """The module `threading` of the product."""

    def __init__(self, scheduler):
        self.Event = functools.partial(Event, scheduler)
        self.Lock = functools.partial(Lock, scheduler)
        self.Thread = functools.partial(Thread, scheduler)

    def __getattr__(self, name):
        return getattr(threading, name)


class Names:
    """The module `uuid` of the product."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def __getattr__(self, name):
        return getattr(uuid, name)

    def uuid4(self):
        return uuid.UUID(int=self._scheduler.random.getrandbits(128), version=4)


class System:
    """The module `os` of the heartbeat, whose watchdog ends the process, and which knows processes by their numbers."""

    def __init__(self, world):
        self._world = world

    def __getattr__(self, name):
        return getattr(os, name)

    def getpid(self):
        return self._world.scheduler.current.process.number

    def kill(self, number, signal):
        if number not in [process.number for machine in self._world.machines for process in machine.processes]:
            raise ProcessLookupError

    def _exit(self, status):
        scheduler = self._world.scheduler
        scheduler.note(f"{scheduler.current.process.name} is stalled: its watchdog ends it")
        scheduler.kill(scheduler.current.process)
        raise Kill


def _replacements(world):
    """What is replaced -> by what, wherever a module of streamd has it as a global or a default."""
    clocks, scheduler = Clocks(world), world.scheduler

    def lock_directory(path, *more, **named):
        fd = recovery_lock(path, *more, **named)
        if scheduler.current is not None:
            # Whoever had a lock by this number has closed it.
            for process in [process for machine in world.machines for process in machine.processes]:
                process.locks = [lock for lock in process.locks if lock[0] != fd]
            scheduler.current.process.locks.append((fd, str(Path(path).resolve())))
        return fd

    recovery_lock = recovery.lock_directory
    return [
        (time, clocks), (time.monotonic, clocks.monotonic), (time.time, clocks.time), (time.sleep, clocks.sleep),
        (threading, Threads(scheduler)), (uuid, Names(scheduler)),
        (recovery_lock, lock_directory), (FileLock, functools.partial(FolderLock, world)),
        (client._make_client, functools.partial(clients.made, world)),
        (safe_records.bound_polls, lambda consumer, max_bytes: None),
        (safe_records.note_fetches, lambda consumer, note: consumer.notes.append(note)),
        (safe_records.topic_ids, lambda consumer, topics: consumer.topic_ids),
        (safe_records.stable_offsets, lambda consumer: consumer.stable),
        (safe_records.seek, lambda consumer, partition, offset, epoch: consumer.seek(partition, offset, epoch)),
        (processes.collect_garbage_rarely, lambda: None),
    ]


def _functions(module):
    for value in list(vars(module).values()):
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from (f for f in vars(value).values() if isinstance(f, types.FunctionType))


@contextlib.contextmanager
def installed(world):
    """Put a world in the place of the real one, for one seed."""
    table = {id(old): new for old, new in _replacements(world)}
    undo = []
    modules = [m for name, m in sorted(sys.modules.items()) if name.startswith("streamd.") and m is not None]
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in table:
                undo.append((module, name, value))
                setattr(module, name, table[id(value)])
        for function in _functions(module):
            for name in ("__defaults__", "__kwdefaults__"):
                values = getattr(function, name)
                found = values.values() if isinstance(values, dict) else values or ()
                if any(id(v) in table for v in found):
                    undo.append((function, name, values))
                    changed = ({k: table.get(id(v), v) for k, v in values.items()} if isinstance(values, dict)
                               else tuple(table.get(id(v), v) for v in values))
                    setattr(function, name, changed)
    # A manifest counts for followers that begin for minutes; here soon all of them have.
    defaults = streamd.store.archive.Archive.__init__.__kwdefaults__
    undo.append((streamd.store.archive.Archive.__init__, "__kwdefaults__", defaults))
    streamd.store.archive.Archive.__init__.__kwdefaults__ = {**defaults, "bootstrap_seconds": BOOTSTRAP_SECONDS}
    undo.append((heartbeat, "os", heartbeat.os))
    heartbeat.os = System(world)
    random.seed(world.seed)
    configured = structlog.get_config()
    structlog.configure(processors=[functools.partial(_log, world.scheduler)], cache_logger_on_first_use=False)
    storage.DISK.__class__ = SimulatedDisk
    SimulatedDisk.world = world
    gc.disable()
    # The end of each process collects what it had; objects of modules need no look.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
        SimulatedDisk.world = None
        storage.DISK.__class__ = storage.Disk
        structlog.configure(**configured)
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _log(scheduler, logger, level, event):
    """A line of the product's log, as one of the trace."""
    scheduler.note(f"log: {level} {event.pop('event')} {event}")
    raise structlog.DropEvent
