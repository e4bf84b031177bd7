"""The CUDA kernels on the CPU: the same source, compiled by g++ with a shim in which blocks and threads are loops."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from streamd.gpu.launch import BLOCK, SOURCES

SHIM = Path(__file__).parent / "shim.cpp"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the kernels for the CPU with")


@cache
def library():
    with tempfile.TemporaryDirectory() as folder:
        made, sources = Path(folder) / "kernels.so", Path(folder) / "kernels.cu"
        sources.write_text("\n".join(source.read_text() for source in SOURCES))
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f'-DKERNELS="{sources}"', "-x", "c++",
                        str(SHIM), "-o", str(made)], check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(made))


def launch(name, threads, args):
    lib = library()
    if name.startswith("put_"):
        # On a GPU it is chance which of two rows for one place stays.
        _, place, _, count, width = args
        indices = np.ctypeslib.as_array((ctypes.c_int64 * (count // width)).from_address(place)).tolist()
        assert len(set(indices)) == len(indices)
    wide = (ctypes.c_uint64 * len(args))(*(a & 2**64 - 1 for a in args))
    lib.launch(ctypes.cast(getattr(lib, name), ctypes.c_void_p), -(-threads // BLOCK), BLOCK, wide, len(args))


class Pages:
    """Notes what would be page-locked, and like CUDA locks nothing twice."""

    def __init__(self):
        self.locked = {}

    def lock(self, address, size):
        if any(a < address + size and address < a + n for a, n in self.locked.items()):
            raise RuntimeError("cudaErrorHostMemoryAlreadyRegistered")
        self.locked[address] = size

    def unlock(self, addresses):
        for address in addresses:
            assert is_mapped(address), "memory that is gone cannot be unlocked"
            del self.locked[address]


def is_mapped(address):
    """Whether the process has memory at an address."""
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(first, 16) <= address < int(end, 16) for first, end in ranges)
