import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from streamd.errors import DeviceError, DeviceMemoryError
from streamd.gpu.launch import SOURCES, PageLock

NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_kernel_compiles_without_a_warning_or_a_spilled_register(architecture, tmp_path):
    for source, kernels in zip(SOURCES, (("put_words", "put_bytes"), ("sample_recent", "sample_uniform")), strict=True):
        told = subprocess.run([NVCC, "-std=c++17", f"-arch={architecture}", "-Werror=all-warnings", "-Xptxas", "-v", "-cubin",
                               "-o", tmp_path / f"{source.stem}.cubin", source], capture_output=True, text=True, check=True)
        assert all(kernel in told.stderr for kernel in kernels)
        assert told.stderr.count("0 bytes spill stores, 0 bytes spill loads") == 2


class Runtime:
    """CUDA's runtime as cupy names it, as far as pages are concerned. reads: whether the GPU reads host memory by its address."""

    class CUDARuntimeError(RuntimeError):
        pass

    def __init__(self, reads=True, full=False):
        self.reads, self.full, self.done = reads, full, []

    def getDevice(self):
        return 0

    def deviceGetAttribute(self, attribute, device):
        return self.reads

    def hostRegister(self, address, size, flags):
        if self.full:
            raise self.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.done.append(("lock", address, size, flags))

    def hostUnregister(self, address):
        self.done.append(("unlock", address))


def pages_of(monkeypatch, runtime):
    for name, module in {"cupy": SimpleNamespace(), "cupy.cuda": SimpleNamespace(runtime=runtime)}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return PageLock()


def test_pages_are_unlocked_only_when_no_kernel_reads_them(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: runtime.done.append("waited"))
    pages = pages_of(monkeypatch, runtime)
    pages.lock(4096, 512)
    pages.unlock([4096, 8192])
    assert runtime.done == [("lock", 4096, 512, 2), "waited", ("unlock", 4096), ("unlock", 8192)]


def test_pages_that_cannot_be_locked_or_read_say_what_to_do(monkeypatch):
    with pytest.raises(DeviceMemoryError, match=r"cannot page-lock 64 MiB more.*out of memory.*give the process more memory"):
        pages_of(monkeypatch, Runtime(full=True)).lock(4096, 64 * 2**20)
    with pytest.raises(DeviceError, match=r"at its host address.*gpu.placement: resident"):
        pages_of(monkeypatch, Runtime(reads=False)).lock(4096, 4096)
