"""Node features by column, to filter and to group nodes by."""

from collections.abc import Callable

import numpy as np

from streamd.events import Float32, Int64
from streamd.graph.node_features import NodeFeatures
from streamd.schema import Schema

SLICE_NODES = 65_536
"""Rows that are looked at together when a column is made: a few MB of them."""


class FeatureColumns(NodeFeatures):
    """Node features, of which single ones are kept as one number a node too. Owner: the server's
    graph.

    A filter looks at one feature of all nodes, and rows of features are far apart in memory. A
    column is made when it is asked for first, and updated from then on.
    """

    def __init__(self, schema: Schema, node_sets_of: Callable[[Int64], Int64]) -> None:
        super().__init__(schema, node_sets_of)
        self._has_row = np.zeros(0, np.bool_)
        self._columns: dict[tuple[int, int], Float32] = {}
        """First column and end of a feature -> its number of each node, NaN without features."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows and of the columns, with their room to grow."""
        columns = sum(column.nbytes for column in self._columns.values())
        return super().num_bytes + self._has_row.nbytes + columns

    def take(self, node_U: Int64, values_UD: Float32) -> None:
        """Take in further updates in log order; of equal nodes the last is newest."""
        super().take(node_U, values_UD)
        if not len(node_U):
            return

        # Columns grow with the rows.
        if more := len(self._values) - len(self._has_row):
            self._has_row = np.append(self._has_row, np.zeros(more, np.bool_))
            unknown = np.full(more, np.nan, np.float32)
            self._columns = {at: np.append(c, unknown) for at, c in self._columns.items()}
        self._has_row[node_U] = True
        for (first, end), column in self._columns.items():
            column[node_U] = _numbers(values_UD[:, first:end])

    def numbers(self, nodes: Int64, first: int, end: int) -> Float32:
        """One feature of nodes as a number each: float32[N], NaN for nodes without features.

        A feature of one column is that number. Of categories it is the number of the category among
        the feature's columns [first, end), NaN for a node that has none of them.
        """
        column = self._columns.get((first, end))
        if column is None:
            column = self._columns[first, end] = self._make_column(first, end)
        out = np.full(len(nodes), np.nan, np.float32)
        inside = (nodes >= 0) & (nodes < len(column))
        out[inside] = column[nodes[inside]]
        return out

    def _make_column(self, first: int, end: int) -> Float32:
        """Make the column of a feature."""
        column = np.full(len(self._has_row), np.nan, np.float32)
        for at in range(0, len(column), SLICE_NODES):
            rows = slice(at, at + SLICE_NODES)
            found = _numbers(self._values[rows, first:end])
            column[rows] = np.where(self._has_row[rows], found, np.nan)
        return column


def _numbers(values_NC: Float32) -> Float32:
    """The number of each row of one feature's columns: float32[N]."""
    if values_NC.shape[1] == 1:
        return np.asarray(values_NC[:, 0])
    place: Float32 = values_NC.argmax(1).astype(np.float32)
    place[values_NC.max(1, initial=0) == 0] = np.nan
    return place
