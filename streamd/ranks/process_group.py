"""Collectives of the ranks: every rank calls the same ones in the same order.

A lane belongs to one thread of each rank, so that recording the next chunk and learning this one
exchange rows side by side. torch carries the rows. It is loaded only where there are several ranks:
a process that is alone and learns nothing, as a server, can do without it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamd.errors import RanksError

if TYPE_CHECKING:
    from torch import Tensor

R = TypeVar("R")


class Lane(Protocol):
    """rank: of this process, 0 to size - 1. size: ranks in all."""

    rank: int
    size: int

    def all_to_all(self, rows: "Tensor", sent: Sequence[int], received: Sequence[int]) -> "Tensor":
        """Send rows to every rank, and receive theirs.

        rows: [N, ...], those for rank 0 first. sent, received: rows to and from each rank. Returns:
        the rows received, those of rank 0 first. Raises: RanksError where a rank is gone or does
        not answer in time.
        """
        ...


class GroupLane:
    """A lane over a group of torch.distributed."""

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

        asking(send)
        return out


class OneLane:
    """The lane of a rank that is alone: all that is sent comes back."""

    rank = 0
    size = 1

    def all_to_all(self, rows: "Tensor", sent: Sequence[int], received: Sequence[int]) -> "Tensor":
        return rows


def asking(call: Callable[[], R]) -> R:
    """Run a call that other ranks take part in. Raises: RanksError where one is gone."""
    try:
        return call()
    except RuntimeError as error:
        raise RanksError(
            f"The other ranks did not answer: {' '.join(str(error).split())[:300]}.",
            "look at the log of the rank that ended first; torchrun starts all of them again.",
        ) from error


def counts_from(lane: Lane, sent: Sequence[int]) -> list[int]:
    """How many rows each rank sends to this one. sent: how many this one sends to each.

    Counts travel ahead of the rows, not in one buffer with them, because all_to_all_single must be
    told the splits of both sides before it receives.
    """
    import torch

    ones = [1] * lane.size
    found: list[int] = lane.all_to_all(torch.tensor(sent), ones, ones).tolist()
    return found


def gather(lane: Lane, rows: "Tensor") -> "list[Tensor]":
    """The rows of every rank, in rank order, on every rank. rows: [N, ...], N may differ."""
    if lane.size == 1:
        return [rows]
    import torch

    sent = [len(rows)] * lane.size
    received = counts_from(lane, sent)
    repeated = rows.detach().repeat(lane.size, *[1] * (rows.ndim - 1))
    return list(torch.split(lane.all_to_all(repeated, sent, received), received))


def gather_array(lane: Lane, rows: NDArray[Any]) -> NDArray[Any]:
    """The rows of every rank behind one another in rank order, on every rank. rows: [N, ...]."""
    if lane.size == 1:
        return rows
    import torch

    # Flags travel as bytes, which torch shares with numpy.
    sent = torch.from_numpy(np.ascontiguousarray(rows))
    return torch.cat(gather(lane, sent)).numpy()


def add_up(lane: Lane, values: "Tensor") -> "Tensor":
    """The sum of every rank's values, float[N], on every rank: added in rank order, so that the
    same ranks give the same bits."""
    if lane.size == 1:
        return values
    import torch

    # Each rank adds up a part of the values, and tells the sums to all.
    share = -(-len(values) // lane.size)
    parts = torch.cat([values, values.new_zeros(share * lane.size - len(values))])
    equal = [share] * lane.size
    of_ranks = lane.all_to_all(parts, equal, equal).view(lane.size, share)
    total = of_ranks[0].clone()
    for other in of_ranks[1:]:
        total += other
    return torch.cat(gather(lane, total))[: len(values)]


def tell(lane: Lane, message: bytes) -> bytes:
    """Rank 0's message, on every rank. message: what the other ranks pass does not matter."""
    if lane.size == 1:
        return message
    import torch

    own = message if lane.rank == 0 else b""
    sent = [len(own)] * lane.size
    received = counts_from(lane, sent)
    bytes_ = torch.frombuffer(bytearray(own * lane.size), dtype=torch.uint8) if own else None
    rows = torch.zeros(0, dtype=torch.uint8) if bytes_ is None else bytes_
    return lane.all_to_all(rows, sent, received).numpy().tobytes()
