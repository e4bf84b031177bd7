"""The mean of each node's last labels, read from the log as far as it is asked for."""

import numpy as np

from streamd.eventlog.log_changes import Changes
from streamd.eventlog.reader import LogReader
from streamd.events import Float32, Int64

LAST_LABELS = 7
"""Labels of a node that its mean is of, as in the moving average of TGB (Huang et al. 2023,
"Temporal Graph Benchmark for Machine Learning on Temporal Graphs"): the first ones count alike,
each later one a seventh."""
MAX_VALUES = 1 << 26
"""Most values kept: 256 MB. Beyond, the node whose newest label is oldest is forgotten."""


class LabelHistory:
    """A function of the log's labels. Owner: one thread per role.

    It is not stored: the first question reads all labels that the log holds.
    """

    def __init__(self, log: LogReader, max_values: int = MAX_VALUES) -> None:
        self._log = log
        dim = log.state.schema.label_dim
        self._max_nodes = max(1, max_values // max(dim, 1))
        self._until_us = -(2**62)

        # A row per node, found by a dictionary in order of the nodes' newest labels.
        self._row: dict[int, int] = {}
        self._free: list[int] = []
        self._mean_ND = np.zeros((16, dim), np.float32)
        self._count_N = np.zeros(16, np.int64)
        # Of all labels of each node set.
        num_sets = log.state.schema.num_node_sets
        self._sum_SD = np.zeros((num_sets, dim))
        self._num_labels_S = np.zeros(num_sets, np.int64)
        log.follow(self)

    def means(self, nodes: Int64, node_sets: Int64, until_us: int) -> Float32:
        """The mean of each node's last labels at or before a time, of all labels of its node set
        for a node that has none; zeros before the first: float32[n, label_dim]. node_sets: numbers
        of the nodes' sets. Times must not go back."""
        self._advance(until_us)
        means_SD = self._sum_SD / np.maximum(self._num_labels_S, 1)[:, None]
        out = means_SD[node_sets].astype(np.float32)
        for i, node in enumerate(nodes.tolist()):
            row = self._row.get(node)
            if row is not None:
                out[i] = self._mean_ND[row]
        return out

    def _advance(self, until_us: int) -> None:
        """Take in the labels up to a time."""
        if until_us > self._until_us:
            nodes, _, target_LD = self._log.labels_between(self._until_us, until_us)
            self._until_us = until_us
            # A deleted node's labels count for the mean of all, as its events do for popularity.
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
        """Take in one label."""
        # The node's row, a new one, or that of the node whose newest label is oldest.
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
        """A row that no node has."""
        if self._free:
            return self._free.pop()
        if len(self._row) >= self._max_nodes:
            return self._row.pop(next(iter(self._row)))
        row, dim = len(self._row), self._mean_ND.shape[1]
        if row == len(self._count_N):
            self._mean_ND = np.concatenate([self._mean_ND, np.zeros((row, dim), np.float32)])
            self._count_N = np.concatenate([self._count_N, np.zeros(row, np.int64)])
        return row
