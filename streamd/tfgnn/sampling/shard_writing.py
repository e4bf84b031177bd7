"""The shards of a run, each drawn and written by one process."""

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
"""Samples that are drawn and held at once."""
LOOK_SECONDS = 0.1
"""Pause between two looks at how far the processes are: short for a person."""


class Samples(Protocol):
    """Some samples of a shard, in its order."""

    def __len__(self) -> int:
        """How many samples they are."""

    def take(self, samples: Array) -> "Samples":
        """Some of them. samples: int64, their places."""


Draw = Callable[[Any], Iterator[bytes]]
"""Draws some samples and gives their records."""


def write_shards(
    shards: Mapping[Path, Samples],
    draw: Draw,
    done: set[Path],
    processes: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> tuple[int, int]:
    """Write the shards that are missing.

    done: those that are there. processes: that draw, at most one a shard. Returns: the samples of
    all shards, and how many were there. Raises: TFGNNError, also where a process was killed.
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
    """Yield the records of samples in their order, some hundred at a time. progress: takes how many
    are done."""
    for at in range(0, len(samples), BATCH):
        progress(at)
        yield from draw(samples.take(np.arange(at, min(at + BATCH, len(samples)))))


_missing: dict[Path, Samples] = {}
_draw: Draw = iter
_made: Any = None
"""What a process of `_by_processes` writes: set once, when it begins."""


def _by_processes(missing: dict[Path, Samples], draw: Draw, processes: int) -> Iterator[int]:
    """Write shards by processes that begin with the memory of this one, so that the graph is there
    once. Yields: now and then, how many samples are made. Raises: TFGNNError."""
    context = multiprocessing.get_context("fork")
    made = context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, context, _begin, (missing, draw, made))
    try:
        waiting: set[Future[None]] = {pool.submit(_write, path) for path in missing}
        while waiting:
            finished, waiting = wait(waiting, LOOK_SECONDS)
            for future in finished:
                future.result()
            yield made.value
    except BrokenProcessPool as error:
        raise TFGNNError(
            f"A process that draws samples ended early: {error}.",
            "run it again, with fewer processes if memory was short.",
        ) from None
    finally:
        # After an error the shards in progress are finished; nothing begins any more.
        pool.shutdown(cancel_futures=True)


def _begin(missing: dict[Path, Samples], draw: Draw, made: Any) -> None:
    """Begin a process."""
    global _missing, _draw, _made
    end_with_parent()
    _missing, _draw, _made = missing, draw, made


def _write(path: Path) -> None:
    """Write a shard."""
    told = 0

    def step(done: int) -> None:
        nonlocal told
        with _made:
            _made.value += done - told
        told = done

    step(write_records(path, in_batches(_missing[path], _draw, step)))
