"""Stores a memory as files: one with all rows, then one with the changed rows for each later store.

So the bytes written depend on the nodes that events changed, not on all nodes. The files are
safetensors, and versions and checkpoints have links to those of their memory: first the pending
messages, then the files of rows in the order in which to apply them, with `node`: int64[K],
`state`: float32[K, D] and `last_us`: int64[K]. After a node was deleted, all rows are written
again, so that no file has its state.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamd.errors import VersionError
from streamd.events import Int64
from streamd.models.device_arrays import Array, on_host, put
from streamd.models.memory.memory import PENDING, Memory
from streamd.models.memory.pages import PAGE
from streamd.ranks import ALONE, Ranks
from streamd.storage import DISK, Disk, ImmutableFile, link_or_copy, remove_scratch
from streamd.tensors import Column, file_checksum, write_columns

if TYPE_CHECKING:
    import torch

MAX_FILES = 64
"""Files of rows after which all rows are written again: it bounds the number of links in a
folder."""
SLICE_ROWS = 1 << 16
"""Rows gathered or read at once: it bounds the extra memory of reading and writing."""
MAX_NODES = 1 << 28
"""The graph's bound of nodes; a file with a higher node id is damaged."""
REMOVE = "remove its folder, or restore it from a backup."
"""The operator's action for a damaged file."""


class MemoryFiles:
    """Writes the files of one memory as it advances, in a folder of their own. Owner: one thread.

    With several ranks, each rank of the first replica writes the rows of its own nodes, and the
    first rank the messages too. All ranks call `store` at the same time. Only the first rank calls
    `sweep`, before the next `store`.
    """

    def __init__(self, folder: Path, disk: Disk = DISK, ranks: Ranks = ALONE) -> None:
        """folder: of the files, reachable by all ranks; versions and checkpoints link to them."""
        self._folder = folder
        self._disk = disk
        self._ranks = ranks
        self._stored: Memory | None = None
        """A copy of the memory that the files hold."""
        self._pending: tuple[ImmutableFile, ...] = ()
        self._rows: tuple[ImmutableFile, ...] = ()
        """Files of this rank's nodes."""
        self._all_rows: tuple[ImmutableFile, ...] = ()
        """Files of all nodes, in order: earlier files keep their position."""
        self._num_full = self._num_changed = 0
        self._num_forgotten = 0
        folder.mkdir(parents=True, exist_ok=True)
        if ranks.is_first:
            remove_scratch(folder, disk)

    def resume(self, files: Sequence[ImmutableFile], memory: Memory) -> None:
        """Continue from files elsewhere that hold `memory`, by links to them in this folder. With
        several ranks, each starts with a file of all its rows instead, since the files may be of
        other ranks."""
        if self._ranks.size > 1:
            return
        names = self._new_names()
        links = [self._folder / next(names) for _ in files]
        for file, link in zip(files, links, strict=True):
            link_or_copy(file.path, link, self._disk)
        pairs = zip(files, links, strict=True)
        linked = [ImmutableFile(link, file.checksum) for file, link in pairs]
        self._pending, self._rows = tuple(linked[:1]), tuple(linked[1:])
        self._all_rows = self._rows
        self._stored = memory.copy() if linked else None

        # The number of changed rows, and of the deletes that the file of all rows includes.
        counts = [_num_rows(file.path) for file in self._rows]
        if counts:
            self._num_full, self._num_changed = counts[0], sum(counts[1:])
            # With several ranks, each wrote a file of all its rows first.
            self._num_forgotten = min(_num_forgotten(file.path) for file in self._rows)
        self.sweep()

    def store(self, memory: Memory) -> tuple[ImmutableFile, ...]:
        """Write the changes since the last call. Returns: all files of the memory, in order.

        memory: of the same pool as in the last call; otherwise all rows are written. Raises:
        OSError.
        """
        # Return the same files if the memory did not change.
        stored = self._stored
        node_K = None if stored is None else _changed_nodes(memory, stored)
        same = stored is not None and node_K is not None and not len(node_K)
        if same and stored is not None:
            pairs = zip(memory.own_pending().values(), stored.own_pending().values(), strict=True)
            same = memory.edge == stored.edge and all(_is_equal(a, b) for a, b in pairs)
        if self._ranks.all(same):
            return (*self._pending, *self._all_rows)

        # Write the rows, which are equal on all replicas, then the messages.
        names = self._new_names()
        if self._ranks.replica == 0:
            self._store_rows(memory, node_K, names)
        pending = memory.pending()
        if self._ranks.is_first:
            columns = {name: Column(a.dtype, a.shape, [a]) for name, a in pending.items()}
            self._pending = (self._written(next(names), columns, memory),)
        self._all_rows = self._of_all_ranks()
        self._stored = memory.copy()
        return (*self._pending, *self._all_rows)

    def _store_rows(self, memory: Memory, node_K: Int64 | None, names: Iterator[str]) -> None:
        """Write the changed rows, or all rows if changes outnumber them, files are many, or a node
        was deleted. node_K: None if all rows are needed."""
        if (
            node_K is None
            or len(self._rows) >= MAX_FILES
            or self._num_changed + len(node_K) > self._num_full
            or memory.num_forgotten != self._num_forgotten
        ):
            node_K = memory.rows.nodes_at(memory.rows.used_slots())
            self._rows = (self._written(next(names), _rows(memory, node_K), memory),)
            self._num_full, self._num_changed = len(node_K), 0
            self._num_forgotten = memory.num_forgotten
        elif len(node_K):
            file = self._written(next(names), _rows(memory, node_K), memory)
            self._rows = (*self._rows, file)
            self._num_changed += len(node_K)

    def _of_all_ranks(self) -> tuple[ImmutableFile, ...]:
        """The files of all ranks' rows, new ones last, so that a reader can skip the files it has
        read."""
        own = [(file.path.name, file.checksum) for file in self._rows]
        told = [
            ImmutableFile(self._folder / name, checksum)
            for of_rank in self._ranks.gather_messages(own)
            for name, checksum in of_rank
        ]
        there = [file for file in self._all_rows if file in told]
        return (*there, *(file for file in told if file not in there))

    def _written(self, name: str, columns: dict[str, Column], memory: Memory) -> ImmutableFile:
        path = self._folder / name
        forgotten = str(memory.num_forgotten)
        return ImmutableFile(path, write_columns(path, columns, self._disk, forgotten=forgotten))

    def sweep(self) -> None:
        """Remove the files that the stored memory does not need."""
        if not self._ranks.is_first:
            return
        needed = {file.path.name for file in (*self._pending, *self._all_rows)}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in needed:
                self._disk.unlink(path)

    def _new_names(self) -> Iterator[str]:
        # Other ranks write at the same time, so file names contain the rank.
        rank = f"-{self._ranks.rank}" if self._ranks.rank else ""
        taken = [p.stem.split("-")[0] for p in self._folder.glob("*.safetensors")]
        number = max((int(stem) for stem in taken if stem.isdigit()), default=-1)
        while True:
            number += 1
            yield f"{number:012d}{rank}.safetensors"


class MemoryReader:
    """Reads the memories of successive versions: of each only the files that the one before did not
    have. Owner: one thread at a time."""

    def __init__(self, like: Memory | None = None) -> None:
        """like: a memory that is mostly equal to the first one that is read."""
        self._memory = like
        self._files: tuple[str, ...] = ()

    def read(
        self,
        files: Sequence[ImmutableFile],
        edge: int,
        now_us: int,
        widths: tuple[int, int],
        device: "str | torch.device",
        ranks: Ranks = ALONE,
    ) -> Memory:
        """Read a memory, and keep a copy as the start of the next read. Arguments and errors: as of
        `read_memory`."""
        # The first file holds messages only, in every format but the oldest.
        checksums = tuple(file.checksum for file in files[1:])
        known = len(self._files)
        like = self._memory
        if like is not None and 0 < known <= len(checksums) and checksums[:known] == self._files:
            files = [files[0], *files[1 + known :]]
            memory = read_memory(files, edge, now_us, widths, device, ranks, after=like)
        else:
            memory = read_memory(files, edge, now_us, widths, device, ranks, like=like)
        self._memory = memory.copy()
        self._files = checksums if all(checksums) else ()
        return memory


def read_memory(
    files: Sequence[ImmutableFile],
    edge: int,
    now_us: int,
    widths: tuple[int, int],
    device: "str | torch.device",
    ranks: Ranks = ALONE,
    *,
    after: Memory | None = None,
    like: Memory | None = None,
) -> Memory:
    """Read the files of a memory at the cut `edge`; now_us: the time of the last event before it.

    widths: of states and of edge features. ranks: they share its rows; each reads all files. after:
    the memory that earlier files hold; it is not changed. like: a memory to share equal pages with.
    Raises: VersionError if a file is missing or damaged, does not fit, or has values that are not
    finite.
    """
    # Start from a copy of `after`, or from an empty memory, in the pool of `like`.
    near = after or like
    pool = None
    if near is not None and (near.dim, near.device) == (widths[0], str(device)):
        pool = near.rows.pool
    memory = after.copy() if after is not None else Memory(*widths, edge, device, pool, ranks)
    memory.num_forgotten = 0

    for file in files:
        try:
            if file.checksum and file_checksum(file.path) != file.checksum:
                raise VersionError(f"{file.path} differs from its checksum.", REMOVE)
            with safe_open(file.path, "np") as data:
                names = set(data.keys())
                if "state" in names:
                    _apply(memory, data, like if pool is not None else None)
                if PENDING[0] in names:
                    pending = {name: data.get_tensor(name) for name in PENDING}
                    memory.take_pending(pending, edge, now_us)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise VersionError(f"{file.path} cannot be read: {error}.", REMOVE) from None

    # The rows were checked while they were read: only the messages remain.
    if not memory.is_finite(since=memory):
        raise VersionError(f"The messages of {files[0].path} are not finite.", REMOVE)
    return memory


def _apply(memory: Memory, data: Any, like: Memory | None) -> None:
    """Write the rows of an open safetensors file into memory, in slices."""
    state, last_us = data.get_slice("state"), data.get_slice("last_us")
    count, dim = state.get_shape()
    if dim != memory.dim:
        raise ValueError(f"its states have width {dim} instead of {memory.dim}")

    # Releases before format 4 stored a row for every id, most of them zeros.
    named = "node" in data.keys()  # noqa: SIM118 - the file is not a dict
    node_K = data.get_tensor("node") if named else np.arange(count)
    if len(node_K) and not 0 <= node_K.min() <= node_K.max() < MAX_NODES:
        raise ValueError("its node ids are out of range")
    for a in range(0, count, SLICE_ROWS):
        b = min(a + SLICE_ROWS, count)
        node, times = node_K[a:b], last_us[a:b]
        rows = state[a:b] if dim else np.zeros((b - a, 0), np.float32)
        if not np.isfinite(rows).all():
            raise ValueError("a state is not finite")
        if not named:
            kept = rows.any(1) | (times != 0)
            node, rows, times = node[kept], rows[kept], times[kept]
        if memory.ranks.owned is not None:
            kept = memory.ranks.owned.is_own(node)
            node, rows, times = node[kept], rows[kept], times[kept]
        on_device = (put(np.ascontiguousarray(x), memory.device) for x in (rows, times))
        memory.rows.write(node, *on_device)
        if like is not None:
            memory.rows.share_equal(memory.rows.slots_of(node), like.rows)


def _changed_nodes(memory: Memory, since: Memory) -> Int64 | None:
    """Nodes whose rows differ: int64, ascending; None if the two memories use different pools."""
    if memory.rows.pool is not since.rows.pool:
        return None
    slots = memory.rows.changed_slots(since.rows)
    step = SLICE_ROWS // PAGE
    parts = [
        memory.rows.changed_nodes(slots[a : a + step], since.rows)
        for a in range(0, len(slots), step)
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _rows(memory: Memory, node_K: Int64) -> dict[str, Column]:
    """The columns of a file with the rows of some nodes, gathered lazily while they are written."""
    slices = [node_K[a : a + SLICE_ROWS] for a in range(0, len(node_K), SLICE_ROWS)]
    at = [put(part, memory.device) for part in slices]
    states = (on_host(memory.rows.state(node)) for node in at)
    times = (on_host(memory.rows.last_us(node)) for node in at)
    return {
        "node": Column(node_K.dtype, node_K.shape, [node_K]),
        "state": Column(np.dtype(np.float32), (len(node_K), memory.dim), states),
        "last_us": Column(node_K.dtype, node_K.shape, times),
    }


def _is_equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _num_rows(path: Path) -> int:
    with safe_open(path, "np") as data:
        count: int = data.get_slice("last_us").get_shape()[0]
        return count


def _num_forgotten(path: Path) -> int:
    with safe_open(path, "np") as data:
        return int((data.metadata() or {}).get("forgotten", "0"))
