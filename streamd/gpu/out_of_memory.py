"""Recognises and reports a GPU's out-of-memory errors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from streamd.errors import DeviceMemoryError

T = TypeVar("T")


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error of torch or cupy means that the GPU has no memory left, or the host no
    memory to page-lock.

    Only torch's tensors have an exception for this. torch's page-locked memory, cuBLAS and cupy
    report it in the text of an error that has other causes too.
    """
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))


def run_freeing_memory(
    work: Callable[[], T], ways: Iterable[Callable[[], bool]], start_over: Callable[[], None]
) -> T:
    """Run `work` and return its result. If the GPU lacks memory for it, free some and try again.

    ways: functions that free memory and return whether there was any; each is called once, in
    order. start_over: undoes a failed try. Raises: the error of `work`, once no way is left.
    """
    untried = iter(ways)
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not lacks_memory(error) or not any(frees() for frees in untried):
                raise
        # Free memory outside of the handler, which would keep the tensors of the failed try.
        start_over()


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Raise DeviceMemoryError if the GPU lacks memory for the work inside the block. what: the
    work, for the error's text."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        # Name the settings that reduce GPU memory first, and the slower device last.
        raise DeviceMemoryError(
            f"The GPU has no memory for {what}: {error}",
            "set gpu.placement: hybrid, lower gpu.graph_bytes, gpu.cache_rows or "
            "model.memory_chunk, end other programs on the GPU, or set device: cpu.",
        ) from None
