"""The group of ranks that this process is one of."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.graph.ownership import OwnedNodes
from streamd.processes import place_of
from streamd.ranks.process_group import (
    GroupLane,
    Lane,
    OneLane,
    add_up,
    asking,
    counts_from,
    gather,
    gather_array,
    tell,
)
from streamd.tensors import pack

if TYPE_CHECKING:
    from torch import Tensor

START_SECONDS = 300.0
"""How long the ranks wait for one another at their start: one may compile the kernels first."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among the ranks: a mesh of replicas, each of as many shards.

    Events are divided among all ranks, nodes among the shards of a replica: where a machine is a
    replica, rows of nodes never leave it, and only gradients and what is decided do.

    recording: lane of the thread that records chunks, among the shards of the replica. learning:
    lane of the thread that scores, learns and decides, among all ranks; rows: the same thread's
    among the shards. owned: the nodes of this shard, None where it is alone and has all.
    """

    recording: Lane = field(default_factory=OneLane)
    learning: Lane = field(default_factory=OneLane)
    rows: Lane = field(default_factory=OneLane)
    owned: OwnedNodes | None = None

    @classmethod
    def over(cls, recording: Lane, learning: Lane, rows: Lane) -> "Ranks":
        """A rank with these lanes."""
        owned = OwnedNodes(rows.rank, rows.size) if rows.size > 1 else None
        return cls(recording, learning, rows, owned)

    @classmethod
    def join(cls, timeout_seconds: float, device: str = "cpu", shards: int = 0) -> "Ranks":
        """Join the group that the variables of torchrun name; alone where they name none.

        timeout_seconds: after which a rank that does not answer ends the group; until all have
        joined it is START_SECONDS. device: "cpu", or "cuda", where rows of the model travel by
        nccl. shards: of a replica, which are ranks that follow each other, a divisor of their
        number; 0 makes all ranks the shards of one. Raises: RanksError; SettingsError where
        variables are missing.
        """
        place = place_of(os.environ)
        if place is None or place.size == 1:
            return ALONE
        from torch import distributed

        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        patience = timedelta(seconds=START_SECONDS)
        timeout = timedelta(seconds=timeout_seconds)
        asking(lambda: distributed.init_process_group(backend, timeout=patience))

        rank, size = place.rank, place.size
        shards = shards or size

        def lane(members: range) -> Lane:
            """Every rank makes every group, also those that it is not in."""
            group = asking(lambda: distributed.new_group(list(members), timeout, backend))
            return GroupLane(group, rank - members.start, len(members))

        learning = lane(range(size))
        replicas = [range(a, a + shards) for a in range(0, size, shards)]
        lanes = [(lane(members), lane(members)) for members in replicas]
        recording, rows = lanes[rank // shards]
        return cls.over(recording, learning, rows)

    @property
    def rank(self) -> int:
        return self.learning.rank

    @property
    def size(self) -> int:
        return self.learning.size

    @property
    def num_shards(self) -> int:
        """Ranks that share the nodes."""
        return self.rows.size

    @property
    def replica(self) -> int:
        """Number of the replica that this rank is a shard of."""
        return self.rank // self.num_shards

    @property
    def is_first(self) -> bool:
        """Whether this rank decides and writes: rank 0."""
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """Whether this rank is the first on its machine."""
        place = place_of(os.environ)
        return place is None or place.local_rank == 0

    def share(self, count: int) -> slice:
        """Which of so many events, in their order, are this rank's: even shares."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def tell(self, message: Any) -> Any:
        """What rank 0 says, on every rank: values that JSON has. Raises: RanksError."""
        if self.size == 1:
            return message
        return msgspec.json.decode(tell(self.learning, msgspec.json.encode(message)))

    def all(self, flag: bool) -> bool:
        """Whether all ranks say so."""
        if self.size == 1:
            return flag
        import torch

        said = torch.cat(gather(self.learning, torch.tensor([flag], dtype=torch.uint8)))
        return bool(said.all())

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, value by value, added in rank order."""
        if self.size == 1:
            return list(values)
        import torch

        summed: list[float] = add_up(
            self.learning, torch.tensor(values, dtype=torch.float64)
        ).tolist()
        return summed

    def told_by_all(self, message: Any) -> list[Any]:
        """What each rank says, in rank order: values that JSON has."""
        if self.size == 1:
            return [message]
        import torch

        encoded = torch.frombuffer(bytearray(msgspec.json.encode(message)), dtype=torch.uint8)
        said = gather(self.learning, encoded)
        return [msgspec.json.decode(part.numpy().tobytes()) for part in said]

    def gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows of every rank behind one another in rank order. rows: [N, ...]."""
        return gather_array(self.learning, rows)

    def gather_tensor(self, rows: "Tensor") -> "list[Tensor]":
        """The rows of every rank, in rank order. rows: [N, ...]."""
        return gather(self.learning, rows)

    def not_before(self, ids: "Tensor") -> "Tensor":
        """Which ids no rank before this one has. ids: int64[N], each once. Returns: bool[N]."""
        import torch

        of_ranks = gather(self.learning, ids)
        return ~torch.isin(ids, torch.cat([ids[:0], *of_ranks[: self.rank]]))

    def tensors_to_first(self, tensors: "dict[str, Tensor]") -> "list[dict[str, Tensor]] | None":
        """Send tensors to rank 0. Returns: on rank 0 those of every rank, in rank order; None on
        the others."""
        import safetensors.torch
        import torch

        packed = np.frombuffer(pack({n: t.numpy() for n, t in tensors.items()}), np.uint8)
        sent = [len(packed)] + [0] * (self.size - 1)
        received = counts_from(self.learning, sent)
        got = self.learning.all_to_all(torch.from_numpy(packed.copy()), sent, received)
        if not self.is_first:
            return None
        files = [part.numpy().tobytes() for part in torch.split(got, received)]
        return [safetensors.torch.load(file) for file in files]

    def add_gradients(self, parameters: "Sequence[Tensor]") -> None:
        """Give each parameter the sum of its gradients over all ranks. A parameter without a
        gradient on any rank gets none."""
        if self.size == 1:
            return
        import torch

        parts = [
            (p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters
        ]
        has_one = parts[0].new_tensor([p.grad is not None for p in parameters])
        summed = add_up(self.learning, torch.cat([has_one, *parts]))
        at = len(parameters)
        for p, part, holders in zip(parameters, parts, summed[:at].tolist(), strict=True):
            if holders:
                p.grad = summed[at : at + len(part)].view_as(p).clone()
            at += len(part)

    def end(self) -> None:
        """Leave the group."""
        if self.size > 1:
            from torch import distributed

            distributed.destroy_process_group()


ALONE = Ranks()
"""One process that has all nodes and all events."""
