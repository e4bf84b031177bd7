"""Writes the shards of a run, each in one process."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from streamd.errors import TFGNNError
from streamd.processes import end_with_parent
from streamd.tfgnn.records.records import write_records
from streamd.tfgnn.sampling.draws import Array
from streamd.tfgnn.sampling.tables_graph import Progress

BATCH = 512
"""Samples per batch, which is in memory at a time."""
LOOK_SECONDS = 0.1
"""Interval of progress reports of the processes."""


class Samples(Protocol):
    """Some samples of a shard, in order."""

    def __len__(self) -> int:
        """Number of samples."""

    def take(self, samples: Array) -> "Samples":
        """Some of the samples. samples: int64, indices."""


Draw = Callable[[Any], Iterator[bytes]]
"""Some samples -> their records."""


def write_shards(
    shards: Mapping[Path, Samples],
    draw: Draw,
    done: set[Path],
    processes: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> tuple[int, int]:
    """Write the missing shards.

    done: existing shards. processes: number of processes, at most one per shard. Returns: the
    number of samples in all shards, and the number in existing shards. Raises: TFGNNError, also if
    a process is killed.
    """
    missing = {path: samples for path, samples in shards.items() if path not in done}
    kept = sum(len(samples) for path, samples in shards.items() if path in done)
    total = sum(map(len, shards.values()))
    at = kept
    if processes > 1 and len(missing) > 1:
        for made in _by_processes(missing, draw, min(processes, len(missing))):
            progress("sampling", kept + made, total)
        return total, kept
    for path, samples in missing.items():
        at_first = at

        def step(made: int, at_first: int = at_first) -> None:
            progress("sampling", at_first + made, total)

        at += write_records(path, in_batches(samples, draw, step))
        progress("sampling", at, total)
    return total, kept


def in_batches(
    samples: Samples, draw: Draw, progress: Callable[[int], None] = lambda done: None
) -> Iterator[bytes]:
    """Yield the records of samples in order, drawn in batches. progress: called with the number of
    samples so far."""
    for at in range(0, len(samples), BATCH):
        progress(at)
        yield from draw(samples.take(np.arange(at, min(at + BATCH, len(samples)))))


_missing: dict[Path, Samples] = {}
_draw: Draw = iter
_made: Any = None
"""The work of a process of `_by_processes`, set once at its start."""


def _by_processes(missing: dict[Path, Samples], draw: Draw, processes: int) -> Iterator[int]:
    """Write shards in forked processes, which share the graph's memory with this one. Yields: every
    LOOK_SECONDS, the number of samples so far. Raises: TFGNNError."""
    context = multiprocessing.get_context("fork")
    made = context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, context, _begin, (missing, draw, made))
    try:
        waiting: set[Future[None]] = {pool.submit(_write, path) for path in missing}
        while waiting:
            finished, waiting = wait(waiting, LOOK_SECONDS)
            for future in finished:
                # This raises the error of a process that failed.
                future.result()
            yield made.value
    except BrokenProcessPool as error:
        raise TFGNNError(
            f"A process that draws samples ended early: {error}.",
            "run it again, with fewer processes if memory was short.",
        ) from None
    finally:
        # After an error, shards in progress are finished, and no other is started.
        pool.shutdown(cancel_futures=True)


def _begin(missing: dict[Path, Samples], draw: Draw, made: Any) -> None:
    """Initialise a process."""
    global _missing, _draw, _made
    end_with_parent()
    _missing, _draw, _made = missing, draw, made


def _write(path: Path) -> None:
    """Write a shard."""
    counted = 0

    def step(done: int) -> None:
        nonlocal counted
        # All processes add to one counter, so add the difference.
        with _made:
            _made.value += done - counted
        counted = done

    step(write_records(path, in_batches(_missing[path], _draw, step)))
