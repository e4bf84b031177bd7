"""The position of each node's newest row of features in the log."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.hashing import mix

MAX_SAMPLE = 65_536
"""Maximum number of nodes in `RowPositions.sample`, since each chunk looks up all of them."""


class RowPositions:
    """The position of each node's newest row of features: the number of events before it. Owner:
    `NodeFeatures`; with several ranks, each has the positions of all nodes.

    Times would have to be read from events around the row, which the log may have dropped.
    """

    def __init__(self) -> None:
        self._event_N = np.zeros(0, np.int64)
        self._num_rows = 0
        self._sample: Int64 | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the allocated positions."""
        return self._event_N.nbytes

    def take(self, node_U: Int64, event_U: Int64) -> None:
        """Add further rows in log order. node_U, event_U: int64[U], nodes and positions."""
        if not len(node_U):
            return
        if node_U.max() >= len(self._event_N):
            # At least double the size, so that growing takes little time per row.
            grown = np.full(max(int(node_U.max()) + 1, 2 * len(self._event_N)), -1, np.int64)
            grown[: len(self._event_N)] = self._event_N
            self._event_N = grown
        # The sample depends on the nodes that have a row, not on the positions.
        new = np.unique(node_U[self._event_N[node_U] < 0])
        self._event_N[node_U] = event_U
        if len(new):
            self._num_rows += len(new)
            self._sample = None

    @contextmanager
    def keeping(self, node: int) -> Iterator[None]:
        """Undo the rows that a node gets inside the block."""
        before = self._events_of(np.array([node])), self._num_rows, self._sample
        try:
            yield
        finally:
            event_1, self._num_rows, self._sample = before
            self._event_N[node : node + 1] = event_1

    def ages(self, node_N: Int64, before_event: int) -> Float32:
        """log(1 + number of events from each node's newest row to `before_event`), float32[N]; -1
        for a node without a row."""
        out = np.full(len(node_N), -1, np.float32)
        event_N = self._events_of(node_N)
        has = event_N >= 0
        out[has] = np.log1p(np.maximum(before_event - event_N[has], 0))
        return out

    def has_row(self, node_N: Int64) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether each node has a row of features: bool[N]."""
        return self._events_of(node_N) >= 0

    def sample(self) -> Int64:
        """The nodes with a row, or a sample of them: int64, ascending. If there are more than
        MAX_SAMPLE, a half of them, a quarter and so on, by a hash of their ids, so that the sample
        depends on the rows alone."""
        if self._sample is None:
            nodes = np.flatnonzero(self._event_N >= 0)
            # Each halving of the sample tests one more bit of the hashes.
            halvings = max(0, (self._num_rows - 1) // MAX_SAMPLE).bit_length()
            kept = mix(nodes.astype(np.uint64)) & np.uint64((1 << halvings) - 1) == 0
            self._sample = nodes[kept]
        return self._sample

    def _events_of(self, node_N: Int64) -> Int64:
        """The position of each node's row, -1 for none: int64[N]."""
        out = np.full(len(node_N), -1, np.int64)
        inside = (node_N >= 0) & (node_N < len(self._event_N))
        out[inside] = self._event_N[node_N[inside]]
        return out
