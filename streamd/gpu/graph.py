"""The block graph with queries on a GPU. Events are inserted into arrays on the host, and the GPU
has a mirror of these arrays; an insert sends only its changes.

Placement (GNNFlow, section 4.2): `resident` mirrors all arrays; `hybrid` mirrors node table and
directories, and the GPU reads the entries from page-locked host memory by their host addresses.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamd.errors import DeviceMemoryError, StreamdError
from streamd.events import Int64
from streamd.gpu.changes import Touched, entries_of, events_of
from streamd.gpu.copies import to_device
from streamd.gpu.launch import Launch
from streamd.gpu.mirror import Mirror, Placement
from streamd.gpu.out_of_memory import lacks_memory, memory_for
from streamd.gpu.page_locks import Pages
from streamd.graph.blocks.block_store import BlockGraph
from streamd.graph.blocks.draws import ALL_SETS, Direction, Draw, HopDraws, Neighbors
from streamd.graph.blocks.hops import (
    NextRoots,
    NumberedHop,
    NumberedHops,
    Roots,
    renumbered,
    sample_hops,
)
from streamd.graph.blocks.strategies import STRATEGIES
from streamd.telemetry import metrics

logger = structlog.get_logger()
MAX_FANOUT = 128
"""Maximum fanout, as in kernels/sampling.cu: a thread has its earlier draws in local memory."""
SEND_ENTRIES = 2**22
"""Entries per copy, 32 MB."""
P = ParamSpec("P")
R = TypeVar("R")


def on_own_stream(
    method: "Callable[Concatenate[DeviceGraph, P], R]",
) -> "Callable[Concatenate[DeviceGraph, P], R]":
    """Run the copies and kernels of a method on the graph's stream, so that a query does not wait
    for a model's computation. Raises: DeviceMemoryError if the GPU lacks memory."""

    @wraps(method)
    def wrapped(self: "DeviceGraph", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.on_stream(), memory_for("the graph"):
            return method(self, *args, **kwargs)

    return wrapped


class DeviceGraph:
    """A `BlockGraph` that samples on the GPU, with the same contract for inserts and deletes.
    Owner: one thread per role.

    budget_bytes: of device memory. Above it, or if the device has no more memory, entries move to
    the host; this is logged, and `streamd_gpu_placement` changes. In hybrid placement nothing is
    offloaded, since page-locked memory cannot be freed; in resident placement offloading frees host
    memory only.
    """

    def __init__(
        self,
        host: BlockGraph,
        launch: Launch,
        pages: Pages,
        device: str,
        placement: Placement = "resident",
        budget_bytes: int = 2**62,
    ) -> None:
        """host: empty."""
        self.placement: Placement = "resident"
        self._host = host
        self._budget = budget_bytes
        self._device = torch.device(device)
        self._launch = launch
        self._touched = Touched()
        self._mirrors = {d: Mirror(store, self._device, pages) for d, store in host.stores.items()}

        # On the host there are no streams, and `on_stream` has no effect.
        own: Any = torch.cuda.Stream(self._device) if device != "cpu" else None  # type: ignore[no-untyped-call]
        self.on_stream = partial(torch.cuda.stream, own)
        """Context manager that makes the graph's stream the current one. Callers of
        `sample_neighborhood_on_device` must use it; the other public methods do so themselves."""
        self.place(placement)

    @property
    def first_event(self) -> int:
        return self._host.first_event

    @property
    def next_event(self) -> int:
        """Id of the next event to be inserted."""
        return self._host.next_event

    @property
    def directions(self) -> Collection[Direction]:
        """Directions in which it can sample from the events of all sets."""
        return self._host.directions

    @property
    def num_bytes(self) -> int:
        """Host memory of the graph."""
        return self._host.num_bytes

    @property
    def device_bytes(self) -> int:
        """Device memory of the graph."""
        return sum(mirror.num_bytes for mirror in self._mirrors.values())

    @property
    def entry_bytes(self) -> int:
        """Device memory of the entries; 0 in hybrid placement."""
        return sum(mirror.arrays["entries"].nbytes for mirror in self._mirrors.values())

    @on_own_stream
    def insert(self, src_E: Int64, dst_E: Int64, set_E: Int64 | None = None) -> None:
        """Append events in log order. Raises: CapacityError, DeviceMemoryError."""
        self._host.insert(src_E, dst_E, set_E)
        # The endpoints of each store's own events: a set's node table ends with its last node.
        touched: dict[int, Int64] = {}
        for (number, _), mirror in self._mirrors.items():
            if number not in touched:
                own = slice(None) if number == ALL_SETS else set_E == number
                touched[number] = self._touched.nodes(src_E[own], dst_E[own], self._host.num_nodes)
            self._send(mirror, touched[number])
        # Node table and directories grow too. They must stay on the device, so entries move.
        if self.placement == "resident" and self.device_bytes > self._budget:
            self._evict_entries()

    @on_own_stream
    def hide(self, src_E: Int64, dst_E: Int64, event_E: Int64) -> None:
        """Delete events, given by their endpoints and ids, int64[E] each; unknown ids are
        ignored."""
        self._host.hide(src_E, dst_E, event_E)
        inside = (event_E >= self.first_event) & (event_E < self.next_event)
        self._send_hidden(
            np.concatenate([src_E[inside], dst_E[inside]]), np.tile(event_E[inside], 2)
        )

    @on_own_stream
    def hide_nodes(self, nodes: Int64) -> None:
        """Delete all events of some nodes. Raises: OffloadedError."""
        nodes = np.unique(nodes[(nodes >= 0) & (nodes < self._host.num_nodes)])
        if self._host.finds_neighbors:
            # The entries of the nodes name their neighbors, which have hidden entries too.
            mirror = self._mirrors[ALL_SETS, "both"]
            other, event = events_of(mirror.store.arrays, nodes)
            self._host.hide_nodes(nodes)
            self._send_hidden(other, event)
            self._send_again(mirror, nodes)
        else:
            self._host.hide_nodes(nodes)
            for mirror in self._mirrors.values():
                self._send_again(mirror, mirror.nodes_with_hidden())

    def drop_before(self, event: int) -> None:
        """Sample no events before this id from now on: the log no longer has them."""
        self._host.drop_before(event)

    @on_own_stream
    def offload(self, before_event: int) -> None:
        """In resident placement, remove events before an id from host memory."""
        if self.placement == "hybrid":
            return
        self._host.offload(before_event)
        for mirror in self._mirrors.values():
            self._send_directories(mirror)

    @on_own_stream
    def place(self, placement: Placement) -> None:
        """Move the entries to the GPU, or to page-locked host memory. Raises: DeviceMemoryError."""
        if placement == "hybrid" and self.placement == "resident":
            self._move_to_host()
        elif placement == "resident" and self.placement == "hybrid":
            self._move_to_device()
        for name in ("resident", "hybrid"):
            metrics.gpu_placement.labels(name).set(name == self.placement)

    def _move_to_host(self) -> None:
        """Let the GPU read entries on the host. On failure the entries stay on the GPU."""
        # Restore and page-lock all entries on the host before any is freed on the device.
        try:
            for mirror in self._mirrors.values():
                mirror.lock_pages()
            self._host.restore_all()
        except StreamdError:
            for mirror in self._mirrors.values():
                mirror.unlock_pages()
            raise
        self._note_placement("hybrid")
        for mirror in self._mirrors.values():
            mirror.drop_entries()
            # A restore changes directories, and may hide events that were deleted meanwhile.
            self._send_directories(mirror)
            self._send_again(mirror, mirror.nodes_with_hidden())

    def _move_to_device(self) -> None:
        """Send all entries to the GPU; if they do not fit, they move back to the host."""
        self._note_placement("resident")
        for mirror in self._mirrors.values():
            mirror.unlock_pages()
        # If one mirror does not fit, all entries move back, and their pages are locked again.
        for mirror in self._mirrors.values():
            self._send_all_entries(mirror)

    def _note_placement(self, placement: Placement) -> None:
        self.placement = placement
        entries = sum(int(m.store.arrays.used[0]) for m in self._mirrors.values())
        logger.info("graph_placed", placement=placement, entries=entries)

    @on_own_stream
    def sample(
        self, root_R: Int64, since: int | Int64, before: int | Int64, draws: HopDraws
    ) -> Neighbors[Int64]:
        """As `BlockGraph.sample`. Raises: ValueError if a fanout is above MAX_FANOUT."""
        there = self._roots_to_device(Roots(root_R, since, before))
        found = self.sample_on_device(there.node, there.since, there.before, draws)
        return Neighbors(*(to_host(t) for t in (found.neighbor, found.event, found.mask)))

    @on_own_stream
    def sample_neighborhood(
        self, roots: Roots[Int64], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Int64]:
        """As `BlockGraph.sample_neighborhood`. Only the result is copied to the host."""
        found = self.sample_neighborhood_on_device(self._roots_to_device(roots), draws, next_roots)
        hops = tuple(
            NumberedHop(
                to_host(hop.root_U),
                to_host(hop.neighbor_UK),
                to_host(hop.eid_UK),
                to_host(hop.mask_UK),
            )
            for hop in found.hops
        )
        return NumberedHops(to_host(found.node_M), hops)

    def sample_on_device(
        self, root_R: Tensor, since: int | Tensor, before: int | Tensor, draws: HopDraws
    ) -> Neighbors[Tensor]:
        """`sample` with tensors on the device."""
        if isinstance(draws, Draw):
            return self._draw(root_R, since, before, draws)
        parts = [self._draw(root_R, since, before, draw) for draw in draws]
        return Neighbors(
            torch.cat([part.neighbor for part in parts], 1),
            torch.cat([part.event for part in parts], 1),
            torch.cat([part.mask for part in parts], 1),
        )

    def _draw(
        self, root_R: Tensor, since: int | Tensor, before: int | Tensor, draw: Draw
    ) -> Neighbors[Tensor]:
        """Sample by one draw."""
        if STRATEGIES[draw.strategy].draws and draw.fanout > MAX_FANOUT:
            raise ValueError(
                f"at most {MAX_FANOUT} neighbors are drawn on the GPU, not {draw.fanout}"
            )
        mirror = self._mirrors[draw.edge_set, draw.direction]
        since_R = _for_each_root(root_R, since).clamp(min=self._host.since_event)
        before_R = _for_each_root(root_R, before).clamp(self.first_event, self.next_event)

        while True:
            found, missing_R = mirror.draw(
                self._launch, self.placement, self.first_event, root_R, since_R, before_R, draw
            )
            # Without offloaded entries none is missing, so do not wait for the device.
            if not mirror.store.any_offloaded or not bool(missing_R.any()):
                return found
            nodes = np.unique(to_host(root_R[missing_R]))
            self._host.restore((draw.edge_set, draw.direction), nodes)
            self._send_again(mirror, nodes)

    def sample_neighborhood_on_device(
        self, roots: Roots[Tensor], draws: Sequence[HopDraws], next_roots: NextRoots[Any]
    ) -> NumberedHops[Tensor]:
        """`sample_neighborhood` with tensors on the device."""
        return renumbered(sample_hops(OnDevice(self), roots, draws, next_roots))

    def _send(self, mirror: Mirror, touched: Int64) -> None:
        """Send the changes of some nodes to a mirror. touched: int64 node ids."""
        if not len(touched):
            return

        # Send the node table last: a query reads as many entries and slots as the table counts.
        g = mirror.store.arrays
        num_nodes = mirror.store.num_nodes
        block_at, entry_at = mirror.changes(touched)
        rows = g.nodes[: 4 * num_nodes].reshape(-1, 4)[touched]
        if self.placement == "resident":
            self._put(mirror, "entries", int(g.used[0]), entry_at, g.entries[entry_at])
        slots = (2 * block_at[:, None] + np.arange(2)).ravel()
        self._put(mirror, "blocks", 2 * int(g.used[1]), slots, g.blocks[slots])
        self._put(mirror, "nodes", num_nodes, touched, rows)
        self._put(mirror, "hidden", num_nodes, touched, g.hidden[touched])
        mirror.note_sent(touched, rows)

        # In hybrid placement, lock the pages of the new entries.
        if self.placement == "hybrid":
            mirror.lock_pages()

    def _send_hidden(self, node_X: Int64, event_X: Int64) -> None:
        """Send the entries of known nodes for events that were just hidden. node_X, event_X:
        int64[X]; a node may have no entry of its event."""
        for mirror in self._mirrors.values():
            g = mirror.store.arrays
            nodes = np.unique(node_X[node_X < mirror.store.num_nodes])
            if self.placement == "resident":
                entry_at = entries_of(g, node_X, event_X)
                self._put(mirror, "entries", int(g.used[0]), entry_at, g.entries[entry_at])
            self._put(mirror, "hidden", mirror.store.num_nodes, nodes, g.hidden[nodes])

    def _send_again(self, mirror: Mirror, nodes: Int64) -> None:
        """Send all entries and directories of some nodes, after changes other than appends."""
        mirror.forget_sent(nodes)
        self._send(mirror, nodes)

    def _send_directories(self, mirror: Mirror) -> None:
        used = slice(0, 2 * int(mirror.store.arrays.used[1]))
        self._put(mirror, "blocks", used.stop, used, mirror.store.arrays.blocks[used])

    def _send_all_entries(self, mirror: Mirror) -> None:
        # Send pieces, since each is first copied to page-locked memory.
        used = int(mirror.store.arrays.used[0])
        for first in range(0, used, SEND_ENTRIES):
            if self.placement == "hybrid":
                return  # they did not fit
            piece = slice(first, min(first + SEND_ENTRIES, used))
            self._put(mirror, "entries", used, piece, mirror.store.arrays.entries[piece])

    def _put(
        self, mirror: Mirror, name: str, size: int, indices: Int64 | slice, values: NDArray[Any]
    ) -> None:
        """Write values at indices of a mirrored array, and grow it to `size` rows if needed.
        Entries that do not fit move to the host instead. Raises: DeviceMemoryError if another array
        does not fit."""
        try:
            fits = self._grow(mirror, name, size)
            if fits and len(values):
                self._write(mirror.arrays[name], indices, self.to_device(values))
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            # Only entries can be kept off the device.
            if name != "entries":
                raise DeviceMemoryError(
                    f"The GPU has no memory for {size} rows of the graph's {name}: {error}",
                    "lower retention, shard the topic, or set device: cpu.",
                ) from None
            fits = False
        if not fits:
            self._evict_entries()

    def _write(self, array: Tensor, indices: Int64 | slice, rows: Tensor) -> None:
        """Replace rows of an array. places: indices, each once."""
        if isinstance(indices, slice):
            array[indices] = rows
            return
        at = self.to_device(indices)
        kernel = {8: "put_words", 1: "put_bytes"}[array.element_size()]
        self._launch(
            kernel,
            rows.numel(),
            (
                array.data_ptr(),
                at.data_ptr(),
                rows.data_ptr(),
                rows.numel(),
                array.shape[1:].numel(),
            ),
        )

    def _evict_entries(self) -> None:
        """Move the entries to the host, since the device has no memory for them."""
        logger.warning(
            "graph_moved_to_host",
            reason="the GPU has no memory for the graph's entries",
            entries=sum(int(m.store.arrays.used[0]) for m in self._mirrors.values()),
            do="raise gpu.graph_bytes, lower retention, or set gpu.placement: hybrid to begin with",
        )
        self.place("hybrid")

    def _grow(self, mirror: Mirror, name: str, size: int) -> bool:
        """Allocate `size` rows or more for a mirrored array. Returns: False if entries would exceed
        the budget."""
        have = mirror.arrays[name]
        if size <= len(have):
            return True

        # Arrays double, but entries stay within the budget.
        rows = max(size, 2 * len(have), 1024)
        resent = False
        if name == "entries":
            left = (self._budget - self.device_bytes) // have.element_size()
            if size > len(have) + left:
                return False
            rows = min(rows, len(have) + left)
            # If both arrays do not fit, free the old one first: the host has its contents.
            resent = rows > left
        if resent:
            mirror.drop_entries()
        new_rows = self.new_rows(mirror, name, min(rows, mirror.most_rows(name)))
        if not resent:
            new_rows[: len(have)] = have
        mirror.arrays[name] = new_rows
        if resent:
            self._send_all_entries(mirror)
        metrics.gpu_graph_bytes.set(self.device_bytes)
        return True

    def new_rows(self, mirror: Mirror, name: str, rows: int) -> Tensor:
        """Make zeros for a mirrored array with `rows` rows."""
        have = mirror.arrays[name]
        return torch.zeros(rows, *have.shape[1:], dtype=have.dtype, device=self._device)

    def _roots_to_device(self, roots: Roots[Int64]) -> Roots[Tensor]:
        since, before = (
            self.to_device(x) if isinstance(x, np.ndarray) else x
            for x in (roots.since, roots.before)
        )
        return Roots(self.to_device(roots.node), since, before)

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device, made asynchronously through page-locked memory."""
        array = np.ascontiguousarray(array)
        if self._device.type == "cpu":
            # On the CPU, copy: a tensor would share the array, which changes.
            metrics.gpu_transfer_bytes.labels("up").inc(array.nbytes)
            return torch.from_numpy(array).clone()
        return to_device(array, self._device)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A graph as a `NeighborSampler` of tensors."""

    graph: DeviceGraph

    def sample(
        self, root_R: Tensor, since: int | Tensor, before: int | Tensor, draws: HopDraws
    ) -> Neighbors[Tensor]:
        return self.graph.sample_on_device(root_R, since, before, draws)


def _for_each_root(root_R: Tensor, value: int | Tensor) -> Tensor:
    """A number as int64[R], once for each root; a tensor as it is."""
    return value if isinstance(value, Tensor) else torch.full_like(root_R, value)


def to_host(tensor: Tensor) -> NDArray[Any]:
    """A copy on the host, complete on return."""
    metrics.gpu_transfer_bytes.labels("down").inc(tensor.numel() * tensor.element_size())
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
