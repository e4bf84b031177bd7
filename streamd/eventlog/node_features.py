"""Reads updates of node features: in log order for the newest of each node, or as of any edge."""

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.errors import DataDirectoryError
from streamd.eventlog.journal.journal import NOTHING, LogState
from streamd.eventlog.layout import FEATURES, feature_row
from streamd.events import Float32, Int64
from streamd.schema import Schema
from streamd.schema_change import widened_nodes

SLICE_BYTES = 1 << 20
"""Bytes of the file that are in memory at a time; later updates wait in the file."""


class FeatureFile:
    """The file of updates, as committed in a state of the log. Owner: a reader or writer of the
    log.

    Pruning replaces it by a file without updates that newer ones supersede at or before the log's
    first event. A reader with an older state may still need those, so it continues with the file
    that it has open.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FEATURES
        self._revision = -1
        self._file = -1
        self._close: Callable[[], object] = lambda: None
        self._num_bytes = 0
        self._row = feature_row(0)

    def take(self, state: LogState) -> bool:
        """Move to a state of the log. Returns: whether the file was opened again; it may then be of
        a newer state. Raises: DataDirectoryError if the file is gone."""
        committed = state.files.get(FEATURES, NOTHING)
        opened = False
        if committed.num_bytes and committed.revision != self._revision:
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise DataDirectoryError(
                    f"{FEATURES} of the data_dir is missing.", "restore it from a backup."
                ) from None
            # Readers have no `close`: the file is closed with this object.
            self._close()
            self._close = weakref.finalize(self, os.close, file)
            self._file = file
            self._revision = committed.revision
            opened = True
        self._num_bytes = committed.num_bytes
        self._row = feature_row(state.schema.node_feature_dim)
        return opened

    def leave_out(self) -> None:
        """Return no rows: the opened file may have rows of another width."""
        self._num_bytes = 0

    def rows(self, number: int) -> tuple[int, NDArray[np.void]]:
        """Read a slice of rows from row `number` on, or from the end of the hole that contains it.

        Returns: the number of the first row, and the rows; none at the end. Raises:
        DataDirectoryError if the file ends too early.
        """
        width = self._row.itemsize
        at = self._behind_hole(number * width) // width * width
        size = min(max(SLICE_BYTES // width, 1) * width, max(self._num_bytes - at, 0))
        data = os.pread(self._file, size, at) if size else b""
        if len(data) != size:
            raise _too_short()
        return at // width, np.frombuffer(data, self._row)

    def mapped(self) -> NDArray[np.void]:
        """All rows, mapped, so that only the rows in use are read. They stay valid when the file is
        replaced. Raises: DataDirectoryError if the file ends too early."""
        if not self._num_bytes:
            return np.zeros(0, self._row)
        if os.fstat(self._file).st_size < self._num_bytes:
            raise _too_short()
        data = mmap.mmap(self._file, self._num_bytes, prot=mmap.PROT_READ)
        return np.frombuffer(data, self._row)

    def _behind_hole(self, offset: int) -> int:
        """The first offset at or after `offset` that is in no hole: pruned rows take no time to
        read."""
        if offset >= self._num_bytes:
            return offset
        try:
            return min(os.lseek(self._file, offset, os.SEEK_DATA), self._num_bytes)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            # Only a hole follows, or the file ends earlier: the read shows which.
            return min(max(offset, os.fstat(self._file).st_size), self._num_bytes)


class FeatureUpdates:
    """Reads each update once, a slice of the file at a time. Owner: one thread.

    It has its own position, which may be before that of the log's reader. It skips pruned updates.
    """

    def __init__(self, file: FeatureFile, dim: int) -> None:
        """file: of the log's reader. dim: width of the features."""
        self.dim = dim
        self._file = file
        self._next = 0
        self._rows = np.zeros(0, feature_row(dim))
        self._edge_U = np.zeros(0, np.int64)

    def until(self, event: int) -> Iterator[tuple[Int64, Float32, Int64]]:
        """Yield the next updates that come before the edge `event`, slice by slice.

        Each slice is int64[U] nodes, float32[U, dim] values and int64[U] numbers of events before
        each; of equal nodes the last is newest.
        Raises: DataDirectoryError if the file ends too early.
        """
        while len(self._edge_U) or self._read_on():
            due = int(np.searchsorted(self._edge_U, event, side="right"))
            rows, edge_U = self._rows[:due], self._edge_U[:due]
            self._rows = self._rows[due:]
            self._edge_U = self._edge_U[due:]
            if due:
                yield rows["node"], rows["values"], edge_U
            elif len(self._edge_U):
                return

    def _read_on(self) -> bool:
        """Read the next slice of the file, in which all updates may be pruned. Returns: whether
        there is one."""
        first, rows = self._file.rows(self._next)
        self._next = first + len(rows)
        self._rows = rows[rows["seq"] > 0]
        self._edge_U = np.ascontiguousarray(self._rows["edge"])
        return len(rows) > 0


class FeatureHistory:
    """Answers which features a node had before an edge. Immutable.

    An update has no event time. Its position is the number of edges before it in the log, and it
    counts for an edge with at least that id. Values are read from the mapped file on demand; in
    memory an update takes 16 bytes.
    """

    def __init__(self, file: FeatureFile, cut: int, num_updates: int, first_edge: int) -> None:
        """file: of the log's reader, which is not refreshed meanwhile. cut: updates after this edge
        are left out, and those from number `num_updates` on. first_edge: of the log. If earlier
        edges were dropped, updates at or before it count only for edges after it, since the times
        of the dropped edges are unknown. Raises: DataDirectoryError."""
        self._rows = file.mapped()
        node, place, number = [], [], []
        at = 0
        while at < num_updates:
            first, rows = file.rows(at)
            if not len(rows):
                break
            at = first + len(rows)
            kept = np.flatnonzero((rows["seq"] > 0) & (rows["edge"] <= cut))
            kept = kept[first + kept < num_updates]
            node.append(rows["node"][kept])
            place.append(rows["edge"][kept])
            number.append(first + kept)
        none = np.zeros(0, np.int64)
        node_U, place_U, number_U = (np.concatenate([none, *x]) for x in (node, place, number))
        if first_edge > 0:
            place_U[place_U <= first_edge] = first_edge + 1

        # One number for each pair of node and position, ascending; updates of one position keep
        # their order.
        self._place_P, rank_U = np.unique(place_U, return_inverse=True)
        key_U = node_U * max(len(self._place_P), 1) + rank_U
        order = np.argsort(key_U, kind="stable")
        self._key_U = key_U[order]
        self._number_U = number_U[order]

    def places(self) -> tuple[Int64, Int64]:
        """Node and position of each update, int64[U] both, by node."""
        node_U, rank_U = np.divmod(self._key_U, max(len(self._place_P), 1))
        return node_U, self._place_P[rank_U]

    def before(self, node_N: Int64, edge_N: Int64) -> Float32:
        """The features of nodes before an edge each, float32[N, dim]; zeros for none."""
        dim = self._rows.dtype["values"].shape[0]
        out = np.zeros((len(node_N), dim), np.float32)
        if not len(self._key_U) or not dim:
            return out
        # The newest position at or before the edge, then the node's newest update up to that
        # position.
        rank_N = np.searchsorted(self._place_P, edge_N, side="right") - 1
        first_N = node_N * len(self._place_P)
        at_N = np.searchsorted(self._key_U, first_N + rank_N, side="right") - 1
        has = (rank_N >= 0) & (at_N >= 0) & (self._key_U[at_N] >= first_N)
        out[has] = self._rows["values"][self._number_U[at_N[has]]]
        return out


def _too_short() -> DataDirectoryError:
    return DataDirectoryError(
        f"{FEATURES} is shorter than the journal says.", "restore it from a backup."
    )


def slices(
    data_dir: Path, state_of: Callable[[], LogState]
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the committed rows in slices, each with the number of its first row; rows in holes are
    left out. The last slice ends at the committed end, and may have no rows.

    state_of: returns the log's present state; rows may have been appended since the last slice.
    """
    row = feature_row(state_of().schema.node_feature_dim)
    file = FeatureFile(data_dir)
    done = 0
    while done * row.itemsize < state_of().files.get(FEATURES, NOTHING).num_bytes:
        file.take(state_of())
        first, rows = file.rows(done)
        yield first, rows
        done = first + len(rows)


def rewritten(
    data_dir: Path,
    state_of: Callable[[], LogState],
    rewrite: Callable[[int, NDArray[np.void]], NDArray[np.void]],
    width: int,
) -> Iterator[bytes]:
    """Yield all bytes of the file, with each slice of rows rewritten to rows of `width` bytes.

    rewrite: called with the number of the first row, and the rows.
    """
    done = 0
    for first, rows in slices(data_dir, state_of):
        for hole in range(done * width, first * width, SLICE_BYTES):
            yield bytes(min(SLICE_BYTES, first * width - hole))
        if len(rows):
            yield rewrite(first, rows).tobytes()
        done = first + len(rows)


def widened(data_dir: Path, state: LogState, schema: Schema) -> Iterator[bytes]:
    """Yield all bytes of the file, with rows of a schema that extends the state's."""
    old, row = state.schema, feature_row(schema.node_feature_dim)

    def rewrite(_: int, rows: NDArray[np.void]) -> NDArray[np.void]:
        out = np.zeros(len(rows), row)
        kept = rows["seq"] > 0
        for name in ("seq", "row", "edge", "node"):
            out[name] = rows[name]
        out["values"][kept] = widened_nodes(rows["values"][kept], old, schema)
        return out

    yield from rewritten(data_dir, lambda: state, rewrite, row.itemsize)
