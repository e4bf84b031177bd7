"""Compiles or loads the kernels before the first event needs them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

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


def warm_up() -> float:
    """Compile all kernels that were imported, each for its one signature, or load them where that
    was done before, in one process of this installation at a time.

    Returns: the seconds it took. Raises: LockedError where another process took too long.
    """
    # The roles start together: the first compiles, the others wait and load.
    begun = time.perf_counter()
    with _kernels_locked():
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
            for process in halves:
                process.wait()
        warm_graph()
        warm_facts()
        jit.note_compiled()
    return time.perf_counter() - begun


@contextlib.contextmanager
def _kernels_locked() -> Iterator[None]:
    """Keep other processes of this installation from the kernels meanwhile: numba would mix up what
    two of them compile. Raises: LockedError."""
    # Where no folder keeps what is compiled, there is nothing to mix up.
    if jit.CACHE is None:
        yield
        return
    lock = FileLock(jit.CACHE / jit.LOCK)
    try:
        lock.acquire(timeout=KERNELS_SECONDS)
    except Timeout:
        raise LockedError(
            f"Another process has compiled or loaded kernels for {KERNELS_SECONDS:g} s.",
            f"look for a process that is stopped, which has {lock.lock_file} open, and end it.",
        ) from None
    try:
        yield
    finally:
        lock.release()


def warm_graph() -> None:
    """Compile or load the kernels that are not of the pair facts."""
    for kernel in jit.KERNELS:
        if kernel not in FACTS_KERNELS:
            kernel.compile()


def warm_facts() -> None:
    """Compile or load the kernels of the pair facts."""
    for kernel in FACTS_KERNELS:
        kernel.compile()
