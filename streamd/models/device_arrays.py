"""Arrays where a memory lies: numpy's on the host, torch's on a GPU.

What moves with the log is written once for both, with what numpy and torch name alike
(`streamd.graph.blocks.hops.arrays_of`). torch is loaded by those who hold tensors already: a server
whose versions answer in numpy never loads it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

HOST = "cpu"
"""The device whose arrays are numpy's."""
Array = Any
"""An array of the host (numpy) or of a device (torch)."""


def put(array: NDArray[Any], device: str) -> Array:
    """An array on a device; the array itself where that is the host."""
    if device == HOST:
        return array
    import torch

    from streamd.gpu.copies import to_device

    return to_device(array, torch.device(device))


def zeros(device: str, shape: tuple[int, ...], dtype: type = np.float32) -> Array:
    """Zeros on a device, float32 or int64."""
    if device == HOST:
        return np.zeros(shape, dtype)
    import torch

    return torch.zeros(shape, dtype=getattr(torch, dtype.__name__), device=device)


def on_host(array: Array) -> NDArray[Any]:
    """An array on the host; the array itself, or the bytes of a tensor, where they are there."""
    host: NDArray[Any] = array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    return host


def as_array(array: Array) -> Array:
    """What a model computed as memory holds it: without gradients, numpy's where it is on the
    host."""
    if isinstance(array, np.ndarray):
        return array
    return array.numpy(force=True) if str(array.device) == HOST else array.detach()


def as_tensor(array: Array) -> "Tensor":
    """An array as a tensor of the same bytes."""
    if not isinstance(array, np.ndarray):
        tensor: Tensor = array
        return tensor
    import torch

    return torch.from_numpy(array)
