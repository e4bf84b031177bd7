"""Asynchronous copies from the host to a device."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from streamd.telemetry import metrics

HOST = torch.device("cpu")


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device; on the host, return it as it is. A copy to a GPU goes through
    page-locked memory, so that the caller need not wait for it."""
    if tensor.device == device:
        return tensor
    metrics.gpu_transfer_bytes.labels("up").inc(tensor.numel() * tensor.element_size())
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device, copied by `send`; on the host it shares the array's
    memory."""
    return send(torch.from_numpy(array), device)
