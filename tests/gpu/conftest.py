import pytest
import torch

from tests.gpu import host


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """(device, launch, pages): the kernels' sources on the CPU, and, where there is one, on a GPU."""
    if request.param == "shim":
        return "cpu", host.launch, host.Pages()
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from streamd.gpu.launch import CudaLauncher, PageLock
    return "cuda", CudaLauncher(), PageLock()
