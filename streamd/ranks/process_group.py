"""Collectives of the ranks: every rank calls the same ones in the same order.

A process group belongs to one thread of each rank, so that recording the next chunk and training on
this one exchange rows concurrently. torch sends the rows. It is imported only if there are
several ranks: a single process without training, such as a server, does not need it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.errors import RanksError

if TYPE_CHECKING:
    from torch import Tensor

R = TypeVar("R")


class ProcessGroup(Protocol):
    """rank: of this process, 0 to size - 1. size: number of ranks."""

    rank: int
    size: int

    def all_to_all(self, rows: "Tensor", sent: Sequence[int], received: Sequence[int]) -> "Tensor":
        """Send rows to every rank, and receive theirs.

        rows: [N, ...], those for rank 0 first. sent, received: number of rows to and from each
        rank. Returns: the received rows, those of rank 0 first. Raises: RanksError if a rank is
        gone or does not answer in time.
        """
        ...


class TorchGroup:
    """A group of torch.distributed."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group = group
        self.rank = rank
        self.size = size

    def all_to_all(self, rows: "Tensor", sent: Sequence[int], received: Sequence[int]) -> "Tensor":
        from torch import distributed

        out = rows.new_empty((sum(received), *rows.shape[1:]))

        def send() -> None:
            distributed.all_to_all_single(
                out, rows.contiguous(), list(received), list(sent), group=self._group
            )

        run_collective(send)
        return out


class LocalGroup:
    """The group of a single rank: it receives the rows that it sends."""

    rank = 0
    size = 1

    def all_to_all(self, rows: "Tensor", sent: Sequence[int], received: Sequence[int]) -> "Tensor":
        return rows


def run_collective(call: Callable[[], R]) -> R:
    """Run a collective call. Raises: RanksError if a rank is gone."""
    try:
        return call()
    except RuntimeError as error:
        raise RanksError(
            f"The other ranks did not answer: {' '.join(str(error).split())[:300]}.",
            "look at the log of the rank that ended first; torchrun restarts all of them.",
        ) from error


def counts_from(group: ProcessGroup, sent: Sequence[int]) -> list[int]:
    """Number of rows that each rank sends to this one. sent: number of rows to each rank.

    Counts are exchanged before the rows, since all_to_all_single needs the splits of both sides.
    """
    import torch

    ones = [1] * group.size
    found: list[int] = group.all_to_all(torch.tensor(sent), ones, ones).tolist()
    return found


def gather(group: ProcessGroup, rows: "Tensor") -> "list[Tensor]":
    """All-gather of rows, a tensor for each rank in rank order. rows: [N, ...]; N may differ."""
    if group.size == 1:
        return [rows]
    import torch

    sent = [len(rows)] * group.size
    received = counts_from(group, sent)
    repeated = rows.detach().repeat(group.size, *[1] * (rows.ndim - 1))
    return list(torch.split(group.all_to_all(repeated, sent, received), received))


def gather_array(group: ProcessGroup, rows: NDArray[Any]) -> NDArray[Any]:
    """All-gather of rows, concatenated in rank order. rows: [N, ...]; N may differ."""
    if group.size == 1:
        return rows
    import torch

    # Flags are sent as bytes, which torch shares with numpy.
    sent = torch.from_numpy(np.ascontiguousarray(rows))
    return torch.cat(gather(group, sent)).numpy()


def add_up(group: ProcessGroup, values: "Tensor") -> "Tensor":
    """All-reduce: the sum of every rank's values, float[N], added in rank order, so that the same
    ranks produce the same bits."""
    if group.size == 1:
        return values
    import torch

    # Each rank sums one part of the values (reduce-scatter), then all gather the parts.
    share = -(-len(values) // group.size)
    parts = torch.cat([values, values.new_zeros(share * group.size - len(values))])
    equal = [share] * group.size
    of_ranks = group.all_to_all(parts, equal, equal).view(group.size, share)
    total = of_ranks[0].clone()
    for other in of_ranks[1:]:
        total += other
    return torch.cat(gather(group, total))[: len(values)]


def broadcast(group: ProcessGroup, message: bytes) -> bytes:
    """Broadcast rank 0's message. message: ignored on other ranks."""
    if group.size == 1:
        return message
    import torch

    own = message if group.rank == 0 else b""
    sent = [len(own)] * group.size
    received = counts_from(group, sent)
    bytes_ = torch.frombuffer(bytearray(own * group.size), dtype=torch.uint8) if own else None
    rows = torch.zeros(0, dtype=torch.uint8) if bytes_ is None else bytes_
    return group.all_to_all(rows, sent, received).numpy().tobytes()
