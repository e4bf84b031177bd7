"""The table of strategies for draws of neighbors: for each its text, its kernel on the host and its
kernel on a GPU.

`tests/graph/reference_draws.py` has a plain reference of each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamd.graph.blocks.sampling_kernels import sample_recent, sample_uniform

StrategyName = Literal["recent", "uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A row of the table. rule: the strategy as text. kernel: (BlockArrays, Query, Sampled),
    compiled by numba. device_kernel: name of the function in `streamd/gpu/kernels/sampling.cu`.
    draws: whether it is random, and so uses `seed` and `replace`."""

    rule: str
    kernel: Callable[..., Any]
    device_kernel: str
    draws: bool


STRATEGIES: dict[StrategyName, Strategy] = {
    "recent": Strategy(
        rule="the newest first",
        kernel=sample_recent,
        device_kernel="sample_recent",
        draws=False,
    ),
    "uniform": Strategy(
        rule="each event as likely as any other",
        kernel=sample_uniform,
        device_kernel="sample_uniform",
        draws=True,
    ),
}
