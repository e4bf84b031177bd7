"""TGN's memory (Rossi et al. 2020) as a function of the log: it advances only by whole canonical
chunks.

At the end of a chunk each node's last event in it becomes a message. The GRU applies those messages
when the next chunk begins, so embeddings in a chunk include all events before it and none of its
own.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import VersionError
from streamd.events import Float32, Int64, NodeDeletes
from streamd.graph.blocks.hops import arrays_of
from streamd.graph.ownership import owner_of
from streamd.models.device_arrays import HOST, Array, as_array, as_tensor, on_host, put, zeros
from streamd.models.memory.edge_rows import EdgeRows, LastEvents
from streamd.models.memory.pages import NodeRows, PagePool
from streamd.ranks import ALONE, Ranks
from streamd.ranks.process_group import gather_array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PENDING = ("pending_node", "pending_other", "pending_features", "pending_us")
"""The arrays of the pending messages, by their names in files."""


class Memory:
    """The states of all nodes at a cut of the log, an event id. Owner: one thread.

    rows: each node's state, float32[D], and the time of the message that produced it; copies share
    equal pages (`NodeRows`). pending_node, pending_other, pending_features, pending_us: the P
    pending messages of the last chunk: nodes, ascending; states of the other endpoints; features;
    times. edge: the cut. now_us: time of the last event before it. num_forgotten: number of applied
    node deletes. A second delete of a node changes nothing, since its id is never used again.

    With several ranks, each has the rows and messages of its own nodes. `gather` and `commit` fetch
    rows from other ranks, so all ranks must call them at the same time.
    """

    def __init__(
        self,
        dim: int,
        feature_dim: int,
        edge: int = 0,
        device: "str | torch.device" = HOST,
        pool: PagePool | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """pool: of memories that are mostly equal to this one, on the same device; None for a new
        pool. ranks: they share its rows, by owner."""
        self.ranks = ranks
        self.rows = NodeRows(pool or PagePool(dim, str(device)), ranks.owned)
        self.edge = edge
        self.now_us = 0
        self.num_forgotten = 0

        # Pending messages; their nodes are on the host too.
        self._pending_host: Int64 = np.zeros(0, np.int64)
        self.pending_node = self._put(self._pending_host)
        self.pending_other = zeros(self.device, (0, dim))
        self.pending_features = zeros(self.device, (0, feature_dim))
        self.pending_us = zeros(self.device, (0,), np.int64)

    def _put(self, array: NDArray[Any]) -> Array:
        return put(array, self.device)

    def _set_pending(
        self,
        node_P: Int64,
        other_PD: Array,
        features_PD: Array,
        us_P: Array,
        node: Array | None = None,
    ) -> None:
        """node: node_P on the device; None to copy it there."""
        self._pending_host = node_P
        self.pending_node = self._put(node_P) if node is None else node
        self.pending_other = other_PD
        self.pending_features = features_PD
        self.pending_us = us_P

    def copy(self) -> "Memory":
        """An equal memory that advances independently."""
        twin = copy.copy(self)
        twin.rows = self.rows.copy()
        return twin

    @property
    def dim(self) -> int:
        return self.rows.pool.dim

    @property
    def device(self) -> str:
        return self.rows.pool.device

    def is_finite(self, since: "Memory | None" = None) -> bool:
        """Whether all states and messages are finite.

        since: a copy of this memory at an earlier cut, whose states are finite; then only the pages
        of states that changed since are checked.
        """
        slots = self.rows.used_slots()
        if since is not None and since.rows.pool is self.rows.pool:
            slots = self.rows.changed_slots(since.rows)
        held = (self.pending_other, self.pending_features)
        messages = all(bool(arrays_of(array).isfinite(array).all()) for array in held)
        return self.rows.is_finite(slots) and messages

    def own_pending(self) -> dict[str, Array]:
        """The pending messages of this rank, by name."""
        return {name: getattr(self, name) for name in PENDING}

    def pending(self) -> dict[str, NDArray[Any]]:
        """The pending messages of all ranks by name, on the host, for storing; `edge` and `now_us`
        are stored with them."""
        own = {name: on_host(array) for name, array in self.own_pending().items()}
        if self.ranks.num_shards == 1:
            return own
        whole = {name: gather_array(self.ranks.rows, array) for name, array in own.items()}
        order = whole[PENDING[0]].argsort()
        return {name: array[order] for name, array in whole.items()}

    def tensors(self) -> "dict[str, Tensor]":
        """All of memory by name, with a row for each node: a copy, for tests and tools. Requires a
        single rank, which alone has all rows."""
        assert self.ranks.num_shards == 1
        node = self._put(np.arange(self.rows.num_positions))
        whole = {
            "state": self.rows.state(node),
            "last_us": self.rows.last_us(node),
            **self.own_pending(),
        }
        return {name: as_tensor(array) for name, array in whole.items()}

    @classmethod
    def restored(
        cls,
        tensors: "Mapping[str, Tensor]",
        edge: int,
        now_us: int,
        device: "str | torch.device" = HOST,
        pool: PagePool | None = None,
        ranks: Ranks = ALONE,
    ) -> "Memory":
        """Build a memory from the result of `tensors`.

        pool, ranks: as in `__init__`. Raises: VersionError if a tensor is missing.
        """
        if missing := {"state", "last_us", *PENDING} - set(tensors):
            raise VersionError(
                f"A stored memory lacks {', '.join(sorted(missing))}.",
                "use the release of streamd that wrote it.",
            )
        arrays = {name: on_host(tensor) for name, tensor in tensors.items()}
        state = arrays["state"]
        width = arrays["pending_features"].shape[1]
        memory = cls(state.shape[1], width, edge, device, pool, ranks)
        node = np.arange(len(state))
        if ranks.owned is not None:
            node = np.flatnonzero(ranks.owned.is_own(node))
        memory.rows.write(node, *(memory._put(arrays[name][node]) for name in ("state", "last_us")))
        memory.take_pending(arrays, edge, now_us)
        return memory

    def take_pending(self, arrays: Mapping[str, NDArray[Any]], edge: int, now_us: int) -> None:
        """Replace the pending messages by stored ones, and the cut by theirs.

        Raises: VersionError if they have other widths.
        """
        other, features, us = (self._put(arrays[name]) for name in PENDING[1:])
        widths = self.dim, self.pending_features.shape[1]
        if (other.shape[1], features.shape[1]) != widths:
            raise VersionError(
                f"A stored memory has widths {(other.shape[1], features.shape[1])} instead of "
                f"{widths}.",
                "use the model settings under which it was stored.",
            )
        self._set_pending(*self._own_pending(arrays["pending_node"], other, features, us))
        self.edge = edge
        self.now_us = now_us

    def _own_pending(self, node_P: Int64, *of_each: Array) -> tuple[Int64, Array, Array, Array]:
        """The messages to nodes of this rank. of_each: the other endpoints' states, features and
        times."""
        if self.ranks.owned is not None:
            kept = np.flatnonzero(self.ranks.owned.is_own(node_P))
            index = self._put(kept)
            node_P, of_each = node_P[kept], tuple(array[index] for array in of_each)
        other, features, us = of_each
        return node_P, other, features, us

    def forget(self, deletes: NodeDeletes) -> None:
        """Apply the log's deletes of nodes before the cut: remove their states, and the messages to
        them. The states of neighbors do not change. `over` calls this before it applies pending
        messages."""
        due = deletes.until(self.edge).node

        # Deletes since the last call.
        gone = np.unique(due[self.num_forgotten :])
        self.num_forgotten = len(due)
        if not len(gone):
            return
        # Write only nodes with a state: a memory that was just read applies all deletes again, and
        # zeros over zeros would need new pages.
        position = self.rows.positions(gone)
        known = gone[(position >= 0) & (position < self.rows.num_positions)]
        node = self._put(known)
        has_state = (self.rows.state(node) != 0).any(1) | (self.rows.last_us(node) != 0)
        known = known[on_host(has_state)]
        states = zeros(self.device, (len(known), self.dim))
        self.rows.write(known, states, zeros(self.device, (len(known),), np.int64))

        # Messages to the deleted nodes.
        kept = np.flatnonzero(np.isin(self._pending_host, gone, invert=True))
        index = self._put(kept)
        self._set_pending(
            self._pending_host[kept],
            self.pending_other[index],
            self.pending_features[index],
            self.pending_us[index],
        )

    def since_last(self) -> Array:
        """Microseconds from a node's previous message to its pending one, int64[P]; 0 for its first
        message."""
        last = self.rows.last_us(self.pending_node)
        return arrays_of(last).where(last > 0, self.pending_us - last, 0)

    def gather(self, node_M: "Tensor", updated_PD: "Tensor") -> "Tensor":
        """Return the current states of nodes, float32[M, D]: from `updated_PD` for nodes with a
        pending message, zero for unknown nodes. Gradients flow back to the ranks that own them."""
        if self.ranks.num_shards == 1 or not self.dim:
            return self._own_states(node_M, updated_PD)
        from streamd.ranks.row_exchange import Route

        route = Route(self.ranks.rows, node_M.cpu().numpy())
        return route.rows(lambda n: self._own_states(as_tensor(self._put(n)), updated_PD))

    def _own_states(self, node_M: "Tensor", updated_PD: "Tensor") -> "Tensor":
        """As `gather`, for nodes of this rank."""
        # A caller with tensors has imported torch already.
        import torch
        from torch.nn.functional import embedding

        if not len(updated_PD):
            return as_tensor(self.rows.state(as_array(node_M)))
        rows, index_M, waits_M = self.rows_and_messages(node_M, len(updated_PD))
        return torch.where(waits_M[:, None], embedding(index_M, updated_PD), rows)

    def rows_and_messages(
        self, node_M: "Tensor", num_updated: int
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """For nodes of this rank: their rows without the pending messages, float32[M, D]; their
        indices among the `num_updated` > 0 nodes with a message, int64[M]; and whether they have
        one, bool[M]."""
        import torch

        rows = as_tensor(self.rows.state(as_array(node_M)))
        # Pending nodes ascend, so a binary search finds a node's message.
        pending_node = as_tensor(self.pending_node)
        index_M = torch.searchsorted(pending_node, node_M).clamp_max(num_updated - 1)
        waits_M = pending_node[index_M] == node_M
        # Nodes without a message get an arbitrary index, spread over the rows: backward adds up the
        # gradients of one row one by one, even if they are zero.
        any_M = torch.arange(len(node_M), device=node_M.device) % num_updated
        return rows, torch.where(waits_M, index_M, any_M), waits_M

    def host_states(self, node_M: Int64, updated_PD: Float32) -> Float32:
        """As `gather`, in numpy, for a memory on the host."""
        out_MD: Float32 = self.rows.state(node_M)
        if len(updated_PD):
            index_M = np.searchsorted(self._pending_host, node_M).clip(max=len(updated_PD) - 1)
            waits_M = self._pending_host[index_M] == node_M
            out_MD[waits_M] = updated_PD[index_M[waits_M]]
        return out_MD

    @contextmanager
    def over(self, chunk: EdgeRows, update: "Callable[[Memory], Array]") -> Iterator[Array]:
        """Advance memory over one canonical chunk, and over the deletes before it. Inside the
        block, memory is at the beginning of the chunk; it advances at the end of the block, unless
        the block raises.

        Args: update: computes the states of the nodes with a pending message, float32[P, D]; the
        `with` yields them.
        """
        self.forget(chunk.deletes)
        updated_PD = update(self)
        yield updated_PD
        self.commit(updated_PD, chunk)

    def commit(self, updated_PD: Array, chunk: EdgeRows) -> None:
        """Apply the pending messages, make the messages of `chunk`, which begins at the cut, and
        move the cut to the chunk's end. `over` calls it."""
        assert chunk.first_edge == self.edge, "a chunk must begin at the memory's cut"
        if not len(chunk.src_E):
            return

        # The messages of the previous chunk become states.
        self.rows.write(self._pending_host, as_array(updated_PD), self.pending_us)

        # Each node's last event becomes a message, with the other endpoint's present state.
        last = chunk.last_events(self.device)
        features_PD = self._put(chunk.features_ED[last.event_P])
        if self.ranks.num_shards == 1:
            other_PD = self.rows.state(last.other)
            self._set_pending(last.node_P, other_PD, features_PD, last.us, last.node)
        else:
            self._commit_own(last, features_PD)
        self.edge = chunk.end_edge
        self.now_us = int(chunk.time_E[-1])

    def _commit_own(self, last: LastEvents, features_PD: Array) -> None:
        """Make the messages to nodes of this rank. features_PD: of all last events."""
        from streamd.ranks.row_exchange import Route

        assert self.ranks.owned is not None
        # Every rank has the whole chunk, so each knows which rank needs which rows without an
        # exchange.
        owner_P = owner_of(last.node_P, self.ranks.num_shards)
        route = Route.known(self.ranks.rows, owner_P, on_host(last.other))
        states = as_tensor(self.rows.state(self._put(route.asked)))
        other_PD = as_array(route.answer(states))
        own = np.flatnonzero(owner_P == self.ranks.rows.rank)
        index = self._put(own)
        self._set_pending(last.node_P[own], other_PD, features_PD[index], last.us[index])
