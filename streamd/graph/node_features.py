"""Node features in force at a place in the log."""

import numpy as np

from streamd.events import Float32, Int64


class NodeFeatures:
    """The newest feature row per node among updates up to an edge. Owner: one thread per role."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._values = np.zeros((0, dim), np.float32)
        self._taken = 0

    def advance(self, node_U: Int64, edge_U: Int64, values_UD: Float32, until_event: int) -> None:
        """Take in updates (all of the log's, in log order) that lie before edge `until_event`."""
        end = int(np.searchsorted(edge_U, until_event, side="right"))
        if end <= self._taken:
            return

        # Updates are in log order: the new ones follow those that were taken.
        nodes = node_U[self._taken : end]
        values = values_UD[self._taken : end]
        if nodes.max() >= len(self._values):
            # Rows double, so that growing costs little per update.
            grown = np.zeros(
                (max(int(nodes.max()) + 1, 2 * len(self._values)), self.dim), np.float32
            )
            grown[: len(self._values)] = self._values
            self._values = grown

        # Of several updates of a node the last one stays.
        self._values[nodes] = values
        self._taken = end

    def of(self, node_N: Int64) -> Float32:
        """float32[N, dim]; zeros for a node without features."""
        out = np.zeros((len(node_N), self.dim), np.float32)
        inside = (node_N >= 0) & (node_N < len(self._values))
        out[inside] = self._values[node_N[inside]]
        return out
