"""The graph's contracts on CUDA. So far only the one place where the device is chosen."""

from streamd.gpu.device import choose_device

__all__ = ["choose_device"]
