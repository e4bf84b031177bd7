"""Writes a segment of several edge sets: a folder with one TGUF file for each, and the order of all
their events."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from crc32c import crc32c

from streamd.errors import CapacityError, DataDirectoryError
from streamd.eventlog.journal.journal import SegmentState
from streamd.eventlog.layout import LABELS, ORDER, SET_SHIFT
from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.writer import TGUFWriter, clear, columns_crc
from streamd.events import Float32, Int64
from streamd.schema import Schema
from streamd.storage import DISK, Disk


class SetsWriter:
    """Appends rows of all edge sets, each to the file of its set. Owner: the log writer.

    It has the methods of `TGUFWriter` that the log writer uses. Each file has room for all events
    of the segment, and reserves blocks on the disk as events arrive.
    """

    def __init__(
        self, folder: Path, schema: Schema, capacity: int, label_capacity: int, disk: Disk
    ) -> None:
        """Without files yet; see `create` and `reopen`."""
        self.path = folder
        self._schema = schema
        self._disk = disk
        self.edge_capacity = capacity
        self.label_capacity = label_capacity
        self.num_edges = 0
        self._sets: list[TGUFWriter] = []
        self._labels: TGUFWriter | None = None
        self._order = -1
        self._unsynced: list[TGUFWriter] = []

    @classmethod
    def create(
        cls, folder: Path, schema: Schema, capacity: int, label_capacity: int, disk: Disk = DISK
    ) -> "SetsWriter":
        """Create a folder and its files, and sync them. Raises: OSError."""
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
        self = cls(folder, schema, capacity, label_capacity, disk)
        # If a file cannot be created, as on a full disk, close the others.
        try:
            for one in schema.edge_sets:
                room = TGUFSchema(capacity, one.feature_dim)
                path = folder / f"{one.name}.tguf"
                self._sets.append(TGUFWriter.create(path, room, disk, sparse=True))
            if label_capacity:
                room = TGUFSchema(1, 0, label_capacity, schema.label_dim)
                self._labels = TGUFWriter.create(folder / LABELS, room, disk, sparse=True)
            self._order = disk.open(folder / ORDER, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            disk.allocate(self._order, 8 * capacity)
            disk.sync(self._order)
            disk.sync_folder(folder)
        except OSError:
            with suppress(OSError):
                self.close()
            raise
        return self

    @classmethod
    def reopen(
        cls,
        folder: Path,
        schema: Schema,
        rows_per_set: tuple[int, ...],
        labels: int,
        capacity: int,
        disk: Disk = DISK,
    ) -> "SetsWriter":
        """Open an existing segment to continue after its committed rows."""
        label_capacity = capacity if schema.label_dim else 0
        self = cls(folder, schema, capacity, label_capacity, disk)
        self._sets = [
            TGUFWriter.reopen(folder / f"{name}.tguf", rows, 0, capacity, 0, disk, sparse=True)
            for name, rows in zip(schema.edge_set_names, rows_per_set, strict=True)
        ]
        if label_capacity:
            self._labels = TGUFWriter.reopen(folder / LABELS, 0, labels, 1, label_capacity, disk)
        self._order = disk.open(folder / ORDER, os.O_RDWR)
        self.num_edges = sum(rows_per_set)
        return self

    @property
    def num_labels(self) -> int:
        return self._labels.num_labels if self._labels else 0

    @property
    def rows_per_set(self) -> tuple[int, ...]:
        return tuple(one.num_edges for one in self._sets)

    def append_edges(self, src_E: Int64, dst_E: Int64, time_E: Int64, msg_ED: Float32) -> int:
        """Append edges, each to the file of its set.

        msg_ED: rows of edge features, which name the set. Returns: the CRC32C of the rows, as
        `SegmentFiles.rows_crc` computes it. Raises: as `TGUFWriter.append_edges`.
        """
        n = len(src_E)
        if self.num_edges + n > self.edge_capacity:
            raise CapacityError(
                f"{self.path} holds {self.num_edges} of {self.edge_capacity} edges, "
                f"{n} more do not fit."
            )

        # Encode each event's set, and its row in the set's file.
        set_E = self._schema.edge_sets_of(msg_ED)
        code_E = set_E << SET_SHIFT
        rows = [np.flatnonzero(set_E == number) for number in range(len(self._sets))]
        for one, index in zip(self._sets, rows, strict=True):
            code_E[index] |= one.num_edges + np.arange(len(index))
        crc = columns_crc([code_E])

        # Write the rows of each set, and then the order of all.
        for number, (one, index) in enumerate(zip(self._sets, rows, strict=True)):
            msg = np.ascontiguousarray(msg_ED[index, self._schema.edge_columns(number)])
            part = one.append_edges(src_E[index], dst_E[index], time_E[index], msg)
            crc = crc32c(part.to_bytes(4, "little"), crc)
            if len(index):
                self._unsynced.append(one)
        if n:
            self._disk.write(self._order, code_E.view(np.uint8).data, 8 * self.num_edges)
        self.num_edges += n
        return crc

    def append_labels(self, node_L: Int64, time_L: Int64, target_LD: Float32) -> None:
        """Append labels, as `TGUFWriter.append_labels` does."""
        if self._labels:
            self._labels.append_labels(node_L, time_L, target_LD)
            self._unsynced += [self._labels] * bool(len(node_L))
        elif len(node_L):
            raise CapacityError(f"{self.path} has no room for labels.")

    def _files(self) -> list[TGUFWriter]:
        return [*self._sets, self._labels] if self._labels else self._sets

    def sync(self) -> None:
        """Make all rows durable, without raising the counts in headers."""
        # Only files with new rows need a sync.
        while self._unsynced:
            self._unsynced.pop().sync()
        self._disk.sync(self._order)

    def raise_counts(self, rows: Sequence[int] = (), labels: int | None = None) -> None:
        """Count the rows written so far in the headers, which other tools read; or only so many
        edges of each set, and labels."""
        for one, count in zip(self._sets, rows or self.rows_per_set, strict=True):
            one.raise_counts((count,))
        if self._labels:
            self._labels.raise_counts((), labels)

    def commit(self) -> None:
        """Make the appended rows durable, and then visible in the headers."""
        self.sync()
        self.raise_counts()

    def clear_behind(self, rows: int) -> None:
        """Zero up to `rows` rows after the counted ones, which a crash may have left there."""
        for one in self._files():
            one.clear_behind(rows)
        size = 8 * min(rows, self.edge_capacity - self.num_edges)
        clear(self._order, size, 8 * self.num_edges, self._disk)
        self._disk.sync(self._order)

    def close(self) -> None:
        """Sync and close the files; a second call does nothing."""
        with ExitStack() as stack:
            for one in self._files():
                stack.callback(one.close)
            if self._order >= 0:
                fd, self._order = self._order, -1
                # The stack runs in reverse order: sync, then close.
                stack.callback(self._disk.close, fd)
                stack.callback(self._disk.sync, fd)

    def __enter__(self) -> "SetsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


SegmentWriter = TGUFWriter | SetsWriter
"""Appends to a segment of one edge set, or of several."""


def new_segment(
    path: Path,
    schema: Schema,
    capacity: int,
    disk: Disk = DISK,
    label_capacity: int | None = None,
) -> SegmentWriter:
    """Create a segment with room for `capacity` edges, and as many labels unless `label_capacity`
    is given."""
    labels = (capacity if label_capacity is None else label_capacity) if schema.label_dim else 0
    if schema.num_edge_sets > 1:
        return SetsWriter.create(path, schema, capacity, labels, disk)
    room = TGUFSchema(capacity, schema.edge_feature_dim, labels, schema.label_dim)
    return TGUFWriter.create(path, room, disk)


def reopen_segment(
    data_dir: Path, state: SegmentState, schema: Schema, disk: Disk = DISK
) -> SegmentWriter:
    """Open the segment in progress, to continue after its committed rows. Raises:
    DataDirectoryError."""
    path = data_dir / state.path
    if not path.exists():
        raise DataDirectoryError(
            f"{state.path} of the data_dir is missing.", "restore it from a backup."
        )
    labels = state.num_labels
    if state.rows_per_set:
        return SetsWriter.reopen(path, schema, state.rows_per_set, labels, state.capacity, disk)
    room = state.capacity if schema.label_dim else 0
    return TGUFWriter.reopen(path, state.num_edges, labels, state.capacity, room, disk)
