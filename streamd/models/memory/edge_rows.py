"""The events of a chunk, for advancing memory over them.

They are not in `graph`, because they cache each node's last event on the device of the memory.
"""

from dataclasses import dataclass, field

import numpy as np

from streamd.eventlog.reader import LogReader
from streamd.events import NO_DELETES, Float32, Int64, NodeDeletes
from streamd.graph.live import LiveGraph
from streamd.models.device_arrays import Array, put


@dataclass(frozen=True, slots=True)
class LastEvents:
    """The last event of each node in a chunk, by ascending node id; it becomes the node's message.

    node_P, event_P: node ids and rows of the chunk, on the host. node, other, us: ids, the other
    endpoints' ids and times, on a device. int64[P] each.
    """

    node_P: Int64
    event_P: Int64
    node: Array
    other: Array
    us: Array


@dataclass(frozen=True)
class EdgeRows:
    """The events [first_edge, first_edge + E) in log order. src, dst, time: int64[E]; features:
    float32[E, dim]. deletes: of nodes, at least all that the log has before these events."""

    first_edge: int
    src_E: Int64
    dst_E: Int64
    time_E: Int64
    features_ED: Float32
    deletes: NodeDeletes = NO_DELETES
    _last: dict[str, LastEvents] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, log: LogReader, first: int, end: int) -> "EdgeRows":
        """Read events [first, end) of the log."""
        features_ED = log.features_of(np.arange(first, end))
        return cls(first, *log.edges(first, end), features_ED, log.deletions.of_nodes)

    def cut(self, a: int, b: int) -> "EdgeRows":
        """Rows [a, b) of this chunk."""
        return EdgeRows(
            self.first_edge + a,
            self.src_E[a:b],
            self.dst_E[a:b],
            self.time_E[a:b],
            self.features_ED[a:b],
            self.deletes,
        )

    def last_events(self, device: str) -> LastEvents:
        """The last event of each node, with arrays on a device. Computed once, since training
        advances memory over a chunk in each epoch."""
        if device not in self._last:
            # In reversed order, `unique` returns the index of a node's last event.
            both = np.stack([self.src_E, self.dst_E], 1).ravel()[::-1]
            node, latest = np.unique(both, return_index=True)
            index = len(both) - 1 - latest
            other = np.stack([self.dst_E, self.src_E], 1).ravel()[index]
            event = index // 2
            sent = (put(column, device) for column in (node, other, self.time_E[event]))
            self._last[device] = LastEvents(node, event, *sent)
        return self._last[device]

    @property
    def end_edge(self) -> int:
        return self.first_edge + len(self.src_E)

    def facts_now(self, live: LiveGraph, query_R: Int64, candidates_RC: Int64) -> Float32:
        """The facts, on the present state, of some of the rows and their candidates: float32[R, C,
        F]."""
        src, time = self.src_E[query_R], self.time_E[query_R]
        return live.facts_now(self.first_edge + query_R, src, time, candidates_RC)
