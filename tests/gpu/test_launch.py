import shutil
import subprocess

import pytest

from streamd.gpu.launch import KERNELS

NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_kernel_compiles_without_a_warning_or_a_spilled_register(architecture, tmp_path):
    for source in sorted(KERNELS.glob("*.cu")):
        told = subprocess.run([NVCC, "-std=c++17", f"-arch={architecture}", "-Werror=all-warnings", "-Xptxas", "-v", "-cubin",
                               "-o", tmp_path / f"{source.stem}.cubin", source], capture_output=True, text=True, check=True)
        assert "sample_recent" in told.stderr and "sample_uniform" in told.stderr
        assert told.stderr.count("0 bytes spill stores, 0 bytes spill loads") == 2
