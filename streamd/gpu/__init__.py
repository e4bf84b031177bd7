"""The graph on CUDA: sampling kernels, a mirror of the block graph, and a cache of features."""

from streamd.gpu.device import (
    choose_device,
    device_facts,
    free_device_memory,
    make_graph,
    make_torch_deterministic,
    select_gpu,
)
from streamd.gpu.out_of_memory import lacks_memory, memory_for, run_freeing_memory

__all__ = [
    "choose_device",
    "device_facts",
    "make_torch_deterministic",
    "make_graph",
    "free_device_memory",
    "lacks_memory",
    "memory_for",
    "run_freeing_memory",
    "select_gpu",
]
