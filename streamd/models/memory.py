"""TGN's memory (Rossi et al. 2020) as a function of the log: it moves only from canonical chunk to
canonical chunk.

At the end of a chunk each node's last event in it becomes a message; the GRU applies those messages
when the next chunk begins, so embeddings of a chunk know all events before it and none of its own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.errors import VersionError
from streamd.events import Float32, Int64, NodeDeletes
from streamd.models.time_encoding import TimeEncoding, in_gaps
from streamd.segments.reader import LogReader

STORED = ("state", "last_us", "pending_node", "pending_other", "pending_features", "pending_us")
"""Tensors of a memory that are stored; the rest follows from them."""


@dataclass(frozen=True)
class EdgeRows:
    """The rows of events [first_edge, first_edge + E) in log order. src, dst, time: int64[E];
    features: float32[E, dim]."""

    first_edge: int
    src_E: Int64
    dst_E: Int64
    time_E: Int64
    features_ED: Float32

    @classmethod
    def of(cls, log: LogReader, first: int, end: int) -> "EdgeRows":
        """Read events [first, end) of the log."""
        return cls(first, *log.edges(first, end), log.features_of(np.arange(first, end)))

    def cut(self, a: int, b: int) -> "EdgeRows":
        """Rows [a, b) of these."""
        return EdgeRows(
            self.first_edge + a,
            self.src_E[a:b],
            self.dst_E[a:b],
            self.time_E[a:b],
            self.features_ED[a:b],
        )

    @property
    def end_edge(self) -> int:
        return self.first_edge + len(self.src_E)


class Memory:
    """The states of all nodes at a cut of the log, an event id. Owner: one thread.

    state: float32[N, D]; last_us: int64[N]; the P pending messages of the last chunk: node, other's
    state, features, time; edge: the cut; now_us: time of the last event before it. num_forgotten:
    deletes of nodes taken in; taking one in again changes nothing, since a deleted node's id never
    comes back.
    """

    def __init__(
        self, dim: int, feature_dim: int, edge: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        def none(*width: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(0, *width, dtype=dtype, device=device)

        self.state = none(dim, dtype=torch.float32)
        self.last_us = none()
        self.pending_node = none()
        self.pending_other = none(dim, dtype=torch.float32)
        self.pending_features = none(feature_dim, dtype=torch.float32)
        self.pending_us = none()
        self.pending_index = none()
        self.edge = edge
        self.now_us = 0
        self.num_forgotten = 0

    def copy(self) -> "Memory":
        twin = Memory(self.state.shape[1], self.pending_features.shape[1], self.edge, self.device)
        for name, tensor in self.tensors().items():
            setattr(twin, name, tensor.clone())
        twin.pending_index = self.pending_index.clone()
        twin.now_us = self.now_us
        twin.num_forgotten = self.num_forgotten
        return twin

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def is_finite(self) -> bool:
        """Whether every state and message is a number."""
        held = (self.state, self.pending_other, self.pending_features)
        return all(bool(tensor.isfinite().all()) for tensor in held)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, for storing; `edge` and `now_us` are stored with it."""
        return {n: getattr(self, n) for n in STORED}

    @classmethod
    def restored(
        cls, tensors: dict[str, Tensor], edge: int, now_us: int, device: str | torch.device = "cpu"
    ) -> "Memory":
        """Raises: VersionError where a tensor is missing."""
        if missing := set(STORED) - set(tensors):
            raise VersionError(
                f"A stored memory lacks {', '.join(sorted(missing))}.",
                "use the streamd that wrote it.",
            )
        memory = cls(tensors["state"].shape[1], tensors["pending_features"].shape[1], edge, device)
        for name in memory.tensors():
            setattr(memory, name, tensors[name].to(device))
        memory.now_us = now_us

        # Where each node's message is follows from what is stored.
        memory.pending_index = torch.full(
            (len(memory.state),), -1, dtype=torch.int64, device=device
        )
        memory._place_pending()
        return memory

    def forget(self, deletes: NodeDeletes) -> None:
        """Apply the log's deletes of nodes before the cut: their states and the messages to them
        go.

        What neighbours learned from a node stays with them. `LinkModel.over` calls it before it
        applies pending messages.
        """
        due = deletes.until(self.edge).node

        # Deletes that are new since the last call.
        gone = torch.from_numpy(due[self.num_forgotten :]).to(self.device)
        self.num_forgotten = len(due)
        gone = gone[gone < len(self.state)]
        if not len(gone):
            return
        self.state[gone] = 0
        self.last_us[gone] = 0

        # Messages to the deleted nodes.
        kept = ~torch.isin(self.pending_node, gone)
        self.pending_index[self.pending_node] = -1
        for name in ("pending_node", "pending_other", "pending_features", "pending_us"):
            setattr(self, name, getattr(self, name)[kept])
        self._place_pending()

    def gather(self, node_M: Tensor, updated_PD: Tensor) -> Tensor:
        """Return the current states of nodes, float32[M, D]: of nodes with a pending message from
        `updated_PD`, of unknown nodes zero."""
        if not len(self.state):
            return self.state.new_zeros(len(node_M), self.state.shape[1])

        # Unknown nodes read row 0, and lose what they read.
        known = (node_M >= 0) & (node_M < len(self.state))
        inside = torch.where(known, node_M, 0)
        rows = self.state[inside] * known[:, None]

        # A message that is still pending is newer than the stored state.
        if len(updated_PD):
            place = torch.where(known, self.pending_index[inside], -1)
            rows = torch.where(
                (place >= 0)[:, None], embedding(place.clamp_min(0), updated_PD), rows
            )
        return rows

    def commit(self, updated_PD: Tensor, chunk: EdgeRows) -> None:
        """Apply the pending messages, make the messages of `chunk`, which begins at the cut, and
        move the cut to the chunk's end. `LinkModel.over` calls it."""
        assert chunk.first_edge == self.edge, "memory moves from cut to cut"
        if not len(chunk.src_E):
            return
        self._grow(int(max(chunk.src_E.max(), chunk.dst_E.max())) + 1)

        # The messages of the chunk before become states.
        self.state[self.pending_node] = updated_PD.detach()
        self.last_us[self.pending_node] = self.pending_us
        self.pending_index[self.pending_node] = -1

        # Of each node its last event in this chunk: reversed, it is the first that `unique` finds.
        both = np.stack([chunk.src_E, chunk.dst_E], 1).ravel()[::-1]
        node, latest = np.unique(both, return_index=True)
        place = len(both) - 1 - latest
        other = np.stack([chunk.dst_E, chunk.src_E], 1).ravel()[place]
        event = place // 2

        # It becomes a message, with the other end's state as of now.
        self.pending_node = torch.from_numpy(node).to(self.device)
        self.pending_other = self.state[torch.from_numpy(other).to(self.device)]
        self.pending_features = torch.from_numpy(chunk.features_ED[event]).to(self.device)
        self.pending_us = torch.from_numpy(chunk.time_E[event]).to(self.device)
        self._place_pending()
        self.edge = chunk.end_edge
        self.now_us = int(chunk.time_E[-1])

    def _grow(self, nodes: int) -> None:
        if nodes <= len(self.state):
            return
        more = max(nodes, 2 * len(self.state), 256) - len(self.state)
        self.state = torch.cat([self.state, self.state.new_zeros(more, self.state.shape[1])])
        self.last_us = torch.cat([self.last_us, self.last_us.new_zeros(more)])
        self.pending_index = torch.cat(
            [self.pending_index, self.pending_index.new_full((more,), -1)]
        )

    def _place_pending(self) -> None:
        self.pending_index[self.pending_node] = torch.arange(
            len(self.pending_node), device=self.device
        )


class MemoryUpdater(nn.Module):
    """The GRU that applies messages: [own state, other's state, features, time since] -> new
    state."""

    def __init__(self, dim: int, feature_dim: int, time_dim: int) -> None:
        super().__init__()
        self.time = TimeEncoding(time_dim)
        self.gru = nn.GRUCell(2 * dim + feature_dim + time_dim, dim)

    def forward(self, memory: Memory, features_PD: Tensor, gap_us: Tensor) -> Tensor:
        """New states of the nodes with a pending message, float32[P, D]. features_PD:
        standardised."""
        node = memory.pending_node
        if not len(node):
            return memory.pending_other

        # A node's first message has none before it: the time since is 0.
        own = memory.state[node]
        last = memory.last_us[node]
        since = torch.where(last > 0, memory.pending_us - last, 0)
        message = torch.cat(
            [own, memory.pending_other, features_PD, self.time(in_gaps(since, gap_us))], 1
        )
        updated: Tensor = self.gru(message, own)
        return updated
