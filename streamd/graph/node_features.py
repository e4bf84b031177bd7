"""The current features of nodes at a position in the log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.ownership import OwnedNodes
from streamd.graph.row_positions import RowPositions
from streamd.schema import Schema


class FeatureRows(Protocol):
    """A source of node features: `NodeFeatures`, or an exchange with the ranks that own the
    nodes."""

    dim: int

    @property
    def num_bytes(self) -> int: ...

    @property
    def positions(self) -> RowPositions:
        """The position of each node's newest row, of all nodes."""
        ...

    def take(self, node_U: Int64, values_UD: Float32, event_U: Int64) -> None:
        """Apply further updates in log order; the last row of a repeated node counts. event_U:
        int64[U], the number of events before each update."""
        ...

    def of(self, node_N: Int64) -> Float32:
        """Features of nodes: float32[N, dim]. A node without features has zeros, and the one-hot of
        its node set if there are several."""
        ...


class NodeFeatures:
    """The newest feature row of each node among the applied updates. Owner: one thread per role.

    With several node sets every node has a row, with a one-hot of its set. node_sets_of: int64 node
    ids -> numbers of their sets, same shape. owned: the nodes with rows; None for all.
    """

    def __init__(
        self,
        schema: Schema,
        node_sets_of: Callable[[Int64], Int64] = np.zeros_like,
        owned: OwnedNodes | None = None,
    ) -> None:
        self.dim = dim = schema.node_feature_dim
        self._owned = owned
        self._num_sets = schema.num_node_sets
        self._node_sets_of = node_sets_of
        self._values = np.zeros((0, dim), np.float32)
        self._positions = RowPositions()

    @property
    def num_bytes(self) -> int:
        """Bytes of the allocated rows and their positions."""
        return self._values.nbytes + self._positions.num_bytes

    @property
    def positions(self) -> RowPositions:
        return self._positions

    def take(self, node_U: Int64, values_UD: Float32, event_U: Int64) -> None:
        """Apply further updates in log order; the last row of a repeated node counts. event_U:
        int64[U], the number of events before each update."""
        self._positions.take(node_U, event_U)
        if self._owned is not None:
            kept = np.flatnonzero(self._owned.is_own(node_U))
            node_U, values_UD = self._owned.slots(node_U[kept]), values_UD[kept]
        if not len(node_U):
            return
        if node_U.max() >= len(self._values):
            # At least double the size, so that growing takes little time per update.
            grown = np.zeros(
                (max(int(node_U.max()) + 1, 2 * len(self._values)), self.dim), np.float32
            )
            grown[: len(self._values)] = self._values
            self._values = grown
        self._values[node_U] = values_UD

    @contextmanager
    def supposing(self, node: int, values_D: Float32, event: int) -> Iterator[None]:
        """Add a row of a node inside the block, and remove it at its end. This process must have
        the rows of all nodes."""
        assert self._owned is None
        with self._positions.keeping(node):
            before = self._values[node : node + 1].copy()
            try:
                self.take(np.array([node]), values_D[None], np.array([event]))
                yield
            finally:
                # The node had no row.
                self._values[node : node + 1] = before if len(before) else 0

    def of(self, node_N: Int64) -> Float32:
        """Features of nodes, float32[N, dim]; zeros for a node without any, except for the one-hot
        of its node set."""
        out = np.zeros((len(node_N), self.dim), np.float32)
        row_N = node_N if self._owned is None else self._owned.slots(node_N)
        inside = (row_N >= 0) & (row_N < len(self._values))
        out[inside] = self._values[row_N[inside]]
        if self._num_sets > 1:
            # The node set of a node without events is unknown.
            known = np.flatnonzero(node_N >= 0)
            out[known, self._node_sets_of(node_N[known])] = 1.0
        return out
