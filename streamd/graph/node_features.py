"""Node features in force at a place in the log."""

import numpy as np

from streamd.events import Float32, Int64


class NodeFeatures:
    """The newest feature row per node among the updates taken in. Owner: one thread per role."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._values = np.zeros((0, dim), np.float32)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows, with their room to grow."""
        return self._values.nbytes

    def take(self, node_U: Int64, values_UD: Float32) -> None:
        """Take in further updates in log order; of equal nodes the last is newest."""
        if not len(node_U):
            return
        if node_U.max() >= len(self._values):
            # Rows double, so that growing costs little per update.
            grown = np.zeros(
                (max(int(node_U.max()) + 1, 2 * len(self._values)), self.dim), np.float32
            )
            grown[: len(self._values)] = self._values
            self._values = grown
        self._values[node_U] = values_UD

    def of(self, node_N: Int64) -> Float32:
        """float32[N, dim]; zeros for a node without features."""
        out = np.zeros((len(node_N), self.dim), np.float32)
        inside = (node_N >= 0) & (node_N < len(self._values))
        out[inside] = self._values[node_N[inside]]
        return out
