"""Errors of a GPU that lacks memory: how to recognise them, and how to report them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from streamd.errors import DeviceMemoryError

T = TypeVar("T")


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error of torch or cupy says that the GPU lacks memory, or the host memory to
    page-lock.

    torch has an error of its own for tensors only. Its page-locked memory, cuBLAS and cupy (whose
    CUDARuntimeError and CUDADriverError are errors of any kind) say it in words.
    """
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))


def run_freeing_memory(
    work: Callable[[], T], ways: Iterable[Callable[[], bool]], start_over: Callable[[], None]
) -> T:
    """Do work, and return its result. While the GPU lacks memory for it, free some and start over.

    ways: frees memory each, and returns whether there was any; they are tried in order, once each.
    start_over: undoes the try that failed. Raises: the error of work, once nothing is left to free.
    """
    untried = iter(ways)
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not lacks_memory(error) or not any(frees() for frees in untried):
                raise
        # Outside the handler, which would hold the tensors of the try that failed.
        start_over()


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Guard work on a GPU. Raises: DeviceMemoryError if the GPU lacks memory."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        # The settings that lower the GPU's use come first, the slower device last.
        raise DeviceMemoryError(
            f"The GPU has no memory for {what}: {error}",
            "set gpu.placement: hybrid, lower gpu.graph_bytes, gpu.cache_rows or "
            "model.memory_chunk, end what else uses the GPU, or set device: cpu.",
        ) from None
