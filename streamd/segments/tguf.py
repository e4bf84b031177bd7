"""One TGUF file: a writer that appends and a reader that maps, both at any moment of the file's life."""

import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import CapacityError, TGUFError
from streamd.events import Float32, Int64
from streamd.segments.format import PAGE, Header, Section, lay_out, parse_header, sections_of
from streamd.storage import sync_folder


@dataclass(frozen=True)
class TGUFSchema:
    """Capacities (rows) and widths of a file to be written."""

    edge_capacity: int
    msg_dim: int = 0
    label_capacity: int = 0
    label_dim: int = 0
    node_capacity: int = 0
    node_feat_dim: int = 0
    val_start: int = 0
    test_start: int = 0


class TGUFFile:
    """A mapped file. Arrays are views of the mapping: no copy, and rows written later appear in `all_*`.

    src, dst, time: int64[num_edges]; msg: float32[num_edges, msg_dim]; label_n_id, label_time: int64[num_labels];
    label_target: float32[num_labels, label_dim]; node_feat: float32[num_nodes, dim]; neg_dst: int64[.., per edge].
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.file_bytes = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.file_bytes else None
        except OSError as error:
            raise TGUFError(f"{path} cannot be opened: {error.strerror}.", "check the path.") from None
        self.header: Header = parse_header(self._map[:PAGE] if self._map else b"", self.file_bytes, path)
        self.sections: dict[str, Section] = sections_of(self.header, self.file_bytes, path)

    def column(self, name: str, rows: int | None = None) -> NDArray[Any]:
        """A section as an array of `rows` rows (its capacity where None): int64[rows] or [rows, width]."""
        section = self.sections[name]
        h = self.header
        width = {"msg": h.msg_dim, "label_target": h.label_dim, "node_feat": h.node_feat_dim,
                 "neg_dst": h.negatives_per_edge}.get(name)
        dtype = np.dtype("<f4") if name in ("msg", "label_target", "node_feat") else np.dtype("<i8")
        count = section.capacity if rows is None else rows
        if count > section.capacity:
            raise TGUFError(f"{self.path}: {count} rows of {name} asked for, it has room for {section.capacity}.")
        if width == 0 or count == 0:
            return np.zeros((count, width) if width is not None else count, dtype)
        flat = np.frombuffer(self._map or b"", dtype, count * (width or 1), section.offset)
        return flat if width is None else flat.reshape(count, width)

    def __getattr__(self, name: str) -> Any:
        counts = {"src": "num_edges", "dst": "num_edges", "time": "num_edges", "msg": "num_edges",
                  "label_n_id": "num_labels", "label_time": "num_labels", "label_target": "num_labels",
                  "node_feat": "num_nodes"}
        if name in ("num_edges", "num_labels", "num_nodes", "val_start", "test_start"):
            return getattr(self.header, name)
        if name == "neg_dst" and name in self.sections:
            return self.column(name, self.header.num_edges - self.header.negatives_start_e_id)
        if name in counts and name in self.sections:
            return self.column(name, getattr(self.header, counts[name]))
        raise AttributeError(name)

    def close(self) -> None:
        """Drop the mapping; arrays taken from it keep it alive until they go."""
        self._map = None


def open_tguf(path: str | Path) -> TGUFFile:
    """Map a TGUF file for reading. Raises: TGUFError where it is not one or contradicts itself."""
    return TGUFFile(Path(path))


class TGUFWriter:
    """Appends rows to a file that is valid TGUF at every moment. Owner: one thread of one process.

    `commit` makes what was appended durable and then visible in the header's counts.
    """

    def __init__(self, path: str | Path, schema: TGUFSchema) -> None:
        """Create and allocate the file, synced together with its directory. Raises: FileExistsError."""
        self.path = Path(path)
        self.header, size = lay_out(schema.edge_capacity, schema.msg_dim, schema.label_capacity, schema.label_dim,
                                    schema.node_capacity, schema.node_feat_dim, val_start=schema.val_start,
                                    test_start=schema.test_start)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        os.posix_fallocate(self._fd, 0, size)
        self._start(schema.edge_capacity, schema.label_capacity, schema.node_capacity)
        write_all(self._fd, self.header.pack(), 0)
        os.fsync(self._fd)
        sync_folder(self.path.parent)

    @classmethod
    def reopen(cls, path: Path, edges: int, labels: int, edge_capacity: int, label_capacity: int) -> "TGUFWriter":
        """Go on appending to an existing file behind `edges` and `labels` rows."""
        self = cls.__new__(cls)
        self.path = path
        self._fd = os.open(path, os.O_RDWR)
        self.header = parse_header(os.pread(self._fd, PAGE, 0), os.fstat(self._fd).st_size, path)
        self._start(edge_capacity, label_capacity, 0)
        self.num_edges, self.num_labels = edges, labels
        return self

    def _start(self, edges: int, labels: int, nodes: int) -> None:
        size = os.fstat(self._fd).st_size
        self.sections = sections_of(self.header, size, self.path)
        self.edge_capacity = min(edges, self.sections["src"].capacity)
        self.label_capacity, self.node_capacity = labels, nodes
        self.num_edges = self.num_labels = self.num_nodes = 0
        self._last_time = self._last_label_time = -1

    def append_edges(self, src_E: Int64, dst_E: Int64, time_E: Int64, msg_ED: Float32) -> None:
        """Write rows behind the last ones. Raises: ValueError on a wrong column, CapacityError when full."""
        n = len(src_E)
        _check("src", src_E, np.int64, (n,))
        _check("dst", dst_E, np.int64, (n,))
        _check("time", time_E, np.int64, (n,))
        _check("msg", msg_ED, np.float32, (n, self.header.msg_dim))
        if not n:
            return
        if self.num_edges + n > self.edge_capacity:
            raise CapacityError(f"{self.path} holds {self.num_edges} of {self.edge_capacity} edges, {n} more do not fit.")
        if min(src_E.min(), dst_E.min()) < 0:
            raise ValueError("node ids must be 0 or above")
        if time_E[0] < self._last_time or np.any(time_E[1:] < time_E[:-1]):
            raise ValueError("edge times must be sorted and not before the last one written")
        for name, column in (("src", src_E), ("dst", dst_E), ("time", time_E), ("msg", msg_ED)):
            self._write(name, self.num_edges, column)
        self._last_time = int(time_E[-1])
        self.num_edges += n

    def append_labels(self, node_L: Int64, time_L: Int64, target_LD: Float32) -> None:
        """Write label rows behind the last ones. Raises: as `append_edges`."""
        n = len(node_L)
        _check("label_n_id", node_L, np.int64, (n,))
        _check("label_time", time_L, np.int64, (n,))
        _check("label_target", target_LD, np.float32, (n, self.header.label_dim))
        if not n:
            return
        if self.num_labels + n > self.label_capacity:
            raise CapacityError(f"{self.path} holds {self.num_labels} of {self.label_capacity} labels, {n} do not fit.")
        if node_L.min() < 0 or time_L[0] < self._last_label_time or np.any(time_L[1:] < time_L[:-1]):
            raise ValueError("label nodes must be 0 or above and label times sorted")
        for name, column in (("label_n_id", node_L), ("label_time", time_L), ("label_target", target_LD)):
            self._write(name, self.num_labels, column)
        self._last_label_time = int(time_L[-1])
        self.num_labels += n

    def append_node_features(self, node_F: Int64, values_FD: Float32) -> None:
        """Write feature rows at their node ids. Raises: ValueError, CapacityError."""
        n = len(node_F)
        _check("node id", node_F, np.int64, (n,))
        _check("node_feat", values_FD, np.float32, (n, self.header.node_feat_dim))
        if not n:
            return
        if node_F.min() < 0 or node_F.max() >= self.node_capacity:
            raise CapacityError(f"{self.path} has room for node ids 0 to {self.node_capacity - 1}.")
        for node, row in zip(node_F.tolist(), values_FD, strict=True):
            self._write("node_feat", node, row)
        self.num_nodes = max(self.num_nodes, int(node_F.max()) + 1)

    def sync(self) -> None:
        """Make all rows durable; the header's counts stay."""
        os.fdatasync(self._fd)

    def raise_counts(self) -> None:
        """Show the rows written so far in the header, for foreign readers."""
        self.header = replace(self.header, num_edges=self.num_edges, num_labels=self.num_labels,
                              num_nodes=self.num_nodes)
        write_all(self._fd, self.header.pack(), 0)

    def commit(self) -> None:
        """Durable first, visible second."""
        self.sync()
        self.raise_counts()

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def clear_behind(self, rows: int) -> None:
        """Zero up to `rows` rows behind the counts: what a crash left of a commit that never was."""
        for name, section in self.sections.items():
            count = self.num_labels if name.startswith("label") else self.num_edges
            if name in ("node_feat", "neg_dst") or not section.row_bytes:
                continue
            size = min(rows, section.capacity - count) * section.row_bytes
            at = section.offset + count * section.row_bytes
            if any(os.pread(self._fd, size, at)):
                write_all(self._fd, bytes(size), at)
        self.sync()

    def _write(self, name: str, row: int, column: NDArray[Any]) -> None:
        section = self.sections[name]
        if section.row_bytes:
            write_all(self._fd, np.ascontiguousarray(column).view(np.uint8).data,
                      section.offset + row * section.row_bytes)

    def __enter__(self) -> "TGUFWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """pwrite until all is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _check(name: str, column: NDArray[Any], dtype: type, shape: tuple[int, ...]) -> None:
    if column.dtype != dtype or column.shape != shape:
        raise ValueError(f"{name} must be {np.dtype(dtype)}{list(shape)}, not {column.dtype}{list(column.shape)}")
