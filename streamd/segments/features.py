"""The updates of node features, read in log order by who needs only the newest of each node."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from streamd.errors import DataDirectoryError
from streamd.events import Float32, Int64
from streamd.segments.journal import NOTHING, LogState
from streamd.segments.layout import FEATURES, feature_row

SLICE_BYTES = 1 << 20
"""Bytes of the file that are held at a time; what is not due yet waits in the file."""


class FeatureUpdates:
    """Reads each update once, a slice of the file at a time. Owner: one thread.

    It stands at a place of its own, which may lie behind that of the log's reader.
    """

    def __init__(self, data_dir: Path, state: Callable[[], LogState]) -> None:
        """state: the log's at the moment of a call; what it does not count is not read."""
        self._path = data_dir / FEATURES
        self._state = state
        self.dim = state().schema.node_feature_dim
        self._row = feature_row(self.dim)
        self._read = 0
        self._rows = np.zeros(0, self._row)
        self._edge_U = np.zeros(0, np.int64)

    def until(self, event: int) -> Iterator[tuple[Int64, Float32]]:
        """Yield the next updates that lie before the edge `event`, slice by slice.

        Each slice is int64[U] nodes and float32[U, dim] values; of equal nodes the last is newest.
        Raises: DataDirectoryError where the file ends too early.
        """
        while len(self._edge_U) or self._read_on():
            due = int(np.searchsorted(self._edge_U, event, side="right"))
            if not due:
                return
            rows = self._rows[:due]
            self._rows = self._rows[due:]
            self._edge_U = self._edge_U[due:]
            yield rows["node"], rows["values"]

    def _read_on(self) -> bool:
        """Read the next slice of the file. Returns: whether there is one."""
        end = self._state().files.get(FEATURES, NOTHING).num_bytes
        size = min(end - self._read, max(SLICE_BYTES // self._row.itemsize, 1) * self._row.itemsize)
        if not size:
            return False
        with self._path.open("rb") as file:
            data = os.pread(file.fileno(), size, self._read)
        if len(data) != size:
            raise DataDirectoryError(
                f"{FEATURES} is shorter than the journal says.", "restore it from a backup."
            )
        self._read += size
        self._rows = np.frombuffer(data, self._row)
        self._edge_U = np.ascontiguousarray(self._rows["edge"])
        return True
