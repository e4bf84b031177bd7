"""Recognises and reports a GPU's out-of-memory errors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from streamd.errors import DeviceMemoryError

T = TypeVar("T")


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error of torch or cupy means that the GPU has no memory left, or that the host has
    none left to page-lock.

    torch has an exception of its own for tensors only. Its page-locked memory, cuBLAS and cupy
    (whose CUDARuntimeError and CUDADriverError are raised for any failure) report it in the error's
    text.
    """
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))


def run_freeing_memory(
    work: Callable[[], T], ways: Iterable[Callable[[], bool]], start_over: Callable[[], None]
) -> T:
    """Run `work` and return its result. While the GPU lacks memory for it, free some and start
    over.

    ways: functions that free memory, and return whether there was any; each is tried once, in
    order. start_over: undoes a failed try. Raises: the error of `work`, once no way is left.
    """
    untried = iter(ways)
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not lacks_memory(error) or not any(frees() for frees in untried):
                raise
        # Outside the handler, which would keep the failed try's tensors alive.
        start_over()


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Guard work on a GPU. Raises: DeviceMemoryError if the GPU lacks memory."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        # Settings that reduce GPU memory come first, the slower device last.
        raise DeviceMemoryError(
            f"The GPU has no memory for {what}: {error}",
            "set gpu.placement: hybrid, lower gpu.graph_bytes, gpu.cache_rows or "
            "model.memory_chunk, end other programs on the GPU, or set device: cpu.",
        ) from None
