"""Errors of a GPU that lacks memory: how to recognise them, and how to report them."""

from collections.abc import Iterator
from contextlib import contextmanager

from streamd.errors import DeviceMemoryError


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error of torch or cupy says that the GPU lacks memory, or the host memory to
    page-lock.

    torch has an error of its own for tensors only. Its page-locked memory, cuBLAS and cupy (whose
    CUDARuntimeError and CUDADriverError are errors of any kind) say it in words.
    """
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED"))


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
