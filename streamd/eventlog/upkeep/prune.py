"""Pruning rewrites the file of node features without updates that no reader can need any more; all
others keep their positions."""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np
import structlog
from numpy.typing import NDArray

from streamd.eventlog.journal.journal import NOTHING
from streamd.eventlog.layout import FEATURES, feature_row
from streamd.eventlog.node_features import rewritten, slices
from streamd.eventlog.writer import LogWriter
from streamd.events import Bools, Int64
from streamd.storage import BLOCK_BYTES, HOLE_BYTES

logger = structlog.get_logger()
LEAST_BYTES = 1 << 24
"""Bytes of garbage that are not worth a rewrite: a role that starts reads 16 MiB in some 10 ms."""
READ_SHARE = 64
"""Least garbage for a rewrite, as a fraction of the file: a 64th. A rewrite computes the checksum
of the whole file, with holes, at some 6 GB a second. So each byte that an update adds costs 64
bytes of checksum in all, or 10 ns."""


def nobody(nodes: Int64) -> Bools:
    """No node is deleted: bool of the same shape."""
    return np.zeros(nodes.shape, np.bool_)


def pruning(log: LogWriter, is_gone: Callable[[Int64], Bools] = nobody) -> Iterator[int]:
    """Zero the updates that another of the same node supersedes at or before the log's first event,
    and the values of deleted nodes; a slice of the file per step.

    No reader starts before the log's first event, so none uses the superseded updates: backtests
    and models with new settings start there, roles later. If there is anything to remove, a new
    file of the same length replaces the old one; its blocks of zeros use no disk space. Between
    steps the log may be appended to, but no segment may be dropped.

    is_gone: which nodes are deleted, as `Deletions.is_gone`. Yields: number of updates to prune, 0
    until it is known.
    """
    width = feature_row(log.schema.node_feature_dim).itemsize
    num_rows = log.state.files.get(FEATURES, NOTHING).num_bytes // width
    first_event = log.state.first_edge

    def numbers(first: int, rows: NDArray[np.void]) -> Int64:
        """Numbers of the updates at or before the log's first event; updates that are appended
        meanwhile neither supersede nor are superseded."""
        number = first + np.flatnonzero((rows["seq"] > 0) & (rows["edge"] <= first_event))
        return number[number < num_rows]

    # Find the newest update of each node.
    newest_N = np.full(log.num_nodes, -1, np.int64)
    num_taken = 0
    has_gone = False
    for first, rows in slices(log.data_dir, lambda: log.state):
        number = numbers(first, rows)
        newest_N[rows["node"][number - first]] = number
        num_taken += len(number)
        # Values of zeros were removed before.
        has_gone |= bool(rows["values"][is_gone(rows["node"])].any())
        yield 0
    num_pruned = num_taken - int((newest_N >= 0).sum())

    # Write the file again, slice by slice, without the updates to remove.
    def without(first: int, rows: NDArray[np.void]) -> NDArray[np.void]:
        rows = rows.copy()
        rows["values"][is_gone(rows["node"])] = 0
        number = numbers(first, rows)
        superseded = newest_N[rows["node"][number - first]] != number
        rows[number[superseded] - first] = 0
        return rows

    if num_pruned or has_gone:
        pieces = rewritten(log.data_dir, lambda: log.state, without, width)
        for _ in log.replacing(FEATURES, pieces):
            yield num_pruned


class Pruner:
    """Prunes when half of the file's disk space is garbage, by the number of its blocks. Owner: the
    housekeeper.

    So a byte of garbage costs at most one byte rewritten, and the check reads only a few rows.
    """

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._row = feature_row(log.schema.node_feature_dim)
        self._steps: Iterator[int] | None = None
        self._num_pruned = 0
        self._kept = -1
        """Bytes that a pruning would keep; -1 before `look`."""

    def look(self) -> None:
        """Measure the bytes to keep, once, before the first event is dropped or pruned. Raises:
        OSError."""
        if self._kept >= 0:
            return
        # A pruning before the start has kept at most a row of each node, with the unused rest of
        # its disk blocks. Bytes beyond that are garbage; the others count as kept.
        most = self._log.num_nodes * (self._row.itemsize + HOLE_BYTES)
        self._kept = min(self._stored_bytes()[0], most)

    @property
    def is_busy(self) -> bool:
        """Whether it has begun to prune and is not done."""
        return self._steps is not None

    def step(self, seconds: float) -> None:
        """Prune for some seconds if it is worthwhile; if it is not, this only reads a few rows.
        After a failure the next call begins again. Raises: DiskError, OSError."""
        self.look()
        if self._steps is None and self._is_due():
            self._steps = pruning(self._log)
        begun = time.monotonic()
        while self._steps is not None and time.monotonic() - begun < seconds:
            # A failed step ends the pruning: restore it only after a successful one.
            steps, self._steps = self._steps, None
            num_pruned = next(steps, None)
            if num_pruned is not None:
                self._steps = steps
                self._num_pruned = num_pruned
                continue

            # The remaining updates count as kept, also if the disk has no holes.
            self._kept, stored = self._stored_bytes()
            logger.info("node_features_pruned", updates=self._num_pruned, left_bytes=stored)

    def _is_due(self) -> bool:
        num_bytes = self._log.state.files.get(FEATURES, NOTHING).num_bytes
        if num_bytes <= LEAST_BYTES:
            return False
        before, stored = self._stored_bytes()
        # Compaction prunes too.
        self._kept = min(self._kept, before)
        return before - self._kept > max(LEAST_BYTES, stored // 2, num_bytes // READ_SHARE)

    def _stored_bytes(self) -> tuple[int, int]:
        """Bytes on the disk of the updates at or before the log's first event, and of all."""
        width = self._row.itemsize
        num_rows = self._log.state.files.get(FEATURES, NOTHING).num_bytes // width
        with (self._log.data_dir / FEATURES).open("rb") as file:
            stored = os.fstat(file.fileno()).st_blocks * BLOCK_BYTES

            # Updates are in log order; the zeros of pruned ones come before all others.
            def edge_of(number: int) -> int:
                data = os.pread(file.fileno(), width, number * width)
                return int(np.frombuffer(data, self._row)["edge"][0])

            num_before = bisect_right(range(num_rows), self._log.state.first_edge, key=edge_of)
        return max(0, stored - (num_rows - num_before) * width), stored
