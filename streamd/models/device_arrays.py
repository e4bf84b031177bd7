"""Arrays on the device of a memory: numpy arrays on the host, torch tensors on a GPU.

Code that follows the log is written once for both, with functions that have the same name in numpy
and torch (`streamd.graph.blocks.hops.arrays_of`). torch is imported only for tensors: a server that
answers in numpy never loads it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

HOST = "cpu"
"""The device with numpy arrays."""
Array = Any
"""An array on the host (numpy) or on a GPU (torch)."""


def put(array: NDArray[Any], device: str) -> Array:
    """Copy an array to a device. Returns: the same array if the device is the host."""
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
    """An array on the host: a numpy array as it is, a view of a tensor on the host, or a copy."""
    host: NDArray[Any] = array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    return host


def as_array(array: Array) -> Array:
    """A model's output as memory stores it: without gradients, and as numpy if it is on the
    host."""
    if isinstance(array, np.ndarray):
        return array
    return array.numpy(force=True) if str(array.device) == HOST else array.detach()


def as_tensor(array: Array) -> "Tensor":
    """An array as a tensor that shares its bytes."""
    if not isinstance(array, np.ndarray):
        tensor: Tensor = array
        return tensor
    import torch

    return torch.from_numpy(array)
