"""Compiles and launches the CUDA kernels through cupy, on memory and streams of torch."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from streamd.errors import DeviceError, DeviceMemoryError
from streamd.telemetry import metrics

KERNELS = Path(__file__).parent / "kernels"
SOURCES = tuple(sorted(KERNELS.glob("*.cu")))
OPTIONS = ("--std=c++17",)
BLOCK = 256
"""Threads per block: at 30 registers per thread, eight blocks fill a multiprocessor."""

Launch = Callable[[str, int, Sequence[int]], None]
"""(name of a kernel, number of threads, arguments): launches it on the current stream. Arguments
are pointers and integers, eight bytes each."""


class SharedStream:
    """torch's current stream, in CUDA's stream protocol; torch's own class implements the protocol
    only in newer versions."""

    def __init__(self) -> None:
        self.stream = torch.cuda.current_stream()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream.cuda_stream


class CudaLauncher:
    """The kernels of `streamd/gpu/kernels` on the current device, compiled once and stored in
    cupy's cache (`CUPY_CACHE_DIR`). It adds their GPU time to the metrics once they have finished,
    without a wait for them."""

    def __init__(self) -> None:
        import cupy

        self._cupy: Any = cupy
        code = "\n".join(source.read_text() for source in SOURCES)
        self._module = cupy.RawModule(code=code, options=OPTIONS)
        self._kernels: dict[str, Any] = {}
        self._timed: deque[tuple[str, Any, Any]] = deque()

    def __call__(self, name: str, threads: int, args: Sequence[int]) -> None:
        # CUDA refuses to launch zero threads.
        if not threads:
            return
        shared = SharedStream()
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)

        # Launch the kernel on torch's current stream, between two events that time it.
        with self._cupy.cuda.Stream.from_external(shared):
            begin.record(shared.stream)
            # Pass arguments as eight bytes; a negative one keeps its bits.
            wide = tuple(self._cupy.uint64(a & 2**64 - 1) for a in args)
            if name not in self._kernels:
                self._kernels[name] = self._module.get_function(name)
            self._kernels[name]((-(-threads // BLOCK),), (BLOCK,), wide)
            end.record(shared.stream)
        self._timed.append((name, begin, end))

        # Read the times of kernels that have finished.
        while self._timed and self._timed[0][2].query():
            done, first, last = self._timed.popleft()
            metrics.gpu_kernel_seconds.labels(done).inc(first.elapsed_time(last) / 1e3)


class PageLock:
    """Page-locks host memory and maps it into the GPU's address space at the same address.

    Raises: DeviceError if the GPU would map it to another address, DeviceMemoryError if the system
    locks no more memory.
    """

    MAPPED = 2
    SAME_ADDRESS = 91
    """cudaHostRegisterMapped, cudaDevAttrCanUseHostPointerForRegisteredMem."""

    def __init__(self) -> None:
        from cupy.cuda import runtime

        self._runtime: Any = runtime

    def _check(self) -> None:
        if not self._runtime.deviceGetAttribute(self.SAME_ADDRESS, self._runtime.getDevice()):
            raise DeviceError(
                "This GPU cannot read page-locked host memory at its host address.",
                "set gpu.placement: resident and raise gpu.graph_bytes, or set device: cpu.",
            )

    def lock(self, address: int, size: int) -> None:
        self._check()
        try:
            self._runtime.hostRegister(address, size, self.MAPPED)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceMemoryError(
                f"CUDA cannot page-lock {size / 2**20:.0f} MiB more of host memory: {error}.",
                "give the process more memory, lower retention, or keep entries on the GPU: "
                "gpu.placement: resident and a larger gpu.graph_bytes.",
            ) from None

    def unlock(self, addresses: Sequence[int]) -> None:
        # Wait for running kernels, which may read the memory.
        torch.cuda.synchronize()
        for address in addresses:
            self._runtime.hostUnregister(address)
