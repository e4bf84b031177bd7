"""The mesh of ranks, as seen by one of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.graph.ownership import OwnedNodes
from streamd.processes import torchrun_rank
from streamd.ranks.process_group import (
    LocalGroup,
    ProcessGroup,
    TorchGroup,
    add_up,
    broadcast,
    counts_from,
    gather,
    gather_array,
    run_collective,
)
from streamd.tensors import pack

if TYPE_CHECKING:
    from torch import Tensor

START_SECONDS = 300.0
"""Timeout of the ranks' start: one of them may compile the kernels first."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process' rank in a mesh of replicas, each of the same number of shards.

    Events are divided among all ranks, nodes among the shards of a replica. If each machine is a
    replica, rows of nodes never leave it; only gradients and decisions do.

    recording: group of the thread that records chunks, among the shards of the replica. learning:
    group of the thread that scores, trains and decides, among all ranks. rows: a group of the same
    thread, among the shards. owned: the nodes of this shard; None if a single shard owns all.
    """

    recording: ProcessGroup = field(default_factory=LocalGroup)
    learning: ProcessGroup = field(default_factory=LocalGroup)
    rows: ProcessGroup = field(default_factory=LocalGroup)
    owned: OwnedNodes | None = None

    @classmethod
    def over(cls, recording: ProcessGroup, learning: ProcessGroup, rows: ProcessGroup) -> "Ranks":
        """A rank with these groups."""
        owned = OwnedNodes(rows.rank, rows.size) if rows.size > 1 else None
        return cls(recording, learning, rows, owned)

    @classmethod
    def join(cls, timeout_seconds: float, device: str = "cpu", shards: int = 0) -> "Ranks":
        """Join the group that torchrun's variables describe; without them the process is alone.

        timeout_seconds: a rank that does not answer for this long ends the group; until all have
        joined, START_SECONDS. device: "cpu", or "cuda", which exchanges rows of the model by nccl.
        shards: consecutive ranks that form a replica, a divisor of the number of ranks; 0 for a
        single replica. Raises: RanksError; SettingsError if variables are missing.
        """
        own = torchrun_rank(os.environ)
        if own is None or own.size == 1:
            return ALONE
        from torch import distributed

        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        patience = timedelta(seconds=START_SECONDS)
        timeout = timedelta(seconds=timeout_seconds)
        run_collective(lambda: distributed.init_process_group(backend, timeout=patience))

        rank, size = own.rank, own.size
        shards = shards or size

        def new_group(members: range) -> ProcessGroup:
            """Every rank must create every group, including those without it."""
            group = run_collective(lambda: distributed.new_group(list(members), timeout, backend))
            return TorchGroup(group, rank - members.start, len(members))

        learning = new_group(range(size))
        replicas = [range(a, a + shards) for a in range(0, size, shards)]
        groups = [(new_group(members), new_group(members)) for members in replicas]
        recording, rows = groups[rank // shards]
        return cls.over(recording, learning, rows)

    @property
    def rank(self) -> int:
        return self.learning.rank

    @property
    def size(self) -> int:
        return self.learning.size

    @property
    def num_shards(self) -> int:
        """Ranks that share the nodes of a replica."""
        return self.rows.size

    @property
    def replica(self) -> int:
        """Index of this rank's replica."""
        return self.rank // self.num_shards

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides and writes."""
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """Whether this is the first rank on its machine."""
        own = torchrun_rank(os.environ)
        return own is None or own.local_rank == 0

    def share(self, count: int) -> slice:
        """This rank's slice of `count` events in their order; the slices are of equal size, give or
        take one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def broadcast(self, message: Any) -> Any:
        """Broadcast rank 0's message, of JSON values, to every rank. Raises: RanksError."""
        if self.size == 1:
            return message
        return msgspec.json.decode(broadcast(self.learning, msgspec.json.encode(message)))

    def all(self, flag: bool) -> bool:
        """Whether the flag is true on all ranks."""
        if self.size == 1:
            return flag
        import torch

        said = torch.cat(gather(self.learning, torch.tensor([flag], dtype=torch.uint8)))
        return bool(said.all())

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks for each value, added in rank order."""
        if self.size == 1:
            return list(values)
        import torch

        summed: list[float] = add_up(
            self.learning, torch.tensor(values, dtype=torch.float64)
        ).tolist()
        return summed

    def gather_messages(self, message: Any) -> list[Any]:
        """All-gather of messages, of JSON values, in rank order."""
        if self.size == 1:
            return [message]
        import torch

        encoded = torch.frombuffer(bytearray(msgspec.json.encode(message)), dtype=torch.uint8)
        said = gather(self.learning, encoded)
        return [msgspec.json.decode(part.numpy().tobytes()) for part in said]

    def gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """All-gather of rows, concatenated in rank order. rows: [N, ...]; N may differ."""
        return gather_array(self.learning, rows)

    def gather_tensor(self, rows: "Tensor") -> "list[Tensor]":
        """All-gather of rows, a tensor for each rank in rank order. rows: [N, ...]; N may
        differ."""
        return gather(self.learning, rows)

    def not_before(self, ids: "Tensor") -> "Tensor":
        """Which ids no lower rank has. ids: int64[N], each once. Returns: bool[N]."""
        import torch

        of_ranks = gather(self.learning, ids)
        return ~torch.isin(ids, torch.cat([ids[:0], *of_ranks[: self.rank]]))

    def tensors_to_first(self, tensors: "dict[str, Tensor]") -> "list[dict[str, Tensor]] | None":
        """Gather tensors on rank 0. Returns: on rank 0 those of every rank, in rank order; None on
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
        """Replace each parameter's gradient by its sum over all ranks. A parameter without a
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
"""A single process, with all nodes and all events."""
