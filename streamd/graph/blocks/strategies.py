"""The rules by which neighbours are drawn: each in words, as a kernel of the host, as a kernel of
the device and as a plain reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamd.graph import reference
from streamd.graph.blocks.sampling_kernels import sample_recent, sample_uniform

StrategyName = Literal["recent", "uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """kernel: (BlockArrays, Query, Sampled), compiled by numba. device_kernel: name of the function
    in `streamd/gpu/kernels/sampling.cu`. draws: it draws at random, so it takes a seed and
    `replace`. reference: a root's answer from the list of its entries."""

    rule: str
    kernel: Callable[..., Any]
    device_kernel: str
    draws: bool
    reference: Callable[..., list[tuple[int, int]]]


STRATEGIES: dict[StrategyName, Strategy] = {
    "recent": Strategy(
        rule="the newest first",
        kernel=sample_recent,
        device_kernel="sample_recent",
        draws=False,
        reference=reference.recent,
    ),
    "uniform": Strategy(
        rule="each event as likely as any other",
        kernel=sample_uniform,
        device_kernel="sample_uniform",
        draws=True,
        reference=reference.uniform,
    ),
}
