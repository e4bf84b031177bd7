"""Compiles or loads the kernels before the first event needs them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

import numpy as np
from filelock import FileLock, Timeout

from streamd.errors import LockedError
from streamd.graph import BlockGraph, PairFacts, TemporalSampler, jit
from streamd.graph.gather import edge_features
from streamd.graph.sampler import Strategy
from streamd.processes import PYTHON, SUPERVISED_BY
from streamd.segments.columns import EdgeColumns

KERNELS_SECONDS = 300.0
"""Longest wait for another process that compiles kernels, 25 times what that takes on idle cores: a
process that takes longer is most likely stopped."""


def warm_up() -> float:
    """Compile all kernels, or load them where that was done before, in one process of this
    installation at a time.

    Returns: the seconds it took. Raises: LockedError where another process took too long.
    """
    # The roles start together: the first compiles, the others wait and load.
    begun = time.perf_counter()
    with _kernels_locked():
        if jit.CACHE is not None and not list(jit.CACHE.rglob("facts_kernels.advance*")):
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
    """Compile the kernels of the graph, by calling each with the types of production."""
    # Three nodes and two edges are enough: types decide what is compiled, not sizes.
    src = np.array([0, 1])
    dst = np.array([1, 2])
    when = np.array([1, 2])
    columns = EdgeColumns.of([(0, when, np.zeros((2, 1), np.float32))], 2, 1)
    graph = BlockGraph()
    graph.insert(src, dst)
    graph.hide(src[:1], dst[:1], src[:1])
    graph.hide_nodes(src[:1])
    strategies: tuple[Strategy, ...] = ("recent", "uniform")
    for strategy in strategies:
        _, layer = TemporalSampler(graph, [2, 2], strategy, columns=columns).sample(src, when)
        edge_features(columns, layer.eid, layer.mask)


def warm_facts() -> None:
    """Compile the kernels of the pair facts, by calling each with the types of production."""
    src = np.array([0, 1])
    dst = np.array([1, 2])
    when = np.array([1, 2])
    facts = PairFacts((1, 2, 3, 4, 5), 10)
    facts.advance_scoring(src, dst, when, np.array([0]), np.array([[1, 2]]))
    facts.compute(src, when, np.array([[1], [2]]))
