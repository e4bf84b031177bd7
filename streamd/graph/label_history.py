"""The mean of each node's last labels, as of a time."""

import numpy as np

from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64

LAST_LABELS = 7
"""Length of the moving average over a node's labels, as in TGB (Huang et al. 2023, "Temporal Graph
Benchmark for Machine Learning on Temporal Graphs"): the first seven have equal weights, and each
later label a weight of one seventh."""
MAX_VALUES = 1 << 26
"""Maximum number of values in memory, 256 MB. Beyond it, the node with the oldest newest label is
dropped."""


class LabelHistory:
    """Running means of the labels in the log. Owner: one thread per role. They are not stored: the
    first query reads all labels of the log."""

    def __init__(self, log: LogReader, max_values: int = MAX_VALUES) -> None:
        self._log = log
        dim = log.state.schema.label_dim
        self._max_nodes = max(1, max_values // max(dim, 1))
        self._until_us = -(2**62)

        # Node -> its row, in order of the nodes' newest labels, oldest first.
        self._row: dict[int, int] = {}
        self._free: list[int] = []
        self._mean_ND = np.zeros((16, dim), np.float32)
        self._count_N = np.zeros(16, np.int64)
        # Sum and number of all labels of each node set.
        num_sets = log.state.schema.num_node_sets
        self._sum_SD = np.zeros((num_sets, dim))
        self._num_labels_S = np.zeros(num_sets, np.int64)
        log.follow(self)

    def means(self, nodes: Int64, node_sets: Int64, until_us: int) -> Float32:
        """The mean of each node's last labels at or before a time: float32[n, label_dim]. A node
        without labels gets the mean of all labels of its node set, or zeros if there are none.

        nodes: int64[n]. node_sets: int64[n], numbers of their sets. until_us: microseconds, not
        before those of earlier calls.
        """
        self._advance(until_us)
        means_SD = self._sum_SD / np.maximum(self._num_labels_S, 1)[:, None]
        out = means_SD[node_sets].astype(np.float32)
        for i, node in enumerate(nodes.tolist()):
            row = self._row.get(node)
            if row is not None:
                out[i] = self._mean_ND[row]
        return out

    def _advance(self, until_us: int) -> None:
        """Add the labels up to a time."""
        if until_us > self._until_us:
            nodes, _, target_LD = self._log.labels_between(self._until_us, until_us)
            self._until_us = until_us
            # Labels of a deleted node stay in the mean of its set, as its events do in popularity.
            set_L = self._log.node_sets_of(nodes)
            for number in np.unique(set_L):
                own = set_L == number
                self._sum_SD[number] += target_LD[own].sum(0, dtype=np.float64)
                self._num_labels_S[number] += own.sum()
            for i in np.flatnonzero(~self._log.deletions.is_gone(nodes)).tolist():
                self._take(int(nodes[i]), target_LD[i])

    def apply(self, changes: Changes) -> None:
        """Forget deleted nodes."""
        for node in changes.nodes.tolist():
            row = self._row.pop(node, None)
            if row is not None:
                self._free.append(row)
                self._mean_ND[row] = 0

    def _take(self, node: int, target_D: Float32) -> None:
        """Add one label to its node's mean."""
        # Remove the node and set it again, so that it becomes the last in the dictionary.
        row = self._row.pop(node, None)
        if row is None:
            row = self._free_row()
            self._mean_ND[row] = 0
            self._count_N[row] = 0
        self._row[node] = row
        self._count_N[row] += 1
        share = 1 / min(int(self._count_N[row]), LAST_LABELS)
        self._mean_ND[row] += np.float32(share) * (target_D - self._mean_ND[row])

    def _free_row(self) -> int:
        """A row for a new node: a free one, or that of the node with the oldest newest label."""
        if self._free:
            return self._free.pop()
        if len(self._row) >= self._max_nodes:
            return self._row.pop(next(iter(self._row)))
        row, dim = len(self._row), self._mean_ND.shape[1]
        if row == len(self._count_N):
            self._mean_ND = np.concatenate([self._mean_ND, np.zeros((row, dim), np.float32)])
            self._count_N = np.concatenate([self._count_N, np.zeros(row, np.int64)])
        return row
