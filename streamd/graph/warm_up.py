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
"""Longest wait for another process that compiles kernels, 25 times what that takes on idle cores: a
process that takes longer is most likely stopped."""
FACTS_KERNELS = (facts_kernels.advance, facts_kernels.fill_many, pair_table.place_all)
"""About half of all that is to compile."""
LOOK_SECONDS = 0.1
"""Pause between two looks at the processes that compile, or at the lock."""


def never() -> bool:
    """Do not stop."""
    return False


def warm_up(should_stop: Callable[[], bool] = never) -> float:
    """Compile all kernels that were imported, each for its one signature, or load them where that
    was done before, in one process of this installation at a time.

    should_stop: called a few times a second while others compile, and before each kernel; True ends
    the work. Returns: the seconds it took. Raises: LockedError where another process took too long.
    """
    # The roles start together: the first compiles, the others wait and load.
    begun = time.perf_counter()
    with _kernels_locked(should_stop) as locked:
        if not locked:
            return time.perf_counter() - begun
        jit.copy_image_kernels()
        if jit.CACHE is not None and not list(jit.CACHE.rglob("facts*/kernels.advance*")):
            # numba compiles on one core at a time, so each of two processes does half of it. Not
            # this one: what a compiler takes of memory is never given back. They end with this one,
            # whose lock they need.
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
        if warm_graph(should_stop) and warm_facts(should_stop):
            jit.note_compiled()
    return time.perf_counter() - begun


@contextlib.contextmanager
def _kernels_locked(should_stop: Callable[[], bool]) -> Iterator[bool]:
    """Keep other processes of this installation from the kernels meanwhile: numba would mix up what
    two of them compile. Yields: False if it was to stop before that. Raises: LockedError."""
    # Where no folder keeps what is compiled, there is nothing to mix up.
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
                f"Another process has compiled or loaded kernels for {KERNELS_SECONDS:g} s.",
                f"look for a process that is stopped, which has {lock.lock_file} open, and end it.",
            ) from None
    try:
        yield lock.is_locked
    finally:
        lock.release()


def warm_graph(should_stop: Callable[[], bool] = never) -> bool:
    """Compile or load the kernels that are not of the pair facts. Returns: False if it stopped."""
    return _compile((k for k in jit.KERNELS if k not in FACTS_KERNELS), should_stop)


def warm_facts(should_stop: Callable[[], bool] = never) -> bool:
    """Compile or load the kernels of the pair facts. Returns: False if it stopped."""
    return _compile(FACTS_KERNELS, should_stop)


def _compile(kernels: Iterable[jit.Kernel], should_stop: Callable[[], bool]) -> bool:
    for kernel in kernels:
        if should_stop():
            return False
        kernel.compile()
    return True
