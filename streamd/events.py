"""The types of what travels from Kafka to the log: events as columns, deletes, and positions in
Kafka."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.schema import DEFAULT_SET
from streamd.schema import Schema as Schema

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


class SetKey(NamedTuple):
    """The key of a node of another node set than the first: the set's number, and the key."""

    node_set: int
    key: str | int


Key = str | int | SetKey
"""External key of a node. Keys are unique within a node set; those of the first stand as they
are."""


def split_key(key: Key) -> tuple[int, str | int]:
    """The number of a key's node set, and the key within it."""
    return key if isinstance(key, SetKey) else (0, key)


MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds in each unit of `stream.time_unit`."""
MAX_TIME_US = 2**62
"""Later times are refused, so that sums of two times stay inside int64."""

# The kinds of events.
EDGE = 0
NODE = 1
LABEL = 2
DELETE = 3

EDGE_SETS = (DEFAULT_SET,)
"""Names of the edge sets of a log that declares none."""
DELETION = np.dtype(
    [
        ("seq", "<i8"),
        ("row", "<i4"),
        ("edge_set", "<i4"),
        ("edge", "<i8"),
        ("src", "<i8"),
        ("dst", "<i8"),
        ("time", "<i8"),
    ]
)
"""Row of a delete: the commit, the row in it, the number of an edge set, and the number of edges in
the log before it. It deletes the edges of that set with these node ids and this event time in
microseconds, or the node `src` where `dst` is -1. Logs of one edge set have had 0 there always, as
the upper half of `row`."""


class NodeDeletes(NamedTuple):
    """D deleted nodes in log order: int64[D] node ids, and int64[D] the number of edges in the log
    before each delete."""

    node: Int64
    edge: Int64

    def until(self, edge: int) -> "NodeDeletes":
        """The deletes that lie before the event with this id."""
        # Deletes are in log order, so their positions ascend.
        end = int(np.searchsorted(self.edge, edge, side="right"))
        return NodeDeletes(self.node[:end], self.edge[:end])


NO_DELETES = NodeDeletes(np.zeros(0, np.int64), np.zeros(0, np.int64))


Place = tuple[int, int]
"""Offset and index of an event in its partition."""


class Run(NamedTuple):
    """Consecutive events of a partition: the places of the first and the last, both included."""

    first: Place
    last: Place


@dataclass(frozen=True)
class Position:
    """Where to read on in one partition: at event `index` of the record at `offset`, without the
    events that were appended ahead of it.

    ahead: runs after the position that are in the log already, in ascending order. epoch: the
    partition's leader epoch when it was read up to here, from which Kafka detects whether it lost
    records that were read (KIP-320); -1 if unknown.
    """

    offset: int
    index: int = 0
    ahead: tuple[Run, ...] = ()
    epoch: int = -1


class Gap(NamedTuple):
    """Offsets [first, end) that Kafka no longer had; end is -1 where the partition's log was
    replaced by another one."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True)
class Progress:
    """How far Kafka was read: topic -> partition -> Position.

    cluster_id and topic_ids tell whether it is still the same Kafka.
    """

    cluster_id: str = ""
    topic_ids: dict[str, str] = field(default_factory=dict)
    positions: dict[str, dict[int, Position]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EventBatch:
    """The columns of one commit, in log order, with dense node ids.

    Shapes: E edges, L labels, F feature rows, K new keys, X deletes.

    src_E, dst_E, time_E: int64, time in microseconds and sorted. msg_ED: float32 rows of edge
    features, which say the edge set (`Schema`). label_*: int64[L], float32[L, dim]. node_F: int64,
    node_row_F: int64 row of each feature update among all rows of the commit, node_edge_F: int64
    number of edges of this commit before it, node_values: float32[F, dim]. new_keys: keys first
    seen here, in id order (None for a node that never has one). late_*: edges that got the
    watermark as their time (index among this commit's edges) with the time they came with.
    deletions_X: `DELETION` rows, `seq` still 0 and `edge` counted within the commit, as in
    node_edge_F. num_late_labels: labels that got the watermark as their time.
    """

    src_E: Int64
    dst_E: Int64
    time_E: Int64
    msg_ED: Float32
    label_node_L: Int64
    label_time_L: Int64
    label_target_L: Float32
    node_F: Int64
    node_row_F: Int64
    node_edge_F: Int64
    node_values_F: Float32
    new_keys: tuple[Key | None, ...] = ()
    late_edge: tuple[int, ...] = ()
    late_time: tuple[int, ...] = ()
    deletions_X: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, DELETION))
    num_late_labels: int = 0

    @property
    def num_edges(self) -> int:
        return len(self.src_E)

    @property
    def num_rows(self) -> int:
        return len(self.src_E) + len(self.label_node_L) + len(self.node_F) + len(self.deletions_X)


def empty_batch(schema: Schema) -> EventBatch:
    """Make a batch without rows, for commits that only move positions or the watermark."""
    # One array can serve as all columns, since it has no rows that could change.
    none = np.zeros(0, np.int64)
    return EventBatch(
        src_E=none,
        dst_E=none,
        time_E=none,
        msg_ED=np.zeros((0, schema.edge_feature_dim), np.float32),
        label_node_L=none,
        label_time_L=none,
        label_target_L=np.zeros((0, schema.label_dim), np.float32),
        node_F=none,
        node_row_F=none,
        node_edge_F=none,
        node_values_F=np.zeros((0, schema.node_feature_dim), np.float32),
    )
