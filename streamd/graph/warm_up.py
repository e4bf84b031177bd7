"""Compiles or loads the kernels before the first event needs them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator

from filelock import FileLock, Timeout

from streamd.errors import LockedError
from streamd.graph import jit
from streamd.graph.facts import kernels as facts_kernels
from streamd.graph.facts import pair_table
from streamd.processes import PYTHON, SUPERVISED_BY

KERNELS_SECONDS = 300.0
"""Maximum wait for another process that compiles kernels: 25 times the duration on idle cores, so a
process that takes longer is most likely stopped."""
FACTS_KERNELS = (facts_kernels.advance, facts_kernels.fill_many, pair_table.insert_all_slots)
"""The kernels of the pair facts, which take about half of the time to compile."""
LOOK_SECONDS = 0.1
"""Interval of the checks of the processes that compile, or of the lock."""


def never() -> bool:
    """The `should_stop` of a caller that never stops the warm-up."""
    return False


def warm_up(should_stop: Callable[[], bool] = never) -> float:
    """Compile the kernels of all imported modules, or load them from the cache. One process of this
    installation does so at a time:

    1. Take the lock; other processes wait.
    2. Copy kernels that a container image ships into the cache.
    3. If the cache lacks kernels, compile them in two child processes.
    4. Load all kernels, and compile those that are still missing.
    5. Mark the cache as complete. If step 4 came later and was killed, the next process would
       compile without a notice.

    should_stop: called a few times a second while other processes compile, and before each kernel;
    True ends the work. Returns: its duration in seconds. Raises: LockedError if another process
    holds the lock for KERNELS_SECONDS.
    """
    # 1. Roles start together: the first compiles, the others wait and load.
    begun = time.perf_counter()
    with _kernels_locked(should_stop) as locked:
        if not locked:
            return time.perf_counter() - begun
        # 2. Before 3, so that a container with shipped kernels compiles nothing.
        jit.copy_image_kernels()
        if jit.CACHE is not None and not list(jit.CACHE.rglob("facts*/kernels.advance*")):
            # 3. numba compiles on one core, so two child processes compile half each. This process
            # does not compile, since the compiler never frees its memory. The children end with
            # this process, whose lock protects them.
            program = (
                "from streamd.processes import end_with_supervisor; end_with_supervisor(9); "
                "from streamd.graph.warm_up import {half}; {half}()"
            )
            halves = [
                subprocess.Popen(
                    [*PYTHON, "-c", program.format(half=half)],
                    env={**os.environ, SUPERVISED_BY: str(os.getpid())},
                )
                for half in (warm_graph.__name__, warm_facts.__name__)
            ]
            while any(process.poll() is None for process in halves):
                if should_stop():
                    for process in halves:
                        process.kill()
                time.sleep(LOOK_SECONDS)

        # 4. and 5. The mark comes last: a process that finds it shows no notice.
        if warm_graph(should_stop) and warm_facts(should_stop):
            jit.note_compiled()
    return time.perf_counter() - begun


@contextlib.contextmanager
def _kernels_locked(should_stop: Callable[[], bool]) -> Iterator[bool]:
    """Lock the kernels against other processes of this installation: numba's cache files are
    corrupted if two processes compile at once. Yields: False if `should_stop` ended the wait.
    Raises: LockedError."""
    # Without a cache folder there is nothing to lock.
    if jit.CACHE is None:
        yield True
        return
    lock = FileLock(jit.CACHE / jit.LOCK)
    until = time.monotonic() + KERNELS_SECONDS
    while not should_stop():
        try:
            lock.acquire(timeout=LOOK_SECONDS)
            break
        except Timeout:
            if time.monotonic() < until:
                continue
            raise LockedError(
                f"Another process has been compiling or loading kernels for {KERNELS_SECONDS:g} s.",
                f"find the process that has {lock.lock_file} open, end it if it is stopped, and "
                "start this one again.",
            ) from None
    try:
        yield lock.is_locked
    finally:
        lock.release()


def warm_graph(should_stop: Callable[[], bool] = never) -> bool:
    """Compile or load all kernels but those of the pair facts. Returns: False if it stopped
    early."""
    return _compile((k for k in jit.KERNELS if k not in FACTS_KERNELS), should_stop)


def warm_facts(should_stop: Callable[[], bool] = never) -> bool:
    """Compile or load the kernels of the pair facts. Returns: False if it stopped early."""
    return _compile(FACTS_KERNELS, should_stop)


def _compile(kernels: Iterable[jit.Kernel], should_stop: Callable[[], bool]) -> bool:
    for kernel in kernels:
        if should_stop():
            return False
        kernel.compile()
    return True
