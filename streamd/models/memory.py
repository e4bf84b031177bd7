"""TGN's memory (Rossi et al. 2020) as a function of the log: it moves only from canonical chunk to
canonical chunk.

At the end of a chunk each node's last event in it becomes a message; the GRU applies those messages
when the next chunk begins, so embeddings of a chunk know all events before it and none of its own.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from streamd.errors import VersionError
from streamd.events import Float32, Int64, NodeDeletes
from streamd.gpu.copies import to_device
from streamd.graph.live import LiveGraph
from streamd.graph.ownership import owner_of
from streamd.models.memory_pages import NodeRows, PagePool
from streamd.models.time_encoding import TimeEncoding, in_gaps
from streamd.ranks import ALONE, Ranks
from streamd.ranks.lane import gather
from streamd.ranks.rows import Route
from streamd.segments.reader import LogReader

PENDING = ("pending_node", "pending_other", "pending_features", "pending_us")
"""The parts of the pending messages, by the names under which they are stored."""


@dataclass(frozen=True, slots=True)
class LastEvents:
    """Of each node of a chunk, ascending, its last event there, which becomes its message.

    node_P, event_P: ids and rows of the chunk on the host; node, other, us: ids, the other ends'
    and times on a device; int64[P] each.
    """

    node_P: Int64
    event_P: Int64
    node: Tensor
    other: Tensor
    us: Tensor


@dataclass(frozen=True)
class EdgeRows:
    """The rows of events [first_edge, first_edge + E) in log order. src, dst, time: int64[E];
    features: float32[E, dim]."""

    first_edge: int
    src_E: Int64
    dst_E: Int64
    time_E: Int64
    features_ED: Float32
    _last: dict[torch.device, LastEvents] = field(default_factory=dict, repr=False, compare=False)

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

    def last_events(self, device: torch.device) -> LastEvents:
        """The last event of each node, with tensors on a device: found once, since memory moves
        over a chunk in each epoch."""
        if device not in self._last:
            # Reversed, a node's last event is the first that `unique` finds.
            both = np.stack([self.src_E, self.dst_E], 1).ravel()[::-1]
            node, latest = np.unique(both, return_index=True)
            place = len(both) - 1 - latest
            other = np.stack([self.dst_E, self.src_E], 1).ravel()[place]
            event = place // 2
            sent = (to_device(column, device) for column in (node, other, self.time_E[event]))
            self._last[device] = LastEvents(node, event, *sent)
        return self._last[device]

    @property
    def end_edge(self) -> int:
        return self.first_edge + len(self.src_E)

    def facts_now(self, live: LiveGraph, asked_R: Int64, candidates_RC: Int64) -> Float32:
        """The facts, on the present state, of some of the rows and their candidates: float32[R, C,
        F]."""
        src, time = self.src_E[asked_R], self.time_E[asked_R]
        return live.facts_now(self.first_edge + asked_R, src, time, candidates_RC)


class Memory:
    """The states of all nodes at a cut of the log, an event id. Owner: one thread.

    rows: of each node its state, float32[D], and the time of the message that made it; copies
    share what is equal (`NodeRows`).
    The P pending messages of the last chunk: node, ascending; the other end's state, features,
    time. edge: the cut. now_us: time of the last event before it. num_forgotten: deletes of nodes
    taken in; taking one in again changes nothing, since a deleted node's id never comes back.

    Among several ranks each holds the rows and messages of the nodes it owns. `gather` and `commit`
    then fetch others' rows, so every rank calls them at the same time.
    """

    def __init__(
        self,
        dim: int,
        feature_dim: int,
        edge: int = 0,
        device: str | torch.device = "cpu",
        pool: PagePool | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """pool: of the memories that this one will be much like, on the same device; its own where
        None. ranks: that share its rows, by owner."""
        self.ranks = ranks
        self.rows = NodeRows(pool or PagePool(dim, torch.device(device)), ranks.owned)
        self.edge = edge
        self.now_us = 0
        self.num_forgotten = 0
        self._set_pending(
            np.zeros(0, np.int64),
            torch.zeros(0, dim, device=device),
            torch.zeros(0, feature_dim, device=device),
            torch.zeros(0, dtype=torch.int64, device=device),
        )

    def _set_pending(
        self,
        node_P: Int64,
        other_PD: Tensor,
        features_PD: Tensor,
        us_P: Tensor,
        node: Tensor | None = None,
    ) -> None:
        """node: node_P on the device, sent to it where None."""
        self._pending_host = node_P
        self.pending_node = to_device(node_P, self.device) if node is None else node
        self.pending_other = other_PD
        self.pending_features = features_PD
        self.pending_us = us_P

    def copy(self) -> "Memory":
        """A memory equal to this one that moves on by itself."""
        twin = copy.copy(self)
        twin.rows = self.rows.copy()
        return twin

    @property
    def dim(self) -> int:
        return self.rows.pool.dim

    @property
    def device(self) -> torch.device:
        return self.rows.pool.device

    def is_finite(self, since: "Memory | None" = None) -> bool:
        """Whether every state and message is a number.

        since: a copy of this memory at an earlier cut, whose states are numbers; only what changed
        since is looked at.
        """
        slots = self.rows.used_slots()
        if since is not None and since.rows.pool is self.rows.pool:
            slots = self.rows.slots_changed(since.rows)
        held = (self.pending_other, self.pending_features)
        return self.rows.is_finite(slots) and all(bool(t.isfinite().all()) for t in held)

    def own_pending(self) -> dict[str, Tensor]:
        """The pending messages that this rank holds, by name."""
        return {name: getattr(self, name) for name in PENDING}

    def pending(self) -> dict[str, Tensor]:
        """The pending messages of all ranks by name, for storing; `edge` and `now_us` are stored
        with them."""
        own = self.own_pending()
        if self.ranks.num_shards == 1:
            return own
        whole = {n: torch.cat(gather(self.ranks.rows, t.cpu())) for n, t in own.items()}
        order = whole[PENDING[0]].argsort()
        return {name: tensor[order] for name, tensor in whole.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All of memory by name, with a row for each node: a copy of it, for tests and tools. Only
        a rank that is alone has all of it."""
        assert self.ranks.num_shards == 1
        node = torch.arange(self.rows.num_places, device=self.device)
        return {
            "state": self.rows.state(node),
            "last_us": self.rows.last_us(node),
            **self.pending(),
        }

    @classmethod
    def restored(
        cls,
        tensors: Mapping[str, Tensor],
        edge: int,
        now_us: int,
        device: str | torch.device = "cpu",
        pool: PagePool | None = None,
        ranks: Ranks = ALONE,
    ) -> "Memory":
        """Build a memory from what `tensors` gave.

        pool, ranks: as of `__init__`. Raises: VersionError where a tensor is missing.
        """
        if missing := {"state", "last_us", *PENDING} - set(tensors):
            raise VersionError(
                f"A stored memory lacks {', '.join(sorted(missing))}.",
                "use the streamd that wrote it.",
            )
        state = tensors["state"]
        width = tensors["pending_features"].shape[1]
        memory = cls(state.shape[1], width, edge, device, pool, ranks)
        node = np.arange(len(state))
        if ranks.owned is not None:
            node = np.flatnonzero(ranks.owned.is_own(node))
        rows = (tensors[name][torch.from_numpy(node)] for name in ("state", "last_us"))
        memory.rows.write(node, *(r.to(memory.device) for r in rows))
        memory.take_pending(tensors, edge, now_us)
        return memory

    def take_pending(self, tensors: Mapping[str, Tensor], edge: int, now_us: int) -> None:
        """Replace the pending messages by stored ones, and the cut by theirs.

        Raises: VersionError where they are of another width.
        """
        other, features, us = (tensors[name].to(self.device) for name in PENDING[1:])
        widths = self.dim, self.pending_features.shape[1]
        if (other.shape[1], features.shape[1]) != widths:
            raise VersionError(
                f"A stored memory has widths {(other.shape[1], features.shape[1])} instead of "
                f"{widths}.",
                "use the settings that it was made with.",
            )
        node = tensors["pending_node"].cpu().numpy()
        self._set_pending(*self._own_pending(node, other, features, us))
        self.edge = edge
        self.now_us = now_us

    def _own_pending(self, node_P: Int64, *of_each: Tensor) -> tuple[Int64, Tensor, Tensor, Tensor]:
        """Messages to the nodes that this rank owns. of_each: other ends' states, features and
        times."""
        if self.ranks.owned is not None:
            kept = np.flatnonzero(self.ranks.owned.is_own(node_P))
            index = to_device(kept, self.device)
            node_P, of_each = node_P[kept], tuple(tensor[index] for tensor in of_each)
        other, features, us = of_each
        return node_P, other, features, us

    def forget(self, deletes: NodeDeletes) -> None:
        """Apply the log's deletes of nodes before the cut: their states and the messages to them
        go.

        What neighbours learned from a node stays with them. `LinkModel.over` calls it before it
        applies pending messages.
        """
        due = deletes.until(self.edge).node

        # Deletes that are new since the last call.
        gone = np.unique(due[self.num_forgotten :])
        self.num_forgotten = len(due)
        if not len(gone):
            return
        # Only those with a state: a memory that was read takes all deletes in again, and writing
        # zeros over zeros would give it pages of its own.
        place = self.rows.places(gone)
        known = gone[(place >= 0) & (place < self.rows.num_places)]
        node = to_device(known, self.device)
        has_state = self.rows.state(node).ne(0).any(1) | self.rows.last_us(node).ne(0)
        known = known[has_state.cpu().numpy()]
        zeros = self.pending_other.new_zeros(len(known), self.dim)
        self.rows.write(known, zeros, self.pending_us.new_zeros(len(known)))

        # Messages to the deleted nodes.
        kept = np.flatnonzero(np.isin(self._pending_host, gone, invert=True))
        index = to_device(kept, self.device)
        self._set_pending(
            self._pending_host[kept],
            self.pending_other[index],
            self.pending_features[index],
            self.pending_us[index],
        )

    def gather(self, node_M: Tensor, updated_PD: Tensor) -> Tensor:
        """Return the current states of nodes, float32[M, D]: of nodes with a pending message from
        `updated_PD`, of unknown nodes zero. Gradients go back to the ranks that own them."""
        if self.ranks.num_shards == 1 or not self.dim:
            return self._own_states(node_M, updated_PD)
        route = Route(self.ranks.rows, node_M.cpu().numpy())
        return route.rows(lambda n: self._own_states(to_device(n, self.device), updated_PD))

    def _own_states(self, node_M: Tensor, updated_PD: Tensor) -> Tensor:
        """As `gather`, of nodes that this rank owns."""
        rows = self.rows.state(node_M)
        if not len(updated_PD):
            return rows

        # Pending nodes ascend, so a search finds a node's message where it has one.
        index_M = torch.searchsorted(self.pending_node, node_M).clamp_max(len(updated_PD) - 1)
        waits_M = self.pending_node[index_M] == node_M
        # Nodes without one take any row, each another: backward adds up the gradients of a row one
        # by one, theirs of zero too.
        any_M = torch.arange(len(node_M), device=node_M.device) % len(updated_PD)
        index_M = torch.where(waits_M, index_M, any_M)
        return torch.where(waits_M[:, None], embedding(index_M, updated_PD), rows)

    def host_states(self, node_M: Int64, updated_PD: Float32) -> Float32:
        """As `gather`, of arrays on the host."""
        out_MD: Float32 = self.rows.pool.state.numpy()[self.rows.host_rows(node_M)]
        if len(updated_PD):
            index_M = np.searchsorted(self._pending_host, node_M).clip(max=len(updated_PD) - 1)
            waits_M = self._pending_host[index_M] == node_M
            out_MD[waits_M] = updated_PD[index_M[waits_M]]
        return out_MD

    def commit(self, updated_PD: Tensor, chunk: EdgeRows) -> None:
        """Apply the pending messages, make the messages of `chunk`, which begins at the cut, and
        move the cut to the chunk's end. `LinkModel.over` calls it."""
        assert chunk.first_edge == self.edge, "memory moves from cut to cut"
        if not len(chunk.src_E):
            return

        # The messages of the chunk before become states.
        self.rows.write(self._pending_host, updated_PD.detach(), self.pending_us)

        # Each node's last event becomes a message, with the other end's state as of now.
        last = chunk.last_events(self.device)
        features_PD = to_device(chunk.features_ED[last.event_P], self.device)
        if self.ranks.num_shards == 1:
            other_PD = self.rows.state(last.other)
            self._set_pending(last.node_P, other_PD, features_PD, last.us, last.node)
        else:
            self._commit_own(last, features_PD)
        self.edge = chunk.end_edge
        self.now_us = int(chunk.time_E[-1])

    def _commit_own(self, last: LastEvents, features_PD: Tensor) -> None:
        """Make the messages to the nodes that this rank owns. features_PD: of all last events."""
        assert self.ranks.owned is not None
        # Every rank knows the chunk, so all know who asks for what (a static schedule).
        owner_P = owner_of(last.node_P, self.ranks.num_shards)
        route = Route.known(self.ranks.rows, owner_P, last.other.cpu().numpy())
        other_PD = route.answer(self.rows.state(to_device(route.asked, self.device)))
        own = np.flatnonzero(owner_P == self.ranks.rows.rank)
        index = to_device(own, self.device)
        self._set_pending(last.node_P[own], other_PD, features_PD[index], last.us[index])


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
        own = memory.rows.state(node)
        last = memory.rows.last_us(node)
        since = torch.where(last > 0, memory.pending_us - last, 0)
        message = torch.cat(
            [own, memory.pending_other, features_PD, self.time(in_gaps(since, gap_us))], 1
        )
        updated: Tensor = self.gru(message, own)
        return updated
