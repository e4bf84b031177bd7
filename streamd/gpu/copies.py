"""Copies from the host to a device, which nobody waits for."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from streamd.telemetry import metrics

HOST = torch.device("cpu")


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; the tensor itself where that is the host. To a GPU it goes
    from page-locked memory: from any other, the caller would wait until it is there."""
    if tensor.device == device:
        return tensor
    metrics.gpu_transfer_bytes.labels("up").inc(tensor.numel() * tensor.element_size())
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor of a device, sent as by `send`; on the host it shares its memory."""
    return send(torch.from_numpy(array), device)
