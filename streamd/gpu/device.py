"""Chooses the device of models and graphs; no other module reads the `device` settings."""

import os
from functools import cache
from importlib.util import find_spec

import structlog

from streamd.errors import DeviceError
from streamd.graph.blocks.block_store import BlockGraph, ReadBack
from streamd.graph.blocks.draws import Direction
from streamd.graph.temporal import TemporalGraph
from streamd.settings.loading import GpuSettings, GraphSettings

logger = structlog.get_logger()
BUDGET_SHARE = 0.5
"""Share of the free GPU memory that a graph may use if `gpu.graph_bytes` is 0; the rest is for the
model, its batches and the cache."""


def make_torch_deterministic(threads: int) -> None:
    """Make torch deterministic, with a fixed number of threads."""
    # Without this variable cuBLAS refuses deterministic mode.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.set_num_threads(threads)
    # The same as `use_deterministic_algorithms(True)`, which would also import torch's compiler,
    # for a second or more.
    torch.set_deterministic_debug_mode("error")
    # Do not fill new tensors, which would launch a kernel for each: all are written before a read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def select_gpu(local_rank: int) -> None:
    """Make a rank's GPU the only one that this process sees. Call it before CUDA is initialised.
    Raises: DeviceError if there are fewer GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = None if visible is None else visible.split(",")
    if gpus is not None and local_rank >= len(gpus):
        raise DeviceError(
            f"Rank {local_rank} of this machine has no GPU: CUDA_VISIBLE_DEVICES is {visible}.",
            "start no more ranks than there are GPUs, or set device: cpu.",
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = str(local_rank) if gpus is None else gpus[local_rank]


@cache
def choose_device(setting: str, num_ranks: int = 1) -> str:
    """Return "cpu" or "cuda". setting: auto, cpu or cuda. num_ranks: ranks that train together.
    Raises: DeviceError for cuda if it is not available.

    `auto` is a GPU if there is one and cupy is installed: training TGN on a window takes a fifth of
    the time of eight threads (docs/benchmarks.md). With several ranks `auto` is the CPU: each would
    need a GPU, and this was never measured.
    """
    if setting == "cpu" or (setting == "auto" and num_ranks > 1):
        return "cpu"

    # Import torch only if a GPU may be used.
    import torch

    sees_gpu, has_cupy = torch.cuda.is_available(), find_spec("cupy") is not None
    if setting == "auto" and not (sees_gpu and has_cupy):
        if sees_gpu:
            logger.warning(
                "gpu_idle",
                gpu=torch.cuda.get_device_name(),
                reason="cupy, which loads the sampling kernels, is not installed",
                do="pip install 'streamd-gnn[gpu]', or set device: cpu",
            )
        return "cpu"

    # The setting requires CUDA: report the missing part.
    if not sees_gpu:
        built = "sees no GPU" if torch.version.cuda else "is built without CUDA"
        raise DeviceError(
            f"device is cuda, but torch {torch.__version__} {built}.",
            "install a CUDA build of torch on a machine with a GPU, or set device: cpu.",
        )
    if not has_cupy:
        raise DeviceError(
            "device is cuda, but cupy, which loads the sampling kernels, is not installed.",
            "pip install 'streamd-gnn[gpu]', or set device: cpu.",
        )
    logger.info("gpu_chosen", gpu=torch.cuda.get_device_name(), setting=setting)
    return "cuda"


def device_facts(device: str) -> dict[str, str | int]:
    """The properties of a device, "cpu" or "cuda", on which the bits of results depend: they
    determine how a kernel splits its work, and so the order of its sums. Empty on a CPU."""
    if device == "cpu":
        return {}
    import torch
    from cupy.cuda import runtime

    made = torch.cuda.get_device_properties(device)
    return {
        "gpu": made.name,
        "multiprocessors": made.multi_processor_count,
        "cuda": str(torch.version.cuda),
        "driver": int(runtime.driverGetVersion()),
    }


def make_graph(
    graph: GraphSettings,
    gpu: GpuSettings,
    device: str,
    first_event: int,
    direction: Direction,
    read_back: ReadBack,
) -> TemporalGraph:
    """Make an empty graph that samples on a device, "cpu" or "cuda". first_event: id of the first
    event that will be inserted. direction: that queries may sample."""
    host = BlockGraph(first_event, graph.max_block_entries, (direction,), read_back)
    if device == "cpu":
        return host

    # Imported here, since cupy is an extra.
    import torch

    from streamd.gpu.graph import DeviceGraph
    from streamd.gpu.launch import CudaLauncher, PageLock

    budget = gpu.graph_bytes or int(BUDGET_SHARE * torch.cuda.mem_get_info()[0])
    return DeviceGraph(host, CudaLauncher(), PageLock(), device, gpu.placement, budget)


def free_device_memory(graph: TemporalGraph) -> bool:
    """Move a graph's entries from the GPU to the host, to free GPU memory. Returns: whether there
    were any on the GPU."""
    from streamd.gpu.graph import DeviceGraph

    if not isinstance(graph, DeviceGraph) or graph.placement == "hybrid":
        return False
    import torch

    logger.warning(
        "graph_moved_to_host",
        reason="the GPU has no memory for both the graph and a training step",
        do="set gpu.placement: hybrid to begin with, or lower gpu.graph_bytes, gpu.cache_rows or "
        "model.memory_chunk",
    )
    graph.place("hybrid")
    # torch caches freed memory, so return it to the device.
    torch.cuda.empty_cache()
    return True
