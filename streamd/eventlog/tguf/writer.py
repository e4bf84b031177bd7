"""Writes one TGUF file, which other tools can read at any moment."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streamd.errors import CapacityError
from streamd.eventlog.tguf.format import (
    PAGE,
    Header,
    TGUFSchema,
    lay_out,
    parse_header,
    sections_of,
)
from streamd.events import Float32, Int64
from streamd.storage import DISK, Disk

EARLIEST = -(2**63)
"""Time of the last row of a file without rows: no int64 is before it."""
CLEARED_BYTES = 1 << 20
"""Bytes that are compared with zeros at a time."""
RESERVED_ROWS = 65_536
"""Maximum number of edges for which a sparse file reserves blocks at a time: 1.5 MiB plus features.
A sync that must also allocate blocks takes five times as long."""


class TGUFWriter:
    """Appends rows to a file that is valid TGUF at every moment. Owner: one thread of one process.

    `commit` makes what was appended durable and then visible in the header's counts.
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        header: Header,
        room: tuple[int, int, int],
        rows: tuple[int, int] = (0, 0),
        disk: Disk = DISK,
        sparse: bool = False,
    ) -> None:
        """Continue in an open file; see `create` and `reopen`.

        room: the edges, labels and nodes that fit. rows: the edges and labels that are written.
        """
        self.path = path
        self._disk = disk
        self._fd = fd
        self.header = header
        self.sections = sections_of(header, os.fstat(fd).st_size, path)
        edges, self.label_capacity, self.node_capacity = room
        self.edge_capacity = min(edges, self.sections["src"].capacity)
        self.num_edges, self.num_labels = rows
        self.num_nodes = 0
        self._reserved = self.num_edges if sparse else self.edge_capacity
        self._last_time = self._last_label_time = EARLIEST
        if self.num_edges:
            last = header.time_offset + 8 * (self.num_edges - 1)
            self._last_time = int.from_bytes(os.pread(fd, 8, last), "little")

    @classmethod
    def create(
        cls, path: str | Path, schema: TGUFSchema, disk: Disk = DISK, sparse: bool = False
    ) -> "TGUFWriter":
        """Create and allocate a file, and sync it and its folder.

        Args:
            path (str or Path): the file, which must not exist.
            schema (TGUFSchema): its capacities and widths.
            disk (Disk, default DISK): the operations on the disk, which tests replace.
            sparse (bool, default False): whether to reserve blocks of edges as rows arrive, and all
                others on write; a full disk then fails a later write instead of this call.

        Raises:
            FileExistsError: the file exists.
            OSError: the disk is full or fails.
        """
        path = Path(path)
        header, size = lay_out(schema)
        fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if sparse:
                disk.truncate(fd, size)
            else:
                disk.allocate(fd, size)
            disk.write(fd, header.pack(), 0)
            disk.sync(fd)
            disk.sync_folder(path.parent)
        except OSError:
            disk.close(fd)
            raise
        room = schema.edge_capacity, schema.label_capacity, schema.node_capacity
        return cls(path, fd, header, room, disk=disk, sparse=sparse)

    @classmethod
    def reopen(
        cls,
        path: Path,
        edges: int,
        labels: int,
        edge_capacity: int,
        label_capacity: int,
        disk: Disk = DISK,
        sparse: bool = False,
    ) -> "TGUFWriter":
        """Open an existing file to continue after its first `edges` and `labels` rows. sparse: as
        it was made."""
        fd = disk.open(path, os.O_RDWR)
        header = parse_header(os.pread(fd, PAGE, 0), os.fstat(fd).st_size, path)
        # The journal's counts are valid; the header's may be older, or of a commit without a line.
        room = edge_capacity, label_capacity, 0
        return cls(path, fd, header, room, (edges, labels), disk, sparse)

    def append_edges(
        self,
        src_E: Int64,
        dst_E: Int64,
        time_E: Int64,
        msg_ED: Float32,
        neg_dst: Int64 | None = None,
    ) -> int:
        """Append edge rows; `commit` makes them durable and visible.

        Args:
            src_E, dst_E (int64[E]): node ids.
            time_E (int64[E]): ascending, not before the last written time.
            msg_ED (float32[E, D]): features.
            neg_dst (int64[rows, negatives_per_edge], default None): if the schema has negatives,
                either a row for each of these edges (those before `negatives_start` are left out)
                or only for those from `negatives_start` on.

        Returns: the CRC32C of src, dst, time and msg, one after the other.

        Raises (nothing is written then):
            ValueError: a column has a wrong type, shape or value.
            CapacityError: the file is full.
        """
        # Check shapes and types first, then room, then values.
        n = len(src_E)
        _check("src", src_E, np.int64, (n,))
        _check("dst", dst_E, np.int64, (n,))
        _check("time", time_E, np.int64, (n,))
        _check("msg", msg_ED, np.float32, (n, self.header.msg_dim))
        negatives = self._negatives(n, neg_dst)
        if not n:
            return 0
        if self.num_edges + n > self.edge_capacity:
            raise CapacityError(
                f"{self.path} holds {self.num_edges} of {self.edge_capacity} edges, "
                f"{n} more do not fit."
            )
        if min(src_E.min(), dst_E.min(), negatives.min(initial=0)) < 0:
            raise ValueError("node ids must be 0 or above")
        if time_E[0] < self._last_time or np.any(time_E[1:] < time_E[:-1]):
            raise ValueError("edge times must be sorted and not before the last one written")

        # Write each column after its rows; the counts in the header stay until `raise_counts`.
        self._reserve(self.num_edges + n)
        for name, column in (("src", src_E), ("dst", dst_E), ("time", time_E), ("msg", msg_ED)):
            self._write(name, self.num_edges, column)
        if len(negatives):
            self._write(
                "neg_dst", max(self.num_edges - self.header.negatives_start_e_id, 0), negatives
            )
        self._last_time = int(time_E[-1])
        self.num_edges += n
        return columns_crc((src_E, dst_E, time_E, msg_ED))

    def _negatives(self, n: int, neg_dst: Int64 | None) -> Int64:
        """Select the rows of `neg_dst` to be stored for the next `n` edges. Raises: ValueError."""
        per_edge = self.header.negatives_per_edge
        start = self.header.negatives_start_e_id
        stored = max(0, self.num_edges + n - max(self.num_edges, start)) if per_edge else 0
        if neg_dst is None:
            neg_dst = np.zeros((0, per_edge), np.int64)
        if len(neg_dst) not in (n, stored):
            raise ValueError(
                f"neg_dst must have {stored} rows (edges from row {start} on) or {n} (all), "
                f"not {len(neg_dst)}"
            )
        _check("neg_dst", neg_dst, np.int64, (len(neg_dst), per_edge))
        return neg_dst[len(neg_dst) - stored :]

    def append_labels(self, node_L: Int64, time_L: Int64, target_LD: Float32) -> None:
        """Append label rows: int64 node ids, int64 ascending times, float32 targets. Raises: as
        `append_edges`."""
        # Check shapes and types first, then room, then values.
        n = len(node_L)
        _check("label_n_id", node_L, np.int64, (n,))
        _check("label_time", time_L, np.int64, (n,))
        _check("label_target", target_LD, np.float32, (n, self.header.label_dim))
        if not n:
            return
        if self.num_labels + n > self.label_capacity:
            raise CapacityError(
                f"{self.path} holds {self.num_labels} of {self.label_capacity} labels, "
                f"{n} do not fit."
            )
        if (
            node_L.min() < 0
            or time_L[0] < self._last_label_time
            or np.any(time_L[1:] < time_L[:-1])
        ):
            raise ValueError("label nodes must be 0 or above and label times sorted")

        # Write each column after its rows.
        for name, column in (
            ("label_n_id", node_L),
            ("label_time", time_L),
            ("label_target", target_LD),
        ):
            self._write(name, self.num_labels, column)
        self._last_label_time = int(time_L[-1])
        self.num_labels += n

    def append_node_features(self, node_F: Int64, values_FD: Float32) -> None:
        """Write float32 feature rows at their int64 node ids; the last of equal ids stays.

        Raises: ValueError, CapacityError.
        """
        n = len(node_F)
        _check("node id", node_F, np.int64, (n,))
        _check("node_feat", values_FD, np.float32, (n, self.header.node_feat_dim))
        if not n:
            return
        if node_F.min() < 0 or node_F.max() >= self.node_capacity:
            raise CapacityError(f"{self.path} has room for node ids 0 to {self.node_capacity - 1}.")
        # One write for each run of consecutive ids; the first row always begins one.
        starts = np.flatnonzero(np.diff(node_F, prepend=node_F[0] - 2) != 1)
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True):
            self._write("node_feat", int(node_F[first]), values_FD[first:end])
        self.num_nodes = max(self.num_nodes, int(node_F.max()) + 1)

    def sync(self) -> None:
        """Make all rows durable, without raising the header's counts."""
        self._disk.sync(self._fd)

    def raise_counts(self, rows: Sequence[int] = (), labels: int | None = None) -> None:
        """Count the rows written so far in the header, which other tools read; or only so many
        edges (one number) and labels."""
        self.header = replace(
            self.header,
            num_edges=rows[0] if rows else self.num_edges,
            num_labels=self.num_labels if labels is None else labels,
            num_nodes=max(self.num_nodes, self.header.num_nodes),
        )
        self._disk.write(self._fd, self.header.pack(), 0)

    def commit(self) -> None:
        """Make the appended rows durable, and only then count them in the header: it must not count
        rows that a crash could lose."""
        self.sync()
        self.raise_counts()

    def close(self) -> None:
        """Sync and close the file; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)

    def clear_behind(self, rows: int) -> None:
        """Zero up to `rows` rows after the counted ones, which a crash may have left there."""
        for name, section in self.sections.items():
            count = self.num_labels if name.startswith("label") else self.num_edges
            if name in ("node_feat", "neg_dst") or not section.row_bytes:
                continue
            size = min(rows, section.capacity - count) * section.row_bytes
            at = section.offset + count * section.row_bytes
            clear(self._fd, size, at, self._disk)
        self.sync()

    def _reserve(self, rows: int) -> None:
        """Reserve blocks for `rows` edges, and for some that will follow."""
        first = self._reserved
        if rows <= first:
            return
        # Reserve at most as many as there are: with many sets, most may have few edges.
        ahead = first + min(first, RESERVED_ROWS)
        self._reserved = min(max(rows, ahead), self.edge_capacity)
        for name in ("src", "dst", "time", "msg"):
            section = self.sections[name]
            if size := (self._reserved - first) * section.row_bytes:
                self._disk.allocate(self._fd, size, section.offset + first * section.row_bytes)

    def _write(self, name: str, row: int, column: NDArray[Any]) -> None:
        section = self.sections[name]
        if section.row_bytes:
            self._disk.write(
                self._fd,
                np.ascontiguousarray(column).view(np.uint8).data,
                section.offset + row * section.row_bytes,
            )

    def __enter__(self) -> "TGUFWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def clear(fd: int, size: int, offset: int, disk: Disk) -> None:
    """Zero a range of a file. Blocks that were never written read as zero and stay unwritten."""
    for at in range(offset, offset + size, CLEARED_BYTES):
        zeros = bytes(min(CLEARED_BYTES, offset + size - at))
        if os.pread(fd, len(zeros), at) != zeros:
            disk.write(fd, zeros, at)


def columns_crc(columns: Iterable[NDArray[Any]], crc: int = 0) -> int:
    """Continue a CRC32C over the bytes of columns, one after the other."""
    for column in columns:
        if column.size:
            crc = crc32c(np.ascontiguousarray(column).view(np.uint8).data, crc)
    return crc


def _check(name: str, column: NDArray[Any], dtype: type, shape: tuple[int, ...]) -> None:
    if column.dtype != dtype or column.shape != shape:
        raise ValueError(
            f"{name} must be {np.dtype(dtype)}{list(shape)}, not {column.dtype}{list(column.shape)}"
        )
