"""A process and its system settings: its rank, its end with its parent, open files, CPUs, freed
memory, and garbage collection."""

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
"""Command of Python for child processes: without the current directory on its path, which may have
a `json.py`."""
PR_SET_PDEATHSIG = 1
"""Number of the option in Linux's `prctl.h`."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of the parameters in glibc's `malloc.h`."""
KEPT_BYTES = 1 << 30
"""Freed memory that the allocator keeps, and smallest array that it returns to the system by
itself. The inputs of a chunk of 4,000 events of 172 features are a third of it."""
SUPERVISED_BY = "SUPERVISED_BY"
"""Environment variable of a role or rank with the process id of its supervisor."""


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """The rank of this process among the processes of torchrun.

    rank: 0 to size - 1. size: number of processes on all machines. local_rank: from 0, on this
    machine.
    """

    rank: int
    size: int
    local_rank: int


def torchrun_rank(environ: Mapping[str, str]) -> TorchrunRank | None:
    """The rank in torchrun's variables, None if torchrun did not start this process.

    Raises: SettingsError if WORLD_SIZE is set, and one of the variables is missing or no number.
    """
    if "WORLD_SIZE" not in environ:
        return None
    try:
        rank, size, local_rank = (int(environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        raise SettingsError(
            f"WORLD_SIZE is set, but it, RANK or LOCAL_RANK is missing or no number: {error}.",
            "start ranks by torchrun, or unset WORLD_SIZE.",
        ) from None
    return TorchrunRank(rank, size, local_rank)


def keep_freed_memory(environ: Mapping[str, str]) -> bool:
    """Let the allocator keep the memory of freed large arrays, up to KEPT_BYTES. Else each array's
    memory returns to the system, which zeroes the pages of the next array.

    Returns: whether it does. It is left alone if the environment has variables of the allocator, or
    if the C library is not glibc.
    """
    if any(name.startswith("MALLOC_") for name in environ) or "GLIBC_TUNABLES" in environ:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    names = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    return all(library.mallopt(name, KEPT_BYTES) == 1 for name in names)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when its parent ends in any way. A child calls it at
    its start."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def end_with_supervisor(number: int = signal.SIGTERM) -> None:
    """End this process, by a signal, when its supervisor ends, even if the supervisor is killed
    while this process starts. A process that a shell or service manager started is left alone."""
    if SUPERVISED_BY not in os.environ:
        return
    end_with_parent(number)
    if (gone := gone_supervisor()) is not None:
        logger.error("supervisor_gone", pid=gone)
        sys.exit(1)


def gone_supervisor() -> int | None:
    """The process id of this process's supervisor, if that has ended; None if it is running, or if
    there was none."""
    started_by = os.environ.get(SUPERVISED_BY)
    return None if started_by in (None, str(os.getppid())) else int(started_by)


@contextlib.contextmanager
def ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process at once, while a rank waits for the others: it has
    nothing to clean up yet, and would handle no signal until they have come. stop: set by an
    earlier signal, which ends the process too."""
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        # A signal may have come before the handlers were replaced.
        if stop.is_set():
            sys.exit(0)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit: each connection and each segment
    of the log needs one."""
    # Up to its hard limit a process needs no privileges.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def file_limit() -> int:
    """The limit of open files of this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # A number for "no limit", so that callers can subtract from it.
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def num_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Number of CPUs that this process may use: that of its affinity mask, but at most its
    container's quota, rounded up. quota: file of the control group, version 2."""
    cpus = len(os.sched_getaffinity(0))
    try:
        # Microseconds of CPU time per period, or "max" without a limit.
        most, period = quota.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if most == "max" else min(cpus, max(1, -(-int(most) // int(period))))


def collect_garbage_rarely() -> None:
    """Make Python search for reference cycles less often, so that ingest of single events is a
    fifth faster.

    Thousands of records per second have no cycles, and each search visits all of them.
    """
    # Exclude loaded modules from searches; search after 100,000 new objects, not 700.
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)
