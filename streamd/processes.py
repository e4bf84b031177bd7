"""A process of streamd, its parent and its place among ranks, and its settings in the system: its
end, its open files, the memory it keeps, how often garbage is collected."""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from streamd.errors import SettingsError

logger = structlog.get_logger()
PYTHON = (sys.executable, "-P")
"""Command of Python for children: without the current directory on its path, where a `json.py` may
lie."""
PR_SET_PDEATHSIG = 1
"""Number of the option in Linux's `prctl.h`."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of the parameters in glibc's `malloc.h`."""
KEPT_BYTES = 1 << 30
"""Freed memory that a process that learns keeps, and least size of an array that goes back alone:
the inputs of a chunk of 4,000 events of 172 features are a third of it."""
SUPERVISED_BY = "SUPERVISED_BY"
"""Variable in the environment of a role or rank that holds the process id of what started it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of this process among those that torchrun started.

    rank: from 0 to size - 1. size: processes in all. local_rank: from 0, on this machine.
    """

    rank: int
    size: int
    local_rank: int


def place_of(environ: Mapping[str, str]) -> Place | None:
    """The place that torchrun's variables name, None where torchrun did not start this process.

    Raises: SettingsError where there are some of them only, or they are no numbers.
    """
    if "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size, local_rank = (int(environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        raise SettingsError(
            f"WORLD_SIZE is set, but RANK or LOCAL_RANK is not a number that is set: {error}.",
            "start ranks by torchrun, or unset WORLD_SIZE.",
        ) from None
    return Place(rank, size, local_rank)


def keep_freed_memory(environ: Mapping[str, str]) -> bool:
    """Let the allocator keep the memory of freed large arrays, up to KEPT_BYTES. Without this each
    goes back to the system, which zeroes the pages of the next one.

    Returns: whether it does. Variables of the allocator in the environment go first, and other
    libraries than glibc are left as they are.
    """
    if any(name.startswith("MALLOC_") for name in environ) or "GLIBC_TUNABLES" in environ:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    names = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    return all(library.mallopt(name, KEPT_BYTES) == 1 for name in names)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask Linux to send this process a signal when its parent ends, however that ends; children
    call it at their start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def end_with_supervisor(number: int = signal.SIGTERM) -> None:
    """End this process, by a signal, with the supervisor that started it, even if that was killed
    while this process started. A process of a shell or service manager outlives it."""
    if SUPERVISED_BY not in os.environ:
        return
    end_with_parent(number)
    if (gone := gone_supervisor()) is not None:
        logger.error("supervisor_gone", pid=gone)
        sys.exit(1)


def gone_supervisor() -> int | None:
    """The process id of the supervisor that started this process, if that has ended; None if it
    runs, or if there was none."""
    started_by = os.environ.get(SUPERVISED_BY)
    return None if started_by in (None, str(os.getppid())) else int(started_by)


@contextlib.contextmanager
def ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let a signal end this process meanwhile: a rank that waits for others has nothing to put in
    order yet, and sees no signal until they come. stop: set by a signal that came before, which
    ends the process too."""
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        if stop.is_set():
            sys.exit(0)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit: each connection and each segment
    of the log takes one."""
    # A process may go up to its hard limit without rights.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def file_limit() -> int:
    """The number of files that this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A number takes the place of "no limit", so that callers can subtract from it.
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def num_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The CPUs that this process may use: those of its affinity, and no more than its container's
    quota, rounded up. quota: file of the control group, version 2."""
    cpus = len(os.sched_getaffinity(0))
    try:
        most, period = quota.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if most == "max" else min(cpus, max(1, -(-int(most) // int(period))))


def collect_garbage_rarely() -> None:
    """Make Python search for reference cycles seldom, which makes ingest of single events a fifth
    faster.

    Thousands of records a second hold no cycles, and each search visits all of them.
    """
    # Modules are frozen out of every search; 100,000 new objects start one, not 700.
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
