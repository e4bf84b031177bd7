"""The block graph with its queries on a GPU: the arrays live on the host, where edges go in, and are mirrored.

Placement (GNNFlow, section 4.2): `resident` mirrors everything; `hybrid` mirrors node table and directories and has the GPU
read entries from page-locked host memory, by their address there. What an insert changed is sent, never the whole.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamd.errors import DeviceMemoryError
from streamd.events import Bools, Int64
from streamd.gpu.changes import changed
from streamd.gpu.launch import Launch
from streamd.graph.blocks import BlockGraph, Explored, ExploredHop, Neighbors
from streamd.graph.kernels import DEGREE
from streamd.telemetry import metrics

log = structlog.get_logger()
Placement = Literal["resident", "hybrid"]
MAX_FANOUT = 128
"""As in kernels/sampling.cu."""
SEND_ENTRIES = 2**22
LOCK_BYTES = 64 * 2**20
"""Entries are page-locked in pieces of this many bytes, as they come to be used."""
P = ParamSpec("P")
R = TypeVar("R")


def apart(method: "Callable[Concatenate[DeviceGraph, P], R]") -> "Callable[Concatenate[DeviceGraph, P], R]":
    """The method, its copies and kernels on the graph's own stream: a query does not wait for what a model computes."""

    @wraps(method)
    def on_own_stream(self: "DeviceGraph", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.on_stream():
            return method(self, *args, **kwargs)

    return on_own_stream


class Pages(Protocol):
    """Who page-locks host memory for the GPU."""

    def lock(self, address: int, size: int) -> None: ...

    def unlock(self, address: int) -> None: ...


class DeviceGraph(BlockGraph):
    """A `BlockGraph` that answers from the GPU; inserting, deleting and all its promises are the same.

    budget_bytes: most device memory it takes; past that, or where the device has no more, entries move to the host, which
    is said in the log and in `streamd_gpu_placement`. In hybrid placement nothing is offloaded: what is page-locked stays.
    """

    def __init__(
        self, launch: Launch, pages: Pages, device: str, placement: Placement = "resident", budget_bytes: int = 2**62,
        first_edge: int = 0, max_block_entries: int = 64, directed: bool = False
    ) -> None:
        super().__init__(first_edge, max_block_entries, directed)
        self.placement: Placement = "resident"
        self._launch, self._pages, self._device, self._budget = launch, pages, torch.device(device), budget_bytes
        self._sent = np.zeros(0, np.int64)
        self._on_gpu = {name: torch.zeros(0, dtype=torch.int64, device=self._device) for name in ("blocks", "entries")}
        self._on_gpu["nodes"] = torch.zeros(0, 4, dtype=torch.int64, device=self._device)
        self._on_gpu["hidden"] = torch.zeros(0, dtype=torch.uint8, device=self._device)
        self._locked: list[int] = []
        own: Any = torch.cuda.Stream(self._device) if device != "cpu" else None  # type: ignore[no-untyped-call]
        self.on_stream = partial(torch.cuda.stream, own)
        """Makes the graph's stream the current one, as `explore_there` needs; all else that is public does it itself."""
        self.place(placement)

    @property
    def device_bytes(self) -> int:
        """Device memory that the graph takes."""
        return sum(t.numel() * t.element_size() for t in self._on_gpu.values())

    @apart
    def insert(self, src_E: Int64, dst_E: Int64) -> None:
        super().insert(src_E, dst_E)
        self._send(np.unique(np.concatenate([src_E, dst_E])))

    @apart
    def hide(self, src_E: Int64, dst_E: Int64, edge_E: Int64) -> None:
        super().hide(src_E, dst_E, edge_E)
        self._send_hidden()

    @apart
    def hide_nodes(self, nodes: Int64) -> None:
        super().hide_nodes(nodes)
        self._send_hidden()

    def offload(self, before_edge: int) -> int:
        return super().offload(before_edge) if self.placement == "resident" else 0

    @apart
    def restore(self, since_edge: int, read: Callable[[int, int], tuple[Int64, Int64, Bools]]) -> None:
        offloaded = self.offloaded_edge
        super().restore(since_edge, read)
        if self.offloaded_edge != offloaded:
            self._send_all_entries()

    @apart
    def place(self, placement: Placement) -> None:
        """Move the entries to the GPU, or from it to page-locked host memory. Raises: DeviceMemoryError."""
        if placement != self.placement:
            self.placement = placement
            log.info("graph_placed", placement=placement, entries=int(self._arrays.used[0]))
            if placement == "hybrid":
                self._on_gpu["entries"] = self._on_gpu["entries"][:0].clone()
                self._lock_pages()
            else:
                for address in self._locked:
                    self._pages.unlock(address)
                self._locked = []
                self._send_all_entries()
        for name in ("resident", "hybrid"):
            metrics.gpu_placement.labels(name).set(name == self.placement)

    @apart
    def recent(self, nodes_R: Int64, before_edge: int | Int64, k: int, since_edge: int | Int64 = 0) -> Neighbors:
        return self._home(self._recent(*self._asked(nodes_R, since_edge, before_edge), k))

    @apart
    def uniform(
        self, nodes_R: Int64, before_edge: int | Int64, k: int, seed: int, replace: bool = False,
        since_edge: int | Int64 = 0
    ) -> Neighbors:
        return self._home(self._uniform(*self._asked(nodes_R, since_edge, before_edge), k, seed, replace))

    @apart
    def explore(
        self, roots_U: Int64, ranges: Sequence[tuple[int, int]], k: int, seed: int | None, deeper: bool
    ) -> Explored:
        """As the host's; the hops and the renumbering of what they reach stay on the device, and come home together."""
        nodes, hops = self.explore_there(self._up(roots_U.astype(np.int64)), ranges, k, seed, deeper)
        return Explored(_numpy(nodes), tuple(ExploredHop(*map(_numpy, hop)) for hop in hops))

    def explore_there(
        self, roots: Tensor, ranges: Sequence[tuple[int, int]], k: int, seed: int | None, deeper: bool
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
        """`explore` from and to the device: node_M, and of each hop root_U, neighbor_UK, eid_UK, mask_UK."""
        asked, found, near = [], [], []
        for number, bounds in enumerate(ranges):
            one = np.zeros(1, np.int64)
            low, high = (torch.full((len(roots),), int(b[0]), device=self._device) for b in self._range(one, *bounds))
            if seed is None:
                got = self._recent(roots, low, high, k)
            else:
                got = self._uniform(roots, low, high, k, seed + number, False)
            asked.append(roots)
            found.append(got)
            near.append(torch.where(got[2], got[0], roots[:, None]))
            if deeper and number + 1 < len(ranges):
                roots = torch.unique(torch.cat([roots, near[-1].flatten()]))
        both = [p.flatten() for pair in zip(asked, near, strict=True) for p in pair]
        nodes, places = torch.unique(torch.cat(both), return_inverse=True)
        part = torch.split(places, [len(p) for p in both])
        return nodes, [(part[2 * i], part[2 * i + 1].view(got[0].shape), got[1], got[2]) for i, got in enumerate(found)]

    def _asked(self, nodes: Int64, since: int | Int64, before: int | Int64) -> tuple[Tensor, Tensor, Tensor]:
        low, high = self._range(nodes, since, before)
        return self._up(nodes.astype(np.int64)), self._up(low), self._up(high)

    def _recent(self, root: Tensor, since: Tensor, cutoff: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return self._sample("sample_recent", root, since, cutoff, k, ())

    def _uniform(
        self, root: Tensor, since: Tensor, cutoff: Tensor, k: int, seed: int, replace: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if k > MAX_FANOUT:
            raise ValueError(f"at most {MAX_FANOUT} neighbours are drawn on the GPU, not {k}")
        return self._sample("sample_uniform", root, since, cutoff, k, (int(replace), seed))

    def _sample(
        self, kernel: str, root: Tensor, since: Tensor, cutoff: Tensor, k: int, more: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """neighbor, eid: int64[R, k], mask: bool[R, k], on the device. Raises: OffloadedError."""
        shape, on = (len(root), k), self._device
        neighbor, eid = torch.empty(shape, dtype=torch.int64, device=on), torch.empty(shape, dtype=torch.int64, device=on)
        mask, incomplete = torch.empty(shape, dtype=torch.bool, device=on), torch.zeros(1, dtype=torch.int64, device=on)
        entries = self._on_gpu["entries"].data_ptr() if self.placement == "resident" else self._entries.array.ctypes.data
        tau = self._arrays.tau
        self._launch(kernel, len(root) * k, (
            self._on_gpu["nodes"].data_ptr(), self._on_gpu["blocks"].data_ptr(), entries, self._on_gpu["hidden"].data_ptr(),
            int(tau[0]), int(tau[1]), self.num_nodes, self.first_edge, self._resident(), root.data_ptr(), since.data_ptr(),
            cutoff.data_ptr(), len(root), k, *more, neighbor.data_ptr(), eid.data_ptr(), mask.data_ptr(),
            incomplete.data_ptr()))
        if self._resident() > 0 and incomplete.item():  # where nothing is offloaded the device need not be waited for
            raise self._offloaded()
        return neighbor, eid, mask

    def _send(self, touched: Int64) -> None:
        """Bring the mirror up to what the host has of some nodes."""
        if not len(touched):
            return
        if len(self._sent) < 4 * self.num_nodes:
            self._sent = np.pad(self._sent, (0, 4 * max(self.num_nodes, len(self._sent) // 2) - len(self._sent)))
        block_at, entry_at = changed(self._arrays, self._sent, touched)
        rows = self._nodes.array[: 4 * self.num_nodes].reshape(-1, 4)[touched]
        if self.placement == "resident":
            self._put("entries", int(self._arrays.used[0]), entry_at, self._entries.array[entry_at])
        self._put("blocks", int(self._arrays.used[1]), block_at, self._blocks.array[block_at])
        self._put("nodes", self.num_nodes, touched, rows)
        self._put("hidden", self.num_nodes, touched, self._hidden.array[touched])
        self._sent.reshape(-1, 4)[touched] = rows
        if self.placement == "hybrid":
            self._lock_pages()

    def _send_hidden(self) -> None:
        """Send all entries of the nodes that a delete hid something of; deletes are rare."""
        nodes = np.flatnonzero(self._hidden.array[: self.num_nodes])
        self._sent[4 * nodes + DEGREE] = 0
        self._send(nodes)

    def _send_all_entries(self) -> None:
        used = int(self._arrays.used[0])
        for first in range(0, used, SEND_ENTRIES):
            if self.placement == "hybrid":
                return  # they did not fit
            places = np.arange(first, min(first + SEND_ENTRIES, used))
            self._put("entries", used, places, self._entries.array[first: first + len(places)])

    def _put(self, name: str, size: int, places: Int64, values: NDArray[Any]) -> None:
        """Write values at places of a mirrored array of `size` rows, growing it where it is shorter."""
        have = self._on_gpu[name]
        if size > len(have):
            try:
                grown = self._room(name, size)
            except torch.cuda.OutOfMemoryError as error:
                if name != "entries":
                    raise DeviceMemoryError(f"The GPU has no room for {name} of {size} rows of the graph: {error}",
                                            "lower retention, shard the topic, or set device: cpu.") from None
                grown = None
            if grown is None:
                log.warning("graph_moved_to_host", reason="the GPU has no room for its entries", entries=size,
                            do="raise gpu.graph_bytes, lower retention, or set gpu.placement: hybrid to begin with")
                self.place("hybrid")
                return
            grown[: len(have)] = have
            self._on_gpu[name] = have = grown
            metrics.gpu_graph_bytes.set(self.device_bytes)
        if len(places):
            have[self._up(places)] = self._up(values)

    def _room(self, name: str, size: int) -> Tensor | None:
        """A larger array; None where it would exceed the budget, which entries alone can do without."""
        have = self._on_gpu[name]
        rows = max(size, 2 * len(have), 1024)
        if name == "entries":
            most = len(have) + (self._budget - self.device_bytes) // have.element_size()
            if size > most:
                return None
            rows = min(rows, most)
        return torch.zeros(rows, *have.shape[1:], dtype=have.dtype, device=self._device)

    def _lock_pages(self) -> None:
        """Page-lock the entries in use, and the rest of the piece they end in."""
        base, used = self._entries.array.ctypes.data, int(self._arrays.used[0]) * 8
        while len(self._locked) * LOCK_BYTES < used:
            address = base + len(self._locked) * LOCK_BYTES
            self._pages.lock(address, LOCK_BYTES)
            self._locked.append(address)

    def _up(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device, sent from page-locked memory so that it need not be waited for."""
        host = torch.from_numpy(np.ascontiguousarray(array))
        metrics.gpu_transfer_bytes.labels("up").inc(array.nbytes)
        if self._device.type == "cpu":
            return host.clone()
        return host.pin_memory().to(self._device, non_blocking=True)

    def _home(self, found: tuple[Tensor, Tensor, Tensor]) -> Neighbors:
        return Neighbors(*(_numpy(t) for t in found))


def _numpy(tensor: Tensor) -> NDArray[Any]:
    metrics.gpu_transfer_bytes.labels("down").inc(tensor.numel() * tensor.element_size())
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
