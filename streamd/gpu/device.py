"""Chooses where the model runs: the only code that reads the `device` setting."""

import structlog

from streamd.errors import DeviceError

log = structlog.get_logger()


def choose_device(setting: str) -> str:
    """"cpu" or "cuda" for the setting auto, cpu or cuda. Raises: DeviceError where cuda is asked for and cannot be.

    The kernels on CUDA are not part of this release, so `auto` is the CPU, and says so where a GPU is idle.
    """
    if setting == "cpu":
        return "cpu"
    import torch

    if setting == "cuda":
        raise DeviceError("device is cuda, but this release of streamd runs its graph and models on the CPU only.",
                          "set device: auto or cpu.")
    if torch.cuda.is_available():
        log.warning("gpu_idle", reason="this release runs on the CPU only", gpu=torch.cuda.get_device_name())
    return "cpu"
