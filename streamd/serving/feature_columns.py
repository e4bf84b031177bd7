"""Node features as single numbers, for filters and diversity."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.node_features import NodeFeatures
from streamd.schema import Schema


class FeatureColumns(NodeFeatures):
    """Node features that can be read as one number for each node. Owner: the server's graph."""

    def __init__(self, schema: Schema, node_sets_of: Callable[[Int64], Int64]) -> None:
        super().__init__(schema, node_sets_of)
        self._has_row = np.zeros(0, np.bool_)
        self._updated: list[Int64] = []
        """Nodes of the updates since `take_updated`."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows, including spare capacity."""
        return super().num_bytes + self._has_row.nbytes

    def take(self, node_U: Int64, values_UD: Float32, event_U: Int64) -> None:
        """Apply further updates in log order; the last one of a node wins."""
        super().take(node_U, values_UD, event_U)
        if not len(node_U):
            return
        # The base class may have grown its rows.
        if more := len(self._values) - len(self._has_row):
            self._has_row = np.append(self._has_row, np.zeros(more, np.bool_))
        self._has_row[node_U] = True
        self._updated.append(node_U)

    @contextmanager
    def supposing(self, node: int, values_D: Float32, event: int) -> Iterator[None]:
        """Have a further row of a node within a block, and nothing of it afterwards."""
        had = self._has_row[node : node + 1].copy()
        updated = [*self._updated]
        try:
            with super().supposing(node, values_D, event):
                yield
        finally:
            self._has_row[node : node + 1] = had if len(had) else False
            self._updated = updated

    def take_updated(self) -> Int64:
        """The nodes that were updated since the last call: int64, ascending, each once."""
        updated = np.unique(np.concatenate([np.zeros(0, np.int64), *self._updated]))
        self._updated.clear()
        return updated

    def numbers(self, nodes: Int64, first: int, end: int) -> Float32:
        """One feature of nodes as a number each: float32[N], NaN for nodes without features.

        A feature of one column is that column's value. A categorical feature is the index of its
        category among the columns [first, end), NaN for a node without a category.
        """
        out = np.full(len(nodes), np.nan, np.float32)
        inside = np.flatnonzero((nodes >= 0) & (nodes < len(self._has_row)))
        inside = inside[self._has_row[nodes[inside]]]
        out[inside] = _numbers(self._values[nodes[inside], first:end])
        return out


def _numbers(values_NC: Float32) -> Float32:
    """The number for each row of one feature's columns: float32[N]."""
    if values_NC.shape[1] == 1:
        return np.asarray(values_NC[:, 0])
    place: Float32 = values_NC.argmax(1).astype(np.float32)
    place[values_NC.max(1, initial=0) == 0] = np.nan
    return place
