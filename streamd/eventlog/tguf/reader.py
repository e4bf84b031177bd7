"""Reads one TGUF file through a memory mapping, also while it is written.

`streamd.eventlog.tguf.writer` writes such files.
"""

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import TGUFError
from streamd.eventlog.tguf.format import PAGE, REWRITE, Header, Section, parse_header, sections_of
from streamd.events import Float32, Int64

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("msg", "label_target", "node_feat")
"""Sections of float32; all others are int64."""
CHECKED_ROWS = 1 << 20
"""Rows that are checked at a time: a check makes masks of so many rows, not of the whole file."""
Range = tuple[int, int]
"""A half-open range [start, end)."""


@dataclass(frozen=True)
class LabelEvents:
    """R groups of labels that became known at the same time, in order of time.

    start_R: int64, first label row of each; end_R: int64, one past the last; time_R: int64 label
    time; edge_cutoff_R: int64, number of edges strictly before that time.
    """

    start_R: Int64
    end_R: Int64
    time_R: Int64
    edge_cutoff_R: Int64

    def __len__(self) -> int:
        return len(self.time_R)


class TGUFFile:
    """A mapped TGUF file; its sections are read-only arrays over the mapping.

    Nothing is copied, and pages are read only on access. Sections that the file does not have are
    arrays without rows. Ids and times are int64, features float32.
    """

    def __init__(self, path: Path) -> None:
        """Map a file and check its header. Raises: TGUFError."""
        self.path = path
        # Opening a pipe would wait for its writer: it must be a regular file.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TGUFError(
                f"{path} cannot be opened: {error.strerror}.", "check the path."
            ) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise TGUFError(f"{path} is not a regular file.", "check the path.")
            self.file_bytes = status.st_size
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if self.file_bytes else None
        finally:
            os.close(fd)
        self.header: Header = parse_header(
            self._map[:PAGE] if self._map else b"", self.file_bytes, path
        )
        self.sections: dict[str, Section] = sections_of(self.header, self.file_bytes, path)

    def column(self, name: str, rows: int | None = None) -> NDArray[Any]:
        """Read a section as an array [rows] or [rows, width], of its capacity if `rows` is None.

        Raises: TGUFError if the section has no room for so many rows.
        """
        section = self.sections[name]
        width = self._width(name)
        count = section.capacity if rows is None else rows
        if not 0 <= count <= section.capacity:
            raise TGUFError(
                f"{self.path}: section {name} has room for {section.capacity} rows, "
                f"not for {count}.",
                "read no more rows than that.",
            )
        return self._array(name, self._map or b"", count, width)

    def _array(self, name: str, buffer: Any, count: int, width: int | None) -> NDArray[Any]:
        dtype = np.dtype("<f4" if name in FLOATS else "<i8")
        if width == 0 or count == 0:
            return np.zeros((count, width) if width is not None else count, dtype)
        flat = np.frombuffer(buffer, dtype, count * (width or 1), self.sections[name].offset)
        return flat if width is None else flat.reshape(count, width)

    def _width(self, name: str) -> int | None:
        """Numbers in a row of a section, None if a row is one number."""
        h = self.header
        return {
            "msg": h.msg_dim,
            "label_target": h.label_dim,
            "node_feat": h.node_feat_dim,
            "neg_dst": h.negatives_per_edge,
        }.get(name)

    def _rows(self, name: str) -> int:
        """Rows of a section by the header's counts."""
        h = self.header
        if name not in self.sections:
            return 0
        if name == "neg_dst":
            # Only the edges from that one on have negatives.
            return max(0, h.num_edges - h.negatives_start_e_id)
        return (
            h.num_labels
            if name.startswith("label")
            else h.num_nodes
            if name == "node_feat"
            else h.num_edges
        )

    def _written(self, name: str) -> NDArray[Any]:
        """The rows of a section that the header counts."""
        if name in self.sections:
            return self.column(name, self._rows(name))
        return self._array(name, b"", 0, self._width(name))

    @property
    def num_edges(self) -> int:
        return self.header.num_edges

    @property
    def num_labels(self) -> int:
        return self.header.num_labels

    @property
    def num_nodes(self) -> int:
        """One past the highest node id with a feature row."""
        return self.header.num_nodes

    @property
    def val_start(self) -> int:
        return self.header.val_start

    @property
    def test_start(self) -> int:
        return self.header.test_start

    @property
    def src(self) -> Int64:
        """Node ids of the edges' sources, int64[num_edges]."""
        return self._written("src")

    @property
    def dst(self) -> Int64:
        """Node ids of the edges' destinations, int64[num_edges]."""
        return self._written("dst")

    @property
    def time(self) -> Int64:
        """Times of the edges, int64[num_edges], ascending; microseconds in streamd's files."""
        return self._written("time")

    @property
    def msg(self) -> Float32:
        """Edge features, float32[num_edges, msg_dim]."""
        return self._written("msg")

    @property
    def neg_dst(self) -> Int64:
        """Wrong destinations of the edges from `header.negatives_start_e_id` on, int64[rows,
        negatives_per_edge]."""
        return self._written("neg_dst")

    @property
    def node_feat(self) -> Float32:
        """Node features, float32[num_nodes, node_feat_dim]; the row number is the node id, and rows
        that were never written are zero."""
        return self._written("node_feat")

    @property
    def label_n_id(self) -> Int64:
        """Node ids of the labels, int64[num_labels]."""
        return self._written("label_n_id")

    @property
    def label_time(self) -> Int64:
        """Times at which the labels became known, int64[num_labels], ascending."""
        return self._written("label_time")

    @property
    def label_target(self) -> Float32:
        """Targets of the labels, float32[num_labels, label_dim]."""
        return self._written("label_target")

    @property
    def label_events(self) -> LabelEvents:
        """Group the labels by equal time, as the reference implementation of TGUF does."""
        # A group begins at each row with another time than the row before, and at the first row.
        time = self.label_time
        start = (
            np.flatnonzero(np.diff(time, prepend=time[:1] - 1))
            if len(time)
            else np.zeros(0, np.int64)
        )
        end = np.append(start[1:], len(time)).astype(np.int64) if len(time) else start
        return LabelEvents(start, end, time[start], np.searchsorted(self.time, time[start]))

    @property
    def splits(self) -> dict[str, Range]:
        """Half-open ranges of edge rows (train, val, test) and of label events (train_label,
        val_label, test_label).

        A label event belongs to the split of the first edge that is not before it. Without splits
        everything is train.
        """
        # Edge rows: 0 means no split, and a file may end before its splits begin.
        edges = self.num_edges
        val, test = (
            min(x or edges, edges) for x in (self.val_start or self.test_start, self.test_start)
        )

        # Label events: by the number of edges before each.
        cutoff = self.label_events.edge_cutoff_R
        first = {
            x: int(np.searchsorted(cutoff, x)) if x < edges else len(cutoff) for x in (val, test)
        }
        return {
            "train": (0, val),
            "val": (val, test),
            "test": (test, edges),
            "train_label": (0, first[val]),
            "val_label": (first[val], first[test]),
            "test_label": (first[test], len(cutoff)),
        }

    def tensor(self, name: str) -> "Tensor":
        """Map a section as a torch tensor; the mapping is private, so writing to it changes no
        file."""
        # Imported here: other readers need no torch, which takes seconds to import.
        import torch

        if name not in self.sections or not self._rows(name):
            return torch.from_numpy(self._written(name).copy())
        with self.path.open("rb") as file:
            private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.from_numpy(self._array(name, private, self._rows(name), self._width(name)))

    def check_rows(self) -> None:
        """Check every row: times ascend, ids are not negative, features are finite.

        Raises: TGUFError naming section and row.
        """
        for name in ("time", "label_time"):
            self._check(
                name, "is smaller than the one before it", lambda x: x[1:] < x[:-1], overlap=1
            )
        for name in ("src", "dst", "label_n_id", "neg_dst"):
            self._check(
                name, "is a negative node id", lambda x: x.reshape(len(x), -1).min(1, initial=0) < 0
            )
        for name in FLOATS:
            self._check(name, "is not finite", lambda x: ~np.isfinite(x).all(1))

    def _check(self, name: str, what: str, wrong: Any, overlap: int = 0) -> None:
        """Raise for the first wrong row of a section.

        wrong: takes some rows, of which `overlap` belong to the piece before; returns a bool for
        each.
        """
        # Checked in pieces: a file may be larger than memory.
        rows = self._written(name)
        for at in range(0, len(rows), CHECKED_ROWS):
            bad = np.flatnonzero(wrong(rows[max(at - overlap, 0) : at + CHECKED_ROWS]))
            if len(bad):
                row = max(at - overlap, 0) + int(bad[0]) + overlap
                raise TGUFError(f"{self.path}: {name} row {row} {what}.", REWRITE)

    def close(self) -> None:
        """Drop the mapping; arrays over it keep it alive as long as they exist."""
        self._map = None


def open_tguf(path: str | Path, check_rows: bool = True) -> TGUFFile:
    """Map a TGUF file for reading.

    Args:
        path (str or Path): the file.
        check_rows (bool, default True): whether to read and check all rows: times sorted, ids not
            negative, features finite. Without it only the header page is read, which is enough for
            files with checksums in a journal.

    Raises:
        TGUFError: the file cannot be opened, is not a TGUF file, or contradicts itself.
    """
    file = TGUFFile(Path(path))
    if check_rows:
        file.check_rows()
    return file
