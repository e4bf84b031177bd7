"""The GPU's copy of a block store's arrays, with a record of the parts that were sent."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from streamd.events import Int64
from streamd.gpu.changes import find_changes
from streamd.gpu.launch import Launch
from streamd.gpu.page_locks import LockedArray, Pages
from streamd.graph.blocks.block_store import BlockStore
from streamd.graph.blocks.draws import Draw, Neighbors
from streamd.graph.blocks.kernels import DEGREE, DIRECTORY
from streamd.graph.blocks.strategies import STRATEGIES

Placement = Literal["resident", "hybrid"]


class Mirror:
    """A block store's arrays on the device, with a record of the parts that were sent. Owner: its
    `DeviceGraph`.

    arrays: nodes int64[N, 4], blocks int64[2 B], entries int64[E], hidden uint8[N], as in
    `BlockArrays` (`streamd.graph.blocks.block_arrays`); entries are empty while they are
    page-locked on the host.
    """

    def __init__(self, store: BlockStore, device: torch.device, pages: Pages) -> None:
        self.store = store
        self._locked = LockedArray(store.arrays.entries, pages)
        self.arrays = {
            "nodes": torch.zeros(0, 4, dtype=torch.int64, device=device),
            "blocks": torch.zeros(0, dtype=torch.int64, device=device),
            "entries": torch.zeros(0, dtype=torch.int64, device=device),
            "hidden": torch.zeros(0, dtype=torch.uint8, device=device),
        }
        # The node table as it was sent, int64[4 N]; zeros for nodes that were never sent.
        self._sent = np.zeros(0, np.int64)

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.arrays.values())

    def most_rows(self, name: str) -> int:
        """Number of rows for which the host has reserved address space."""
        return len(getattr(self.store.arrays, name)) // self.arrays[name].shape[1:].numel()

    def entries_address(self, placement: Placement) -> int:
        """The address at which the device reads entries."""
        if placement == "resident":
            return self.arrays["entries"].data_ptr()
        return int(self.store.arrays.entries.ctypes.data)

    def draw(
        self,
        launch: Launch,
        placement: Placement,
        first_event: int,
        root_R: Tensor,
        since_R: Tensor,
        before_R: Tensor,
        draw: Draw,
    ) -> tuple[Neighbors[Tensor], Tensor]:
        """Launch the kernel of a draw.

        first_event: of the graph. root_R, since_R, before_R: int64[R] on the device. Returns: the
        neighbors, and bool[R], True for a root that needs offloaded entries.
        """

        # The kernel's output.
        shape, device = (len(root_R), draw.fanout), root_R.device
        found = Neighbors(
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
            torch.empty(shape, dtype=torch.bool, device=device),
        )
        missing_R = torch.zeros(len(root_R), dtype=torch.bool, device=device)

        # Addresses on the device; in hybrid placement that of the entries is on the host.
        store = (
            self.arrays["nodes"].data_ptr(),
            self.arrays["blocks"].data_ptr(),
            self.entries_address(placement),
            self.arrays["hidden"].data_ptr(),
            *map(int, self.store.arrays.tau),
        )
        # The roots, each with its range of events.
        query = (
            root_R.data_ptr(),
            since_R.data_ptr(),
            before_R.data_ptr(),
            len(root_R),
            self.store.num_nodes,
            first_event,
            int(draw.replace),
            draw.seed,
        )
        out = (
            found.neighbor.data_ptr(),
            found.event.data_ptr(),
            found.mask.data_ptr(),
            missing_R.data_ptr(),
            draw.fanout,
        )

        # One thread per neighbor. The arguments are the fields of the kernel's structs, in order.
        kernel = STRATEGIES[draw.strategy].device_kernel
        launch(kernel, len(root_R) * draw.fanout, (*store, *query, *out))
        return found, missing_R

    def changes(self, touched: Int64) -> tuple[Int64, Int64]:
        """Indices of directory slots and entries of some nodes that were not sent yet."""
        missing = 4 * max(self.store.num_nodes, len(self._sent) // 2) - len(self._sent)
        if len(self._sent) < 4 * self.store.num_nodes:
            self._sent = np.pad(self._sent, (0, missing))
        return find_changes(self.store.arrays, self._sent, touched)

    def note_sent(self, nodes: Int64, rows: Int64) -> None:
        """Record the rows of the node table that were sent."""
        self._sent.reshape(-1, 4)[nodes] = rows

    def forget_sent(self, nodes: Int64) -> None:
        """Mark all entries and the directory of some nodes as not sent."""
        # Record no entries, and another index of the directory, so that all counts as new.
        known = nodes[4 * nodes < len(self._sent)]
        self._sent[4 * known + DEGREE] = 0
        self._sent[4 * known + DIRECTORY] = -1

    def nodes_with_hidden(self) -> Int64:
        """Ids of the nodes with hidden entries, which are few: int64."""
        return np.flatnonzero(self.store.arrays.hidden[: self.store.num_nodes])

    def drop_entries(self) -> None:
        """Free the entries on the device."""
        # A copy: an empty view would keep all of the memory.
        self.arrays["entries"] = self.arrays["entries"][:0].clone()

    def lock_pages(self) -> None:
        """Page-lock the entries in use. Raises: as `Pages.lock`."""
        self._locked.lock(8 * int(self.store.arrays.used[0]))

    def unlock_pages(self) -> None:
        """Unlock all entries."""
        self._locked.unlock()
